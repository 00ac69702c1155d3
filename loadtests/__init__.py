"""Measure and break Tocsin from outside, through its protocol alone.

    bench      `tocsin bench`: the scenarios, and the load that they share
    peers      the same work done by other brokers (`python -m loadtests.peers`)
    clients    raw clients of the protocol: those that load, and those that outlive the broker
    checker    pure judges of the clients' logs
    faults     faults of brokers, machines and networks: kills, power loss, a proxy that cuts
    trials     promises, each tested on a bad day (`python -m loadtests.trials`)
    mix        users of every kind under Locust, judged (`python -m loadtests.mix`)
    swarm      tens of thousands of idle sockets (`python -m loadtests.swarm`)

Beside the rooms are the tools that all of them use: `server` starts a broker, `chromium` and `node`
find these programs, `histogram` counts durations, `plots` draws.
"""
