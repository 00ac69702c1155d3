"""The session of one client, whatever transport carries it."""
