"""What the trials of the SDK look with: each violation is seen in a hand-written history, and a
clean one is clean."""

import itertools
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from loadtests.checker.history import Interpreter, read_lines
from loadtests.checker.sdk_history import KINDS as BOOK_KINDS
from loadtests.checker.sdk_history import Reading, SdkHistory
from loadtests.checker.sessions import KINDS, Sessions
from loadtests.clients.recorder import Recorder
from loadtests.trials.sdk.clients import Clients

LEASE_S, LINGER_S = 100.0, 30.0
SECOND = 1_000_000_000


class Log:
    """Writes what one client after another would have logged; `at` is in seconds."""

    def __init__(self) -> None:
        self.text = b""
        self.at = 0.0
        self.server = 1

    def line(self, stream: int, way: str, **frame: Any) -> None:
        self.at += 0.001
        line = {"at": int(self.at * SECOND), "server": self.server, "socket": stream, "via": "ws"}
        self.text += json.dumps(line | {"way": way, "frame": frame}).encode() + b"\n"

    def joins(self, stream: int, *, resumed: list[int] | None = None) -> None:
        self.line(stream, "in", type="welcome", session=f"s{stream}", resumed=resumed)
        if resumed is None:
            self.line(stream, "out", type="subscribe", subscription=1, queue="q", group="g", ref=1)

    def push(self, stream: int, offset: int, count: int = 1, *, push: int = 1, **more: Any) -> None:
        messages = [{"key": "k", "body": f"b{offset + i}"} for i in range(count)]
        self.line(
            stream, "in", type="push", subscription=1, partition=0, epoch=1, push=push,
            offset=offset, messages=messages, **more,
        )  # fmt: skip

    def says(self, stream: int, kind: str, *ranges: int, push: int = 1, **more: Any) -> None:
        """An ack, nack, extend or held of this push."""
        deliveries = [[0, 1, push, *ranges]] if ranges else []
        self.line(stream, "out", type=kind, subscription=1, deliveries=deliveries, **more)

    def revoked(self, stream: int, *ranges: int, push: int = 1) -> None:
        deliveries = [[0, 1, push, *ranges]]
        self.line(stream, "in", type="revoked", subscription=1, deliveries=deliveries)

    def seen(self, moments: Iterable[float] = ()) -> Sessions:
        sessions, interpreter = (
            Sessions(
                lease_s=LEASE_S, linger_s=LINGER_S,
                moments=[int(moment * SECOND) for moment in moments],
            ),
            Interpreter(),
        )  # fmt: skip
        for line in read_lines(self.text.splitlines(keepends=True)):
            for event in interpreter.events(line):
                sessions.see(event)
        return sessions


@pytest.fixture
def log() -> Log:
    log = Log()
    log.joins(1)
    return log


def test_a_session_that_moves_and_keeps_what_it_holds_is_clean(log: Log) -> None:
    log.push(1, 0, 3)
    log.says(1, "ack", 0, 0)
    log.joins(1, resumed=[1])
    log.says(1, "held", 0, 2, received=3, ref=5)
    log.says(1, "ack", 0, 2)
    assert log.seen().ok


def test_a_message_given_again_while_it_is_held_is_seen(log: Log) -> None:
    log.push(1, 0)
    log.push(1, 0, push=2)
    assert log.seen().violations == {"given_twice": 1}


def test_one_that_another_session_is_given_while_it_is_held_is_seen(log: Log) -> None:
    log.push(1, 0)
    log.joins(2)
    log.push(2, 0, push=2)
    log.says(1, "ack", 0, 0)
    log.says(2, "ack", 0, 0, push=2)
    assert log.seen().violations == {"given_twice": 1}


def test_one_that_was_acked_twice_is_seen(log: Log) -> None:
    log.push(1, 0)
    log.says(1, "ack", 0, 0)
    log.push(1, 0, push=2)
    log.says(1, "ack", 0, 0, push=2)
    log.says(1, "ack", 0, 0, push=2)  # the same delivery: it may be said again
    assert log.seen().violations == {"given_twice": 1, "acked_twice": 1}


@pytest.mark.parametrize(
    "reason", ["revoked", "nacked", "lease over", "away too long", "left", "restart"]
)
def test_a_delivery_that_has_ended_may_come_again(log: Log, reason: str) -> None:
    log.push(1, 0)
    match reason:
        case "revoked":
            log.revoked(1, 0, 0)
        case "nacked":
            log.says(1, "nack", 0, 0)
        case "lease over":
            log.at += LEASE_S
        case "away too long":
            log.at += LINGER_S
        case "left":
            log.line(1, "out", type="unsubscribe", subscription=1, ref=9)
        case _:
            log.server = 2
    log.joins(2)
    log.push(2, 0, push=2)
    log.says(2, "ack", 0, 0, push=2)
    sessions = log.seen()
    assert sessions.ok
    assert sessions.excused == {reason: 1}
    assert sessions.excused_places == {("q/g", 0, 0): 1}


@pytest.mark.parametrize("late", [False, True])
def test_a_lease_counts_from_its_last_extend(log: Log, late: bool) -> None:
    log.push(1, 0)
    log.at += LEASE_S / 2
    log.says(1, "extend", 0, 0)
    log.at += LEASE_S * (0.95 if late else 0.8)
    log.push(1, 1)  # it is there
    log.push(1, 0, push=2)
    assert log.seen().ok is late


def test_what_the_answer_to_held_takes_back_has_ended(log: Log) -> None:
    log.push(1, 0)
    log.joins(1, resumed=[1])
    log.says(1, "held", 0, 0, received=1, ref=5)
    log.line(1, "in", type="ok", ref=5, revoked=[[0, 1, 1, 0, 0]])
    log.push(1, 0, push=2)
    assert log.seen().ok


@pytest.mark.parametrize("kind", ["ack", "nack", "extend", "held"])
def test_what_was_never_given_is_not_the_clients(log: Log, kind: str) -> None:
    log.push(1, 0, 2)
    log.says(1, kind, 1, 2, received=2, ref=5)
    assert log.seen().violations == {"not_given": 1}


def test_a_range_may_span_what_its_push_skips(log: Log) -> None:
    log.push(1, 0, 2, skips=[1])
    log.says(1, "ack", 0, 2)
    assert log.seen().ok


@pytest.mark.parametrize(("received", "kinds"), [(3, {}), (2, {"received_wrong": 1})])
def test_who_comes_back_counts_what_it_was_given(
    log: Log, received: int, kinds: dict[str, int]
) -> None:
    """R25."""
    log.push(1, 0, 2)
    log.joins(1, resumed=[1])
    log.push(1, 2, push=2)
    log.says(1, "held", received=received, ref=5)
    assert log.seen().violations == kinds


def test_it_counts_what_is_unacked_at_a_moment(log: Log) -> None:
    log.push(1, 0, 5)
    log.at = 1.0
    log.says(1, "ack", 0, 1)
    log.at = 2.0
    log.revoked(1, 2, 2)
    log.at = 3.0
    log.says(1, "ack", 3, 4)
    moments = log.seen([0.5, 1.5, 2.5]).moments
    assert [moment.unacked for moment in moments] == [5, 3, 2]


def test_all_kinds_of_violations_are_tested_here() -> None:
    text = Path(__file__).read_text()
    assert not [kind for kind in {**KINDS, **BOOK_KINDS} if f'"{kind}"' not in text]


# --- the book


def booked(*bodies: str, key: str = "k") -> SdkHistory:
    """Published and stored in partition 0 from 0 on."""
    book = SdkHistory()
    for offset, body in enumerate(bodies):
        book.publishes(body, key)
        book.returned(body, 0, offset)
    return book


def ran(book: SdkHistory, body: str, offset: int, key: str = "k") -> None:
    book.starts(body, key, (0, offset))
    book.ends(body, (0, offset))


def test_what_ran_and_was_read_once_and_in_order_is_fine() -> None:
    book = booked("a", "b")
    reading = Reading(frozenset())
    book.readings.append(reading)
    assert (book.left, book.unread(reading)) == (2, 2)
    for offset, body in enumerate("ab"):
        ran(book, body, offset)
        book.reads(reading, body, "k", (0, offset))
    assert (book.left, book.unread(reading)) == (0, 0)
    book.close(Counter())
    assert book.ok
    assert not book.running


def test_the_book_finds_what_was_lost() -> None:
    book = booked("a", "b")
    book.readings += [Reading(frozenset()), Reading(frozenset({"other"}))]
    ran(book, "a", 0)
    book.close(Counter())
    assert book.violations == {"lost": 1, "not_read": 2}


@pytest.mark.parametrize(("excused", "kinds"), [(0, {"ran_twice": 1}), (1, {})])
def test_the_book_finds_what_ran_again_without_a_reason(
    excused: int, kinds: dict[str, int]
) -> None:
    book = booked("a")
    ran(book, "a", 0)
    ran(book, "a", 0)
    book.close(Counter({(0, 0): excused}))
    assert book.violations == kinds
    assert book.ran_again == 1


def test_the_book_finds_what_ran_out_of_order_or_at_the_same_time() -> None:
    book = booked("a", "b", "c")
    book.starts("b", "k", (0, 1))
    book.starts("c", "k", (0, 2))
    assert book.violations == {"overlapping": 1}
    ran(book, "a", 0)
    assert book.violations["run_order"] == 1


def test_the_book_finds_what_nobody_sent_and_what_is_at_two_places() -> None:
    book = booked("a")
    ran(book, "x", 5)
    ran(book, "a", 1)
    assert book.violations == {"unknown": 1, "stored_twice": 1, "run_order": 1}


@pytest.mark.parametrize(
    ("keys", "offsets", "is_fine"),
    [
        ((), (0, 1), True), ((), (1,), False), ((), (0, 0), False), ((), (0, 1, 0), False),
        (("k",), (1, 3), True), (("k",), (3, 1), False), (("k",), (1, 1), False),
        (("z",), (1,), False),
    ],
)  # fmt: skip
def test_the_book_finds_what_a_reader_missed_or_had_twice(
    keys: tuple[str, ...], offsets: tuple[int, ...], is_fine: bool
) -> None:
    """P10: of all keys nothing may be left out, either."""
    book = booked("0", "1", "2", "3")
    reading = Reading(frozenset(keys))
    for offset in offsets:
        book.reads(reading, str(offset), "k", (0, offset))
    assert ("read_order" not in book.violations) is is_fine


# --- the tracer


def test_a_session_is_one_stream_however_often_it_moves(tmp_path: Path) -> None:
    path = tmp_path / "log"
    clients = Clients(Recorder(path))
    client = clients.connect("http://127.0.0.1:9", who="c")
    (tracer,) = clients.tracers
    sessions = itertools.chain([("a", None), ("a", [1]), ("a", [1]), ("b", None)])
    transports: Any = ["websocket", "long-poll", "websocket", "long-poll"]
    for (name, resumed), transport in zip(sessions, transports, strict=True):
        tracer.trace("sent", transport, b'{"type":"hello","producer":"p"}')
        welcome = json.dumps(
            [{"type": "welcome", "session": name, "resumed": resumed}, {"type": "pong"}],
            separators=(",", ":"),
        )
        tracer.trace("received", transport, welcome.encode())
        tracer.trace("sent", transport, b'{"type":"ping"}')
    clients.log.close()
    lines = list(read_lines(path.read_bytes().splitlines(keepends=True)))
    assert [line.socket for line in lines] == [1] * 9 + [2] * 3
    assert [line.way for line in lines] == ["out", "in", "out"] * 4
    assert clients.counts_of("c") == {
        "attempts": 4, "reconnects": 3, "resumed": 2, "begun anew": 1, "fallbacks": 2, "returns": 1,
    }  # fmt: skip
    assert not clients.counts_of("d")
    assert client.url == "http://127.0.0.1:9"
