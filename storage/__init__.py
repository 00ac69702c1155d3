"""Remembers: implementations of the storage port (`push.ports.Storage`)."""
