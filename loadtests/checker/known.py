"""What the judge knows: of each message, of its latest delivery to a group, and of each key."""

from collections.abc import Iterator

from loadtests.checker.history import Attempt, Delivered


class Message:
    """What is known of one message that was sent."""

    __slots__ = ("answers", "body", "delivered", "key", "ok", "place", "producer", "queue",
                 "sent", "sequence", "unknown")  # fmt: skip

    def __init__(self, event: Attempt) -> None:
        self.body = event.body
        self.queue = event.queue
        self.key = event.key
        self.producer = event.producer
        self.sequence = event.sequence
        self.sent = 0
        self.answers = 0
        self.ok = False
        self.unknown = False
        self.delivered = False
        self.place: tuple[int, int] | None = None

    @property
    def certainly_refused(self) -> bool:
        return not self.ok and not self.unknown and self.answers == self.sent

    def __str__(self) -> str:
        return f"{self.producer} #{self.sequence} key {self.key} at {self.place}"


class Given:
    """The latest delivery of one offset to one group."""

    __slots__ = ("acked_at", "confirmed", "event", "returned", "settled_before")

    def __init__(self, event: Delivered, before: "Given | None") -> None:
        self.event = event
        self.returned = False
        self.confirmed = False
        self.acked_at = 0  # the start of the broker to which it was acked first
        self.settled_before: bool = before is not None and (
            before.confirmed or before.settled_before
        )


class Key:
    """One key in one group. `open` are the offsets given and not acked since; `acked` those whose
    ack was sent and not confirmed: the broker may have it, or have lost it with its memory.

    While m is open, a later m' of the key may come on the same stream only (one consumer, which
    runs them one after another), and not once m is known to have returned. While m is acked but
    unconfirmed, m' may come anywhere, unless it turns out that the same start of the broker had not
    settled m when it gave m': it gives m again afterwards (`suspects`).
    """

    __slots__ = ("_by_stream", "acked", "first_max", "given", "open", "partition", "returned",
                 "suspects")  # fmt: skip

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.first_max = -1
        self.given: dict[int, Given] = {}
        self.open: set[int] = set()
        self.acked: dict[int, str] = {}
        """Offset → the stream on which it was given."""
        self.returned: set[int] = set()
        """Of the acked: those that are known to have returned nevertheless."""
        self.suspects: dict[int, Delivered] = {}
        self._by_stream: dict[str, set[int]] = {}

    def ack(self, offset: int, stream: str) -> None:
        """An ack of it was sent."""
        self.open.discard(offset)
        self.acked[offset] = stream
        self._by_stream.setdefault(stream, set()).add(offset)

    def unack(self, offset: int) -> None:
        """It is settled, or given again, or open again. Not acked: nothing happens."""
        stream = self.acked.pop(offset, None)
        if stream is not None:
            self._by_stream[stream].discard(offset)
            self.returned.discard(offset)

    def acked_elsewhere(self, stream: str) -> Iterator[int]:
        """The acked that were given on another stream, or have returned. Who acks without asking
        for an answer leaves many behind; those of the stream itself are not looked at."""
        for other, offsets in self._by_stream.items():
            if other != stream:
                yield from offsets
        yield from self.returned & self._by_stream.get(stream, set())
