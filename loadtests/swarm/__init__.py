"""Tens of thousands of mostly silent sockets, from several processes of one machine."""
