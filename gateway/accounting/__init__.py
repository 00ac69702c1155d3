"""Accounting: usage, minute by minute, and the audit trail."""
