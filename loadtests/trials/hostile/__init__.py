"""The trial of everybody who means harm, and the process that plays them."""
