"""Trials of credentials: the end of one ends what it let in, and wrong ones learn nothing."""
