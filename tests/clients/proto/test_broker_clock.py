"""How far the broker's clock is ahead: found by round trips, told when it is news, and when a
message was produced."""

import asyncio
import json
from random import Random

import pytest
from tocsin.proto.broker_clock import EVERY_S, FIRST, FIRST_EVERY_S, NEWS_US, STEP_US, BrokerClock
from tocsin.proto.publish_lane import BatchTicket, Lane

WALL_US = 1_763_726_400_000_000


def opened(ahead_us: int = 7000) -> BrokerClock:
    """A clock whose broker is so far ahead."""
    clock = BrokerClock(wall_unix_us=WALL_US, now=100.0)
    clock.on_welcome(WALL_US + ahead_us, now=100.0)
    return clock


def ask(clock: BrokerClock, at: float, there_s: float, back_s: float, ahead_us: int) -> None:
    """A question that took so long there, and its answer back."""
    broker_us = clock.unix_us(at + there_s) + ahead_us
    clock.on_pong(at, broker_us, now=at + there_s + back_s)


def test_a_broker_without_a_clock_gets_no_times() -> None:
    clock = BrokerClock(wall_unix_us=WALL_US, now=100.0)
    clock.on_welcome(None, now=100.0)
    assert (clock.is_wanted, clock.offset_to_send_us, clock.is_due(100.0)) == (False, None, False)


def test_this_clients_clock_is_monotonic_from_when_it_began() -> None:
    clock = BrokerClock(wall_unix_us=WALL_US, now=100.0)
    assert clock.unix_us(100.5) == WALL_US + 500_000


def test_the_shortest_round_trip_says_most() -> None:
    """Others were slower one way: off by half of what they took longer."""
    clock = opened()
    for there_s, back_s in ((0.010, 0.002), (0.001, 0.001), (0.002, 0.030)):
        ask(clock, 101.0, there_s, back_s, 5000)
    assert clock.offset_to_send_us == pytest.approx(5000, abs=2)


def test_what_was_told_is_told_again_when_it_is_news() -> None:
    """On both sides of what is; and to another broker."""
    clock = opened(7000)
    assert clock.offset_to_send_us == 7000
    clock.on_offset_sent()
    assert clock.offset_to_send_us is None
    ask(clock, 101.0, 0.001, 0.001, 7000 + NEWS_US - 2)
    assert clock.offset_to_send_us is None
    ask(clock, 102.0, 0.0005, 0.0005, 7000 + NEWS_US + 2)
    assert clock.offset_to_send_us is not None
    clock.on_offset_sent()
    clock.on_welcome(WALL_US, now=100.0)
    assert clock.offset_to_send_us == 0


def test_a_clock_that_was_stepped_is_believed_at_once() -> None:
    """The shortest round trip was before the step: what it said is over. A slow answer is no step,
    on both sides of what round trips explain."""
    clock = opened()
    ask(clock, 101.0, 0.001, 0.001, 5000)
    ask(clock, 102.0, 0.001, 0.201, 5000)
    assert clock.offset_to_send_us == pytest.approx(5000, abs=2)
    ask(clock, 103.0, 0.001, 0.003, 5000 + STEP_US)
    assert clock.offset_to_send_us == pytest.approx(5000, abs=2)
    ask(clock, 104.0, 0.001, 0.003, 5000 + 2 * STEP_US)
    assert clock.offset_to_send_us == pytest.approx(5000 + 2 * STEP_US - 1000, abs=2)


def test_it_is_asked_often_at_first_and_rarely_then() -> None:
    clock, now = opened(), 100.0
    for _ in range(FIRST):
        assert clock.is_due(now)
        clock.on_ping(now)
        assert not clock.is_due(now + FIRST_EVERY_S - 0.01)
        now += FIRST_EVERY_S
    assert not clock.is_due(now + EVERY_S - FIRST_EVERY_S - 0.01)
    assert clock.is_due(now + EVERY_S - FIRST_EVERY_S)


async def test_a_frame_says_when_its_oldest_message_was_produced() -> None:
    """To a broker that tells its clock, and to no other, also where it is sent again."""
    lane, refs = Lane("orders", rng=Random(1)), iter(range(1, 10))
    done: asyncio.Future[BatchTicket] = asyncio.get_running_loop().create_future()
    ticket = BatchTicket(2, done.set_result)
    for index, produced_us in enumerate((5, 6)):
        lane.add(b"{}", ticket, index, float("inf"), produced_unix_us=produced_us)
    ((_, first),) = lane.take(refs, now=0.0, clock_offset_us=None)
    assert "produced_unix_us" not in json.loads(first)
    lane.on_disconnect()
    lane.sends_time = True
    ((_, again),) = lane.take(refs, now=1.0, clock_offset_us=-3)
    said = json.loads(again)
    assert (said["produced_unix_us"], said["clock_offset_us"], len(said["messages"])) == (5, -3, 2)
