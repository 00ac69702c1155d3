"""The event loop shared fairly: who may go on, and what ends a turn."""
