"""The benchmark beside other brokers: the same work, on the same machine, in the same run.

`contest` runs it, `entrants` says who takes part and how each is set up; for each broker there is
what it says over the wire (`nats_wire`, `stomp_wire`, `streams_wire`), the clients that load it
(`nats`, `stomp`, `streams`; `clients` has what they share) and the server (`servers`). `medians`
sums up, `report` and `pictures` show it.
"""
