"""Any history: consumers, pulls, acks, nacks, deaths, ended leases and restarts at random.

Each push is judged at the moment it is sent (P3, P5, P7). In the end every message is settled or is
in the dead letters (P1).
"""

import asyncio
import os
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random
from typing import Any

import pytest

from gateway.delivery.consumer import Consumer
from gateway.models import PulledMessage, PullSettled
from metadata.catalog import Group, Queue
from push.errors import Unknown
from tests.histories.house import House, Session, eventually, message, offsets_of

Where = tuple[int, int]
"""(partition, offset)"""
KEYS = 12
ATTEMPTS_MAX = 4
PULLS = "pulls"


class Judge:
    """State of every message as a group's members see it, with the checks of the promises."""

    attempts_max = ATTEMPTS_MAX

    def __init__(self) -> None:
        self.keys: dict[Where, str] = {}
        self.lines: dict[tuple[int, str], list[int]] = defaultdict(list)
        """Offsets by (partition, key)."""
        self.open: dict[Where, tuple[str, int, int]] = {}
        """Deliveries in flight: (member, epoch, push)."""
        self.returned: dict[Where, int] = {}
        """Messages given back, with the attempts that may have counted."""
        self.settled: set[Where] = set()
        self.attempts: dict[Where, int] = {}
        self.may_die: set[Where] = set()
        """Messages that may expire, or overflow, without ever being given."""
        self.passed: set[Where] = set()
        """Messages that go to the dead letters, because a later one of their key was given."""
        self.leaving: set[Where] = set()
        """Messages that an operator is ending at this moment."""

    def published(self, where: Where, key: str) -> None:
        """Note that the message was acknowledged to its producer. It may have been given before."""
        if where not in self.keys:
            self.keys[where] = key
            line = self.lines[where[0], key]
            line.append(where[1])
            line.sort()

    def given(self, member: str, where: Where, place: tuple[int, int], key: str) -> None:
        """Judge every promise about a message that a push names."""
        self.published(where, key)
        partition, offset = where
        assert where not in self.settled, f"P5: {where} comes again after it was settled"
        assert where not in self.open, f"P7: {where} of {self.open.get(where)} goes to {member}"
        assert where not in self.passed, f"P3, P5: {where} had been passed for good"
        for earlier in self.lines[partition, key]:
            if earlier >= offset:
                break
            before = (partition, earlier)
            if before in self.leaving:
                continue
            if before in self.open:
                assert self.open[before][0] == member, f"P3: {where} while {before} is elsewhere"
            elif before in self.returned:
                dead = self.returned[before] >= self.attempts_max or before in self.may_die
                assert dead, f"P3, R17: {where} while {before} awaits retry"
                self.passed.add(before)
            elif before not in self.settled:
                assert before in self.may_die, f"P3: {where} before {before} was given at all"
                self.passed.add(before)
        self.returned.pop(where, None)
        self.open[where] = (member, *place)
        self.attempts[where] = self.attempts.get(where, 0) + 1

    def back(self, where: Where) -> None:
        """Note that the message is no longer with its member."""
        if self.open.pop(where, None) is not None:
            self.returned[where] = self.attempts[where]

    def back_with_followers(self, where: Where) -> None:
        """Note that the message returns from a pull. A pull gets no frame about what returns with
        it (R17)."""
        if where in self.open:
            for offset in self.lines[where[0], self.keys[where]]:
                if offset >= where[1]:
                    self.back((where[0], offset))

    def gone(self, member: str) -> None:
        """Note that a member left, or that the process ended."""
        for where in [one for one, (name, _, _) in self.open.items() if name == member]:
            self.back(where)

    def done(self, where: Where) -> None:
        """Note that the settlement was accepted."""
        self.open.pop(where, None)
        self.returned.pop(where, None)
        self.settled.add(where)


class Witness(Session):
    """Session that passes its frames to the judge as they are sent."""

    def __init__(self, name: str, judge: Judge) -> None:
        super().__init__(name)
        self._judge = judge

    def send(self, frame: bytes) -> None:
        super().send(frame)
        one = self.frames[-1]
        if one["type"] == "push":
            for offset, sent in zip(offsets_of(one), one["messages"], strict=True):
                where = (one["partition"], offset)
                place = (one["epoch"], one["push"])
                self._judge.given(self.session_id, where, place, sent["key"])
        elif one["type"] == "revoked":
            for partition, _, _, *ranges in one["deliveries"]:
                for first, last in zip(ranges[::2], ranges[1::2], strict=True):
                    for offset in range(first, last + 1):
                        self._judge.back((partition, offset))


class History:
    """A single run."""

    def __init__(self, house: House, seed: int) -> None:
        self.house = house
        self.random = Random(seed)
        self.judge = Judge()
        self.members: list[tuple[Witness, Consumer, list[int]]] = []
        self.pulled: dict[Where, PulledMessage] = {}
        self.count = 0
        self.dead = 0
        """Dead letters that earlier processes have moved."""
        self.ends = False
        """Whether messages expire, and the queue overflows."""
        self.restarts = house.kind == "sqlite" and self.random.random() < 0.5
        self.queue: Queue
        self.group: Group

    async def begin(self, *, pulls: bool, ends: bool) -> None:
        """Make a queue and its group. Leases of pulls end in silence, so they are long with
        pulls."""
        self.ends = ends
        bounds: dict[str, Any] = {"messages_max": 12, "overflow": "dead_letter"} if ends else {}
        self.queue = await self.house.queue(
            partitions=self.random.choice([1, 2, 5]), attempts_max=ATTEMPTS_MAX, retention_s=3600,
            backoff_s=0.01, backoff_max_s=0.02, **bounds,
        )  # fmt: skip
        lease_s = 30 if pulls or self.restarts else self.random.choice([0.03, 0.3, 30])
        self.group = await self.house.group(self.queue, lease_s=lease_s, lease_total_s=60)

    async def publish(self) -> None:
        """Publish a few messages of few keys."""
        keys = [f"k{self.random.randrange(KEYS)}" for _ in range(self.random.randint(1, 12))]
        ttls = [self.random.choice([None, None, 0.02]) if self.ends else None for _ in keys]
        batch = [
            message(self.count + index, key, ttl_s=ttl)
            for index, (key, ttl) in enumerate(zip(keys, ttls, strict=True))
        ]
        self.count += len(batch)
        outcomes = await self.house.publish(self.queue, batch)
        for outcome, key in zip(outcomes, keys, strict=True):
            assert not isinstance(outcome, str)
            self.judge.published(outcome[:2], key)
            if self.ends:
                self.judge.may_die.add(outcome[:2])

    async def relieve(self) -> None:
        """Let the janitor look. Messages that overflow move while members join and leave."""
        await self.house.broker.janitor.look()

    async def join(self) -> None:
        """Add one consumer."""
        if len(self.members) < 4:
            session = Witness(f"w{self.random.getrandbits(40)}", self.judge)
            credit = self.random.choice([1, 5, 200])
            _, consumer = await self.house.subscribe(self.queue, self.group, credit, session)
            self.members.append((session, consumer, [credit]))

    async def leave(self) -> None:
        """Remove one consumer."""
        if self.members:
            session, consumer, _ = self.members.pop(self.random.randrange(len(self.members)))
            consumer.leave()
            self.judge.gone(session.session_id)

    def held(self, session: Session) -> list[Where]:
        """Return what a session holds."""
        return [w for w, (name, _, _) in self.judge.open.items() if name == session.session_id]

    async def work(self) -> None:
        """Let every consumer settle part of what it holds, and grant new credit."""
        for session, consumer, granted in self.members:
            held = self.held(session)
            self.random.shuffle(held)
            for where in held[: self.random.randint(0, len(held))]:
                if where in self.judge.open:
                    self.settle(consumer, where)
            sent = len(session.bodies)
            granted[0] = max(granted[0], sent + self.random.choice([0, 5, 200]))
            consumer.grant(granted[0])

    def settle(self, consumer: Consumer, where: Where) -> None:
        """Ack, nack, extend or begin one delivery."""
        _, epoch, push = self.judge.open[where]
        deliveries = [[where[0], epoch, push, where[1], where[1]]]
        act = self.random.random()
        if act < 0.7:
            if consumer.ack(deliveries, [], None).settled:
                self.judge.done(where)
            else:
                self.judge.back(where)
        elif act < 0.85:
            self.judge.back(where)  # before, because a revoked frame of later ones comes at once
            consumer.nack(deliveries, self.random.choice([None, 0, 0.01]), "no")
        elif act < 0.95:
            consumer.extend(deliveries, deliveries, self.random.choice([None, 0.05, 1]))
        else:
            consumer.start(deliveries)

    async def pull(self) -> None:
        """Pull, and settle some of the pulled messages."""
        count = self.random.randint(1, 8)
        for one in await self.house.broker.pulls.pull(self.queue, self.group, count, 0):
            where = (one.partition, one.offset)
            self.judge.back(where)  # a lease of a pull ends in silence
            self.judge.given(PULLS, where, (0, 0), str(one.key))
            self.pulled[where] = one
        for where, one in list(self.pulled.items()):
            act = self.random.random()
            if act < 0.6:
                await self.ack_pulled(where, one)
            elif act < 0.8:
                self.judge.back_with_followers(where)
                await self.nack_pulled(one)
            else:
                continue
            del self.pulled[where]

    async def ack_pulled(self, where: Where, one: PulledMessage) -> None:
        """Ack the message until the outcome is known."""
        pulls = self.house.broker.pulls
        done = await self._until_known(lambda: pulls.ack(self.queue, self.group, [one.receipt]))
        if done.settled:
            self.judge.done(where)

    async def nack_pulled(self, one: PulledMessage) -> None:
        """Nack the message until the outcome is known. Its partition may move meanwhile."""
        pulls = self.house.broker.pulls
        await self._until_known(lambda: pulls.nack(self.queue, self.group, [one.receipt], 0))

    async def _until_known(self, act: Callable[[], Awaitable[PullSettled]]) -> PullSettled:
        """Repeat an act until its outcome is known, and return that."""
        while True:
            with suppress(Unknown):
                return await act()
            await asyncio.sleep(0.01)

    async def restart(self) -> None:
        """End the process in an orderly way, and start it again."""
        if self.restarts:
            dead_letters = self.house.broker.dead_letters
            await self.house.restart()
            for session, _, _ in self.members:
                self.judge.gone(session.session_id)
            self.members.clear()
            self.judge.gone(PULLS)
            self.pulled.clear()
            self.dead += dead_letters.moved_total
            self.queue = self.house.find()

    async def end(self) -> None:
        """Let one consumer settle everything that is left."""
        for session, consumer, _ in self.members:
            consumer.leave()
            self.judge.gone(session.session_id)
        self.members.clear()
        session = Witness("last", self.judge)
        _, consumer = await self.house.subscribe(self.queue, self.group, 10_000, session)

        def settled() -> bool:
            for where in self.held(session):
                _, epoch, push = self.judge.open[where]
                consumer.ack([[where[0], epoch, push, where[1], where[1]]], [], None)
                self.judge.done(where)
            dead = self.dead + self.house.broker.dead_letters.moved_total
            return len(self.judge.settled) + dead >= self.count

        await eventually(settled)


async def lost(history: History) -> set[Any]:
    """Return bodies that are neither settled nor in the dead letters."""
    session, _ = await history.house.read(history.queue, start="earliest", credit=10_000)
    await session.get(history.count)
    bodies = {
        (frame["partition"], offset): sent["body"]
        for frame in session.of_type("push")
        for offset, sent in zip(offsets_of(frame), frame["messages"], strict=True)
    }
    settled = {bodies[where] for where in history.judge.settled}
    names = [q.name for q in history.house.broker.metadata.list_all_queues()]
    letters: set[Any] = set()
    if "orders.dead-letters" in names:
        dead = history.house.find("orders.dead-letters")
        (state,) = await history.house.broker.storage.partitions(dead.queue_id)
        session, _ = await history.house.read(dead, start="earliest", credit=10_000)
        letters = set(await session.get(state.messages))
        assert len(letters) == state.messages  # each once
    assert not settled & letters
    return set(range(history.count)) - settled - letters


@pytest.mark.parametrize("ends", [False, True], ids=["kept", "expiring and overflowing"])
@pytest.mark.parametrize("pulls", [False, True], ids=["sessions", "sessions and pulls"])
@pytest.mark.parametrize("seed", range(100 if os.environ.get("TOCSIN_SOAK") else 6))
async def test_any_history_keeps_the_promises(
    house: House, seed: int, pulls: bool, ends: bool
) -> None:
    """P1, P3, P5, P7, R12, R13, R16-R21, R24."""
    history = History(house, seed * 2 + pulls)
    await history.begin(pulls=pulls, ends=ends)
    acts = [history.publish] * 4 + [history.work] * 6 + [history.join] * 2 + [history.leave]
    if pulls:
        acts += [history.pull] * 3
    if ends:
        acts += [history.relieve] * 3
    for _ in range(60):
        await history.random.choice(acts)()
        for _ in range(history.random.randrange(6)):
            await asyncio.sleep(history.random.choice([0, 0, 0.001]))
        if history.random.random() < 0.05:
            await history.restart()
    if pulls:
        await eventually_left(history)
    await history.end()
    assert await lost(history) == set()


async def eventually_left(history: History) -> None:
    """Let the pulls settle what they hold and leave, as if no client pulled any more."""
    for where, one in history.pulled.items():
        await history.ack_pulled(where, one)
    for consumer in list(history.house.broker.pulls._consumers.values()):
        await consumer.runtime.retire(consumer, 0)
    history.house.broker.pulls._consumers.clear()
    history.judge.gone(PULLS)
