"""A publish cut at once is what its messages are one by one."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.publish.batch import NO_ANSWER, PendingPublish, Route, SendingOrders, cut
from gateway.publish.clock import BelievedClock
from metadata.catalog import Queue, QueueSettings
from metadata.rights import ALL_KEYS, KeyScope
from push.errors import Refused, TocsinError
from push.message import Message, check_message, encode_message, expires_unix_ms, id_digest
from push.ring import Ring, key_hash
from tests.histories.house import message

HASH_KEY = bytes(range(16))
PRODUCER = bytes(16)
RING = Ring(1, (0, 1, 2, 3))
SEQUENCE = 7


def queue(ttl_s: float | None = None) -> Queue:
    return Queue(
        queue_id="q", name="q", tenant="default", holder="h", created_unix_ms=0,
        settings=QueueSettings(partitions=4, message_bytes_max=20, message_ttl_s=ttl_s),
        ring_epoch=1, members=(0, 1, 2, 3), hash_key=HASH_KEY,
    )  # fmt: skip


class Plan(NamedTuple):
    """A publish, and what was before it."""

    messages: Sequence[Message]
    has_sequence: bool
    allowed: KeyScope
    ttl_s: float | None
    names: Sequence[str | None] | None
    held: Sequence[str]
    """KeyScope of which a message of the producer was refused before."""


def orders(plan: Plan, route: Route) -> SendingOrders:
    made = SendingOrders()
    for key in plan.held:
        made.on_refused(PRODUCER, route, key, SEQUENCE - 1, Refused("overloaded"))
    return made


@pytest.mark.parametrize(
    ("key", "holds"),
    [
        ("é" * 512, True),
        ("é" * 512 + "x", False),
        ("x" * 1024, True),
        ("x" * 1025, False),
        ("", False),
        (None, False),
    ],
)
def test_nothing_is_held_up_behind_a_key_that_no_message_may_have(
    key: str | None, holds: bool
) -> None:
    """R7: a key's length counts in bytes."""
    held = SendingOrders()
    held.on_refused(PRODUCER, Route(queue()), key, SEQUENCE, Refused("overloaded"))
    assert bool(held.held) == holds


def one_by_one(plan: Plan) -> tuple[dict[int, list[tuple[object, ...]]], list[str | None]]:
    """(partition → its messages, code of each message's refusal): the rules, and nothing else."""
    route = Route(queue(plan.ttl_s))
    held, spread = orders(plan, route), None
    found: dict[int, list[tuple[object, ...]]] = {}
    refused: list[str | None] = []
    for index, one in enumerate(plan.messages):
        key, name = one.key, one.id if plan.names is None else plan.names[index]
        try:
            if not plan.allowed.allow(key):
                raise Refused("forbidden")
            check_message(one, 20)
            hashed = 0 if key is None else key_hash(key, HASH_KEY)
            if key is not None:
                number = RING.partition(hashed)
            elif name is not None:
                number = RING.partition(key_hash(name, HASH_KEY))
            elif plan.has_sequence:
                number = route.sequence_place(PRODUCER, SEQUENCE + index)
            else:
                spread = route.spread_place() if spread is None else spread
                number = spread
            if plan.has_sequence:
                held.check(PRODUCER, route.partitions[number], SEQUENCE + index, 0)
        except TocsinError as error:
            refused.append(error.code.name)
            if plan.has_sequence:
                held.on_refused(PRODUCER, route, key, SEQUENCE + index, error)
            continue
        refused.append(None)
        moved = plan.names is not None
        digest = None if name is None else id_digest(HASH_KEY, key, name, moved=moved)
        expires = expires_unix_ms(one, plan.ttl_s, 0) > 0
        found.setdefault(number, []).append((index, encode_message(one), hashed, digest, expires))
    return found, refused


def unanswered(_publish: PendingPublish) -> None:
    raise AssertionError("nothing is stored here")


def at_once(plan: Plan) -> tuple[dict[int, list[tuple[object, ...]]], list[str | None]]:
    route = Route(queue(plan.ttl_s))
    context = (PRODUCER, 0) if plan.has_sequence else None
    publish = PendingPublish(
        queue(plan.ttl_s),
        plan.messages,
        unanswered,
        producer=PRODUCER,
        sequence=SEQUENCE if plan.has_sequence else None,
        names=plan.names,
        keys=plan.allowed,
    )
    publish.context = context
    runs, later = cut(publish, route, orders(plan, route), BelievedClock())
    assert not later
    found: dict[int, list[tuple[object, ...]]] = {}
    for number, run in runs.items():
        assert run.publish is publish
        assert run.context == context
        assert run.sequence == (SEQUENCE if plan.has_sequence else 0)
        marks = {place: (digest, expires > 0) for place, digest, expires in run.marks or ()}
        columns = zip(run.indexes, run.encoded, run.hashes, strict=True)
        found[number] = [
            (*one, *marks.get(place, (None, False))) for place, one in enumerate(columns)
        ]
    codes = [
        outcome.code.name if isinstance(outcome, TocsinError) and outcome is not NO_ANSWER else None
        for outcome in publish.outcomes
    ]
    return found, codes


KEYS = st.sampled_from(["k1", "k2", "k3", "é", '"', "", None])
PLAIN = st.sampled_from(["k1", "k2", "k3", None]).map(partial(message, "x"))
ODD = st.builds(
    Message,
    key=KEYS,
    body=st.sampled_from([b"1", b'"xx"', b"", b'"' + b"x" * 19 + b'"']).map(msgspec.Raw),
    id=st.sampled_from([None, "i", ""]),
    ttl_s=st.sampled_from([None, 1.0, 0.0]),
)
OFTEN_NONE = st.sampled_from([True, True, False])


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    messages = [*draw(st.lists(PLAIN, min_size=2, max_size=8)), *draw(st.lists(ODD, max_size=1))]
    names = [None if draw(st.booleans()) else f"n{at}" for at in range(len(messages))]
    return Plan(
        messages,
        draw(st.booleans()),
        ALL_KEYS if draw(OFTEN_NONE) else KeyScope(("k1", "k2")),
        None if draw(OFTEN_NONE) else 5.0,
        None if draw(OFTEN_NONE) else names,
        draw(st.sampled_from([(), (), ("k1",), ("k1", "k3")])),
    )


@settings(max_examples=1000)
@given(plans())
def test_a_publish_is_cut_at_once_as_one_by_one(plan: Plan) -> None:
    """Check at once what one by one gives: rights, refusals, places, ids, expiries and bytes (R5,
    R7, R8, P11)."""
    assert at_once(plan) == one_by_one(plan)


def test_places_of_keys_are_counted_once_each_and_messages_without_one_are_not() -> None:
    route = Route(queue())
    for _ in range(2):
        publish = PendingPublish(
            queue(), [message("x", f"k{n}") for n in range(5)] + [message("x", None)], unanswered
        )
        cut(publish, route, SendingOrders(), BelievedClock())
    few = [message("x", key) for key in ("k0", None, "new")]
    cut(PendingPublish(queue(), few, unanswered), route, SendingOrders(), BelievedClock())
    assert (route.hit_rate.hits, route.hit_rate.misses) == (6, 6)
