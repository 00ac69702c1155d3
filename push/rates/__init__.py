"""Token buckets: of one gateway, and shared among several. Pure."""
