"""The `tocsin` command: the client's verbs, and those that an installed server adds."""
