"""Operators' decisions about parked keys, in literal time (R16, R17, R18, R21)."""

import pytest

from push import limits
from push.delivery.checks import check
from push.places import Verb
from push.ranges import Dead
from push.storage_port import Retry
from tests.push.delivery.test_delivery import A, B, World, offsets


def parked(*keys: int) -> World:
    """A world in which 0, of key A, is exhausted, and A parked with all behind it."""
    world = World(*keys, attempts_max=1, park=True)
    world.give()
    world.nack(1, 0)
    world.write()
    assert set(world.store.parked) == {A}
    return world


def decide(world: World, verb: Verb, key: int = A) -> bool:
    """Decide as an operator who has looked at the storage."""
    seen = world.store.parked_line(key)
    decided = world.delivery.waiting.decide(verb, seen, world.now)
    check(world.delivery)
    return decided


def opened(world: World) -> list[int]:
    """The keys whose decisions are durable since the last look."""
    notices = world.delivery.take_notices()
    return notices.opened if notices is not None else []


@pytest.mark.parametrize("verb", ["retry", "release"])
def test_a_key_goes_on_when_the_decision_is_durable_and_not_before(verb: Verb) -> None:
    """R16, R17."""
    world = parked(A, B, A)
    assert decide(world, verb)
    assert world.delivery.waiting.side_wanted() == []
    write = world.delivery.take_write(wall_unix_ms=world.wall)
    assert write is not None
    assert (write.unparked, write.retries) == ((A,), (Retry(0, 0),))
    assert opened(world) == []
    world.delivery.written(world.store.apply(write), now=world.now)
    assert opened(world) == [A]
    (out,) = world.retry()
    assert (out.first, out.attempt) == (0, 1)
    assert world.ack(out.number, 0) == "settled"
    assert offsets(world.retry()) == [2]


def test_a_decision_whose_write_is_lost_goes_with_the_next() -> None:
    """R29: applied or not, the same facts are written again."""
    for applied in (True, False):
        world = parked(A, A)
        decide(world, "retry")
        write = world.delivery.take_write(wall_unix_ms=world.wall)
        assert write is not None
        if applied:
            world.store.apply(write)
        world.delivery.not_written()
        assert world.retry() == []  # written by now, and not read from the side line
        assert opened(world) == [A]
        assert offsets(world.retry()) == [0]


@pytest.mark.parametrize("verb", ["retry", "skip", "release"])
def test_a_crash_before_the_write_leaves_the_key_parked(verb: Verb) -> None:
    world = parked(A, A)
    decide(world, verb)
    world.own()
    world.give()
    assert world.retry() == []
    assert set(world.store.parked) == {A}
    assert sorted(world.store.aside) == [0, 1]


def test_a_retry_that_fails_parks_the_key_whatever_the_limit() -> None:
    world = parked(A, A, B)
    world.settings = type(world.settings)(attempts_max=9, park=True)
    world.own()
    world.give()
    decide(world, "retry")
    world.write()
    (out,) = world.retry()
    world.nack(out.number, 0, 0.0)
    world.write()
    assert set(world.store.parked) == {A}
    assert world.store.retries[0].attempts == 1
    assert world.retry() == []


def test_a_backoff_goes_on_while_its_key_is_parked() -> None:
    """R16: what was nacked with a delay waits for its time, whatever an operator decides about the
    head of its key. [A head is skipped: what stands behind it comes at once]"""
    world = World(A, A, attempts_max=2, park=True)
    world.give()
    world.nack(1, 1, delay_s=30.0)
    world.nack(1, 0)
    (out,) = world.retry()
    world.nack(out.number, 0)
    world.write()
    assert set(world.store.parked) == {A}
    assert decide(world, "skip")
    assert world.retry() == []
    world.now += 29.0
    assert world.retry() == []
    world.now += 1.1
    assert offsets(world.retry()) == [1]


def test_what_was_skipped_goes_to_the_dead_letters_in_the_write_that_unparks() -> None:
    """P1, P5: it is the head of a parked key, or dead, and nothing in between: whatever becomes of
    its owner, a later retry is told that there is nothing to retry."""
    world = parked(A, A, A)
    decide(world, "skip")
    world.publish(A)
    world.give()  # joins the line
    write = world.delivery.take_write(wall_unix_ms=world.wall)
    assert write is not None
    assert (write.dead, write.unparked) == ((Dead(0, 0, "skipped"),), (A,))
    assert world.delivery.take_dead_letters(10) == []
    world.delivery.written(world.store.apply(write), now=world.now)
    world.write()
    assert not world.store.parked
    assert sorted(world.store.aside) == [1, 2, 3]
    world.lose_holder()
    assert not decide(world, "retry")
    (letter,) = world.delivery.take_dead_letters(10)
    assert (letter.offset, letter.reason, letter.attempts) == (0, "skipped", 1)
    world.expire()
    assert offsets(world.retry()) == [1]
    world.delivery.dead_lettered(0, 0)
    world.write()
    assert 0 in world.store.settled


def test_what_returns_to_a_parked_key_goes_first_when_it_is_released() -> None:
    """R17: 0 was in flight when 1 parked the key, and returns while the decision is written."""
    world = World(A, A, A, attempts_max=1, park=True)
    world.give()
    world.delivery.start(1, 0, 2, now=world.now)
    world.nack(1, 1)
    world.write()
    assert sorted(world.store.aside) == [1, 2]
    decide(world, "release")
    write = world.delivery.take_write(wall_unix_ms=world.wall)
    assert write is not None
    world.delivery.give_back(1, 0, now=world.now)
    world.delivery.written(world.store.apply(write), now=world.now)
    assert world.delivery.waiting.side_wanted() == []
    assert world.delivery.urgent
    world.write()
    assert offsets(world.retry()) == [0]


def test_a_retried_head_is_tried_although_what_follows_is_exhausted_too() -> None:
    """The decision was about the head: what follows it and is exhausted parks the key again."""
    world = World(A, A, attempts_max=2, park=True)
    world.store.retries = {1: Retry(1, 2)}
    world.own()
    world.give(1)
    world.nack(1, 0, 0.0)
    world.write()
    world.give()
    world.write()
    assert set(world.store.parked) == {A}
    assert sorted(world.store.aside) == [0, 1]
    decide(world, "retry")
    world.write()
    (out,) = world.retry()
    assert out.first == 0
    assert world.ack(out.number, 0) == "settled"
    assert world.retry() == []
    world.write()
    assert set(world.store.parked) == {A}
    assert sorted(world.store.aside) == [1]
    decide(world, "release")
    world.write()
    assert offsets(world.retry()) == [1]


def halfway(monkeypatch: pytest.MonkeyPatch) -> World:
    """The previous owner exhausted both messages of A; this one has come to the first of them."""
    monkeypatch.setattr(limits, "ASIDE_UNWRITTEN_MAX", 1)
    world = World(A, A, attempts_max=1, park=True)
    world.store.retries = {0: Retry(0, 1), 1: Retry(1, 1)}
    world.own()
    world.give()
    assert world.delivery.frontier == 1
    world.write()
    assert set(world.store.parked) == {A}
    return world


@pytest.mark.parametrize("settled_first", [False, True])
def test_a_release_forgives_what_the_log_has_yet_to_bring(
    monkeypatch: pytest.MonkeyPatch, settled_first: bool
) -> None:
    """R19: whether the line is still there when it comes, or had come to its end."""
    world = halfway(monkeypatch)
    decide(world, "release")
    world.write()
    (out,) = world.retry()
    if not settled_first:
        world.give()
    assert world.ack(out.number, 0) == "settled"
    world.give()
    world.write()
    assert (offsets(world.retry()), world.store.parked) == ([1], {})


def test_a_retried_head_is_tried_although_the_log_brings_what_is_exhausted_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = halfway(monkeypatch)
    decide(world, "retry")
    world.write()
    world.load_sides()
    world.give()
    (out,) = world.retry()
    assert (out.first, world.ack(out.number, 0)) == (0, "settled")
    world.retry()
    world.write()
    assert set(world.store.parked) == {A}
    assert sorted(world.store.aside) == [1]


def test_a_retried_head_is_tried_although_something_before_it_goes_first() -> None:
    """0 returns while the decision about 1 is written, and goes before it; while 1 is recorded and
    given nothing of what stands behind it is read, which is exhausted."""
    world = World(A, A, A, attempts_max=1, park=True)
    world.give()
    world.nack(1, 2)
    world.nack(1, 1)
    world.write()
    assert decide(world, "retry")
    world.delivery.give_back(1, 0, now=world.now)
    world.write()
    assert sorted(world.store.aside) == [0, 1, 2]
    (out,) = world.retry()
    assert (out.first, world.ack(out.number, 0)) == (0, "settled")
    world.delivery.plan_retries(9, now=world.now)
    assert world.delivery.waiting.side_wanted() == []
    (out,) = world.retry()
    assert world.delivery.waiting.side_wanted() == []
    assert (out.first, world.store.parked) == (1, {})
    assert world.ack(out.number, 1) == "settled"
    assert world.retry() == []
    world.write()
    assert (set(world.store.parked), sorted(world.store.aside)) == ({A}, [2])


def test_a_head_that_is_settled_and_not_written_down_is_no_head(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """R16: nothing is decided about what the storage still names, but about what waits."""
    world = halfway(monkeypatch)
    decide(world, "retry")
    world.write()
    (out,) = world.retry()
    assert world.ack(out.number, 0) == "settled"
    world.give()
    assert set(world.store.aside) == {0}
    assert not decide(world, "retry")
    world.write()
    assert decide(world, "retry")
    world.write()
    assert offsets(world.retry()) == [1]


@pytest.mark.parametrize("verb", ["retry", "skip", "release"])
def test_a_decision_is_about_the_head_that_was_seen_and_about_no_other(verb: Verb) -> None:
    """R17: 1 is exhausted and seen as the head, and 0 comes back in front of it. [A skip buries 0,
    which may be tried again, and is answered with 1.]"""
    world = World(A, A, attempts_max=2, park=True)
    world.give()
    for _ in range(2):
        world.nack(1, 1)
        world.write()
        world.now += 100
        out = next(iter(world.retry()), None)
        if out is not None:
            world.nack(out.number, 1)
            world.write()
    assert set(world.store.parked) == {A}
    world.nack(1, 0)
    assert decide(world, verb)
    assert opened(world) == []
    world.write()
    notices = world.delivery.take_notices()
    assert notices is not None
    assert (notices.dropped, notices.opened) == ([A], [])
    assert (set(world.store.parked), world.store.dead) == ({A}, {})
    assert world.store.parked_line(A).head == 0
    assert decide(world, verb)
    world.write()
    assert opened(world) == [A]


def test_a_decision_about_what_was_parked_anew_since_is_not_made() -> None:
    """R24: two operators see the same; the first one's retry fails, and it is parked again."""
    world = parked(A, A)
    seen = world.store.parked_line(A)
    assert decide(world, "retry")
    world.write()
    (out,) = world.retry()
    world.now += 1
    world.nack(out.number, 0)
    world.write()
    assert world.store.parked_line(A).head == seen.head
    assert not world.delivery.waiting.decide("skip", seen, world.now)
    assert decide(world, "skip")


def test_an_ack_of_before_the_decision_settles_nothing() -> None:
    """R21: it is the operator's until it is given again."""
    world = parked(A, A)
    decide(world, "retry")
    world.write()
    for key, after in world.delivery.waiting.side_wanted():
        loaded = world.store.read_side(key, after, 1)
        world.delivery.waiting.side_loaded(key, loaded, world.now)
    assert world.ack(1, 0) == "stale"


def test_a_decision_waits_for_what_is_being_read_of_the_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """P3: an answer from before the key was parked must not be taken for one of afterwards."""
    monkeypatch.setattr(limits, "HELD_PER_PARTITION_MAX", 1)
    monkeypatch.setattr(limits, "ASIDE_UNWRITTEN_MAX", 1)
    monkeypatch.setattr(limits, "LINE_WINDOW_MAX", 2)
    world = World(*[A] * 5, attempts_max=2, park=True)
    world.give(1)
    world.nack(1, 0, 0.0)
    for _ in range(5):  # as many at a time as are held
        world.give()
        world.write()
    (out,) = world.retry()
    assert world.ack(out.number, 0) == "settled"
    waiting = world.delivery.waiting
    ((key, after),) = waiting.side_wanted()
    waiting.side_loaded(key, world.store.read_side(key, after, 1), world.now)
    for _ in range(2):  # 1 is given and fails, until the key is parked
        world.delivery.plan_retries(1, now=world.now)
        world.write()
        (out,) = world.send()
        assert out.first == 1
        wanted = waiting.side_wanted()  # 2 may go beside it, and is asked for
        world.nack(out.number, 1, 0.0)
        world.write()
        if wanted:
            ((key, after),) = wanted
    assert set(world.store.parked) == {A}
    assert waiting.lines.by_key[A].loading is not None
    assert decide(world, "retry")
    world.write()
    assert set(world.store.parked) == {A}
    waiting.side_loaded(key, world.store.read_side(key, after, 3), world.now)
    world.write()
    assert opened(world) == [A]
    assert offsets(world.retry()) == [1]


def test_what_is_not_parked_or_is_decided_already_is_refused() -> None:
    world = parked(A, A, B)
    assert not decide(world, "retry", B)
    assert not decide(world, "retry", 0xD)
    assert decide(world, "retry")
    assert not decide(world, "skip")
    world.write()
    assert not decide(world, "retry")
    assert world.delivery.take_dead_letters(10) == []
    assert offsets(world.retry()) == [0]
