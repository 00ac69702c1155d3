"""Any history of an operator, at random beside consumers that join, work and leave. Parked keys are
skipped, retried and released, groups are purged and moved to their end, and dead letters are sent
back.

A message that an operator ended comes to no consumer once the answer has come (P5). Of two
decisions about one head one counts. In the end every message was acked, ended, or is in the dead
letters, and never both acked and there (P1).
"""

import asyncio
import os
from collections.abc import Awaitable
from typing import Any

import pytest

from gateway.models import Decided, Look, WhichKey
from metadata.catalog import ANYBODY
from push.errors import Refused
from push.places import Verb
from tests.histories.house import WAIT_S, House
from tests.histories.test_any_history import History, Judge, Where, Witness

DEAD = "orders.dead-letters"
EVERY = WhichKey(every=True)
ATTEMPTS_MAX = 2


class Operated(Judge):
    """Judge that also knows what an operator ended."""

    attempts_max = ATTEMPTS_MAX

    def __init__(self) -> None:
        super().__init__()
        self.acked: set[Where] = set()
        """Messages settled by a consumer."""

    def done(self, where: Where) -> None:
        super().done(where)
        self.acked.add(where)

    def ended(self, ends: dict[int, int]) -> None:
        """Note that an operator ended everything before these offsets, by partition."""
        for partition, end in ends.items():
            for offset in range(end):
                super().done((partition, offset))


class Operation(History):
    """A single run."""

    judge: Operated

    def __init__(self, house: House, seed: int) -> None:
        super().__init__(house, seed)
        self.judge = Operated()
        self.restarts = False
        self.seen: set[Where] = set()
        """Sources of dead letters that may have been deleted since."""

    async def begin(self, *, pulls: bool, ends: bool) -> None:
        """Make a queue whose keys are parked. One session in ten works with leases that end."""
        self.ends = ends
        bounds: dict[str, Any] = {"messages_max": 40, "overflow": "dead_letter"} if ends else {}
        self.queue = await self.house.queue(
            partitions=self.random.choice([1, 2, 5]), attempts_max=ATTEMPTS_MAX, retention_s=3600,
            backoff_s=0.01, backoff_max_s=0.02, on_exhausted="park", **bounds,
        )  # fmt: skip
        self.group = await self.house.group(self.queue, lease_s=30, lease_total_s=60)

    async def decide(self) -> None:
        """Let two operators decide about every parked key, each with a verb of its own, while a
        consumer joins."""
        verbs: list[Verb] = ["skip", "skip", "retry", "release"]
        chosen = [self.random.choice(verbs) for _ in range(2)]
        perhaps = set(self.judge.returned) - self.judge.may_die if "skip" in chosen else set()
        self.judge.may_die |= perhaps  # until it is known which of them are skipped
        answers = await asyncio.gather(*map(self.said, chosen), self.join())
        self.judge.may_die -= perhaps
        told: set[tuple[Where, int]] = set()
        for decided in answers[:2]:
            for key in decided.keys if decided is not None else ():
                assert key.offset is not None
                where = (key.partition, key.offset)
                head = (where, key.since_unix_ms)
                assert head not in told, f"both operators decided about {head}"
                told.add(head)
                assert where not in self.judge.acked, f"P5: {where} was acked and is parked"
                if decided is not None and decided.decision == "skip":
                    self.judge.passed.add(where)
                    self.judge.may_die.add(where)

    async def said(self, verb: Verb) -> Decided | None:
        """Return the broker's answer, or None if nothing was parked."""
        try:
            return await self.house.broker.parking.decide(self.queue, self.group, verb, EVERY)
        except Refused as error:
            if error.code.name != "not_parked":
                raise
            return None

    async def purge(self) -> None:
        """Purge the group, or the queue, while members join and work."""
        name = self.random.choice([self.group.name, None])
        await self.clear(self.house.broker.upkeep.purge(ANYBODY, self.queue, name))

    async def seek(self) -> None:
        """Move the group to the end of the queue."""
        seek = self.house.broker.upkeep.seek(ANYBODY, self.queue, self.group.name, "latest")
        await self.clear(seek)

    async def clear(self, act: Awaitable[Any]) -> None:
        """End everything that is in the queue now by this act."""
        await self.idle_pulls()
        states = await self.house.broker.storage.partitions(self.queue.queue_id)
        ends = {state.partition.number: state.end for state in states}
        self.judge.leaving = {(number, o) for number, end in ends.items() for o in range(end)}

        async def beside() -> None:
            for _ in range(3):
                await self.random.choice([self.join, self.leave, self.work])()
                await asyncio.sleep(0)

        await asyncio.gather(act, beside())
        self.judge.leaving = set()
        self.judge.ended(ends)

    async def idle_pulls(self) -> None:
        """Settle what a pull holds. Its answers would come after those of the act."""
        for where, one in self.pulled.items():
            await self.ack_pulled(where, one)
        self.pulled.clear()

    async def redrive(self) -> None:
        """Send some dead letters back, as new messages, while a consumer joins."""
        look = Look(limit=self.random.randint(1, 9))
        redrive = self.house.broker.upkeep.redrive(ANYBODY, self.queue, look)
        await asyncio.gather(redrive, self.join())
        self.seen |= await self.letters()

    async def relieve(self) -> None:
        """Let overflowing messages move, and delete dead letters that went back."""
        self.seen |= await self.letters()
        await super().relieve()

    async def end_all(self) -> None:
        """Retry what is parked, and let a consumer settle the rest, until nothing is missing."""
        for session, consumer, _ in self.members:
            consumer.leave()
            self.judge.gone(session.session_id)
        self.members.clear()
        session = Witness("last", self.judge)
        _, consumer = await self.house.subscribe(self.queue, self.group, 10_000, session)
        async with asyncio.timeout(WAIT_S):
            while True:
                for where in self.held(session):
                    _, epoch, push = self.judge.open[where]
                    consumer.ack([[where[0], epoch, push, where[1], where[1]]], [], None)
                    self.judge.done(where)
                await self.said("retry")
                if not await self.missing():
                    return
                await asyncio.sleep(0.01)

    async def missing(self) -> set[Where]:
        """Return what is neither acked, ended nor in the dead letters. Check that nothing is both
        acked and there."""
        letters = await self.letters() | self.seen
        both = self.judge.acked & letters
        assert not both, f"P5: {both} were acked and dead-lettered"
        states = await self.house.broker.storage.partitions(self.queue.queue_id)
        all_ = {(state.partition.number, offset) for state in states for offset in range(state.end)}
        return all_ - self.judge.settled - letters

    async def letters(self) -> set[Where]:
        """Return the sources of the dead letters, each once."""
        if DEAD not in [q.name for q in self.house.broker.metadata.list_all_queues()]:
            return set()
        dead = self.house.find(DEAD)
        if not await self.house.broker.storage.partitions(dead.queue_id):
            return set()  # it is being made
        found = await self.house.broker.upkeep.peek(ANYBODY, dead, Look(limit=1000), None)
        headers = [one.headers or {} for one in found.messages]
        places = [
            (
                int(one["tocsin-dead-letter-partition"]),
                int(one["tocsin-dead-letter-offset"]),
            )
            for one in headers
        ]
        assert len(set(places)) == len(places), "R8: a letter stands there twice"
        return set(places)


@pytest.mark.parametrize("ends", [False, True], ids=["kept", "expiring and overflowing"])
@pytest.mark.parametrize("seed", range(200 if os.environ.get("TOCSIN_SOAK") else 8))
async def test_any_history_of_an_operator_keeps_the_promises(
    house: House, seed: int, ends: bool
) -> None:
    """P1, P3, P5, P7, R13, R18, R19, R21, R24."""
    history = Operation(house, seed)
    await history.begin(pulls=True, ends=ends)
    acts = [history.publish] * 6 + [history.work] * 8 + [history.join] * 3 + [history.leave]
    acts += [history.pull, history.decide, history.decide, history.redrive]
    acts += [history.purge, history.seek] + [history.relieve] * 3 * ends
    for _ in range(80):
        await history.random.choice(acts)()
        for _ in range(history.random.randrange(6)):
            await asyncio.sleep(history.random.choice([0, 0, 0.001]))
    await history.idle_pulls()
    for consumer in list(house.broker.pulls._consumers.values()):
        await consumer.runtime.retire(consumer, 0)
    house.broker.pulls._consumers.clear()
    history.judge.gone("pulls")
    await history.end_all()
