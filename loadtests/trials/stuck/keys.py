"""The clients of the trial `stuck`: how a consumer treats stuck keys, and what the broker must not
give to it. The first letter of a key determines the treatment of its messages."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

import msgspec

from loadtests.clients import wire
from loadtests.clients.load import Client, Reply, Shape

KEYS: Final = 10_000
OF_A_KIND: Final = 100
"""Number of keys that are always nacked, of keys that are parked, and of keys whose handlers
hang."""
HEALTHY, NACKED, PARKED, HUNG = b"knph"
_LETTERS: Final = {0: NACKED, 1: PARKED, 2: HUNG}
CREDIT: Final = 8_000
_LETTER_AT: Final = len(b'{"key":"')
_ENCODE: Final = msgspec.json.Encoder().encode
EXAMPLES_MAX: Final = 10


class Deck(Shape):
    """Messages whose keys are drawn like cards: each key comes once before any comes again."""

    def __init__(self, keys: int) -> None:
        """`keys`: a multiple of OF_A_KIND."""
        super().__init__(keys=keys)
        self.stuck_share = len(_LETTERS) * OF_A_KIND / keys
        """The share of stuck keys among all, and in whole decks of their messages among all."""
        self._cards: list[int] = []
        self.key_at = _LETTER_AT
        self.key_bytes = 1 + self._key_digits

    def _opening(self, key: int) -> bytes:
        letter = _LETTERS.get(key % (self.keys // OF_A_KIND), HEALTHY)
        return b'{"key":"%c%0*d","body":"' % (letter, self._key_digits, key)

    def block(self, messages: int, random: Random) -> list[bytes]:
        """Return messages like Shape.block, with keys from the deck."""
        closing = self._padding + b'"}'
        openings = [self._opening(self._draw(random)) for _ in range(messages)]
        return [openings[0], *(closing + b"," + opening for opening in openings[1:]), closing]

    def _draw(self, random: Random) -> int:
        if not self._cards:
            self._cards = random.sample(range(self.keys), self.keys)
        return self._cards.pop()

    def healthy(self, messages: int) -> int:
        """Return how many of `messages`, whole decks, are of healthy keys."""
        return messages - len(_LETTERS) * self.of_a_kind(messages)

    def of_a_kind(self, messages: int) -> int:
        """Return how many of `messages` are of stuck keys of one kind."""
        return messages * OF_A_KIND // self.keys

    def names(self, letter: int) -> list[str]:
        """Return the keys of the kind with this first letter."""
        keys = (self._opening(key) for key in range(self.keys))
        return [x[self.key_at : self.key_at + self.key_bytes].decode() for x in keys
                if x[self.key_at] == letter]  # fmt: skip


class Book:
    """The deliveries to one group, over all its consumers."""

    def __init__(self, *, stuck: bool) -> None:
        self.stuck = stuck
        """False: keys of all kinds are handled like healthy ones."""
        self.letting_go = False
        """Whether stuck messages are handled from now on."""
        self.healthy = 0
        """Number of messages of healthy keys, each counted once."""
        self.again = 0
        """Number of repeated deliveries of healthy keys; with `stuck` False, of all keys."""
        self.redelivered: Counter[int] = Counter()
        """Number of repeated deliveries of stuck keys, by kind."""
        self.let_go = 0
        self.violations: list[str] = []
        self.given: dict[int, bytearray] = {}
        """Partition → a byte for each offset: whether it was given. Offsets beyond the end never
        were."""
        self.heads: dict[bytes, int] = {}
        """Stuck key → the offset that all others of the key wait for."""
        self.came_back: set[bytes] = set()
        """Stuck keys whose head was given again. From then on no other message of them may come."""
        self.done: dict[bytes, int] = {}
        """Stuck key → the newest offset handled while letting go."""
        self.stale: Counter[tuple[int, int]] = Counter()
        self.repeats: Counter[tuple[int, int]] = Counter()
        """While letting go, for each (partition, offset): the number of acks that came too late,
        because the lease had ended, and how many more times the message was handled. The two are
        equal in the end: at-least-once delivery repeats what no ack has settled."""

    def handle(self, key: bytes, partition: int, offset: int) -> None:
        """Note that a stuck message is handled while letting go."""
        newest = self.done.get(key, -1)
        if offset == newest:
            self.repeats[partition, offset] += 1
            return
        if offset < newest:
            self.violated(f"{offset} of {key!r} was given behind {newest} (P3)")
        self.done[key] = offset
        self.let_go += 1

    @property
    def is_let_go(self) -> bool:
        """Whether each message whose ack came too late was handled again, and no other one was."""
        return self.stale == self.repeats

    def violated(self, why: str) -> None:
        """Note a violation, unless EXAMPLES_MAX are noted already."""
        if len(self.violations) < EXAMPLES_MAX:
            self.violations.append(why)

    def give(self, partition: int, first: int, last: int, skips: Sequence[int]) -> bool:
        """Note the messages of a push and return True if they are beyond all that was given of the
        partition before. Otherwise note nothing and return False; `give_one` then notes each
        message."""
        given = self.given.setdefault(partition, bytearray())
        if first < len(given):
            return False
        given.extend(bytes(first - len(given)))
        given.extend(b"\1" * (last - first + 1))
        for skip in skips:
            given[skip] = 0
        return True

    def give_one(self, partition: int, offset: int) -> bool:
        """Note one message of a push for which `give` returned False. True if the message was never
        given before."""
        given = self.given[partition]
        fresh = not given[offset]
        given[offset] = 1
        return fresh


class Handler(Client):
    """A consumer that treats each kind of key as the trial says. It acks healthy messages at once,
    with confirmation. `go` and `pause` turn its granting of credit on and off."""

    def __init__(self, name: str, deck: Deck, book: Book) -> None:
        super().__init__(name)
        self._deck = deck
        self._book = book
        self.settled = 0
        """Number of messages of healthy keys whose ack was confirmed."""
        self.nacked = 0
        self.held: dict[tuple[int, int, int, int], bytes] = {}
        """(partition, epoch, push, offset) of a delivery that hangs, or waits to be revoked →
        key."""
        self._granted = 0
        self._freed = CREDIT
        self._going = False
        self._acks: list[list[int]] = []
        self._nacks: list[list[int]] = []
        self._healthy = 0
        self._acking: dict[int, int] = {}
        self.on_settled: Callable[[], None] | None = None

    async def subscribe(self, queue: str, group: str) -> None:
        """Join the group, without credit."""
        await self.ask(type="subscribe", subscription=1, queue=queue, group=group, credit=0)

    @property
    def unanswered(self) -> int:
        """Number of acks that are not confirmed yet."""
        return len(self._acking)

    def go(self) -> None:
        """Grant the free credit now and whenever more is free, until `pause`."""
        self._going = True
        self._turn()

    def pause(self) -> None:
        """Grant no more credit."""
        self._going = False

    # --- received frames

    def _push(self, data: bytes) -> None:
        head, start, end = wire.open_push(data)
        stride = self._deck.message_bytes + 1
        count, rest = divmod(end - start + 1, stride)
        if rest:
            self._fail(f"a push whose messages were not sent by us: {data[:400]!r}")
            return
        kinds = data[start + _LETTER_AT : end : stride]
        book, place = self._book, [head.partition, head.epoch, head.push]
        healthy = kinds.count(HEALTHY)
        first, last = head.offset, head.offset + count + len(head.skips) - 1
        ahead = book.give(head.partition, first, last, head.skips)
        if ahead and (healthy == count or not book.stuck):
            book.healthy += healthy
            self._healthy += healthy
            self._freed += count
            self._acks.append([*place, first, last])
            return
        acks, places = list(place), head.places(count)
        for index, kind in enumerate(kinds):
            offset = places[index]
            fresh = ahead or book.give_one(head.partition, offset)
            if kind == HEALTHY or not book.stuck:
                book.healthy += fresh and kind == HEALTHY
                book.again += not fresh
                self._healthy += fresh and kind == HEALTHY
                self._ack(acks, offset)
            else:
                at = start + index * stride + _LETTER_AT
                key = data[at : at + self._deck.key_bytes]
                self._stuck(kind, key, (*place, offset), fresh, acks)  # type: ignore[arg-type]
        if len(acks) > len(place):
            self._acks.append(acks)

    def _ack(self, acks: list[int], offset: int) -> None:
        self._freed += 1
        if len(acks) > 3 and acks[-1] == offset - 1:
            acks[-1] = offset
        else:
            acks += [offset, offset]

    def _stuck(
        self, kind: int, key: bytes, place: tuple[int, int, int, int], fresh: bool, acks: list[int]
    ) -> None:
        book, offset = self._book, place[3]
        book.redelivered[kind] += not fresh
        if kind == PARKED:
            book.violated(f"a message of the parked key {key!r} was given: {place}")
            return
        if book.letting_go:
            book.handle(key, place[0], offset)
            self._ack(acks, offset)
            return
        head = book.heads.setdefault(key, offset)
        if offset == head:
            if not fresh:
                book.came_back.add(key)
        elif offset < head or key in book.came_back:
            book.violated(f"{place} of {key!r} was given while {head} awaits its retry (R17)")
        if kind == NACKED and offset == head:
            self._nacks.append([*place, offset])
            self.nacked += 1
            self._freed += 1
        else:
            self.held[place] = key

    def _reply(self, data: bytes) -> None:
        if data.startswith(b'{"type":"revoked"'):
            for partition, epoch, push, *ranges in _REVOKED.decode(data).deliveries:
                for first, last in zip(ranges[::2], ranges[1::2], strict=True):
                    for offset in range(first, last + 1):
                        # Healthy messages that are revoked were acked already, and freed their
                        # credit then.
                        if self.held.pop((partition, epoch, push, offset), None) is not None:
                            self._freed += 1
        else:
            super()._reply(data)

    # --- sent frames

    def let_go(self) -> None:
        """Handle and ack the messages that this consumer holds."""
        for place, key in sorted(self.held.items(), key=lambda item: item[0][3]):
            self._book.handle(key, place[0], place[3])
            self._freed += 1
            self._acks.append([*place, place[3]])
        self.held.clear()
        self._turn()

    def _turn(self) -> None:
        frames: list[bytes] = []
        for first in range(0, len(self._acks), 1000):
            ref, some = self._next_ref(), self._acks[first : first + 1000]
            self._acking[ref] = self._healthy if not first else 0
            ack = {"type": "ack", "subscription": 1, "deliveries": some, "ref": ref}
            frames.append(_ENCODE(ack))
        if self._nacks:
            nack = {"type": "nack", "subscription": 1, "deliveries": self._nacks}
            frames.append(_ENCODE(nack))
        if self._acks:
            self._healthy = 0
        self._acks, self._nacks = [], []
        if self._going and self._freed >= CREDIT // 8:
            self._granted += self._freed
            self._freed = 0
            frames.append(b'{"type":"credit","subscription":1,"granted":%d}' % self._granted)
        self.wire.send_all(frames)
        if self.on_settled is not None:
            self.on_settled()

    def _answered(self, ref: int, reply: Reply, data: bytes) -> None:
        healthy = self._acking.pop(ref, None)
        if healthy is None:
            super()._answered(ref, reply, data)
            return
        self.settled += healthy
        if self._book.letting_go:
            for partition, _epoch, _push, *ranges in reply.stale:
                for first, last in zip(ranges[::2], ranges[1::2], strict=True):
                    self._book.stale.update((partition, at) for at in range(first, last + 1))


class _Push(msgspec.Struct, gc=False):
    partition: int
    epoch: int
    push: int
    offset: int
    messages: list[msgspec.Raw]


class Nacker(Client):
    """A consumer that nacks everything."""

    def _push(self, data: bytes) -> None:
        push = msgspec.json.decode(data, type=_Push)
        last = push.offset + len(push.messages) - 1
        delivery = [push.partition, push.epoch, push.push, push.offset, last]
        nack = {"type": "nack", "subscription": 1, "deliveries": [delivery]}
        self.wire.send(msgspec.json.encode(nack))


class _Revoked(msgspec.Struct, gc=False):
    deliveries: list[list[int]]


_REVOKED: Final = msgspec.json.Decoder(_Revoked)


@dataclass
class Turns:
    """The results of one group's turns, added up. `messages` are the healthy ones."""

    messages: int = 0
    seconds: float = 0.0
    cpu_s: float = 0.0

    @property
    def rate(self) -> float:
        """Healthy messages a second."""
        return self.messages / self.seconds if self.seconds else 0.0

    @property
    def cpu_us(self) -> float:
        """Server CPU per healthy message, in microseconds."""
        return self.cpu_s / self.messages * 1e6 if self.messages else 0.0


@dataclass
class Crew:
    """The consumers of one group, and what they have done."""

    group: str
    book: Book
    total: int
    """Number of messages of healthy keys that the group must receive."""
    handlers: list[Handler] = field(default_factory=list)
    turns: Turns = field(default_factory=Turns)

    @property
    def settled(self) -> int:
        """Number of messages of healthy keys whose ack was confirmed."""
        return sum(handler.settled for handler in self.handlers)

    @property
    def finished(self) -> bool:
        """Whether the group has received all `total` messages, and every ack is confirmed."""
        return self.book.healthy >= self.total and not any(h.unanswered for h in self.handlers)

    def clients(self) -> list[Client]:
        return list(self.handlers)
