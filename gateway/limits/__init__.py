"""Limits of clients: rates, bounds, and the shares of several gateways."""
