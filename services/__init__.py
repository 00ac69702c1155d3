"""The processes that are no gateways."""
