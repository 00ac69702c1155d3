"""The metadata as one gateway sees it: guarded, cached, agreed with the storage."""
