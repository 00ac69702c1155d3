"""One client's conversation, whatever carries it."""
