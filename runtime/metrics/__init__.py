"""Counters, their registry and how they are written for Prometheus."""
