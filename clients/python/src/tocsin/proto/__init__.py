"""The protocol and the ledgers of a client: pure, with time and chance handed in."""
