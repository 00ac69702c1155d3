"""The HTTP operations, one module a theme."""
