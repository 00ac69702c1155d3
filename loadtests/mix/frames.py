"""The broker's frames as far as the users of the mix care, and what is said to it. Pure."""

from collections.abc import Sequence
from typing import Final

import msgspec

from loadtests.clients.wire import offsets_of


class Failure(msgspec.Struct, gc=False):
    """Why one message of a publish was not stored."""

    code: str
    detail: str = ""
    retry: bool = False


class Given(msgspec.Struct, gc=False):
    """A message of a push."""

    key: str | None = None
    body: msgspec.Raw = msgspec.Raw()


class Verdict(msgspec.Struct, gc=False):
    """Where a reader goes on in a partition."""

    partition: int
    generation: int = 1
    verdict: str = ""
    start: int = msgspec.field(name="from", default=0)


class Frame(msgspec.Struct, gc=False):
    """Any frame of the broker; what a kind does not have stays at its default."""

    type: str
    ref: int | None = None
    code: str = ""
    detail: str = ""
    retry: bool = False
    retry_after_s: float | None = None
    reconnect_after_s: float = 0.0
    receipts: list[list[int | bool] | Failure] = []
    subscription: int = 0
    partition: int = 0
    epoch: int = 0
    push: int = 0
    offset: int = 0
    skips: list[int] = []
    offsets: list[int] = []
    next: int = -1
    gap: list[int] = []
    messages: list[Given] = []
    deliveries: list[list[int]] = []
    stale: list[list[int]] = []
    queue_id: str = ""
    positions: list[Verdict] | dict[str, list[int]] = []

    @property
    def places(self) -> Sequence[int]:
        """The offsets of a push's messages to a consumer."""
        return offsets_of(self.offset, len(self.messages), self.skips)


_ONE: Final = msgspec.json.Decoder(Frame)
_MANY: Final = msgspec.json.Decoder(list[Frame])
encode: Final = msgspec.json.Encoder().encode


def decode(message: bytes) -> list[Frame]:
    """The frames of one message. Raises msgspec.DecodeError."""
    return _MANY.decode(message) if message[:1] == b"[" else [_ONE.decode(message)]
