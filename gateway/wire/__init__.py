"""The protocol without sockets: frames, the protocol's states, WebSocket framing. Pure."""
