"""What operators see and do: describe, explain, peek, park, redrive, alerts."""
