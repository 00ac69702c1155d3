"""The messages between the launcher and the processes of a swarm, and the assignment of sockets.
Pure.

Launcher and processes exchange a JSON object a line. `processes`, `shares` and `addresses` compute
how many processes a swarm needs, and the sockets and addresses of each.
"""

import math
from typing import Final

import msgspec


class Order(msgspec.Struct, frozen=True, omit_defaults=True):
    """An order to a process, which answers each with one News, in order."""

    do: str
    """`open`: connect `sockets`. `cut`: break this many at once, and connect them again. `expect`:
    wait until each has received `given` messages. `close`: leave."""
    sockets: int = 0
    at_once: int = 64
    """Number of connections that are made at the same time."""
    given: int = 0
    timeout_s: float = 60.0


class News(msgspec.Struct, frozen=True):
    """A process's answer to an order."""

    standing: int
    """Number of sockets that are open and subscribed after the order."""
    took_s: float
    buckets: list[tuple[int, int]] = []
    """The times that sockets took to open for this order, in nanoseconds, in the form for
    `Histogram.of`."""
    total_ns: int = 0
    maximum_ns: int = 0
    missing: int = 0
    """Number of sockets that did not receive the expected messages."""
    repeated: int = 0
    """Number of messages that sockets received beyond the expected ones."""
    lost: int = 0
    """Number of sockets that ended without being closed by this process, since the beginning."""
    tries: int = 0
    """Number of failed attempts to connect, since the beginning."""
    error: str = ""
    """The reason of the latest lost socket or failed attempt; empty if none."""


class Post(msgspec.Struct, frozen=True):
    """The assignment of a process, sent once, before the first order."""

    number: int
    urls: list[str]
    token: str | None
    queue: str
    addresses: list[str]
    body_bytes: int


encode: Final = msgspec.json.Encoder().encode
decode_order: Final = msgspec.json.Decoder(Order).decode
decode_news: Final = msgspec.json.Decoder(News).decode
decode_post: Final = msgspec.json.Decoder(Post).decode


FILES_SPARE: Final = 500
"""Number of open files that a process may need beyond its sockets."""
PER_PROCESS_MAX: Final = 15_000
"""The most sockets of one process. A process may have 20,000 files open unless that was raised."""
PER_ADDRESS: Final = 8_000
"""The most sockets of one address. An address has some 28,000 ports, and a closed one is not free
for a minute. So two storms of all sockets fit within that minute."""
ADDRESSES_MAX: Final = 254


def processes(sockets: int) -> int:
    """Return the number of processes for this many sockets; at least two, so that one core of the
    generator is never the limit."""
    return max(2, math.ceil(sockets / PER_PROCESS_MAX))


def shares(many: int, parts: int) -> list[int]:
    """Split the number `many` into `parts` numbers, as evenly as possible."""
    return [many // parts + (part < many % parts) for part in range(parts)]


def addresses(process: int, sockets: int) -> list[str]:
    """Return the addresses of this machine that a process connects from: 127.0.<process + 1>.1 and
    following. No two processes share one.

    Raises:
        ValueError: there are not enough; take more processes.
    """
    many = max(1, math.ceil(sockets / PER_ADDRESS))
    if process >= ADDRESSES_MAX or many > ADDRESSES_MAX:
        raise ValueError(f"{sockets} sockets in process {process} are too many for 127.0.0.0/16")
    return [f"127.0.{process + 1}.{number + 1}" for number in range(many)]
