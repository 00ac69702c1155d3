"""What is written down: usage, minute by minute, and the audit trail."""
