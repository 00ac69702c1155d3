"""How much a client may: rates, bounds, and what is shared between gateways."""
