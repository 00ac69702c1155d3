"""Usage with literal times: what is counted in which minute, for whom, and how much of it."""

import sys
import timeit
from typing import Any

import pytest

from gateway.accounting.usage import SessionAccounting, Usage, UsageLine
from gateway.accounting.writer import AccountingWriter
from gateway.models import Admission
from gateway.wire.frames import Ack, Close, Ping, Publish
from gateway.wire.protocol import Refusal
from metadata.catalog import Principal
from push import limits

NOON = 1_763_726_400.0
"""2025-11-21T12:00:00Z, unix seconds."""
ALICE = Principal("alice", "acme")


def shown(line: UsageLine) -> dict[str, Any]:
    """Return what is not zero."""
    names = set(UsageLine.__struct_fields__) - {"schema", "minute_unix_ms", "span_s", "overflow"}
    return {name: getattr(line, name) for name in sorted(names) if getattr(line, name)}


def test_a_minute_has_what_was_counted_in_it() -> None:
    usage = Usage(now=10.0, wall=NOON + 50)
    counter = usage.counter("acme", "alice", "orders")
    counter.requests += 2
    counter.count_stored(3, 300)
    assert usage.lines(now=19.9, wall=NOON + 59.9) == []
    counter.count_delivered(2, 200)
    counter.count_refusal("queue_full")
    (line,) = usage.lines(now=20.0, wall=NOON + 60)
    assert shown(line) == {
        "tenant": "acme", "principal": "alice", "queue": "orders", "requests": 2,
        "messages_in": 3, "bytes_in": 300, "messages_out": 2, "bytes_out": 200, "refusals": 1,
        "refusals_by_code": {"queue_full": 1},
    }  # fmt: skip
    assert (line.minute_unix_ms, line.span_s) == (int(NOON * 1000), 10.0)
    counter.requests += 1  # whoever holds it goes on adding
    (line,) = usage.lines(now=80.0, wall=NOON + 120)
    assert (line.minute_unix_ms, line.span_s) == (int(NOON + 60) * 1000, 60.0)
    assert (line.requests, line.messages_in, line.refusals_by_code) == (1, 0, {})
    assert usage.lines(now=140.0, wall=NOON + 180) == []  # nothing was counted: no line


@pytest.mark.parametrize(("wall", "due_s"), [(NOON, 60), (NOON + 0.25, 59.75), (NOON + 59.5, 0.5)])
def test_a_minute_is_over_when_the_clock_says_so(wall: float, due_s: float) -> None:
    assert Usage(now=0, wall=wall).due_s(wall=wall) == due_s


def test_the_last_minute_ends_with_the_broker() -> None:
    usage = Usage(now=0.0, wall=NOON)
    usage.counter(None, None, None).requests += 1
    assert [line.span_s for line in usage.end(now=12.5, wall=NOON + 12.5)] == [12.5]
    assert usage.end(now=13.0, wall=NOON + 13) == []


def test_connections_count_in_each_minute_that_they_last() -> None:
    """By the monotonic clock, several at once, and without anything being said."""
    usage = Usage(now=0.0, wall=NOON)
    counter = usage.counter("acme", "alice", None)
    counter.connect("websocket", now=10.0)
    counter.connect("websocket", now=30.0)
    counter.connect("long-poll", now=59.0)
    (line,) = usage.lines(now=60.0, wall=NOON + 60)
    assert (line.websocket_s, line.long_poll_s) == (80.0, 1.0)
    counter.disconnect("long-poll", now=60.5)
    (line,) = usage.lines(now=120.0, wall=NOON + 120)
    assert (line.websocket_s, line.long_poll_s) == (120.0, 0.5)
    counter.disconnect("websocket", now=120.0)
    counter.disconnect("websocket", now=121.0)
    (line,) = usage.lines(now=180.0, wall=NOON + 180)
    assert (line.websocket_s, line.long_poll_s) == (1.0, 0.0)
    assert usage.lines(now=240.0, wall=NOON + 240) == []


def test_what_has_no_room_for_a_line_is_summed() -> None:
    """P9, on both sides of the bound; nothing is lost, and who fits again is told apart again."""
    usage = Usage(now=0.0, wall=NOON, keys_max=3)
    for n in range(3):
        usage.counter("t", f"p{n}", None).requests += 1
    assert not any(line.overflow for line in usage.end(now=1.0, wall=NOON + 1))
    for n in range(5):
        counter = usage.counter("t", f"p{n}", None)
        counter.requests += 1
        counter.count_stored(1, 10)
        usage.check()
    lines = usage.lines(now=60.0, wall=NOON + 60)
    assert sorted((line.principal or "", line.overflow, line.requests) for line in lines) == [
        ("", True, 2), ("p0", False, 1), ("p1", False, 1), ("p2", False, 1),
    ]  # fmt: skip
    assert sum(line.bytes_in for line in lines) == 50
    usage.lines(now=120.0, wall=NOON + 120)  # a minute without them: they are forgotten
    usage.counter("t", "p4", None).requests += 1
    (line,) = usage.lines(now=180.0, wall=NOON + 180)
    assert (line.principal, line.overflow) == ("p4", False)


def test_who_is_held_is_not_forgotten() -> None:
    usage = Usage(now=0.0, wall=NOON)
    counter = usage.counter("t", "p", "q")
    counter.holders += 1
    for minute in range(1, 4):
        assert usage.lines(now=60.0 * minute, wall=NOON + 60 * minute) == []
    counter.requests += 1
    assert [line.requests for line in usage.lines(now=240.0, wall=NOON + 240)] == [1]
    counter.holders -= 1
    usage.lines(now=300.0, wall=NOON + 300)
    assert len(usage) == 0


def test_where_it_is_off_nothing_is_kept() -> None:
    usage = Usage(now=0.0, wall=NOON, is_on=False)
    usage.counter("t", "p", "q").requests += 1
    assert (usage.lines(now=60.0, wall=NOON + 60), len(usage)) == ([], 0)


# --- A session's account ------------------------------------------------------------------------


def account_of(accounting: AccountingWriter) -> SessionAccounting:
    """Of Alice, who knows the queues q0, q1 …"""
    account = accounting.session(lambda who, name: name.startswith("q"), "192.0.2.7")
    account.admit(Admission(ALICE, credential="token 1"))
    return account


def accounting_at(now: list[float]) -> AccountingWriter:
    return AccountingWriter(now=lambda: now[0], wall=lambda: NOON + now[0])


def test_each_frame_is_a_request_of_the_queue_that_it_names() -> None:
    accounting = accounting_at([0.0])
    account = account_of(accounting)
    frames = [
        Publish(ref=1, queue="q1", messages=[]), Publish(ref=2, queue="made-up", messages=[]),
        Ping(), Ack(subscription=1, deliveries=[]),
        Refusal(b"{}", "not_subscribed"), Close(4500, ""),
    ]  # fmt: skip
    account.count_requests(frames)
    lines = {line.queue: line.requests for line in accounting.usage.end(now=1, wall=NOON + 1)}
    assert lines == {"q1": 1, None: 4}


def test_a_session_that_is_over_lets_go_and_is_still_counted() -> None:
    """A publish may be answered when its session has gone."""
    now = [0.0]
    accounting = accounting_at(now)
    account = account_of(accounting)
    account.connect("websocket")
    account.counter("q1").requests += 1
    now[0] = 2.5
    account.close()
    account.close()
    account.counter("q1").count_stored(1, 7)
    lines = {line.queue: line for line in accounting.usage.end(now=3, wall=NOON + 3)}
    assert (lines["q1"].requests, lines["q1"].messages_in, lines["q1"].bytes_in) == (1, 1, 7)
    assert lines[None].websocket_s == 2.5
    accounting.usage.end(now=4, wall=NOON + 4)
    assert len(accounting.usage) == 0


@pytest.mark.parametrize("more", [0, 1])
def test_a_session_keeps_few_counters_at_hand(more: int) -> None:
    """On both sides of the bound: what is not kept is counted all the same."""
    accounting = accounting_at([0.0])
    account = account_of(accounting)
    count = limits.USAGE_QUEUES_PER_SESSION_MAX + more
    for n in range(count):
        account.counter(f"q{n}").requests += 1
    assert len(account._queues or ()) == limits.USAGE_QUEUES_PER_SESSION_MAX
    lines = accounting.usage.end(now=1, wall=NOON + 1)
    assert sum(line.requests for line in lines) == count


def test_what_an_addition_costs() -> None:
    """Printed, not judged: a machine may be busy."""
    accounting = accounting_at([0.0])
    account = account_of(accounting)
    publish = [Publish(ref=1, queue="q1", messages=[])]
    rounds = 20_000
    heard = timeit.timeit(lambda: account.count_requests(publish), number=rounds) / rounds
    given = (
        timeit.timeit(lambda: account.counter("q1").count_delivered(100, 25_600), number=rounds)
        / rounds
    )
    sys.stdout.write(f"\na frame {heard * 1e9:.0f} ns, a push or answer {given * 1e9:.0f} ns\n")
    (line,) = accounting.usage.end(now=1, wall=NOON + 1)
    assert (line.requests, line.messages_out) == (rounds, rounds * 100)
