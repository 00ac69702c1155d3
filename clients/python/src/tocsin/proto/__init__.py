"""The protocol and the ledgers of a client. They are pure: time and chance are arguments."""
