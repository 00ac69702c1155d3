"""The server's verbs of the `tocsin` command, one module a group."""
