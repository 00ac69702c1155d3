"""Tocsin without an event loop, for scripts, and for programs with threads.

    with tocsin.blocking.connect("http://127.0.0.1:8080") as client:
        client.create_queue("orders")
        client.publish("orders", {"total": 12}, key="user-7")
        with client.subscribe("orders", group="billing") as messages:
            for message in messages:
                message.ack()

The client of `tocsin.connect` runs in its own thread, with the same arguments, answers and
exceptions. Heartbeats and reconnecting continue there whatever the program does. Several threads
may use everything at once, except the iteration of a reader.
"""

from tocsin.blocking.client import Client, connect
from tocsin.blocking.subscriptions import Message, Reader, Subscription

__all__ = ["Client", "Message", "Reader", "Subscription", "connect"]
