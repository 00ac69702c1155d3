"""The cluster manager: it elects primaries and places partitions."""
