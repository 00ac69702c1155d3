"""Faults of a broker, its machine and its network, and the soak runs that repeat them."""
