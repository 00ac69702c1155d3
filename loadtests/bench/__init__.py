"""The benchmark: its command, its scenarios, and the load of producers and consumers they run."""
