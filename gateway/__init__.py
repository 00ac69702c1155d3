"""Talks: sessions over WebSocket, REST over HTTP, and the shells around the rules."""
