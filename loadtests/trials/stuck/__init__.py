"""The trial of stuck keys: at a consumer, on the whole path, and with handlers that hang."""
