"""The benchmark beside other brokers: the same work, on the same machine, in the same run.

`contest` runs it; `entrants` lists the brokers and their set-up. Each broker has a module for its
wire protocol (`nats_wire`, `stomp_wire`, `streams_wire`) and one for the clients that load it
(`nats`, `stomp`, `streams`; `clients` has what they share). `servers` starts the servers. `medians`
sums up, `report` and `pictures` show the results.
"""
