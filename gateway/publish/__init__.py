"""Messages in: batches, commits, receipts, and the tail of each log."""
