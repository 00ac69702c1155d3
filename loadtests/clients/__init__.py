"""Clients of the protocol, written for speed and for logs rather than for users.

`wire` is the WebSocket, `rest` the HTTP/1.1 connection, `load` the clients that only load a broker.

There are three kinds of clients that outlive their broker, because three things are tested:

    raw       `survivors`, `pullers`, `surviving_reader` here: they log every frame that comes over
              the socket (`recorder`), reconnect by themselves and know nothing of the SDK. Soak
              runs and chaos rounds use them: a bug of the SDK cannot hide one of the broker.
    SDK       `loadtests.trials.sdk`: programs that use the Python SDK as its users do, whose frames
              are logged beside the results of the SDK. They test the SDK and the broker together.
    Locust    `loadtests.mix`: blocking users in greenlets that keep ledgers instead of logs, for
              runs too long and too large to log every frame.
"""
