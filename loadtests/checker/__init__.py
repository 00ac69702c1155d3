"""Judges of runs. Pure: each reads what clients logged and names every promise that was broken.

`history` turns logged frames into events. `judge` looks at one broker, `checker` with `causes` at
several gateways under faults, `sessions` at sessions that change their transport, `sdk_history` at
what programs that use the SDK were told. All report into one `verdict`.

What the order of events over several sockets cannot prove is not called a violation.
"""
