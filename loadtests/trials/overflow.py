"""Overflow beside consumers that hand over and join: what is acked is not dead-lettered.

Each round has a queue of its own, with `overflow: dead_letter` and one partition. There are two
kinds:

* handover: batches of messages of a few keys are published while consumers with little credit
  live for a moment each and hand over to the next. First deliveries of a key come in the order of
  the log (P3), under every owner.
* joins: a bulk of messages is published at once, and a consumer with much credit joins while the
  broker moves messages beyond the bound. A message whose ack was confirmed is not among the dead
  letters (P5), and each message is settled or dead (P1).

The clients are raw sockets, so that no SDK hides repetitions.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, Literal

import msgspec

from loadtests.clients import wire
from loadtests.clients.load import Client, LoadFailed, Reply
from loadtests.clients.rest import Rest
from loadtests.server import SERVE
from loadtests.trials import options
from loadtests.trials.trial import Finding, Progress, broker

ROUNDS: Final = 200
MESSAGES_MAX: Final = 50
"""The `messages_max` of each queue; what exceeds it moves to the dead letters."""
AT_ONCE: Final = 6
"""The most rounds that run at the same time."""
_DRAIN_S: Final = 60.0
_ENCODE: Final = msgspec.json.Encoder().encode
_BODIES: Final = msgspec.json.Decoder(list[dict[str, Any]])
Kind = Literal["handover", "joins"]
KINDS: Final[tuple[Kind, ...]] = ("handover", "joins")


@dataclass(frozen=True)
class Plan:
    """Let queues overflow into their dead letters while consumers hand over and join. First
    deliveries must be in order, and no message both acked and dead-lettered. Takes about ten
    minutes."""

    rounds: int = options.whole(ROUNDS, "Number of rounds of each kind.", 1, 100_000)
    kinds: tuple[Kind, ...] = options.some_of(
        KINDS, "Run only rounds of this kind; repeatable. [both]",
        "--kind kinds",
    )  # fmt: skip
    seed: int = options.seed()
    batches: int = 60
    batch: int = 50
    """Messages of one publish in the rounds of kind handover."""
    bulk: int = 500
    """Number of messages in the rounds of kind joins."""
    command: Sequence[str] = SERVE
    """The program that runs as the broker; another one is a negative control."""


class Taker(Client):
    """A consumer, or a reader of a whole queue, that remembers the messages given to it and its
    confirmed acks.

    `deaf`: the client has left, and ignores frames that still arrive.
    """

    def __init__(self, name: str, credit: int, *, pause_s: float = 0.0) -> None:
        """`pause_s`: seconds from the receipt of messages to their ack."""
        super().__init__(name)
        self.credit = credit
        self._pause_s = pause_s
        self.given: list[tuple[int, str, int]] = []
        """(number in the body, key, offset) of each given message, in the order of arrival."""
        self.acked: set[int] = set()
        """Numbers of the messages whose ack the broker confirmed as settled."""
        self.headers: list[dict[str, str]] = []
        self.deaf = False
        self._numbers: dict[tuple[int, int], int] = {}
        """(epoch, offset) of a given message → its number."""
        self._due: list[list[int]] = []
        self._asked: dict[int, list[list[int]]] = {}

    async def take(self, url: str, queue: str, group: str | None, start: str = "earliest") -> None:
        """Connect, and subscribe in `group`, or as a reader from `start` if that is None."""
        await self.open(url, None)
        more: dict[str, object] = {"group": group} if group is not None else {"start": start}
        await self.ask(type="subscribe", subscription=1, queue=queue, credit=self.credit, **more)

    def _message(self, message: bytes) -> None:
        if not self.deaf:
            super()._message(message)

    def _push(self, data: bytes) -> None:
        head, start, end = wire.open_push(data)
        messages = _BODIES.decode(b"[" + data[start:end] + b"]")
        for message, offset in zip(messages, head.places(len(messages)), strict=True):
            number = message["body"]
            self.given.append((number, message.get("key", ""), offset))
            self.headers.append(message.get("headers", {}))
            self._numbers[(head.epoch, offset)] = number
            self._due.append([head.partition, head.epoch, head.push, offset, offset])

    def _turn(self) -> None:
        if self._due and self._due[0][1]:  # readers acknowledge nothing
            asyncio.get_running_loop().call_later(self._pause_s, self._ack)

    def _ack(self) -> None:
        if self.deaf or not self._due:
            return
        ref, due = self._next_ref(), self._due
        self._due, self._asked[ref] = [], due
        granted = self.credit + len(self.given)
        self.wire.send_all([
            _ENCODE({"type": "ack", "subscription": 1, "deliveries": due, "ref": ref}),
            b'{"type":"credit","subscription":1,"granted":%d}' % granted,
        ])  # fmt: skip

    def _answered(self, ref: int, reply: Reply, data: bytes) -> None:
        asked = self._asked.pop(ref, None)
        if asked is None:
            super()._answered(ref, reply, data)
            return
        refused = {
            (epoch, offset)
            for _, epoch, _, first, last in [*reply.stale, *reply.not_delivered]
            for offset in range(first, last + 1)
        }
        for _, epoch, _, first, last in asked:
            for offset in range(first, last + 1):
                if (epoch, offset) not in refused:
                    self.acked.add(self._numbers[(epoch, offset)])

    @property
    def settling(self) -> bool:
        """Whether an ack that was sent has not been answered."""
        return bool(self._asked)

    @property
    def perhaps(self) -> set[int]:
        """Numbers of the messages that may be settled, because their ack was sent and not
        answered."""
        return {
            self._numbers[(epoch, offset)]
            for asked in self._asked.values()
            for _, epoch, _, first, last in asked
            for offset in range(first, last + 1)
        }

    def leave(self) -> None:
        """Close the socket at once, without unsubscribing. Frames that still arrive are ignored."""
        self.deaf = self._leaving = True
        self.wire.abort()


@dataclass
class Outcome:
    """The result of the rounds of a kind."""

    rounds: int = 0
    published: int = 0
    dead: int = 0
    acked: int = 0
    disorder: list[str] = field(default_factory=list)
    """P3: messages whose first delivery came after one of a later message of their key."""
    both: list[str] = field(default_factory=list)
    """P5: messages both confirmed and dead-lettered."""
    lost: list[str] = field(default_factory=list)
    """P1: messages that are neither dead-lettered nor acked; an unanswered ack counts as an ack."""
    twice: list[str] = field(default_factory=list)
    """Queues in which messages have more than one dead letter, and how many letters are too
    many."""
    letters_disorder: list[str] = field(default_factory=list)
    """Dead letters of a key that are not in the order of the log."""


class _Round:
    """A queue, from its creation to the verdict on each message."""

    def __init__(self, url: str, name: str, plan: Plan, random: Random) -> None:
        self._url, self._name, self._plan, self._random = url, name, plan, random
        self._rest = Rest(url)
        self._takers: list[Taker] = []
        self._published = 0

    async def run(self, kind: Kind, outcome: Outcome) -> None:
        """Run a round and add its results to `outcome`. Raises LoadFailed if the round cannot end
        normally."""
        try:
            await self._rest.call(
                "PUT", f"/v1/queues/{self._name}",
                {"partitions": 1, "messages_max": MESSAGES_MAX, "overflow": "dead_letter"},
            )  # fmt: skip
            await self._rest.call("PUT", f"/v1/queues/{self._name}/groups/workers", {})
            if kind == "handover":
                await self._hand_over()
            else:
                await self._join()
            await self._drain()
            self._judge(outcome, await self._letters())
        finally:
            self._rest.close()
            for taker in self._takers:
                if hasattr(taker, "wire"):
                    taker.leave()

    async def _publish(self, client: Client, count: int, keys: int) -> None:
        numbers = range(self._published, self._published + count)
        self._published += count
        messages = [{"key": f"k{self._random.randrange(keys)}", "body": n} for n in numbers]
        for first in range(0, count, 1000):
            await client.ask(
                type="publish", queue=self._name, messages=messages[first : first + 1000]
            )

    async def _taker(self, credit: int, *, pause_s: float = 0.0) -> Taker:
        taker = Taker(f"{self._name}-{len(self._takers)}", credit, pause_s=pause_s)
        self._takers.append(taker)
        await taker.take(self._url, self._name, "workers")
        return taker

    async def _hand_over(self) -> None:
        producer = _Producing(f"{self._name}-producer")
        await producer.open(self._url, None)

        async def publish() -> None:
            for _ in range(self._plan.batches):
                await self._publish(producer, self._plan.batch, keys=5)
                await asyncio.sleep(self._random.uniform(0.0, 0.2))

        task = asyncio.create_task(publish())
        try:
            while not task.done():
                taker = await self._taker(credit=3, pause_s=0.03)
                await asyncio.sleep(self._random.uniform(0.3, 1.3))
                taker.leave()
            await task
        finally:
            task.cancel()
            producer.close()

    async def _join(self) -> None:
        producer = _Producing(f"{self._name}-producer")
        await producer.open(self._url, None)
        await self._publish(producer, self._plan.bulk, keys=7)
        producer.close()
        await asyncio.sleep(self._random.uniform(0.0, 2.5))
        await self._taker(credit=1000)

    async def _drain(self) -> None:
        """Let a last consumer take the rest, until the broker reports no lag and all acks are
        answered. Raises LoadFailed after _DRAIN_S."""
        last = await self._taker(credit=1000)
        deadline = time.monotonic() + _DRAIN_S
        place = f"/v1/queues/{self._name}/groups/workers"
        while (await self._rest.call("GET", place))["lag"] or any(
            taker.settling for taker in self._takers if not taker.deaf
        ):
            if last.failure is not None:
                raise last.failure
            if time.monotonic() > deadline:
                raise LoadFailed(f"{self._name}: the group still lags after {_DRAIN_S:.0f} s")
            await asyncio.sleep(0.05)

    async def _letters(self) -> Taker:
        """Read all dead letters of the queue, and return the reader that was given them. Raises
        LoadFailed."""
        name = f"{self._name}.dead-letters"
        reader = Taker(f"{self._name}-reader", 10_000)
        try:
            found = await self._rest.call("GET", f"/v1/queues/{name}")
        except RuntimeError:
            return reader  # nothing was moved, and there is no such queue
        wanted = sum(one["messages"] for one in found["partitions"])
        self._takers.append(reader)
        await reader.take(self._url, name, None)
        deadline = time.monotonic() + _DRAIN_S
        while len(reader.given) < wanted:
            if time.monotonic() > deadline:
                raise LoadFailed(f"{name}: {len(reader.given)} of {wanted} letters can be read")
            await asyncio.sleep(0.01)
        return reader

    def _judge(self, outcome: Outcome, reader: Taker) -> None:
        outcome.rounds += 1
        outcome.published += self._published
        letters = [number for number, _, _ in reader.given]
        dead = set(letters)
        acked: set[int] = set().union(*(taker.acked for taker in self._takers))
        outcome.dead += len(dead)
        outcome.acked += len(acked)
        outcome.both += [f"{self._name}: {number}" for number in sorted(acked & dead)]
        perhaps: set[int] = set().union(*(taker.perhaps for taker in self._takers))
        lost = set(range(self._published)) - dead - acked - perhaps
        outcome.lost += [f"{self._name}: {number}" for number in sorted(lost)]
        if len(letters) != len(dead):
            outcome.twice.append(f"{self._name}: {len(letters) - len(dead)} letters more")
        seen: set[int] = set()
        highest: dict[str, int] = {}
        for taker in self._takers:
            if taker is reader:
                continue
            for number, key, offset in taker.given:
                if offset in seen:
                    continue
                seen.add(offset)
                if offset < highest.get(key, -1):
                    outcome.disorder.append(
                        f"{self._name}: {number} of {key}, at {offset}, behind {highest[key]}"
                    )
                highest[key] = max(offset, highest.get(key, -1))
        highest.clear()
        for (number, key, _), headers in zip(reader.given, reader.headers, strict=True):
            offset = int(headers["tocsin-dead-letter-offset"])
            if offset < highest.get(key, -1):
                outcome.letters_disorder.append(f"{self._name}: {number} of {key}, at {offset}")
            highest[key] = max(offset, highest.get(key, -1))


class _Producing(Client):
    """A producer; a refusal ends the round."""


async def overflow(plan: Plan, progress: Progress) -> Finding:
    """Run `plan.rounds` rounds of each kind, at most AT_ONCE at the same time.

    Raises LoadFailed or ServerFailed if the trial cannot end normally.
    """
    finding = Finding("overflow")
    outcomes = {kind: Outcome() for kind in plan.kinds}
    places = asyncio.Semaphore(AT_ONCE)
    async with broker("overflow", command=plan.command) as server:

        async def one(kind: Kind, number: int) -> None:
            async with places:
                name = f"{kind}-{number}"
                random = Random(f"{plan.seed} {name}")
                outcome = outcomes[kind]
                await _Round(server.url, name, plan, random).run(kind, outcome)
                if outcome.rounds % 10 == 0:
                    progress(f"{kind}: {outcome.rounds} rounds, {_told(outcome)}")

        await asyncio.gather(
            *(one(kind, number) for number in range(plan.rounds) for kind in plan.kinds)
        )
    for kind, outcome in outcomes.items():
        finding.figures |= {
            f"{kind}_rounds": outcome.rounds, f"{kind}_published": outcome.published,
            f"{kind}_acked": outcome.acked, f"{kind}_dead": outcome.dead,
        }  # fmt: skip
        for promise, found in (
            ("P3: first deliveries of a key are in offset order", outcome.disorder),
            ("P5: nothing is acked, confirmed, and dead-lettered as well", outcome.both),
            ("P1: everything is acked or dead-lettered", outcome.lost),
            ("R8: no message is two dead letters", outcome.twice),
            ("dead letters of a key are in offset order", outcome.letters_disorder),
        ):
            shown = "; ".join(found[:5])
            finding.check(
                f"{kind}: {promise}", not found, f"{len(found)} messages: {shown}" if found else 0
            )
        finding.check(
            f"{kind}: something was moved, and something taken",
            outcome.dead > 0 and outcome.acked > 0, f"{outcome.dead} and {outcome.acked}",
        )  # fmt: skip
    finding.conditions = {"seed": plan.seed, "messages_max": MESSAGES_MAX, "partitions": 1}
    return finding


def _told(outcome: Outcome) -> str:
    return (
        f"{len(outcome.disorder)} out of order, {len(outcome.both)} both acked and dead, "
        f"{len(outcome.lost)} lost, {len(outcome.twice)} twice"
    )
