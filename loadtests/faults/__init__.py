"""What is done to a broker, its machine and its network, and the soak runs that repeat it."""
