"""Histories of one level, or one primary of a Cluster, that fails. Only publishers that wait for it
suffer (`push.storage_port.Lane`)."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from gateway.counters import Counters
from gateway.delivery.cursor_writer import CursorWriter
from gateway.publish.batch import (
    PendingPublish,
)
from gateway.publish.publisher import Publisher
from gateway.publish.tail import Tail
from gateway.publish.tombstones import Tombstones
from metadata.catalog import Queue, QueueSettings
from metadata.port import Metadata
from push import limits
from push.errors import Refused, TocsinError, Unknown
from push.places import CursorPlace, Durability, Partition
from push.storage_port import CursorWrite, Lane, Written
from storage.redis.keys import queue_key
from storage.redis.port import Arg, Shard
from storage.redis.shard import LEVELS
from storage.redis.store import RedisStorage
from tests.conformance.virtual import run
from tests.histories.house import message
from tests.storage.shards import QuietShard

WELL_S = 0.002
AWAY_S = 1.0


class Partly(QuietShard):
    """Store of which something is away: `away` says it of (key, level).

    Acts there are Unknown after AWAY_S, and doubts of their lane, as in
    `storage.redis.pipeline.ReplicatedPipeline`. Other acts are answered after WELL_S. Queues whose
    names begin differently are at different primaries.
    """

    def __init__(self, away: Callable[[str, Durability], bool]) -> None:
        self.away = away
        self.is_behind = False
        """Whether appended records come after one that is not certified."""
        self._doubts: Counter[int] = Counter()
        self._ends: Counter[str] = Counter()
        self.looks: Counter[str] = Counter()

    def lane(self, key: str, level: Durability) -> Lane:
        number = 3 * ord(key[1]) + LEVELS.index(level)
        return Lane(number, self._doubts[number])

    async def act(
        self,
        function: str,
        keys: Sequence[str],
        args: Sequence[Any],
        *,
        level: Durability,
        lane: Lane | None = None,
    ) -> Any:
        here = self.lane(keys[0], level)
        if lane not in (None, here):
            raise Refused("storage_unavailable", "what was asked before it may not have happened")
        if self.away(keys[0], level):
            await asyncio.sleep(AWAY_S)
            self._doubts[here.number] += 1
            raise Unknown("1 of 2 replicas have confirmed it")
        await asyncio.sleep(WELL_S)
        if function == "append":
            first, count = self._ends[keys[0]], len(args[12]) // 4
            self._ends[keys[0]] += count
            return [first, count, 0 if self.is_behind else first + count, first + count, 1]
        if function == "certify":
            return [args[1], self._ends[keys[0]]]
        return 1

    async def look(self, function: str, keys: Sequence[str], args: Sequence[Arg]) -> Any:
        self.looks[keys[0]] += 1
        if self.away(keys[0], "local"):
            await asyncio.sleep(AWAY_S)
            raise Refused("storage_unavailable", "no reply in time")
        if function == "tails":
            return [7, 7, b"all"]
        if function == "cursor":
            return [1, 1, b"t", 1, 0, b"", [], [], [], 100, 1, b"", b"", []]
        return []


def storage_of(shard: Partly, tails_s: float = 1000) -> RedisStorage:
    return RedisStorage(cast(Shard, shard), "history-1", tails_s=tails_s)


def a_replica(_key: str, level: Durability) -> bool:
    """Return whether this level needs the replica that is away. Only `all` does."""
    return level == "all"


def one_primary(key: str, _level: Durability) -> bool:
    """Return whether the primary of the queues whose names begin with b has this key."""
    return key == queue_key("b") or key.startswith("{b")


def nothing(_key: str, _level: Durability) -> bool:
    return False


def queue(name: str, level: Durability) -> Queue:
    return Queue(
        queue_id=name, name=name, tenant="", holder="", created_unix_ms=0,
        settings=QueueSettings(partitions=1, durability=level), ring_epoch=1, members=(0,),
        hash_key=bytes(16),
    )  # fmt: skip


async def nowhere(queue: Queue) -> Queue:
    """Fail, because no queue is deleted here."""
    raise AssertionError(queue)


class Town:
    """Publisher over such a store."""

    def __init__(
        self, shard: Partly, storage: RedisStorage | None = None, tail: Tail | None = None
    ) -> None:
        self.storage = storage or storage_of(shard)
        self.publisher = Publisher(
            self.storage,
            tail or Tail(self.storage),
            Counters(),
            lambda queue: False,
            Tombstones(cast(Metadata, None), nowhere),
        )

    def submit(self, to: Queue, count: int = 1, **more: Any) -> "asyncio.Future[list[str]]":
        """Publish, and return the outcome of each message."""
        done: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
        messages = [message(number, "k") for number in range(count)]
        self.publisher.submit(
            PendingPublish(to, messages, lambda answer: done.set_result(said_of(answer)), **more)
        )
        return done


def said_of(answer: PendingPublish) -> list[str]:
    return [
        outcome.code.name if isinstance(outcome, TocsinError) else "ok"
        for outcome in answer.outcomes
    ]


@pytest.mark.parametrize("away", [a_replica, one_primary])
@pytest.mark.parametrize("others", ["publish", "are busy", "flood"])
def test_publishers_that_do_not_need_it_go_on(
    away: Callable[[str, Durability], bool], others: str
) -> None:
    """README, the table of levels: `local` goes on while a replica is away. deploy/redis: when some
    owned partitions have no primary, the others go on. They do so at once, even if others ask in
    vain: publishes, or background work of a gateway at the level `all`."""

    async def main() -> None:
        town = Town(Partly(away))
        said: Counter[str] = Counter()
        slowest_s = 0.0
        clock = asyncio.get_running_loop().time
        until = clock() + 5

        async def publish() -> None:
            nonlocal slowest_s
            while (began := clock()) < until:
                said.update(await town.submit(queue("a", "local")))
                slowest_s = max(slowest_s, clock() - began)
                await asyncio.sleep(0.01)

        async def other(number: int) -> None:
            name = f"b{number}"
            while clock() < until:
                if others == "are busy":
                    with pytest.raises(Unknown):
                        await town.storage.create_queue(name, 1)
                else:
                    await town.submit(queue(name, "all"), 500 if others == "flood" else 1)
                    await asyncio.sleep(0.1)

        number = {"publish": 5, "are busy": 5, "flood": 20}[others]
        await asyncio.gather(publish(), *map(other, range(number)))
        assert set(said) == {"ok"}, said
        assert said["ok"] > 250
        assert slowest_s < 0.1

    run(main())


def test_what_waits_in_vain_leaves_room_to_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """P9: Twenty queues have as much waiting as is allowed. A publish to another queue has room."""
    monkeypatch.setattr(limits, "PENDING_MESSAGES_MAX", 1000)

    async def main() -> None:
        town = Town(Partly(a_replica))
        assert await town.submit(queue("a", "local")) == ["ok"]
        answers = [town.submit(queue(f"b{number}", "all"), 40) for number in range(100)]
        await asyncio.sleep(0.01)
        said = Counter(word for one in answers if one.done() for word in one.result())
        assert said["overloaded"] > 3000
        assert await town.submit(queue("a", "local"), 150) == ["ok"] * 150
        for one in answers:
            await one
        assert not town.publisher.pending_messages
        lanes = town.publisher.commits._lanes.values()
        assert [(one.backlog.messages, one.backlog.bytes) for one in lanes] == [(0, 0)] * 2

    run(main())


def test_what_comes_behind_hears_first_when_the_level_is_changed() -> None:
    """R7: Message 0 waits for a replica that is away, and then the queue's level is lowered.
    Message 1 could be stored at once, and is not, until 0 is stored."""

    async def main() -> None:
        shard = Partly(a_replica)
        town = Town(shard)
        high = queue("q", "all")
        low = queue("q", "local")
        ann: dict[str, Any] = {"producer": b"producer-ann....", "resolved": 0}
        first = town.submit(high, **ann, sequence=0)
        await asyncio.sleep(0.1)
        second = town.submit(low, **ann, sequence=1)
        beside = town.submit(queue("a", "local"))
        assert await beside == ["ok"]
        assert not second.done()
        assert (await first, await second) == (["unknown"], ["storage_unavailable"])
        assert await town.submit(low, **ann, sequence=2) == ["out_of_sequence"]
        again = [town.submit(low, **ann, sequence=number) for number in range(3)]
        assert [await one for one in again] == [["ok"]] * 3

    run(main())


def test_what_is_not_certified_yet_is_given_to_nobody() -> None:
    """R10: It is stored at the level `local` after a record whose copies cannot be counted now. Its
    producer is answered, and followers wait."""

    async def main() -> None:
        shard = Partly(a_replica)
        shard.is_behind = True
        storage = storage_of(shard)
        tail = Tail(storage)
        partition, told = Partition("q", 0), Counter[int]()
        storage.on_certified(tail.on_certified)
        tail.follow(partition, lambda _: told.update([tail.ends[partition]]))
        town = Town(shard, storage, tail)
        for _ in range(3):
            assert await town.submit(queue("q", "local")) == ["ok"]
        assert tail.get(partition, 0) is None
        assert set(told) == {0}
        shard.away = nothing
        await asyncio.sleep(2)
        assert await town.submit(queue("q", "local")) == ["ok"]
        await asyncio.sleep(1)
        assert tail.ends[partition] == 4
        await storage.close()

    run(main())


class Acks:
    """Writer of a cursor, like an owned partition."""

    def __init__(self, queue_id: str, number: int = 0) -> None:
        self.place = CursorPlace("g", Partition(queue_id, number))
        self.is_written = False

    def take_write(self, *, wall_unix_ms: int) -> CursorWrite | None:
        return None if self.is_written else CursorWrite(self.place, 1, b"t", settled=((0, 0),))

    def written(self, answer: Written) -> None:
        self.is_written = True

    def not_written(self, error: TocsinError) -> None: ...

    def fenced(self) -> None: ...


def test_acks_of_other_shards_are_confirmed_while_one_is_down() -> None:
    """deploy/redis/README.md: When some owned partitions have no primary, the others go on."""

    async def main() -> None:
        shard = Partly(one_primary)
        cursor_writer = CursorWriter(storage_of(shard))
        waits, alive = Acks("b"), [Acks(f"q{number}") for number in range(20)]
        for writer in [waits, *alive]:
            cursor_writer.mark(writer, urgent=True)
        await asyncio.sleep(0.1)
        assert all(writer.is_written for writer in alive), "they waited for the one that is down"
        assert not waits.is_written
        shard.away = nothing
        await asyncio.sleep(5)
        assert waits.is_written

    run(main())


def test_reads_do_not_wait_for_those_of_a_primary_that_is_down() -> None:
    """Reads of that primary hang until they are given up, a hundred at a time."""

    async def main() -> None:
        tail = Tail(storage_of(Partly(one_primary)))
        hung = [asyncio.create_task(tail.read(Partition(f"b{n}", 0), 0)) for n in range(100)]
        await asyncio.sleep(0.1)
        async with asyncio.timeout(0.1):
            assert not (await tail.read(Partition("a", 0), 0)).records
        for one in hung:
            with pytest.raises(Refused):
                await one

    run(main())


def test_ends_are_looked_at_while_one_primary_is_down() -> None:
    """R10: A wake-up that got lost comes with the next look. It does not wait until forty others
    have failed."""

    async def main() -> None:
        shard = Partly(one_primary)
        storage = storage_of(shard, tails_s=1)
        told: Counter[str] = Counter()
        storage.on_certified(lambda partition, _end: told.update([partition.queue_id]))
        for name in [f"b{number}" for number in range(40)]:
            with pytest.raises(Refused):
                await storage.read(Partition(name, 0), 0, 1)
        await storage.read(Partition("a", 0), 0, 1)
        before = shard.looks[queue_key("a")]
        await asyncio.sleep(5.5)
        assert told == {"a": 1}
        assert shard.looks[queue_key("a")] - before >= 5
        await storage.close()

    run(main())
