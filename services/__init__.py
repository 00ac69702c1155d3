"""Processes other than gateways."""
