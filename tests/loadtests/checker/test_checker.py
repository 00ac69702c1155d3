"""The checker of runs with faults: a right broker's history is clean, and each violation that is
planted in one is found."""

import base64
import json
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtests.checker.causes import CAUSES, NS
from loadtests.checker.checker import ALL_KINDS, ChaosVerdict, Checker
from loadtests.checker.history import (  # fmt: skip
    Acked,
    Answered,
    Attempt,
    ChaosInterpreter,
    Confirmed,
    Delivered,
    Drained,
    FaultBegins,
    FaultEnds,
    Lost,
    Publishing,
    Read,
    ReaderTold,
    ReplicaGone,
    ReplicaIn,
    Unreadable,
    read_lines,
    receipt_epoch,
)
from tests.loadtests.checker.stories import (  # fmt: skip
    AWAY_S,
    GROUP,
    LEASE_S,
    NODE_TIMEOUT_S,
    QUEUE,
    Story,
    story,
)

SEEDS = st.integers(0, 1 << 32)


def judged(told: Story) -> ChaosVerdict:
    """Return what the checker makes of it."""
    checker = Checker([GROUP], lease_s=LEASE_S, node_timeout_s=NODE_TIMEOUT_S)
    for event in told.events:
        checker.see(event)
    return checker.verdict(drained=True)


@settings(max_examples=150)
@given(seed=SEEDS, steps=st.integers(0, 250))
def test_the_history_of_a_right_broker_is_clean(seed: int, steps: int) -> None:
    verdict = judged(story(seed, steps))
    assert verdict.ok, verdict


def test_right_brokers_have_every_kind_of_duplicate_but_those_of_pulls() -> None:
    found = set[str]()
    for seed in range(40):
        found |= set(judged(story(seed, 250)).causes)
    assert found == CAUSES.keys() - {"drain ended"}


def test_a_run_says_what_it_consisted_of() -> None:
    told = story(5, 200)
    verdict = judged(told)
    assert len(verdict.acknowledged_per_fault) == sum(
        isinstance(e, FaultBegins) for e in told.events
    )
    assert 0 < sum(verdict.acknowledged_per_fault) <= verdict.counts["acknowledged"]
    assert 0 < verdict.comeback_s < NODE_TIMEOUT_S + 10
    assert verdict.pauses_s
    assert all(0 < pause_s < AWAY_S for pause_s in verdict.pauses_s)
    assert verdict.counts["acks of an owner of before refused"] > 0


# --- planted -------------------------------------------------------------------------------------


def last_given(told: Story) -> tuple[int, Delivered]:
    """Where the last delivery stands."""
    places = [n for n, event in enumerate(told.events) if isinstance(event, Delivered)]
    found = told.events[places[-1]]
    assert isinstance(found, Delivered)
    return places[-1], found


def again(told: Story, before: Delivered, **changes: Any) -> Delivered:
    """The same message once more, right after, from the same owner unless it is changed."""
    log = told.logs[before.partition]
    log.push += 1
    by, at = f"again-{told.number()}", told.now()
    return replace(
        before, at=at, epoch=log.epoch, push=log.push, stream=log.stream, session=log.stream,
        server=log.server, by=by, **changes,
    )  # fmt: skip


def lost(told: Story) -> None:
    _, gone = last_given(told)
    told.events = [
        event for event in told.events
        if not (isinstance(event, Delivered) and event.body == gone.body)
    ]  # fmt: skip


def invented(told: Story) -> None:
    _, before = last_given(told)
    told.tell(again(told, before, body=b'"nobody"', offset=10_000))


def altered(told: Story) -> None:
    _, before = last_given(told)
    told.tell(again(told, before, body=before.body + b" "))


def refused_given(told: Story) -> None:
    log = told.logs[0]
    _, _, key, body = next(one for one in told.refused if int(one[2][1:]) % 2 == 0)
    told.tell(Delivered(
        told.now(), log.server, log.stream, GROUP, 0, len(log.places), key, body, "refused",
        log.epoch, log.push + 1, log.stream,
    ))  # fmt: skip


def stored_twice(told: Story) -> None:
    event = next(e for e in told.events if isinstance(e, Answered) and e.outcome == "ok")
    sent = next(
        e for e in told.events
        if isinstance(e, Attempt) and (e.producer, e.sequence) == (event.producer, event.sequence)
    )  # fmt: skip
    told.tell(replace(sent, at=told.now()))
    told.tell(replace(event, at=told.now(), offset=10_000))


def shared_place(told: Story) -> None:
    told.tell(Attempt(told.now(), "other", 0, QUEUE, "k0", b'"other"'))
    told.tell(Answered(told.now(), "other", 0, "ok", 0, 0))


def key_moved(told: Story) -> None:
    log, key = told.logs[1], told.confirmed[-1].key
    if told.confirmed[-1].partition == 1:
        log = told.logs[0]
    told.publish(log, key or "")
    told.give(log, len(log.places) - 1)


def sending_order(told: Story) -> None:
    for sequence, offset in ((0, 10_001), (1, 10_000)):
        told.tell(Attempt(told.now(), "z", sequence, QUEUE, "k0", b'"z%d"' % sequence))
        told.tell(Answered(told.now(), "z", sequence, "ok", 0, offset))


def first_order(told: Story) -> None:
    log = told.logs[0]
    for _ in range(2):
        told.publish(log, "k0")
    end = len(log.places)
    for offset in (end - 1, end - 2):
        told.give(log, offset)


def overtaken(told: Story) -> None:
    log = told.logs[0]
    for _ in range(2):
        told.publish(log, "k0")
    end = len(log.places)
    told.give(log, end - 2)
    told.own(log)
    told.give(log, end - 1)


def given_after_ack(told: Story) -> None:
    told.tell(again(told, told.confirmed[-1]))


def not_returned(told: Story) -> None:
    told.publish(told.logs[0], "k0")
    told.give(told.logs[0], len(told.logs[0].places) - 1)


def number_reused(told: Story) -> None:
    _, before = last_given(told)
    told.tell(replace(before, at=told.now(), by="again"))


def epoch_shared(told: Story) -> None:
    log = told.logs[0]
    for stream in (log.stream, "somebody else"):
        told.publish(log, "k0")
        log.stream = stream
        told.give(log, len(log.places) - 1)


def unexplained(told: Story) -> None:
    told.publish(told.logs[0], "k0")
    told.tell(again(told, told.give(told.logs[0], len(told.logs[0].places) - 1)))


def given_late(told: Story) -> None:
    log = told.logs[0]
    before = next(one for one in reversed(told.confirmed) if one.partition == 0)
    told.own(log)
    told.publish(log, "k0")
    told.give(log, len(log.places) - 1)
    told.tell(replace(before, at=told.now(), push=before.push + 1, by="late"))


def zombie_settled(told: Story) -> None:
    log = told.logs[0]
    for _ in range(2):
        told.publish(log, "k0")
    end = len(log.places)
    before = told.give(log, end - 2)
    told.own(log)
    told.give(log, end - 2)
    told.ack(log, end - 2)
    told.give(log, end - 1)
    told.tell(Acked(told.now(), "ack", (before.by,)))
    told.tell(Confirmed(told.now(), "ack"))


def stale_settled(told: Story) -> None:
    log = told.logs[0]
    told.publish(log, "k0")
    end = len(log.places)
    before = told.give(log, end - 1)
    told.lease_ends()
    told.give(log, end - 1)
    told.tell(Acked(told.now(), "ack", (before.by,)))
    told.tell(Confirmed(told.now(), "ack"))


def stalled(told: Story) -> None:
    told.tell(Publishing(told.now(), goes_on=True))
    told.tell(FaultBegins(told.now(), 77_777, "failover"))
    told.tell(FaultEnds(told.now(), 77_777))
    told.publish(producer=0)
    told.at += int((NODE_TIMEOUT_S + 10.1) * NS)
    told.publish(producer=1)


def paused(told: Story) -> None:
    told.publish(producer=0)
    told.publish(producer=1)
    told.tell(ReplicaGone(told.now()))
    told.publish(producer=0)
    told.at += int(14.9 * NS)
    told.publish(producer=0)
    told.at += int(0.2 * NS)
    told.tell(ReplicaIn(told.now(), 15.0))


def slow_drain(told: Story) -> None:
    told.tell(Drained(told.now(), 1000, 1.3, healthy=False))


def read_lost(told: Story) -> None:
    place = max(n for n, event in enumerate(told.events) if isinstance(event, Read))
    del told.events[place]


def read_order(told: Story) -> None:
    event = next(event for event in told.events if isinstance(event, Read))
    told.tell(replace(event, at=told.now()))


def read_gap(told: Story) -> None:
    told.tell(ReaderTold(told.now(), QUEUE, "reader", 0, "gap"))


PLANTED: list[Callable[[Story], None]] = [
    lost, invented, altered, refused_given, stored_twice, shared_place, key_moved, sending_order,
    first_order, overtaken, given_after_ack, not_returned, number_reused, epoch_shared, unexplained,
    given_late, zombie_settled, stale_settled, stalled, paused, slow_drain, read_lost, read_order,
    read_gap,
]  # fmt: skip


def test_every_kind_can_be_planted() -> None:
    assert {plant.__name__ for plant in PLANTED} == ALL_KINDS.keys()


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
@settings(max_examples=20)
@given(seed=SEEDS, steps=st.integers(60, 250))
def test_what_is_planted_is_found(plant: Callable[[Story], None], seed: int, steps: int) -> None:
    told = story(seed, steps)
    while not {0, 1} <= {one.partition for one in told.confirmed} or not any(
        int(one[2][1:]) % 2 == 0 for one in told.refused
    ):
        told = story(seed := seed + 1, steps)
    plant(told)
    assert plant.__name__ in judged(told).violations


def test_a_refused_ack_is_not_confirmed_by_the_next_ones_answer() -> None:
    """A puller's calls have no number: it waits for each answer, and a refusal is none."""
    told = story(1, 100)
    log = told.logs[0]
    told.publish(log, "k0")
    end = len(log.places)
    before = told.give(log, end - 1)
    told.own(log)
    now = told.give(log, end - 1)
    told.tell(Acked(told.now(), "p1", (before.by,)))
    told.tell(Acked(told.now(), "p1", (now.by,)))
    told.tell(Confirmed(told.now(), "p1"))
    assert "zombie_settled" not in judged(told).violations


# --- lines ---------------------------------------------------------------------------------------


def line(via: str, frame: object, **more: object) -> bytes:
    """One of a log."""
    fields = {"at": 5, "server": 1, "socket": 3, "via": via, "way": "in", **more, "frame": frame}
    return json.dumps(fields).encode() + b"\n"


def events(*lines: bytes) -> list[object]:
    """Return what the lines say."""
    interpreter = ChaosInterpreter()
    return [event for one in read_lines(lines) for event in interpreter.events(one)]


def test_the_world_and_readers_are_read_from_lines() -> None:
    message = {"key": "k", "body": 1}
    assert events(
        line("world", {}, call="lost"),
        line("world", {"fault": 2, "kind": "kill", "gateways": ["g"]}, call="begins"),
        line("world", {"fault": 2}, call="ends"),
        line("world", {}, call="replica-gone"),
        line("world", {"within_s": 15.0}, call="replica-in"),
        line("read", {"type": "push", "partition": 4, "offset": 7, "next": 8,
                      "messages": [message]}, queue="q", group="r"),
        line("read", {"type": "ok", "ref": 1, "positions": [
            {"partition": 4, "generation": 1, "verdict": "gap", "from": 9, "to": 10}]},
            queue="q", group="r"),
    ) == [
        Lost(5, "s3"),
        FaultBegins(5, 2, "kill", ("g",)),
        FaultEnds(5, 2),
        ReplicaGone(5),
        ReplicaIn(5, 15.0),
        Read(5, "q", "r", 4, 7, "k", b"1"),
        ReaderTold(5, "q", "r", 4, "gap"),
    ]  # fmt: skip


def test_a_pulls_receipt_names_the_epoch_of_its_owner() -> None:
    body = struct.pack(">BIIQQQ", 1, 1, 4, 9, 31, 7) + bytes(16)
    receipt = base64.urlsafe_b64encode(body).rstrip(b"=").decode()
    assert receipt_epoch(receipt) == (9, 31)
    pulled = {"messages": [
        {"key": "k", "body": 1, "partition": 4, "offset": 7, "receipt": receipt}
    ]}  # fmt: skip
    (given_out,) = events(line("pull", pulled, call="pull", queue="q", group="g"))
    assert isinstance(given_out, Delivered)
    assert (given_out.epoch, given_out.push) == (9, 31)
    with pytest.raises(Unreadable):
        receipt_epoch("short")


def test_what_the_world_cannot_do_is_no_line() -> None:
    with pytest.raises(Unreadable):
        events(line("world", {}, call="dances"))


def test_receipts_are_as_the_broker_makes_them() -> None:
    from push.receipts import Receipt, Receipts

    text = Receipts(bytes(32)).encode("q", "g", Receipt(1, 4, 9, 31, 7))
    assert receipt_epoch(text) == (9, 31)
