"""The trial of many attackers at once, and the process that plays them."""
