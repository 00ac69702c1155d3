"""Storage and catalog: opened, marked, backed up, restored."""
