"""Trials by programs that use the Python SDK: kills, a bad proxy, slow handlers, new transports.

`programs` are the users of the SDK, `clients` logs their frames, `trial` runs and judges them.
"""
