"""The admin socket: its server, and the client that commands use."""
