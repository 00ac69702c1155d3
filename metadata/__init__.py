"""Knows: which queues and groups exist, their settings, and the members of each group."""
