"""Carriers of a client's frames and calls: sockets, requests, TLS, and the session over them."""
