"""Measuring and breaking Tocsin from outside: the benchmark, the soak runs and their judge."""
