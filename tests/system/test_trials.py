"""Bad days, in short: consumers that come and go, keys that are stuck, sockets that stop reading.

The whole trials, which also compare rates, are `make trials`. Checked is only what also holds on a
busy machine: deliveries, their order and number, and memory.
"""

import asyncio
from typing import Final

from loadtests.trials import bulk, calm, churn, later, overflow, seal
from loadtests.trials.credentials import guesses, revoke
from loadtests.trials.noisy import trial as noisy
from loadtests.trials.stalled import trial as stalled
from loadtests.trials.stuck import trial as stuck
from loadtests.trials.stuck.handlers import Plan, hung_handlers
from loadtests.trials.trial import Finding
from loadtests.trials.visitors import trial as visitors

BULK_S: Final = 120.0
"""Far more than the short bulk load takes, even on a busy machine."""


def hold(finding: Finding) -> None:
    """Check that every promise that compares no times was kept; the report has the whole
    finding."""
    print(finding)  # noqa: T201 - pytest shows it where the test fails, or with -rP
    assert not finding.broken(timed=False)


async def test_consumers_come_and_go_and_nothing_is_lost_or_out_of_order() -> None:
    """P1, P3, P5, P7 while partitions move twice a second; R20: those that do not move do not
    pause."""
    hold(await churn.churn(churn.Plan(3.0, 1_500), print))


async def test_consumers_that_come_and_go_are_gone_two_seconds_later() -> None:
    """R14: a consumer that has ended never joins, and a crowd is a few writes of the group's
    row."""
    hold(await visitors.visitors(visitors.Plan((1_000,), 100), print))


async def test_stuck_keys_hold_up_nobody_else_and_lose_nothing() -> None:
    """P8, P9, R17, R18: keys nacked for ever, parked, and hung, with a backlog."""
    plan = stuck.Plan(80_000, turn_s=1.0, lease_s=5, rounds=1, live_messages=20_000)
    hold(await stuck.stuck(plan, print))


async def test_a_key_whose_handler_hangs_starves_nobody_through_an_sdk_or_by_pull() -> None:
    """P8 from handler to handler: messages of other keys follow more of the hung one than a
    consumer takes, in one log."""
    plan = Plan(behind=1_500, others=200, partitions=1, seconds=60.0)
    hold(await hung_handlers(print, plans=[plan]))


async def test_hung_keys_one_after_another_starve_nobody() -> None:
    plan = Plan(hung=6, behind=1_200, others=200, concurrency=12, partitions=1, seconds=60.0)
    hold(await hung_handlers(print, ways=["python", "node"], plans=[plan]))


async def test_sockets_that_stop_reading_cost_bounded_memory_and_nobody_a_message() -> None:
    """P9, P10: they are not cut off, and one that reads on is informed of what it missed."""
    hold(await stalled.stalled(stalled.Plan(1.0, 150, settle_s=0, window=1000), print))


async def test_what_is_at_rest_is_sealed_whatever_happens_to_its_keys_and_bits() -> None:
    """P2, P13, R9, R30: rotations under load and a kill, flipped bits, and a canary in no file."""
    hold(await seal.seal(seal.Plan(rotations=2, flips=150), print))


async def test_the_end_of_a_credential_ends_its_sessions_within_five_seconds() -> None:
    """P11: revoked, expired, and without its key, over both transports."""
    hold(await revoke.revoke(revoke.Plan(40, lasts_s=3), print))


async def test_wrong_credentials_are_told_the_same_over_sockets() -> None:
    """P11."""
    hold(await guesses.guesses(guesses.Plan(1), print))


async def test_what_falls_due_beside_a_live_load_comes_once() -> None:
    """P8, R32."""
    hold(await later.later(later.Plan(500, 200, seconds=3.0, rounds=1), print))


async def test_what_waits_until_tomorrow_costs_no_memory_and_waits_through_a_kill() -> None:
    """P1, P9, R32."""
    hold(await later.waiting(later.WaitingPlan(30_000), print))


async def test_the_metadata_stalls_and_who_publishes_and_consumes_does_not_notice() -> None:
    """P1, P12: known queues and groups go on without an error; other requests are refused."""
    hold(await calm.calm(calm.Plan(seconds=2.0, rate=200, before_s=0.5), print))


async def test_a_flooded_queue_is_refused_and_another_one_goes_on() -> None:
    """P1, P9: the other queue has no error, and accepted messages of the flood are stored."""
    hold(await noisy.noisy(noisy.Plan(0.6, 1, 0.1, nices=(0,)), print))


async def test_what_overflows_is_dead_or_acked_and_in_order() -> None:
    """P1, P3, P5: consumers hand over and join while their queue overflows."""
    hold(await overflow.overflow(overflow.Plan(rounds=8, batches=25), print))


async def test_a_bulk_load_is_stored_beside_a_trickle_and_reports_where_it_is_held_back() -> None:
    """P1, P9: nothing of either is refused or lost. Over a queue's limit the command reports how
    much was deferred."""
    plan = bulk.Plan(lines=4_000, rate=50, rounds=1, loads=2, alone_s=0.5, nice=0)
    async with asyncio.timeout(BULK_S):
        finding = await bulk.bulk(plan, print)
    hold(finding)
    for figure in (
        "bulk_alone_per_s", "bulk_beside_per_s", "bulk_kept", "trickle_alone_p99_ms",
        "trickle_beside_p99_ms", "trickle_p99_ratios", "held_back_put_off",
    ):  # fmt: skip
        assert finding.figures[figure], figure
