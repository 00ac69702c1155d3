"""The client of a program, its publisher, subscriptions and readers, and calls over HTTP."""
