"""Histories of acts over every storage and the naive model: all agree (P2, P3,
P4, P5, P7, R5-R16)."""

import asyncio
import itertools
import shutil
import tempfile
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from push.places import CursorPlace, Partition
from push.producer_order import SendingOrder
from push.ranges import Dead
from push.storage_port import OWNER_BYTES, CursorWrite, Retry, Side, Storage, Written
from storage.memory import MemoryStorage
from storage.redis.store import RedisStorage
from storage.sqlite.store import SqliteStorage
from tests.contract import stores
from tests.contract.model import Group, Message, Model
from tests.contract.redis_single import ask, redis_process, redis_store_of
from tests.memory import memory

T = TypeVar("T")
PRODUCERS = [b"producer-%07d" % number for number in range(3)]
GROUPS = ["g-a", "g-b"]
NUMBERS = itertools.count()

messages_of = st.builds(
    Message,
    producer=st.none() | st.integers(0, 2),
    sequence=st.integers(0, 12),
    resolved=st.integers(0, 4) | st.integers(0, 12),
    client_id=st.none() | st.none() | st.integers(0, 3),
    size=st.sampled_from([20, 20, 40]),
)


class Stores:
    """A memory, a SQLite and a Redis storage, used by many histories, each with its own queue."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(dir=memory()))
        self.loop = asyncio.new_event_loop()
        self.clock = stores.Clock()
        self.memory = MemoryStorage(wall=self.clock)
        self.sqlite: SqliteStorage | None = None
        self.stack = AsyncExitStack()
        self.settings = self.run(self.stack.enter_async_context(redis_process()))
        opening = redis_store_of(self.settings, self.clock)
        self.redis: RedisStorage = self.run(self.stack.enter_async_context(opening))
        self.reopen()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def reopen(self) -> None:
        if self.sqlite is not None:
            self.run(self.sqlite.close())
        self.sqlite = self.run(
            SqliteStorage.open(self.folder / "store.sqlite", free_bytes_reserve=0, wall=self.clock)
        )

    def forget_refused(self, queue_id: str) -> None:
        """Forget refused messages in flight, which only Redis remembers when a gateway starts
        again."""

        async def forget() -> None:
            keys = await ask(self.settings, "KEYS", f"{{{queue_id}}}:lo:*")
            if keys:
                await ask(self.settings, "DEL", *keys)

        self.run(forget())

    def close(self) -> None:
        assert self.sqlite is not None
        self.run(self.sqlite.close())
        self.run(self.stack.aclose())
        self.run(self.loop.shutdown_default_executor())
        self.loop.close()
        shutil.rmtree(self.folder)


async def _together(calls: list[Coroutine[Any, Any, T]]) -> list[T]:
    """Await all calls; one store works while another one waits for its disk or its server."""
    return await asyncio.gather(*calls)


class Histories(RuleBasedStateMachine):
    """Histories of one partition, three producers, two groups."""

    stores: Stores

    def __init__(self) -> None:
        super().__init__()
        self.queue_id = f"q-{next(NUMBERS)}"
        self.partition = Partition(self.queue_id, 0)
        self.model = Model()

    def each(self, call: str, *args: object, **named: object) -> Any:
        """Call all storages, check that their answers are equal, and return one."""
        assert self.stores.sqlite is not None
        stores = (self.stores.memory, self.stores.sqlite, self.stores.redis)
        calls = [getattr(store, call)(*args, **named) for store in stores]
        answers = self.stores.run(_together(calls))
        assert answers[0] == answers[1] == answers[2]
        return answers[0]

    @property
    def now(self) -> float:
        return self.stores.clock.unix_s

    @initialize()
    def begin(self) -> None:
        self.each("create_queue", self.queue_id, 1)

    # --- Appending ---------------------------------------------------------------------------

    @rule(
        messages=st.lists(messages_of, min_size=1, max_size=6),
        messages_max=st.just(0) | st.integers(1, 12),
        message_bytes_max=st.sampled_from([0, 39, 40]),
    )
    def append(
        self, messages: list[Message], messages_max: int, message_bytes_max: int = 0
    ) -> None:
        record = stores.append(
            self.partition,
            runs=[
                (None, 0, [0]) if m.producer is None
                else (PRODUCERS[m.producer], m.resolved, [m.sequence])
                for m in messages
            ],
            ids=[None if m.client_id is None else f"id-{m.client_id}" for m in messages],
            published_unix_s=self.now,
            sizes=[m.size for m in messages],
            messages_max=messages_max,
            message_bytes_max=message_bytes_max,
        )  # fmt: skip
        (appended,) = self.each("append", [record])
        expected = self.model.append(
            messages, now=self.now, messages_max=messages_max, message_bytes_max=message_bytes_max
        )
        assert stores.outcomes(appended) == expected
        assert appended.certified == self.model.next_offset

    @rule(producer=st.integers(0, 2), first=st.integers(0, 12), count=st.integers(1, 6))
    def append_run(self, producer: int, first: int, count: int) -> None:
        """Append ascending sequences, as clients do."""
        self.append([Message(producer, n, min(first, 3)) for n in range(first, first + count)], 0)

    @rule(seconds=st.sampled_from([1, 400, 7200]))
    def wait(self, seconds: int) -> None:
        self.stores.clock.unix_s += seconds

    @rule()
    def restart(self) -> None:
        if self.model.next_offset % 3 == 0:  # opening takes longer than everything else
            self.stores.reopen()
            self.model.restart()
            self.stores.forget_refused(self.queue_id)
            for at in self.stores.memory.queues[self.queue_id]:
                for line in at.lines.values():
                    line.order = SendingOrder()

    # --- Groups ------------------------------------------------------------------------------

    @precondition(lambda self: len(self.model.groups) < 2)
    @rule(kind=st.sampled_from(GROUPS))
    def create_group(self, kind: str) -> None:
        """Create an existing group, or a new one: no id is used twice (R1)."""
        there = (one for one in self.model.groups if one.startswith(kind))
        group = next(there, None) or f"{kind}-{next(NUMBERS)}"
        self.each("create_group", group, self.queue_id, ["earliest"])
        if group not in self.model.groups:
            settled = set(range(self.model.start()))
            self.model.groups[group] = Group(settled=settled)
        self.own(group)

    @precondition(lambda self: self.model.groups)
    @rule(data=st.data())
    def drop_group(self, data: st.DataObject) -> None:
        group = data.draw(st.sampled_from(sorted(self.model.groups)))
        self.each("drop_group", group, self.queue_id)
        del self.model.groups[group]

    def own(self, group: str, owner: bytes = b"one") -> None:
        """Take over as an owner, and check that the cursor equals the model's."""
        at = self.model.groups[group]
        before, owner = at.token[:OWNER_BYTES], owner.ljust(OWNER_BYTES)
        previous = at.epoch if before == owner else None
        at.epoch += 1
        at.token = owner + b"%d" % at.epoch
        place = CursorPlace(group, self.partition)
        owned = self.each("own", place, token=at.token, assignment=1)
        assert owned.previous == previous, "R22"
        assert self.each("own", place, token=at.token, assignment=1) == owned, "its answer was lost"
        cursor, floor = owned.cursor, self.model.floor(group)
        above = {n for first, last in cursor.passed for n in range(first, last + 1)}
        assert (owned.epoch, cursor.floor) == (at.epoch, floor)
        assert above == {n for n in self.model.passed(group) if n > floor}
        assert {retry.offset: retry for retry in cursor.retries} == at.retries
        assert {n for first, last in cursor.ended for n in range(first, last + 1)} == at.ended
        dead = {n: one.reason for one in cursor.dead for n in range(one.first, one.last + 1)}
        assert dead == at.dead
        counts: dict[int, int] = {}
        for key_hash in at.aside.values():
            counts[key_hash] = counts.get(key_hash, 0) + 1
        assert dict(cursor.lines) == counts

    @precondition(lambda self: self.model.groups)
    @rule(data=st.data(), owner=st.sampled_from([b"one", b"other"]))
    def change_owner(self, data: st.DataObject, owner: bytes) -> None:
        group = data.draw(st.sampled_from(sorted(self.model.groups)))
        before = self.model.groups[group]
        stale = (before.epoch, before.token)
        self.own(group, owner)
        place = CursorPlace(group, self.partition)
        if self.model.next_offset:
            answer = self.each("write_cursors", [CursorWrite(place, *stale, settled=((0, 0),))])
            assert answer == [Written(fenced=True)]

    @precondition(lambda self: self.model.groups and self.model.next_offset)
    @rule(data=st.data())
    def write(self, data: st.DataObject) -> None:
        group = data.draw(st.sampled_from(sorted(self.model.groups)))
        offsets = st.integers(0, self.model.next_offset - 1)
        first = data.draw(offsets)
        last = min(first + data.draw(st.integers(0, 8)), self.model.next_offset - 1)
        retried = data.draw(st.lists(offsets, max_size=3, unique=True))
        nack = data.draw(st.sampled_from([None, b"why", b"\x01a:b"]))
        retries = [Retry(offset, first + 1, last, nack, last % 2 == 0) for offset in retried]
        ended = range(first, data.draw(st.integers(first, last + 1)))
        aside = data.draw(st.dictionaries(offsets, st.sampled_from([5, 1 << 63]), max_size=4))
        low = data.draw(offsets)
        dead = range(low, data.draw(st.integers(low, self.model.next_offset)))
        reason = data.draw(st.sampled_from(["expired", "overflow"]))
        at = self.model.groups[group]
        write = CursorWrite(
            CursorPlace(group, self.partition),
            at.epoch,
            at.token,
            settled=((first, last),),
            retries=tuple(retries),
            aside=tuple(Side(key, (offset,)) for offset, key in aside.items()),
            ended=((ended[0], ended[-1]),) if ended else (),
            dead=(Dead(dead[0], dead[-1], reason),) if dead else (),
        )
        (written,) = self.each("write_cursors", [write])
        assert list(written.refused) == self.model.write(
            group, range(first, last + 1), retries, aside, ended=ended, dead=dead, reason=reason
        )
        for key in (5, 1 << 63):
            line = self.each("read_side", write.place, key, -1, 100)
            assert list(line) == sorted(o for o, k in at.aside.items() if k == key)

    # --- Reading and trimming ----------------------------------------------------------------

    @rule(retention_s=st.sampled_from([0, 500]), keep_all=st.booleans())
    def trim(self, retention_s: int, keep_all: bool) -> None:
        assert self.stores.sqlite is not None
        stored: list[Storage] = [self.stores.memory, self.stores.sqlite, self.stores.redis]
        for store in stored:
            while self.stores.run(
                store.trim(self.partition, retention_s=retention_s, keep_all=keep_all)
            ):
                pass
        self.model.trim(now=self.now, retention_s=retention_s, keep_all=keep_all)

    @rule(offset=st.integers(0, 60), bytes_max=st.sampled_from([1, 100, 10**6]))
    def read(self, offset: int, bytes_max: int) -> None:
        assert self.stores.sqlite is not None
        one = self.stores.run(self.stores.memory.read(self.partition, offset, bytes_max))
        two = self.stores.run(self.stores.sqlite.read(self.partition, offset, bytes_max))
        three = self.stores.run(self.stores.redis.read(self.partition, offset, bytes_max))
        for other in (two, three):
            assert [(r.first, r.last, r.payload) for r in one.records] == [
                (r.first, r.last, r.payload) for r in other.records
            ]
            assert (one.start, one.certified) == (other.start, other.certified)
            assert other.damage == ()
        expected = [
            (first, first + len(messages) - 1)
            for first, messages, _ in self.model.records
            if first + len(messages) > offset
        ]
        found = [(record.first, record.last) for record in two.records]
        assert found == (expected if bytes_max == 10**6 else expected[: len(found)])
        assert found or not expected

    @invariant()
    def looks_the_same(self) -> None:
        if self.partition.queue_id not in self.stores.memory.queues:
            return
        (state,) = self.each("partitions", self.queue_id)
        assert (state.start, state.end) == (self.model.start(), self.model.next_offset)
        assert state.messages == self.model.retained()
        for group in self.model.groups:
            (looked,) = self.each("cursors", self.queue_id, group)
            at = self.model.groups[group]
            assert looked.floor == self.model.floor(group)
            assert (looked.epoch, looked.aside) == (at.epoch, len(at.aside))
            assert looked.dead == len(at.dead)


def test_all_storages_behave_like_the_naive_model() -> None:
    shared = Stores()
    Histories.stores = shared
    try:
        run_state_machine_as_test(
            Histories,
            settings=settings(
                max_examples=1000,
                stateful_step_count=10,
                suppress_health_check=list(HealthCheck),
            ),
        )
    finally:
        shared.close()
