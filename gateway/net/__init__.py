"""Connections: WebSockets, long polls, the handshake, and all that are open."""
