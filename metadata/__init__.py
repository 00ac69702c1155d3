"""Knows: which queues and groups exist, their settings, and who is a member of what."""
