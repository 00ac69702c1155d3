"""A backlog that has expired, followed by a fresh message: the time until the fresh one is given,
and the rate at which the backlog moves to the dead letters.

Each case publishes a backlog whose messages live for a moment, and waits until all have expired.
Then it publishes a fresh message of one of the keys, and lets a consumer join that acks everything.
The clients are raw sockets.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from loadtests.clients.load import Client, LoadFailed
from loadtests.clients.rest import Rest
from loadtests.server import SERVE, Server
from loadtests.trials import options
from loadtests.trials.overflow import Taker
from loadtests.trials.trial import Finding, Progress, broker

MESSAGES: Final = 100_000
TTL_S: Final = 2
FRESH_S_MAX: Final = 1.0
"""The longest wait of a fresh message, however many have expired before it."""
RATE_MIN: Final = 20_000
"""The lowest rate at which messages move to the dead letters, per second."""
_DRAIN_S: Final = 600.0


@dataclass(frozen=True)
class Case:
    """A backlog: its number of keys, and the number of messages in one publish."""

    name: str
    keys: int
    batch: int
    share: float = 1.0
    """The case's share of the plan's messages."""


CASES: Final = (
    Case("bulk", keys=100, batch=1000),
    Case("one_key", keys=1, batch=1000),
    Case("singly", keys=100, batch=1, share=0.2),
)


@dataclass(frozen=True)
class Plan:
    """Measure how soon a fresh message behind an expired backlog is delivered, and how fast the
    backlog moves to the dead letters."""

    messages: int = options.whole(MESSAGES, "Number of messages in the backlog.", 1000, 10_000_000)
    cases: Sequence[Case] = CASES
    command: Sequence[str] = SERVE


@dataclass
class Outcome:
    """The result of one case."""

    messages: int = 0
    fresh_s: float = 0.0
    """Time from the consumer's connect and subscribe to its receipt of the fresh message, in
    seconds."""
    moved_s: float = 0.0
    """Time from the same moment until all expired messages were in the dead letters, in seconds."""
    given: int = 0
    """Number of expired messages that the consumer was given nevertheless."""


async def _publish(url: str, queue: str, case: Case, count: int) -> None:
    producer = Client(f"{queue}-producer")
    await producer.open(url, None)
    places = asyncio.Semaphore(max(1, min(64, 16_000 // case.batch)))

    async def one(first: int) -> None:
        async with places:
            numbers = range(first, min(first + case.batch, count))
            messages = [{"key": f"k{n % case.keys}", "body": n, "ttl_s": TTL_S} for n in numbers]
            answer = await producer.ask(type="publish", queue=queue, messages=messages)
            if b'"code":' in answer:
                raise LoadFailed(f"{queue}: a publish was refused: {answer[:400]!r}")

    try:
        await asyncio.gather(*(one(first) for first in range(0, count, case.batch)))
    finally:
        producer.close()


async def _run(server: Server, case: Case, count: int) -> Outcome:
    rest, queue = Rest(server.url), f"expiry-{case.name}"
    await rest.call("PUT", f"/v1/queues/{queue}", {"partitions": 1})
    await rest.call("PUT", f"/v1/queues/{queue}/groups/workers", {})
    await _publish(server.url, queue, case, count)
    await asyncio.sleep(TTL_S + 1.0)
    producer, taker = Client(f"{queue}-fresh"), Taker(f"{queue}-taker", 1000)
    outcome = Outcome(count)
    try:
        await producer.open(server.url, None)
        await producer.ask(type="publish", queue=queue, messages=[{"key": "k0", "body": count}])
        began = time.monotonic()
        await taker.take(server.url, queue, "workers")
        while count not in {number for number, _, _ in taker.given}:
            _check(taker, began, f"{queue}: the fresh message is not given")
            await asyncio.sleep(0.005)
        outcome.fresh_s = time.monotonic() - began
        while await _moved(rest, queue) < count:
            _check(taker, began, f"{queue}: the backlog is not moved")
            await asyncio.sleep(0.05)
        outcome.moved_s = time.monotonic() - began
        outcome.given = sum(number != count for number, _, _ in taker.given)
    finally:
        rest.close()
        producer.close()
        taker.leave()
    return outcome


def _check(taker: Taker, began: float, what: str) -> None:
    if taker.failure is not None:
        raise taker.failure
    if time.monotonic() - began > _DRAIN_S:
        raise LoadFailed(f"{what} after {_DRAIN_S:.0f} s")


async def _moved(rest: Rest, queue: str) -> int:
    try:
        found = await rest.call("GET", f"/v1/queues/{queue}.dead-letters")
    except RuntimeError:
        return 0  # it is created for the first of them
    return sum(int(one["messages"]) for one in found["partitions"])


async def expiry(plan: Plan, progress: Progress) -> Finding:
    """Run each case, one after the other. Raises LoadFailed or ServerFailed."""
    finding = Finding("expiry")
    async with broker("expiry", command=plan.command) as server:
        for case in plan.cases:
            outcome = await _run(server, case, round(plan.messages * case.share))
            rate = outcome.messages / outcome.moved_s
            progress(f"{case.name}: fresh after {outcome.fresh_s:.2f} s, {rate:,.0f}/s moved")
            finding.figures |= {
                f"{case.name}_messages": outcome.messages,
                f"{case.name}_fresh_s": round(outcome.fresh_s, 2),
                f"{case.name}_moved_per_s": round(rate),
            }
            finding.check(
                f"{case.name}: R13: nothing is given that has expired",
                not outcome.given, outcome.given,
            )  # fmt: skip
            finding.check(
                f"{case.name}: P8: a fresh message is given within {FRESH_S_MAX:.0f} s",
                outcome.fresh_s <= FRESH_S_MAX, f"{outcome.fresh_s:.2f} s", timed=True,
            )  # fmt: skip
            finding.check(
                f"{case.name}: at least {RATE_MIN:,} messages a second are moved",
                rate >= RATE_MIN, f"{rate:,.0f}", timed=True,
            )  # fmt: skip
    finding.conditions = {"ttl_s": TTL_S, "partitions": 1}
    return finding
