"""Foundations of every process of the server; nothing here knows of queues."""
