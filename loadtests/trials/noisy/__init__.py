"""The trial of one flooded queue beside a calm one, and the process that floods."""
