"""The `tocsin` command: the client's verbs, and those that a server brings along."""
