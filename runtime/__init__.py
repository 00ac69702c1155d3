"""What every process of the server stands on, and that knows no queue."""
