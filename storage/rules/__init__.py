"""Decisions that every storage shares: appending, cursors, deduplication. Pure."""
