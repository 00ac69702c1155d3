"""The event loop shared fairly: the order in which work goes on, and the end of a turn."""
