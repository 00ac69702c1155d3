"""Deliveries of the epoch before that their owner goes on with, in literal time (R22)."""

import pytest

from push import limits
from push.delivery.checks import check
from push.delivery.delivery import Delivery
from push.delivery.resume import (
    UNSETTLED_MAX,
    adopt,
    can_adopt,
    hold,
    keys_wanted,
)
from tests.push.delivery.test_delivery import PLACE, A, B, World, offsets

Pushes = dict[int, list[tuple[int, int]]]


def again(world: World) -> Delivery:
    """The broker crashed; the same owner starts under the next epoch."""
    owned = world.store.own(world.end, again=True)
    world.delivery = Delivery(PLACE, owned, b"token", world.settings, now=world.now)
    return world.delivery


def claim(world: World, pushes: Pushes) -> Pushes:
    """State what it holds of the epoch before; return what is no longer its own."""
    keys = {
        offset: record.header.key_hashes[offset - record.first]
        for low, high in keys_wanted(world.delivery, pushes)
        for record in world.records
        for offset in range(max(low, record.first), min(high, record.last) + 1)
    }
    lost = adopt(world.delivery, pushes, keys, now=world.now, wall_unix_ms=world.wall)
    check(world.delivery)
    return lost


def adopted(world: World, push: int) -> int:
    """The number of an adopted push in the new ledger."""
    number = world.delivery.number_of(world.delivery.epoch - 1, push)
    assert number is not None
    assert world.delivery.name_of(number) == (world.delivery.epoch - 1, push)
    return number


def test_what_is_adopted_is_not_given_again_and_its_ack_counts() -> None:
    """P5. [A deploy moves a session; its handled message comes again.]"""
    world = World(A, B, A)
    world.give()
    again(world)
    assert claim(world, {1: [(0, 1)]}) == {}
    assert offsets(world.give()) == [2]
    assert world.ack(adopted(world, 1), 0, 1) == "settled"
    world.write()
    assert world.store.settled == {0, 1}
    assert world.ack(adopted(world, 1), 0, 1) == "settled", "again, as under its own epoch"


def test_only_the_epoch_before_of_the_same_owner_is_adopted() -> None:
    """P7: what lies further back may have been given to somebody else meanwhile."""
    world = World(A)
    world.give()
    world.own()
    assert not can_adopt(world.delivery, 1)
    assert world.delivery.number_of(1, 1) is None
    again(world)
    assert can_adopt(world.delivery, 2)
    assert not can_adopt(world.delivery, 1)
    assert not can_adopt(world.delivery, 3)


def test_what_was_given_under_this_epoch_comes_before_any_claim() -> None:
    """P7: it is too late to hold what may have been given again."""
    world = World(A, B)
    world.give()
    again(world)
    world.give(1)
    assert not can_adopt(world.delivery, 1)


def test_a_list_is_adopted_once() -> None:
    """What it did not name the first time is given again, and not adopted. Whoever names it later,
    for the answer was lost, hears that it is not its own (R17)."""
    world = World(A, B)
    world.give()
    again(world)
    claim(world, {1: [(0, 0)]})
    assert not can_adopt(world.delivery, 1)
    number = adopted(world, 1)
    taken, gone = hold(world.delivery, {number: [(0, 1)], number + 1: [(7, 7)]}, now=world.now)
    assert (taken, gone) == ([], {number: [(1, 1)], number + 1: [(7, 7)]})
    assert world.ack(number, 1) == "stale"


def test_what_was_not_adopted_beside_what_was_is_nobody_s_the_second_time_too() -> None:
    """R17, R22: between, below and above; named twice, and in any order."""
    world = World(A, B, A, B, A, B)
    world.give()
    again(world)
    assert claim(world, {1: [(1, 1), (3, 3)]}) == {}
    number = adopted(world, 1)
    taken, gone = hold(world.delivery, {number: [(3, 5), (0, 3), (0, 3)]}, now=world.now)
    assert (taken, gone) == ([], {number: [(0, 0), (2, 2), (4, 5)]})
    assert [world.ack(number, offset) for offset in (0, 2, 5)] == ["stale"] * 3
    assert world.ack(number, 1) == world.ack(number, 3) == "settled"


def test_what_was_dead_lettered_is_not_adopted_and_not_called_settled() -> None:
    """R21, R22. [Its client was away when the lease ended, and then its broker was: it goes on with
    what stands in the dead letters, and is told that this counted.]"""
    world = World(A, B, attempts_max=1)
    world.give()
    world.nack(1, 0)
    world.bury()
    world.ack(1, 1)
    world.write()
    again(world)
    assert claim(world, {1: [(0, 1)]}) == {1: [(0, 0)]}
    number = adopted(world, 1)
    assert (world.ack(number, 0), world.ack(number, 1)) == ("stale", "settled")


def test_what_was_dead_lettered_while_its_holder_was_away_is_not_its_own() -> None:
    """R17: over a lost transport."""
    world = World(A, B, attempts_max=1)
    world.give()
    world.nack(1, 0)
    world.bury()
    world.ack(1, 1)
    taken, gone = hold(world.delivery, {1: [(0, 1)]}, now=world.now)
    assert (taken, gone) == ([], {1: [(0, 0)]})


def test_what_was_settled_is_settled_again_and_not_in_flight() -> None:
    """R21: the answer was lost with the broker."""
    world = World(A, B, A)
    world.give()
    world.ack(1, 1)
    world.write()
    again(world)
    assert claim(world, {1: [(0, 2)]}) == {}
    assert world.delivery.leases.open_count == 2
    assert world.ack(adopted(world, 1), 1) == "settled"
    assert offsets(world.give()) == []


def test_what_only_memory_knew_to_be_settled_stays_the_holder_s() -> None:
    """P5: the ack was not durable: it is said again."""
    world = World(A)
    world.give()
    world.ack(1, 0)
    again(world)
    assert claim(world, {1: [(0, 0)]}) == {}
    assert world.ack(adopted(world, 1), 0) == "settled"


def test_nothing_is_adopted_behind_an_earlier_message_of_its_key_that_comes_again() -> None:
    """P3, R17: 0 was pushed and never arrived. Other keys do not wait for it."""
    world = World(A, B, A, 0, A)
    world.give()
    again(world)
    assert claim(world, {1: [(1, 4)]}) == {1: [(2, 2), (4, 4)]}
    assert offsets(world.give()) == [0, 2, 4]


def test_what_awaits_its_retry_is_not_adopted() -> None:
    """R17: nor what comes behind it."""
    world = World(A, A)
    world.give()
    world.nack(1, 0, delay_s=60.0)
    world.write()
    again(world)
    assert claim(world, {1: [(0, 1)]}) == {1: [(0, 1)]}
    assert offsets(world.give()) == []


def test_what_is_exhausted_is_not_adopted() -> None:
    """R19: its end had come, and nobody had said so yet."""
    world = World(A, attempts_max=1)
    world.give()
    world.nack(1, 0)
    world.write()
    again(world)
    assert claim(world, {1: [(0, 0)]}) == {1: [(0, 0)]}
    world.give()
    assert [letter.reason for letter in world.bury()] == ["exhausted"]


def test_a_key_with_a_side_line_is_not_adopted(monkeypatch: pytest.MonkeyPatch) -> None:
    """R18: the storage cannot tell what stands there from what is settled, nor what comes first."""
    monkeypatch.setattr(limits, "HELD_PER_PARTITION_MAX", 1)
    monkeypatch.setattr(limits, "ASIDE_UNWRITTEN_MAX", 1)
    world = World(A, B)
    world.give()
    world.nack(1, 0)
    world.publish(A)
    world.give()
    world.write()
    assert world.store.aside == {2: A}
    (redelivery,) = world.retry(1)
    again(world)
    pushes = {1: [(1, 1)], redelivery.number: [(0, 0)], 9: [(2, 2)]}
    assert claim(world, pushes) == {redelivery.number: [(0, 0)], 9: [(2, 2)]}


def test_an_adopted_redelivery_keeps_its_attempts() -> None:
    """R19: one is durable; this one counts when it is marked, or nacked."""
    world = World(A, attempts_max=3)
    world.give()
    world.nack(1, 0)
    world.write()
    (out,) = world.retry()
    again(world)
    assert claim(world, {out.number: [(0, 0)]}) == {}
    number = adopted(world, out.number)
    world.delivery.start(number, 0, 0, now=world.now)
    assert world.expire(after_s=30.0) == [(number, 0)]
    (out,) = world.retry()
    assert (out.number, out.attempt) == (1, 3)
    world.write()
    assert world.ack(1, 0) == "settled"
    assert world.delivery.waiting.attempts == {}


def test_a_settled_redelivery_leaves_nothing_behind() -> None:
    """P9."""
    world = World(A)
    world.give()
    world.nack(1, 0)
    world.write()
    (out,) = world.retry()
    again(world)
    claim(world, {out.number: [(0, 0)]})
    assert world.ack(adopted(world, out.number), 0) == "settled"
    assert world.delivery.waiting.attempts == {}


def test_an_adopted_lease_is_a_fresh_one() -> None:
    """P6, R20: from now on, up to the cap from now on."""
    world = World(A, lease_s=30.0, lease_total_s=40.0)
    world.give()
    world.now += 29.0
    again(world)
    claim(world, {1: [(0, 0)]})
    number = adopted(world, 1)
    assert world.expire(after_s=29.9) == []
    world.delivery.extend(number, 0, 0, lease_s=60.0, now=world.now)
    assert world.expire(after_s=10.0) == []
    assert world.expire(after_s=0.1) == [(number, 0)]


def test_a_nack_takes_what_is_adopted_behind_it_and_what_was_given_since() -> None:
    """R17: the keys of what is adopted are known."""
    world = World(A, B, A, A)
    world.give(3)
    again(world)
    claim(world, {1: [(0, 2)]})
    number = adopted(world, 1)
    (out,) = world.give()
    assert world.nack(number, 0, delay_s=5.0) == [(number, 2), (out.number, 3)]
    assert world.ack(number, 2) == "stale"
    assert world.ack(number, 1) == "settled"
    assert [offset for give in world.retry() for offset in give.offsets()] == []


def test_of_the_epoch_before_all_else_is_stale() -> None:
    """R21: what was not named, was lost, or never was, whether it stands beside what was adopted
    or not."""
    world = World(A, B, A, B)
    world.give(3)
    again(world)
    claim(world, {1: [(0, 0), (2, 2)]})
    number = adopted(world, 1)
    assert [world.ack(number, offset) for offset in (1, 3)] == ["stale", "stale"]
    assert world.ack(number + 1, 0) == "stale"
    assert world.delivery.leases.open_count == 2


def test_a_push_spans_no_more_than_a_push_ever_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """P9: a mask of what it names is bounded."""
    monkeypatch.setattr(limits, "PUSH_MESSAGES_MAX", 3)
    world = World(A, B, A, B, A)
    world.give()
    again(world)
    assert claim(world, {1: [(0, 0), (2, 3)]}) == {1: [(3, 3)]}


def test_of_two_pushes_that_name_a_message_the_newer_one_has_it() -> None:
    """R16."""
    world = World(A)
    world.give()
    again(world)
    assert claim(world, {1: [(0, 0)], 2: [(0, 0)]}) == {1: [(0, 0)]}
    assert world.ack(adopted(world, 2), 0) == "settled"


def test_keys_are_wanted_up_to_what_an_owner_may_have_left_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """P9: who claims the end of a long backlog does not have it all read."""
    assert UNSETTLED_MAX > limits.IN_FLIGHT_PER_SUBSCRIPTION_MAX
    monkeypatch.setattr("push.delivery.resume.UNSETTLED_MAX", 3)
    world = World(A, A, A, A, A)
    world.give()
    world.ack(1, 1)
    world.write()
    again(world)
    assert keys_wanted(world.delivery, {1: [(3, 3)]}) == [(0, 0), (2, 3)]
    assert keys_wanted(world.delivery, {1: [(4, 4)]}) == [(0, 0), (2, 3)]
    assert claim(world, {1: [(0, 0), (2, 4)]}) == {1: [(4, 4)]}
    assert keys_wanted(world.delivery, {}) == []


def test_no_more_is_adopted_than_there_is_room_for() -> None:
    """P9, R17: nor, then, what comes behind of the same key. What was settled needs no room."""
    world = World(A, B, A, B)
    world.give()
    world.ack(1, 3)
    world.write()
    again(world)
    pushes = {1: [(0, 3)]}
    keys = {0: A, 1: B, 2: A}
    lost = adopt(world.delivery, pushes, keys, room=2, now=world.now, wall_unix_ms=world.wall)
    assert lost == {1: [(2, 2)]}
    assert world.delivery.leases.open_count == 2
    assert world.ack(adopted(world, 1), 3) == "settled"


def test_a_message_that_is_not_certified_is_nobody_s() -> None:
    """R10."""
    world = World(A)
    world.give()
    again(world)
    assert claim(world, {1: [(0, 1)]}) == {1: [(1, 1)]}


def test_a_holder_that_moves_has_not_failed() -> None:
    """R19: the gateway goes down in an orderly way, and the handler goes on."""
    world = World(A, attempts_max=1)
    world.give()
    world.delivery.start(1, 0, 0, now=world.now)
    world.delivery.abandon(wall_unix_ms=world.wall, moves=True)
    assert world.delivery.drained
    world.write()
    assert world.store.retries == {}
    again(world)
    assert claim(world, {1: [(0, 0)]}) == {}
