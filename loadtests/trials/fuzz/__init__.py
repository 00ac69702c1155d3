"""Trials of input that is nearly right: frames and requests, and requests made from OpenAPI."""
