"""Rates that gateways share: together no more than is allowed, and no less than there is."""

from collections import Counter
from collections.abc import Callable
from copy import deepcopy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from push.rates.bucket import Rate
from push.rates.shared import BEAT_S, IDLE_S, LEASE_S, PARTS
from tests.push.shared_world import NAME, TICK_S, One, World

RATE = Rate(1000, 1, 1000)
FATES = ("whole", "answer lost", "call lost", "answer late")
rates = st.builds(
    Rate,
    units=st.integers(1, 5000),
    per_s=st.sampled_from([1, 60]),
    burst=st.integers(1, 40) | st.integers(41, 5000),
)
acts = st.lists(
    st.tuples(
        st.sampled_from(["take", "take", "flood", "call", "call", "hear", "wait", "all"]),
        st.integers(0, 3),
        st.integers(1, 64),
    ),
    max_size=120,
)


def flood(cost: int) -> Callable[[One], None]:
    """Takes as much as it gets."""

    def act(one: One) -> None:
        while one.take(cost):
            pass

    return act


def once(cost: int) -> Callable[[One], None]:
    """Takes it if it can."""

    def act(one: One) -> None:
        one.take(cost)

    return act


def step(world: World, verb: str, number: int, amount: int, *, silent_s: float) -> None:
    """One thing that happens."""
    one = world.gateways[number % len(world.gateways)]
    if verb == "take":
        one.take(max(1, world.rate.burst * amount // 64))
    elif verb == "flood":
        flood(max(1, world.rate.burst // 50))(one)
    elif verb == "call":
        fate = FATES[amount % 4]
        one.call(arrives=fate != "call lost")
        if fate != "answer late":
            one.hear(answered=fate == "whole")
    elif verb == "hear":
        one.hear(answered=amount % 4 != 0)
    elif verb == "wait":
        world.ticks += amount
        for each in world.gateways:  # silence is broken in time, or is noticed
            if silent_s and each.now - each.called_s > silent_s:
                each.hear()
                each.call()
                each.hear()
            each.look()
            if not each.name and not silent_s and amount % 2:
                each.join()
    else:
        for each in world.gateways:
            each.hear()
            each.call()
            each.hear()


@settings(max_examples=400)
@given(rates, st.integers(1, 4), acts)
def test_all_gateways_together_admit_no_more_than_one(
    rate: Rate, count: int, history: list[tuple[str, int, int]]
) -> None:
    """Whatever is late or lost: exactly burst + rate * t in every window."""
    world = World(rate, count)
    for verb, number, amount in history:
        step(world, verb, number, amount, silent_s=2.0)
    assert not world.cuts


@settings(max_examples=200)
@given(rates, st.integers(1, 4), acts)
def test_who_is_cut_off_admits_its_standing_share_besides_and_no_more(
    rate: Rate, count: int, history: list[tuple[str, int, int]]
) -> None:
    world = World(rate, count)
    for verb, number, amount in history:
        step(world, verb, number, amount * 4 if verb == "wait" else amount, silent_s=0.0)


@settings(max_examples=100)
@given(rates, acts, st.lists(st.integers(-(10**10), 10**10), min_size=1, max_size=3))
def test_a_clock_that_jumps_forgives_a_second_of_the_rate_at_most(
    rate: Rate, history: list[tuple[str, int, int]], jumps: list[int]
) -> None:
    world = World(rate, 2)
    for place, (verb, number, amount) in enumerate(history):
        if place % 40 == 20 and jumps:
            world.jump_us += jumps.pop()
            world.spare += -(-rate.units // rate.per_s)
        step(world, verb, number, amount, silent_s=2.0)


def test_standing_shares_together_are_half_of_the_rate() -> None:
    """The store hears nothing of them."""
    world = World(RATE, 8)
    for _ in range(round(4 / TICK_S)):
        world.ticks += 1
        for one in world.gateways:
            flood(1)(one)
    assert 496 + 1900 <= sum(cost for _, cost in world.log) <= 496 + 2000


# --- No less than there is ------------------------------------------------------------------------


def test_who_stays_far_below_the_limit_costs_the_store_nothing() -> None:
    world = World(RATE, 3)

    def little(one: One) -> None:
        if world.ticks % 4 == 0:  # 16 a second at each of them, of 62
            assert one.take(1)

    world.run(20, little)
    assert not world.pool.buckets


def test_one_gateway_that_alone_sees_a_debtor_gives_it_the_whole_rate() -> None:
    world = World(RATE, 3)

    def busy(one: One) -> None:
        if one is world.gateways[0]:
            flood(10)(one)

    assert world.run(2, busy) >= RATE.burst
    assert world.run(10, busy) == pytest.approx(10 * 1000, rel=0.02)


def test_who_uses_less_than_the_rate_is_never_refused() -> None:
    """Also on its way up, when a standing share is not enough any more."""
    world = World(RATE, 2)

    def steady(one: One) -> None:
        if one is world.gateways[0]:
            assert one.take(10)  # 640 a second

    world.run(30, steady)


def test_two_gateways_have_half_each_whenever_they_call() -> None:
    for lag in (0, 1, 5):
        world = World(RATE, 2)
        taken: Counter[int] = Counter()

        def act(
            one: One, world: World = world, taken: Counter[int] = taken, lag: int = lag
        ) -> None:
            if one is world.gateways[1] and (world.ticks + lag) % 7:
                return  # it calls less often
            while one.take(5):
                taken[world.gateways.index(one)] += 5

        world.run(5, act)
        taken.clear()
        total = world.run(20, act)
        assert total == pytest.approx(20_000, rel=0.05)
        assert 0.4 <= taken[0] / total <= 0.6


def test_a_request_of_the_whole_burst_is_admitted_wherever_it_comes() -> None:
    """What others hold is recalled for it; two of them do not hold each other up for ever."""
    world = World(RATE, 2)
    world.run(1, once(40))
    done: Counter[int] = Counter()

    def whole(one: One) -> None:
        done[world.gateways.index(one)] += one.take(1000)

    world.run(30, whole)
    assert sum(done.values()) >= 15
    assert min(done[0], done[1]) >= 5


def test_after_the_advised_time_the_same_is_admitted() -> None:
    world = World(RATE, 2)
    one = world.gateways[0]
    for cost in (1, 100, 250, 600, 1000):
        world.run(5, lambda each: flood(1)(each) if each is one else None)
        wait_s = one.bucket().take(cost, now=one.now)
        assert 0 < wait_s <= 1.5
        world.run(wait_s + TICK_S)
        assert one.take(cost), cost


def test_what_is_idle_is_given_back_and_the_store_forgets_it() -> None:
    world = World(RATE, 2)
    world.run(3, flood(10))
    assert world.pool.buckets
    world.run(3 * IDLE_S)
    assert not world.pool.buckets
    assert [len(one.shares) for one in world.gateways] == [0, 0]
    assert all(one.take(RATE.burst // PARTS) for one in world.gateways)


# --- What is lost ---------------------------------------------------------------------------------


def test_a_grant_whose_answer_is_lost_is_there_once_and_only_once() -> None:
    """[Minted again, each lost answer would admit a slice more.]"""
    world = World(RATE, 1)
    one = world.gateways[0]
    flood(1)(one)
    for _ in range(5):
        one.call()
        one.hear(answered=False)
    one.call()
    one.hear()
    taken = 0
    while one.take(1):
        taken += 1
    entry = world.pool.buckets[NAME].entries[one.name]
    assert taken == entry.granted - entry.counted == 250


def test_a_call_that_comes_about_late_changes_nothing() -> None:
    world = World(RATE, 2)
    one = world.gateways[0]
    flood(1)(one)
    late = one.shares.requests(now=one.now)
    one.shares.on_failure(late)
    one.calls += 1
    number = one.calls
    one.call()
    one.hear()
    before = repr(world.pool.buckets)
    assert world.pool.ask(one.name, number, late, world.time_us) is None
    assert repr(world.pool.buckets) == before


def test_what_a_gateway_held_that_ends_counts_as_used_and_then_leaks() -> None:
    world = World(RATE, 2)
    dead, other = world.gateways
    world.run(2, lambda one: flood(10)(one) if one is dead else None)
    dead.alive = False
    world.cuts += 1
    world.run(LEASE_S + 1, once(1))
    assert set(world.pool.gateways) == {other.name}
    assert world.run(10, flood(10)) >= 9_000
    assert not world.pool.buckets[NAME].implied


def test_a_gateway_without_a_store_goes_on_with_its_standing_share() -> None:
    """Nobody is locked out; and what it was handed out before is not used any more."""
    world = World(RATE, 2)
    world.run(3, flood(10))
    one = world.gateways[0]
    one.alive = False
    taken = 0
    for _ in range(round(20 / TICK_S)):
        world.ticks += 1
        one.look()
        taken += one.take(1)
    assert one.shares.is_cut_off
    assert taken == pytest.approx((20 - 5) * 1000 / 16, rel=0.35)
    assert one.bucket().take(63, now=one.now) == 1.0


def test_the_ninth_gateway_has_no_share_and_asks_for_everything() -> None:
    world = World(RATE, 9)
    ninth = world.gateways[8]
    assert not ninth.take(1)
    world.run(BEAT_S)
    assert ninth.take(1)
    assert world.run(10, lambda one: flood(10)(one) if one is ninth else None) >= 9_000
    world.run(3 * IDLE_S)
    assert not world.pool.buckets


def test_who_comes_later_has_no_share_of_what_is_in_use() -> None:
    """[With one, the bucket would hold a sixteenth more than it may for each that comes.]"""
    world = World(RATE, 1)
    world.run(3, flood(1))
    late = One(world, 5.0)
    late.join()
    assert not late.take(1)
    fresh = late.shares.bucket("messages:another", RATE, now=late.now)
    assert fresh.take(62, now=late.now) == 0


def test_a_failover_forgives_what_was_said_in_its_last_moments_and_no_more() -> None:
    """The store is as it was half a second ago: gateways say again what they hold and have used."""
    world = World(RATE, 2)
    world.run(5, flood(10))
    before = deepcopy(world.pool.buckets)
    lost = world.run(0.5, flood(10))
    world.pool.buckets = before
    world.spare = lost
    assert world.run(5, flood(10)) >= 4_500
    assert sum(one.held for one in before[NAME].entries.values()) <= RATE.burst


def test_a_store_that_has_forgotten_everything_is_told_what_is_held() -> None:
    world = World(RATE, 2)
    world.run(5, flood(10))
    world.pool.buckets.clear()
    world.pool.due.clear()
    world.spare = RATE.burst
    assert world.run(5, flood(10)) >= 4_500
