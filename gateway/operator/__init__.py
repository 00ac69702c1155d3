"""Operators' views and acts: describe, explain, peek, park, redrive, alerts."""
