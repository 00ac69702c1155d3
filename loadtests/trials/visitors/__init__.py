"""The trial of consumers that come and go at once, and the process that plays them."""
