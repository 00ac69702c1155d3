"""The live demo: a client that ships with the server."""
