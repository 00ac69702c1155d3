"""The catalog as a service of its own: nodes, the ring of their shards, the client."""
