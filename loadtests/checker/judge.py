"""The judge of a history: was anything lost, invented, altered, reordered, or given after its ack?
Pure.

In the manner of Jepsen's total-queue and Kafka checkers, it uses only what the clients sent and
received. Bodies are unique, so a body names its message. The judge reports no violation that the
order of events over several sockets cannot prove; see `Key`.

It keeps a record of each message, of its latest delivery to a group, and of each key.
"""

from collections.abc import Iterable, Iterator

from loadtests.checker.history import (  # fmt: skip
    Acked,
    Answered,
    Attempt,
    Confirmed,
    Delivered,
    Event,
    Interpreter,
    Line,
    Revoked,
)
from loadtests.checker.verdict import Verdict


class Message:
    """The record of one message that was sent."""

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
        self.acked_at = 0  # the start of the broker that received its first ack
        self.settled_before: bool = before is not None and (
            before.confirmed or before.settled_before
        )


class Key:
    """A key in a group. `open` are the offsets given and not acked since. `acked` are those whose
    ack was sent and not confirmed: the broker may have the ack, or have lost it with its memory.

    Let m be an earlier message of the key, and n a later one. While m is open, n may come only on
    the stream on which m came (one consumer, which runs them one after another), and not at all
    once m is known to have returned. While m is acked and unconfirmed, n may come on any stream. If
    the broker has settled m by then, that is right, otherwise it is a violation. Only a later
    repetition of m by the same start of the broker proves that m was not settled. Until then n is
    kept in `suspects`.
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
        """Offsets in `acked` whose delivery is known to have been revoked after the ack was
        sent."""
        self.suspects: dict[int, Delivered] = {}
        self._by_stream: dict[str, set[int]] = {}

    def ack(self, offset: int, stream: str) -> None:
        """Note that an ack of an offset was sent."""
        self.open.discard(offset)
        self.acked[offset] = stream
        self._by_stream.setdefault(stream, set()).add(offset)

    def unack(self, offset: int) -> None:
        """Remove an offset from `acked`, because it is settled, given again, or open again. Does
        nothing if the offset was not acked."""
        stream = self.acked.pop(offset, None)
        if stream is not None:
            self._by_stream[stream].discard(offset)
            self.returned.discard(offset)

    def acked_elsewhere(self, stream: str) -> Iterator[int]:
        """Yield the acked offsets that were given on a stream other than this one, and those given
        on this one that have returned. The other ones of this stream are skipped, because a client
        that acks without asking for an answer leaves many of them."""
        for other, offsets in self._by_stream.items():
            if other != stream:
                yield from offsets
        yield from self.returned & self._by_stream.get(stream, set())


class Judge:
    """The judge: it takes the events of all clients in order of time, then gives its verdict."""

    def __init__(self, groups: Iterable[str], *, store_fails: bool = False) -> None:
        """`groups`, as "queue/group", must receive every message of their queue. `store_fails`: an
        ack that was not confirmed may be forgotten even if no broker ends."""
        self._groups = list(groups)
        self._store_fails = store_fails
        self._verdict = Verdict(drained=False)
        self._bodies: dict[bytes, Message] = {}
        self._sequences: dict[tuple[str, int], Message] = {}
        self._places: dict[tuple[str, int, int], Message] = {}
        self._keys: dict[tuple[str, str | None], Key] = {}
        self._deliveries: dict[str, tuple[Key, int]] = {}
        self._pending: dict[str, Acked] = {}
        self._epochs: dict[tuple[str, int, int], str] = {}

    def see(self, event: Event) -> None:
        """Take the next event."""
        match event:
            case Delivered():
                self._delivered(event)
            case Attempt():
                self._attempt(event)
            case Answered():
                self._answered(event)
            case Acked():
                self._acked(event)
            case Confirmed():
                self._confirmed(event)
            case Revoked():
                for name in event.by:
                    self._revoked(name)

    # --- publishing

    def _attempt(self, event: Attempt) -> None:
        message = self._sequences.get((event.producer, event.sequence))
        if message is None:
            message = Message(event)
            if event.body in self._bodies:
                raise ValueError(f"two messages with one body cannot be told apart: {event}")
            self._bodies[event.body] = message
            self._sequences[event.producer, event.sequence] = message
        elif (message.body, message.key) != (event.body, event.key):
            raise ValueError(f"a sequence was used for two messages: {event}")
        message.sent += 1

    def _answered(self, event: Answered) -> None:
        message = self._sequences[event.producer, event.sequence]
        message.answers += 1
        self._verdict.counts[f"answers {event.outcome}"] += 1
        if event.outcome == "ok":
            message.ok = True
            self._stored(message, event.partition, event.offset, "its receipt")
        elif event.outcome == "unknown":
            message.unknown = True

    def _stored(self, message: Message, partition: int, offset: int, says: str) -> None:
        place = (partition, offset)
        if message.place is None:
            message.place = place
        elif message.place != place:
            self._verdict.flag("stored_twice", f"{message}; {says} says {place}")
        other = self._places.setdefault((message.queue, *place), message)
        if other is not message:
            self._verdict.flag("shared_place", f"{message} and {other}; {says} says {place}")

    # --- delivering

    def late(self, event: Delivered) -> bool:
        """Note a delivery by a former owner that was seen after a delivery by its successor. Its
        socket was slow, or its gateway had not learned of the successor. Such a delivery says
        nothing about the order, and a client that compares epochs discards it. Return whether its
        message had been settled by a confirmed ack."""
        self._verdict.counts["delivered late"] += 1
        if self._known(event) is None:
            return False
        key = self._keys.get((event.group, event.key))
        given = key.given.get(event.offset) if key is not None else None
        return given is not None and given.confirmed

    def _known(self, event: Delivered) -> Message | None:
        """Return the message that was given. If no such message exists, flag that and return
        None."""
        queue = event.group.partition("/")[0]
        return self.read(queue, event.partition, event.offset, event.key, event.body)

    def read(
        self, queue: str, partition: int, offset: int, key: str | None, body: bytes
    ) -> Message | None:
        """Note that a group or a reader received a message, and return it. If no such message
        exists, flag that and return None."""
        message = self._bodies.get(body)
        where = f"in {partition}:{offset} of {queue}"
        if message is None or message.queue != queue:
            meant = self._places.get((queue, partition, offset))
            kind = "invented" if meant is None else "altered"
            self._verdict.flag(kind, f"{body[:80]!r} {where}; known there: {meant}")
            return None
        if message.key != key:
            self._verdict.flag("altered", f"{message}; given with key {key}")
        message.delivered = True
        self._stored(message, partition, offset, "a delivery")
        return message

    def _delivered(self, event: Delivered) -> None:
        self._verdict.counts["delivered"] += 1
        message = self._known(event)
        if message is None:
            return
        key = self._keys.setdefault((event.group, event.key), Key(event.partition))
        if event.key is not None and key.partition != event.partition:
            self._verdict.flag("key_moved", f"{message}; its key was in {key.partition}")
            return
        self._epoch(event)
        if event.key is None:  # no order is promised; the other checks need a record of their own
            key = self._keys.setdefault((event.group, f"\0{event.by}"), Key(event.partition))
        self._order(key, event, message)
        key.given[event.offset] = Given(event, key.given.get(event.offset))
        key.open.add(event.offset)
        key.unack(event.offset)
        self._deliveries[event.by] = (key, event.offset)

    def _epoch(self, event: Delivered) -> None:
        if not event.epoch:
            return
        owner = self._epochs.setdefault((event.group, event.partition, event.epoch), event.session)
        if owner != event.session:
            self._verdict.flag("epoch_shared", f"{_where(event)}: {owner} and {event.session}")

    def _order(self, key: Key, event: Delivered, message: Message) -> None:
        before = key.given.get(event.offset)
        if before is None:
            self._verdict.counts["delivered first"] += 1
            if event.offset < key.first_max:
                self._verdict.flag("first_order", f"{message} behind {key.first_max}")
            key.first_max = max(key.first_max, event.offset)
        else:
            self._again(key, before, event, message)
        for offset in key.open:
            earlier = key.given[offset]
            if offset < event.offset and (earlier.event.stream != event.stream or earlier.returned):
                self._verdict.flag(
                    "overtaken",
                    f"{message} {_where(event)} before offset {offset}, last "
                    f"{_where(earlier.event)}{', returned' if earlier.returned else ''}",
                )
        for offset in key.acked_elsewhere(event.stream):
            if offset < event.offset:
                key.suspects[offset] = event

    def _again(self, key: Key, before: Given, event: Delivered, message: Message) -> None:
        acked = event.offset in key.acked
        self._verdict.counts["redelivered, ack unconfirmed" if acked else "redelivered"] += 1
        if before.confirmed:
            self._verdict.flag(
                "given_after_ack", f"{message} {_where(event)}, acked {_where(before.event)}"
            )
        old, new = (before.event.epoch, before.event.push), (event.epoch, event.push)
        if before.event.by == event.by or (all(old) and event.epoch and new <= old):
            self._verdict.flag("number_reused", f"{message}: {new} after {old}")
        suspect = key.suspects.pop(event.offset, None)
        if suspect is not None and suspect.server == event.server:
            if self._store_fails and suspect.epoch != event.epoch:
                self._verdict.counts["overtaken, ack unconfirmed"] += 1
                return
            self._verdict.flag(
                "overtaken",
                f"{message} {_where(event)} behind offset {suspect.offset} {_where(suspect)}",
            )

    # --- settling

    def _acked(self, event: Acked) -> None:
        self._pending[event.ref] = event
        for name in () if event.returned else event.by:
            if name not in self._deliveries:
                continue  # confirmed before, or never given to this client: its answer will say so
            key, offset = self._deliveries[name]
            given = key.given[offset]
            if given.event.by == name:
                key.ack(offset, given.event.stream)
                given.acked_at = given.acked_at or event.server

    def _confirmed(self, event: Confirmed) -> None:
        acked = self._pending.pop(event.ref, None)
        if acked is None:
            return  # the answer to another frame: a subscribe, a credit
        stale = set(event.stale)
        for name in acked.by:
            if name in stale and self._acked_before(name, acked.server):
                self._revoked(name)
            elif name in stale or acked.returned:
                self._return(name)
            elif name in self._deliveries:
                key, offset = self._deliveries.pop(name)
                self._verdict.counts["acks confirmed"] += 1
                key.given[offset].confirmed = True
                key.unack(offset)
                key.open.discard(offset)

    def _acked_before(self, name: str, server: int) -> bool:
        """Whether the first ack of a delivery was sent to another start of the broker than
        `server`, which may therefore not know of that ack."""
        key, offset = self._deliveries.get(name, (None, 0))
        return key is not None and key.given[offset].acked_at not in (0, server)

    def _revoked(self, name: str) -> None:
        """Note that a delivery was revoked. An ack on its way may still count (R21); its answer, or
        a redelivery, shows whether it did."""
        if name in self._deliveries:
            key, offset = self._deliveries[name]
            if offset in key.acked and key.given[offset].event.by == name:
                key.given[offset].returned = True
                key.returned.add(offset)
            else:
                self._return(name)

    def _return(self, name: str) -> None:
        """Note that a delivery has ended unsettled; its message awaits a retry, or has had it."""
        if name in self._deliveries:
            key, offset = self._deliveries[name]
            given = key.given[offset]
            if given.event.by == name and not given.confirmed:
                given.returned = True
                key.unack(offset)
                key.open.add(offset)

    # --- the end

    def acknowledged(self) -> Iterator[tuple[str, int, int]]:
        """Yield (queue, partition, offset) of every message that its producer has a receipt of."""
        for message in self._bodies.values():
            if message.ok and message.place is not None:
                yield (message.queue, *message.place)

    def verdict(self, *, drained: bool) -> Verdict:
        """Give the verdict. `drained`: the groups went on until nothing was left to give. Only then
        does a missing message count as lost."""
        verdict = self._verdict
        verdict.drained = drained
        given = {
            (group, given.event.partition, offset)
            for (group, _), key in self._keys.items()
            for offset, given in key.given.items()
        }
        for message in self._bodies.values():
            verdict.counts["sent"] += 1
            verdict.counts["acknowledged"] += message.ok
            if message.delivered and not message.ok:
                verdict.counts["recovered"] += 1
                if message.certainly_refused:
                    verdict.flag("refused_given", str(message))
            if message.ok and drained:
                for group in self._groups:
                    if group.startswith(f"{message.queue}/") and (
                        (group, *(message.place or (-1, -1))) not in given
                    ):
                        verdict.flag("lost", f"{message} to {group}")
        if drained:
            self._not_returned()
        self._sending_order()
        return verdict

    def _not_returned(self) -> None:
        for (group, _), key in self._keys.items():
            for offset in key.open:
                given = key.given[offset]
                place = (group.partition("/")[0], given.event.partition, offset)
                message = self._places[place]
                # Without a receipt the drain did not wait for it, and the run may have ended
                # before.
                if message.ok and not given.settled_before:
                    self._verdict.flag("not_returned", f"{message} {_where(given.event)}")

    def _sending_order(self) -> None:
        last: dict[tuple[str, str, str], Message] = {}
        for message in sorted(self._bodies.values(), key=lambda m: (m.producer, m.sequence)):
            if message.key is None or message.place is None:
                continue
            line = (message.queue, message.producer, message.key)
            before = last.get(line)
            if before is not None and before.place and before.place[1] > message.place[1]:
                self._verdict.flag("sending_order", f"{message} before {before}")
            last[line] = message


def _where(event: Delivered) -> str:
    epoch = f" under ({event.epoch}, {event.push})" if event.epoch else ""
    return f"in {event.partition}:{event.offset} on {event.stream}, start {event.server}{epoch}"


def judge(lines: Iterable[Line], groups: Iterable[str], *, drained: bool) -> Verdict:
    """Return the verdict over whole logs, merged by time. Raises history.Unreadable."""
    interpreter, bench = Interpreter(), Judge(groups)
    for line in lines:
        for event in interpreter.events(line):
            bench.see(event)
    return bench.verdict(drained=drained)
