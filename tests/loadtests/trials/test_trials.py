"""The trials' own eyes: what must not happen turns a finding red."""

import asyncio
import json
import re
from random import Random

import pytest

from loadtests.clients.wire import Wire, split
from loadtests.server import Process
from loadtests.trials.churn import Gaps
from loadtests.trials.stalled.sockets import Follower
from loadtests.trials.stuck.keys import HEALTHY, KEYS, NACKED, Book, Deck, Handler
from loadtests.trials.trial import Finding, Memory

DECK = Deck(KEYS)


class Line(asyncio.Transport):
    """Where a client's frames end up."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()

    def write(self, data: bytes) -> None:  # type: ignore[override]
        self.written += data

    def is_closing(self) -> bool:
        return False


def push(offset: int, *names: str, number: int = 1, deck: Deck = DECK) -> bytes:
    """A push of messages of these keys, as the broker writes it."""
    head = json.dumps({"type": "push", "subscription": 1, "partition": 0, "epoch": 1,
                       "push": number, "offset": offset}, separators=(",", ":"))  # fmt: skip
    body = "x" * (deck.body_bytes - 2)
    messages = ",".join(f'{{"key":"{name}","body":"{body}"}}' for name in names)
    return f'{head[:-1]},"messages":[{messages}]}}'.encode()


def connected(client: Handler | Follower) -> Line:
    line = Line()
    client.wire = Wire(client._message, client._turn)
    client.wire.transport = line
    return line


def frames(line: Line) -> list[dict[str, object]]:
    """Return what a client has sent."""
    data, found = bytes(line.written), []
    while data:
        size, start = data[1] & 0x7F, 6
        if size == 126:
            size, start = int.from_bytes(data[2:4], "big"), 8
        found += [json.loads(frame) for frame in split(data[start : start + size])]
        data = data[start + size :]
    line.written.clear()
    return found


@pytest.fixture
async def handler() -> Handler:
    """In the group in which keys are stuck."""
    handler = Handler("h", DECK, Book(stuck=True))
    connected(handler)
    return handler


def test_a_deck_has_every_key_once_and_one_of_a_hundred_of_each_stuck_kind() -> None:
    deck = Deck(KEYS)
    keys = b"".join(b"".join(deck.block(500, Random(1))) for _ in range(KEYS // 500))
    names = re.findall(rb'"key":"([knph]\d+)"', keys)
    assert len(names) == len(set(names)) == KEYS
    for letter in "nph":
        assert keys.count(b'"key":"%b' % letter.encode()) == KEYS // 100
        assert len(set(deck.names(ord(letter)))) == KEYS // 100


async def test_what_is_healthy_is_acked_and_counted_once(handler: Handler) -> None:
    handler._message(push(0, "k0003", "k0004"))
    handler._message(push(1, "k0004", number=2))
    assert (handler._book.healthy, handler._book.again) == (2, 1)
    handler._turn()
    handler._message(b'{"type":"ok","ref":1,"settled":3}')
    assert handler.settled == 2
    assert not handler._book.violations


async def test_a_nacked_key_is_nacked_again_while_nothing_else_of_it_comes(
    handler: Handler,
) -> None:
    line = connected(handler)
    handler._message(push(0, "n0000", "k0003", "n0000"))
    handler._turn()
    ack, nack = frames(line)
    assert (ack["deliveries"], nack["deliveries"]) == ([[0, 1, 1, 1, 1]], [[0, 1, 1, 0, 0]])
    assert len(handler.held) == 1  # the later one, until it is revoked
    handler._message(b'{"type":"revoked","subscription":1,"deliveries":[[0,1,1,2,2]],"reason":""}')
    assert not handler.held
    handler._message(push(0, "n0000", number=2))
    assert handler._book.redelivered[NACKED] == 1
    assert not handler._book.violations
    handler._message(push(2, "n0000", number=3))  # R17
    assert "0 awaits its retry" in handler._book.violations[0]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ([(0, "p0001")], "parked"),
        ([(5, "h0002"), (3, "h0002")], "awaits"),
        ([(0, "h0002"), (0, "h0002"), (1, "h0002")], "awaits"),
    ],
    ids=["parked", "before its head", "behind its head"],
)
async def test_what_a_stuck_key_must_not_be_given_is_found(
    handler: Handler, given: list[tuple[int, str]], why: str
) -> None:
    """R17, R18."""
    for number, (offset, name) in enumerate(given, 1):
        handler._message(push(offset, name, number=number))
    assert [why in violation for violation in handler._book.violations] == [True]


async def test_letting_go_out_of_order_is_found(handler: Handler) -> None:
    """P3."""
    handler._message(push(0, "h0002", "k0003", "h0002"))
    handler._book.letting_go = True
    handler.let_go()
    assert handler._book.let_go == 2
    handler._message(push(3, "h0002", number=2))
    assert not handler._book.violations
    handler._message(push(2, "h0002", number=3))
    assert "P3" in handler._book.violations[0]


async def test_a_message_let_go_is_handled_again_if_its_ack_came_too_late_and_else_not(
    handler: Handler,
) -> None:
    book = handler._book
    handler._message(push(0, "h0002"))
    book.letting_go = True
    handler.let_go()
    handler._message(push(0, "h0002", number=2))  # its lease ended before the ack arrived
    assert (book.let_go, book.is_let_go) == (1, False)
    handler._message(b'{"type":"ok","ref":1,"settled":0,"stale":[[0,1,1,0,0]]}')
    assert (book.let_go, book.is_let_go) == (1, True)
    handler._message(push(0, "h0002", number=3))
    assert not book.is_let_go
    assert not book.violations


async def test_in_the_free_group_every_kind_is_handled_and_the_healthy_counted() -> None:
    handler = Handler("h", DECK, Book(stuck=False))
    line = connected(handler)
    handler._message(push(0, "k0003", "p0001", "n0000", "h0002"))
    handler._turn()
    (ack,) = frames(line)
    assert ack["deliveries"] == [[0, 1, 1, 0, 3]]
    assert handler._book.healthy == 1
    assert DECK.names(HEALTHY)


def test_a_gap_counts_as_calm_only_under_one_epoch() -> None:
    gaps = Gaps()
    for at_ns, epoch in ((0, 1), (10, 1), (500, 2), (520, 2)):
        gaps.push(3, epoch, at_ns)
    assert (gaps.stayed.count, gaps.stayed.maximum) == (2, 20)
    assert (gaps.moved.count, gaps.moved.maximum) == (1, 490)


@pytest.mark.parametrize(
    ("frame", "fails"),
    [
        ('"offset":7,"next":7,"messages":[]', False),
        ('"offset":8,"next":8,"messages":[]', True),
        ('"offset":7,"next":9,"messages":[]', True),
        ('"gap":[7,9],"next":10,"messages":[]', False),
        ('"gap":[8,9],"next":10,"messages":[]', True),
        ('"gap":[7,9],"next":12,"messages":[]', True),
    ],
)
async def test_a_follower_finds_what_was_left_out_in_silence(frame: str, fails: bool) -> None:
    """P10."""
    follower = Follower("f", "q")
    connected(follower)
    follower.places = {0: 7}
    follower._message(f'{{"type":"push","subscription":1,"partition":0,{frame}}}'.encode())
    assert (follower.failure is not None) is fails


def test_a_finding_is_broken_by_any_check_and_says_by_which() -> None:
    finding = Finding("t")
    finding.check("holds", True, 1)
    assert finding.ok
    finding.check("too slow", False, "94 %", timed=True)
    assert not finding.ok
    assert finding.broken(timed=False) == []
    assert "too slow: 94 %" in finding.broken(timed=True)[0]
    assert json.loads(json.dumps(finding.fields()))["ok"] is False


def test_memory_knows_its_peak_between_two_times() -> None:
    memory = Memory(Process(1))
    memory.samples = [(1.0, 10), (2.0, 30), (3.0, 20)]
    assert memory.highest(2.5) == 20
    assert memory.highest(0.0, 1.5) == 10
    assert memory.highest(9.0) == 0
