"""Judges of runs. Pure. Each reads what clients logged and names every broken promise.

`history` turns logged frames into events. `judge` judges one broker, `checker` with `causes`
several gateways under faults, `sessions` sessions that change their transport, `sdk_history` the
results that the SDK gave to programs. All report into one `verdict`.

A judge reports no violation that the order of events over several sockets cannot prove.
"""
