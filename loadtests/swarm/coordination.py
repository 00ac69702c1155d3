"""The processes of a swarm: what they are told and tell, and how sockets are dealt out. Pure.

Launcher and processes exchange a JSON object a line. `processes`, `shares` and `addresses` say how
many processes a swarm needs and which sockets and addresses each of them has.
"""

import math
from typing import Final

import msgspec


class Order(msgspec.Struct, frozen=True, omit_defaults=True):
    """To a process; it answers each with one News, in order."""

    do: str
    """`open`: connect `sockets`. `cut`: break so many, at once, and be back. `expect`: wait until
    each has been given `given` messages. `close`: leave."""
    sockets: int = 0
    at_once: int = 64
    """Connections that are being made at the same time."""
    given: int = 0
    timeout_s: float = 60.0


class News(msgspec.Struct, frozen=True):
    """From a process, in answer to an order."""

    standing: int
    """Sockets that are subscribed."""
    took_s: float
    buckets: list[tuple[int, int]] = []
    """Of how long each socket took, as `Histogram.of` wants it (nanoseconds)."""
    total_ns: int = 0
    maximum_ns: int = 0
    missing: int = 0
    """Sockets that were not given what was expected."""
    repeated: int = 0
    """Messages that came to a socket beyond that."""
    lost: int = 0
    """Sockets that ended without being asked to, since the beginning."""
    tries: int = 0
    """Connections that were not made at the first try, since the beginning."""
    error: str = ""
    """The last reason for either."""


class Post(msgspec.Struct, frozen=True):
    """Where a process is and what it is to use, once, before the first order."""

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
"""Of a process, beside its sockets."""
PER_PROCESS_MAX: Final = 15_000
"""A process may have 20,000 files open where nobody has raised that."""
PER_ADDRESS: Final = 8_000
"""There are some 28,000 ports for an address, and one that was closed is not free for a minute:
two storms of all sockets within that minute fit."""
ADDRESSES_MAX: Final = 254


def processes(sockets: int) -> int:
    """So many it takes; two at least, so that it is never one core that is measured."""
    return max(2, math.ceil(sockets / PER_PROCESS_MAX))


def shares(many: int, parts: int) -> list[int]:
    """`many`, dealt out as evenly as it goes."""
    return [many // parts + (part < many % parts) for part in range(parts)]


def addresses(process: int, sockets: int) -> list[str]:
    """Those of this machine that a process's sockets come from: 127.0.<process + 1>.1 and on. No
    two processes have one in common.

    Raises:
        ValueError: there are not as many; take more processes.
    """
    many = max(1, math.ceil(sockets / PER_ADDRESS))
    if process >= ADDRESSES_MAX or many > ADDRESSES_MAX:
        raise ValueError(f"{sockets} sockets in process {process} are too many for 127.0.0.0/16")
    return [f"127.0.{process + 1}.{number + 1}" for number in range(many)]
