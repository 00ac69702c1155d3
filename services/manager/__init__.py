"""The manager: which servers could be elected, where partitions go, and its leadership."""
