"""Remembers: implementations of the storage port (`push.storage_port.Storage`)."""
