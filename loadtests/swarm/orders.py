"""What the swarm's processes are told, and what they tell: a JSON object a line."""

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
