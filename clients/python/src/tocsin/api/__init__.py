"""The client that a program holds, its publisher, subscriptions, readers, and calls over HTTP."""
