"""The process of one node of the metadata service."""
