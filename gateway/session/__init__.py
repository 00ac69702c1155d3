"""Conversation with one client, whatever carries it."""
