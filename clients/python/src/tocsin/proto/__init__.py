"""The protocol and the ledgers of a client: pure, told the time by the shells around them."""
