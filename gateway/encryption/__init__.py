"""Payloads at rest: the master key, data keys and their rotation."""
