"""The decisions of a cluster manager. Pure."""
