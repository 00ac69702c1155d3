"""Trials of credentials: the end of a credential ends its sessions, and answers to wrong ones
reveal nothing."""
