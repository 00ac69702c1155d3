"""Any history, explained: consumers, pulls, nacks, parked keys, pauses, seeks, purges, restarts.

A naive model of each group derives the place of every message from what was published, pushed,
acked and decided. Whenever nothing changed during an explanation, it agrees with the model. Once
the broker has come to rest, the reason that it gives is right too.
"""

import asyncio
import os
import time
from collections import Counter
from random import Random
from typing import Any

import pytest

from gateway.delivery.consumer import Consumer
from gateway.models import KeyInGroup, PulledMessage, WhichKey
from metadata.catalog import ANYBODY, Group, Queue
from push.places import Verb
from push.ring import Ring, key_hash
from tests.histories.house import WAIT_S, House, Session, message, offsets_of

Where = tuple[int, int]
"""(partition, offset)"""
KEYS = ["a", "b", "c", "d", "e"]
ATTEMPTS_MAX = 2
LONG_S = 3000.0


class Model:
    """State of one group as its members see it."""

    def __init__(self, *, parks: bool) -> None:
        self.parks = parks
        self.changes = 0
        self.left: dict[str, dict[int, None]] = {key: {} for key in KEYS}
        """Offsets that are not settled, by key and in order."""
        self.open: dict[Where, tuple[str, int, int]] = {}
        """Deliveries in flight: (consumer, epoch, push)."""
        self.failed: dict[Where, int] = {}
        self.until: dict[Where, float] = {}
        """End of each backoff, in unix seconds."""
        self.parked: dict[str, int] = {}
        """Parked keys, each with its head when it was parked."""
        self.dying: set[Where] = set()
        """Messages on the way to the dead letters, or to be sent there by the next owner."""
        self.purging = False
        self.counted: Counter[str] = Counter()
        """Counts of what this broker has done for the group."""
        self.members: dict[str, Worker] = {}
        self.pulls = False
        """Whether a client has pulled, and the pulls are a member."""

    def given(self, consumer: str, where: Where, key: str, epoch: int, push: int) -> None:
        self.changes += 1
        self.counted["given"] += 1
        if self.purging:
            return  # the last thing before the purge, so it no longer counts
        assert where[1] in self.left[key]
        assert key not in self.parked
        assert where not in self.dying
        self.until.pop(where, None)
        self.open[where] = (consumer, epoch, push)

    def back(self, where: Where) -> None:
        self.changes += 1
        self.open.pop(where, None)

    def gone(self, consumer: str, *, counts: bool = False) -> None:
        """Note that the consumer has left. With `counts`, its deliveries had begun."""
        self.changes += 1
        for where in [one for one, (name, _, _) in self.open.items() if name == consumer]:
            if counts:
                self.failed[where] = self.failed.get(where, 0) + 1
            self.back(where)

    def settled(self, where: Where, key: str) -> None:
        self.changes += 1
        self.open.pop(where, None)
        self.forget(where)
        self.left[key].pop(where[1], None)

    def forget(self, where: Where) -> None:
        for known in (self.failed, self.until):
            known.pop(where, None)

    def nacked(self, where: Where, key: str, delay_s: float) -> None:
        """Note a counted attempt. Later messages of its key have been revoked, or (pulls) are
        now."""
        self.back(where)
        self.counted["nacked"] += 1
        for offset in self.left[key]:
            if offset > where[1]:
                self.back((where[0], offset))
        self.failed[where] = self.failed.get(where, 0) + 1
        self.until[where] = time.time() + delay_s
        if self.failed[where] >= ATTEMPTS_MAX:
            if self.parks:
                self.parked[key] = min(self.left[key])
                self.counted["parked"] += 1
            else:
                self.dying.add(where)

    def alive(self, number: int, key: str) -> list[int]:
        """Return the unsettled offsets of the key, without those that go to the dead letters."""
        return sorted(o for o in self.left[key] if (number, o) not in self.dying)

    def begin_anew(self, left: dict[str, dict[int, None]]) -> None:
        """Start again after a seek or a purge. Nothing of before counts."""
        self.changes += 1
        self.left = left
        self.open.clear()
        self.failed.clear()
        self.until.clear()
        self.parked.clear()
        self.dying.clear()


class Worker(Session):
    """Consumer of a group that passes its frames to the model as they are sent."""

    def __init__(self, name: str, model: Model) -> None:
        super().__init__(name)
        self.model = model
        self.granted = self.sent = 0
        self.consumer: Consumer

    def send(self, frame: bytes) -> None:
        super().send(frame)
        one = self.frames[-1]
        if one["type"] == "push":
            for offset, sent in zip(offsets_of(one), one["messages"], strict=True):
                self.sent += 1
                where = (one["partition"], offset)
                place = (one["epoch"], one["push"])
                self.model.given(self.session_id, where, sent["key"], *place)
        elif one["type"] == "revoked":
            for partition, _, _, *ranges in one["deliveries"]:
                for first, last in zip(ranges[::2], ranges[1::2], strict=True):
                    for offset in range(first, last + 1):
                        self.model.back((partition, offset))


class History:
    """A single run."""

    def __init__(self, house: House, seed: int) -> None:
        self.house = house
        self.random = Random(seed)
        self.count = 0
        self.everything: dict[str, dict[int, None]] = {key: {} for key in KEYS}
        self.keys: dict[Where, str] = {}
        self.groups: dict[str, Group] = {}
        self.models: dict[str, Model] = {}
        self.pulled: dict[Where, PulledMessage] = {}
        self.compared = 0
        self.seen: set[str] = set()
        self.queue: Queue
        self.places: dict[str, int] = {}

    async def begin(self) -> None:
        settings: dict[str, Any] = {
            "attempts_max": ATTEMPTS_MAX,
            "retention_s": 3600,
            "lease_s": 600,
        }
        self.queue = await self.house.queue(
            partitions=self.random.choice([1, 3]), backoff_max_s=LONG_S, **settings
        )
        ring = Ring(self.queue.ring_epoch, self.queue.members)
        self.places = {k: ring.partition(key_hash(k, self.queue.hash_key)) for k in KEYS}
        for name, how in (("parks", "park"), ("buries", "dead_letter"), ("pulls", "park")):
            self.groups[name] = await self.house.group(self.queue, name, on_exhausted=how)
            self.models[name] = Model(parks=how == "park")

    # --- Steps ---------------------------------------------------------------------------------

    async def publish(self) -> None:
        keys = [self.random.choice(KEYS) for _ in range(self.random.randint(1, 6))]
        batch = [message(self.count + index, key) for index, key in enumerate(keys)]
        self.count += len(batch)
        # A message given before its publisher was answered would be unknown to the models.
        partitions = {p.partition: p for p in await self._states()}
        for key in keys:
            number = self.places[key]
            offset = partitions[number].end
            partitions[number].end += 1
            self.keys[number, offset] = key
            self.everything[key][offset] = None
            for model in self.models.values():
                model.left[key][offset] = None
                model.changes += 1
        placed = await self.house.publish(self.house.find(), batch)
        for place, key in zip(placed, keys, strict=True):
            assert not isinstance(place, str)
            assert self.keys[place[:2]] == key
        for model in self.models.values():
            model.changes += 1

    async def _states(self) -> "list[_End]":
        states = await self.house.broker.storage.partitions(self.queue.queue_id)
        return [_End(state.partition.number, state.end) for state in states]

    def _of_workers(self) -> Model:
        return self.models[self.random.choice(["parks", "buries"])]

    async def join(self) -> None:
        name = self.random.choice(["parks", "buries"])
        model = self.models[name]
        if len(model.members) < 2:
            worker = Worker(f"w{self.random.getrandbits(40)}", model)
            worker.granted = self.random.choice([0, 1, 3, 100])
            worker.is_writable = self.random.random() < 0.9
            model.members[worker.session_id] = worker
            model.changes += 1
            _, worker.consumer = await self.house.subscribe(
                self.house.find(), self.groups[name], worker.granted, worker
            )
            model.changes += 1

    async def leave(self) -> None:
        model = self._of_workers()
        if model.members:
            _, worker = model.members.popitem()
            worker.consumer.leave()
            model.gone(worker.session_id)

    async def work(self) -> None:
        for model in (self.models["parks"], self.models["buries"]):
            for where, (name, epoch, push) in list(model.open.items()):
                act = self.random.random()
                if model.open.get(where) != (name, epoch, push) or act < 0.4:
                    continue
                worker, key = model.members[name], self.keys[where]
                deliveries = [[where[0], epoch, push, where[1], where[1]]]
                if act < 0.8:
                    done = worker.consumer.ack(deliveries, [], None)
                    assert done.settled == 1
                    model.counted["settled"] += 1
                    model.settled(where, key)
                else:
                    delay_s = self.random.choice([0.0, LONG_S])
                    done = worker.consumer.nack(deliveries, delay_s, None)
                    assert done.settled == 1
                    model.nacked(where, key, delay_s)

    async def give_room(self) -> None:
        for model in self.models.values():
            for worker in model.members.values():
                if self.random.random() < 0.5:
                    worker.granted = max(worker.granted, worker.sent) + self.random.choice([0, 2])
                    worker.consumer.grant(worker.granted)
                worker.is_writable = worker.is_writable or self.random.random() < 0.3
                worker.consumer.pump()

    async def pull(self) -> None:
        model, group = self.models["pulls"], self.groups["pulls"]
        model.pulls = True
        model.changes += 1
        count = self.random.randint(1, 4)
        got = await self.house.broker.pulls.pull(self.house.find(), group, count, 0)
        for one in got:
            where = (one.partition, one.offset)
            model.given("pulls", where, str(one.key), 0, 0)
            self.pulled[where] = one
        for where, one in list(self.pulled.items()):
            act, key = self.random.random(), self.keys[where]
            if where not in model.open or act < 0.3:
                continue
            del self.pulled[where]
            if act < 0.8:
                done = await self.house.broker.pulls.ack(self.house.find(), group, [one.receipt])
                assert done.settled == 1
                model.counted["settled"] += 1
                model.settled(where, key)
            else:
                delay_s = self.random.choice([0.0, LONG_S])
                await self.house.broker.pulls.nack(self.house.find(), group, [one.receipt], delay_s)
                model.nacked(where, key, delay_s)

    async def pause(self) -> None:
        paused = not self.house.find().paused
        await self.house.broker.upkeep.pause(ANYBODY, "orders", paused=paused)
        for model in self.models.values():
            model.changes += 1

    async def decide(self) -> None:
        name = self.random.choice(["parks", "pulls"])
        model = self.models[name]
        if not model.parked:
            return
        key = next(iter(model.parked))
        verbs: list[Verb] = ["skip", "release"]
        verb = self.random.choice(verbs)
        await self.at_rest()
        head = model.parked.pop(key)
        model.changes += 1
        if verb == "skip":
            model.settled((self.places[key], head), key)
        else:
            for offset in model.left[key]:
                model.forget((self.places[key], offset))
        await self.house.broker.parking.decide(
            self.house.find(),
            self.groups[name],
            verb,
            WhichKey(key=key),
        )

    async def seek(self) -> None:
        name = self.random.choice(list(self.models))
        if self.models[name].dying:
            await self.at_rest()
        self.models[name].begin_anew({key: dict(left) for key, left in self.everything.items()})
        await self.house.broker.seek_group(ANYBODY, self.house.find(), name, "earliest")
        self.models[name].changes += 1

    async def purge(self) -> None:
        name = self.random.choice(list(self.models))
        if self.models[name].dying:
            await self.at_rest()
        self.models[name].begin_anew({key: {} for key in KEYS})
        self.models[name].purging = True
        await self.house.broker.upkeep.purge(ANYBODY, self.house.find(), name)
        self.models[name].purging = False
        self.models[name].changes += 1

    async def restart(self) -> None:
        pulls = self.models["pulls"]
        ends = any(where in pulls.failed for where in pulls.open)  # by its last attempt
        if self.house.kind == "sqlite" and not ends:
            await self.at_rest()
            await self.house.restart()
            for model in self.models.values():
                for name in list(model.members):
                    model.gone(name)
                model.gone("pulls", counts=True)
                model.members.clear()
                model.pulls = False
                model.counted.clear()
            self.pulled.clear()

    # --- Explanations --------------------------------------------------------------------------

    async def compare(self, *, at_rest: bool) -> str:
        """Explain every key, and compare those that did not change meanwhile. Return what is wrong
        with the reasons, which are right only once the broker has come to rest."""
        wrong = ""
        for key in KEYS:
            before = {name: model.changes for name, model in self.models.items()}
            queue = self.house.find()
            told = await self.house.broker.explainer.explain(ANYBODY, queue, key, None, "")
            assert told.partition == self.places[key]
            for one in told.groups:
                model = self.models[one.group]
                if model.changes == before[one.group]:
                    self.compared += 1
                    self._check_places(model, one, key)
                    if at_rest:
                        wrong = wrong or self._reason(model, one, key, paused=queue.paused)
        return wrong

    def _check_places(self, model: Model, one: KeyInGroup, key: str) -> None:
        """Check the counts and the head, which are right at every moment."""
        number = self.places[key]
        dying = sorted(where for where in model.dying if self.keys[where] == key)
        known = one.messages.in_flight + one.messages.waiting + one.messages.dying
        for where in dying[: max(0, len(model.left[key]) - known)]:
            model.dying.discard(where)  # no frame says that they have arrived, in their order
            model.settled(where, key)
        left = model.alive(number, key)
        flying = [offset for offset in left if (number, offset) in model.open]
        told = f"{one.group} {key}: {one} but {left}, in flight {flying}"
        assert one.is_exact, told
        assert one.messages.in_flight == len(flying), told
        assert one.messages.waiting == len(left) - len(flying), told
        if one.waits_for == "dead_letter":
            assert one.head is not None, told
            return
        assert (one.head.offset if one.head is not None else None) == min(left, default=None), told
        assert len(set(one.also)) == len(one.also), told
        assert one.waits_for not in one.also, told
        assert one.text.endswith("."), told
        if one.head is None:
            return
        where = (number, one.head.offset)
        assert one.head.attempts == model.failed.get(where, 0), told
        assert (one.waits_for == "in_flight") == (where in model.open), told
        if where in model.open:
            consumer, epoch, push = model.open[where]
            assert one.owner is not None, told
            assert one.owner.consumer.partition(".")[0] == consumer, told
            assert one.head.in_flight is not None, told
            assert epoch in (0, one.epoch), told
            assert push in (0, one.head.in_flight.push), told

    def _reason(self, model: Model, one: KeyInGroup, key: str, *, paused: bool) -> str:
        """Return what is wrong with the reason, or "" if it is right."""
        if one.waits_for == "dead_letter":
            return ""  # includes skipped ones, which are settled for the model
        reasons = [one.waits_for, *one.also]
        wanted = self._wanted(model, one, key, paused=paused)
        if one.waits_for in wanted:
            self.seen.add(one.waits_for)
            others = self._others(model, key, one, paused=paused)
            if one.head is not None and one.waits_for != "in_flight" and not others <= {*reasons}:
                return f"{one.group} {key}: {one} leaves out {others - {*reasons}}"
            return ""
        return f"{one.group} {key}: {one} instead of {wanted}"

    def _wanted(self, model: Model, one: KeyInGroup, key: str, *, paused: bool) -> set[str]:
        number = self.places[key]
        left = model.alive(number, key)
        if key in model.parked:
            return {"in_flight"} if (number, left[0]) in model.open else {"parked"}
        if not left:
            return {"nothing"}
        where = (number, left[0])
        if where in model.open:
            return {"in_flight"}
        if model.until.get(where, 0) > time.time():
            return {"backoff"}
        if paused:
            return {"paused"}
        return self._without_room(model, one, number)

    def _others(self, model: Model, key: str, one: KeyInGroup, *, paused: bool) -> set[str]:
        if not model.alive(self.places[key], key):
            return set()
        return {"paused"} if paused else set()

    def _without_room(self, model: Model, one: KeyInGroup, number: int) -> set[str]:
        if one.owner is None:
            return {"draining", "moving"} if model.members or model.pulls else {"no_consumer"}
        if one.owner.transport == "pull":
            return {"credit"}
        worker = model.members.get(one.owner.consumer.partition(".")[0])
        if worker is None:
            return {"moving"}
        if "draining" in (
            one.waits_for,
            *one.also,
        ):  # it holds its deliveries, and takes no more
            name = worker.session_id
            holds = any(at == number and who == name for (at, _), (who, *_) in model.open.items())
            return {"draining"} if holds else set()
        if not worker.is_writable:
            return {"socket"}
        return {"credit"} if worker.sent >= worker.granted else set()

    async def at_rest(self) -> None:
        """Wait until the broker has come to rest, when every reason is right."""
        end = asyncio.get_running_loop().time() + WAIT_S
        while (wrong := await self.compare(at_rest=True)) or self._buries():
            if asyncio.get_running_loop().time() > end:
                raise AssertionError(wrong or "a dead letter never arrives")
            await asyncio.sleep(0.002)
        for name, model in self.models.items():
            told = self.house.broker.counting.of_group(self.groups[name].group_id)
            for what in ("given", "settled", "nacked", "parked"):
                assert told[what] == model.counted[what], (name, what, told, model.counted)

    def _buries(self) -> bool:
        """Return whether an owner is about to move something to the dead letters. Messages that it
        had not moved when it left wait until the next owner reaches them."""
        runtimes = self.house.broker.groups.runtimes
        mine = [runtimes[g.group_id] for g in self.groups.values() if g.group_id in runtimes]
        return any(
            owned.delivery.waiting.dead_count
            for one in mine
            for owned in one.owned_partitions.values()
        )


class _End:
    """End of a partition, which grows as messages are added."""

    def __init__(self, partition: int, end: int) -> None:
        self.partition = partition
        self.end = end


@pytest.mark.parametrize("seed", range(200 if os.environ.get("TOCSIN_SOAK") else 8))
async def test_any_history_is_explained(house: House, seed: int) -> None:
    """P8, R11, R17-R20, R24."""
    history = History(house, seed)
    await history.begin()
    acts = [history.publish] * 5 + [history.work] * 6 + [history.join] * 3 + [history.leave]
    acts += [history.give_room] * 4 + [history.pull] * 3 + [history.pause, history.decide]
    acts += [history.seek, history.purge, history.restart]
    for _ in range(50):
        await history.random.choice(acts)()
        await history.compare(at_rest=False)
        for _ in range(history.random.randrange(3)):
            await asyncio.sleep(history.random.choice([0, 0, 0.001]))
        if history.random.random() < 0.2:
            await history.at_rest()
    await history.at_rest()
    assert history.compared > 100
