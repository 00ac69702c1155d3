"""What the due store on Redis promises beside the contract: damage, several gateways, copies,
memory's end, leaving nothing."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import storage.redis.due as redis_due
from push.due import DueMessage, DuePlace
from push.errors import Refused, TocsinError, Unknown
from push.places import Partition
from push.storage_port import Append, Appended, Scheduled
from storage.redis.library import library
from storage.redis.ops.provision import provision
from storage.redis.shard import Marks, RedisShard, Settings
from storage.redis.store import RedisStorage
from tests.contract.redis_single import INCARNATION, ask, redis_store_of
from tests.contract.stores import (
    P0,
    Clock,
    append,
    body,
    due_unix_ms,
    one,
    sealing,
    sequences,
)
from tests.servers.binaries import Binary
from tests.servers.layouts import guarded, replicated
from tests.servers.shipped import MEMORY_MAX
from tests.storage.shards import sentinels, settings
from tests.storage.standing import Pool, all_kinds
from tests.waiting import becomes

FOR_EVER = due_unix_ms(10**9)
HEAD_BYTES = 54
"""Of a row, before the header."""


@pytest.fixture
async def server(servers: Pool) -> AsyncIterator[Settings]:
    """Yield one server, empty."""
    alone = servers.of(all_kinds()[0])
    await alone.empty(INCARNATION)
    (given,) = await alone.settings()
    yield given
    alone.nodes[0].ask("CONFIG", "SET", "maxmemory", MEMORY_MAX)


@pytest.fixture
async def store(server: Settings) -> AsyncIterator[RedisStorage]:
    """A gateway's storage there, with a queue."""
    async with redis_store_of(server, Clock()) as opened:
        await opened.create_queue("q-1", 2)
        yield opened


def record_of(messages: Sequence[DueMessage]) -> Append:
    """Return the record that these messages become in the log."""
    whole = append(sizes=[len(each.payload) for each in messages])
    return replace(whole, payload=b",".join(each.payload for each in messages))


async def waiting(store: RedisStorage) -> list[DueMessage]:
    """Return what waits in partition 0, in order."""
    read = await store.due.first(P0, FOR_EVER, count_max=1000, bytes_max=10**9)
    assert not read.damaged
    return [*read.messages]


async def move(store: RedisStorage, messages: Sequence[DueMessage]) -> Appended | None:
    """Move messages into the log, in this order."""
    return await store.due.move(messages, record_of(messages))


async def log(store: RedisStorage) -> list[bytes]:
    """Return the payloads in the log."""
    return [record.payload for record in (await store.read(P0, 0, 10**9)).records]


def member(number: int) -> bytes:
    """Return a number as the keys have it."""
    return b"%013d" % number


# --- Damage (R30) -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "place",
    [
        0,
        4,
        7,
        8,
        12,
        20,
        HEAD_BYTES + 2,
        HEAD_BYTES + 20,
        HEAD_BYTES + 40,
        -1,
        "short",
        "gone",
        "due",
    ],
    ids=str,
)
async def test_a_row_that_was_changed_costs_its_message(
    server: Settings, store: RedisStorage, place: int | str
) -> None:
    """R30: whatever of it was changed: version, size, checksum, header, payload, its time; the
    others wait on, and what had its id can be published again."""
    await one(store, append(messages=3, due=[1, 2, 3], ids=["x", "y", "z"], id_hashes=[1, 2, 3]))
    row = bytearray(await ask(server, "HGET", "{q-1}:dm:0", member(1)))
    if place == "gone":
        await ask(server, "HDEL", "{q-1}:dm:0", member(1))
    elif place == "due":
        await ask(server, "ZADD", "{q-1}:due:0", due_unix_ms(2) + 1, member(1))
    else:
        if isinstance(place, int):
            row[place] ^= 0x80
        else:
            del row[10:]
        await ask(server, "HSET", "{q-1}:dm:0", member(1), bytes(row))
    read = await store.due.first(P0, FOR_EVER, count_max=9, bytes_max=10**9)
    assert ([each.number for each in read.messages], read.damaged) == ([0, 2], (1,))
    assert [each.number for each in await waiting(store)] == [0, 2], "it is said once"
    assert (await store.due.states("q-1"))[0].messages == 2
    assert await ask(server, "HLEN", "{q-1}:dq:0") == 1
    assert await one(store, append(ids=["y"], due=[4])) == ["due 3"]
    found = [await store.due.look(P0, id_hash=hashed) for hashed in (1, 2, 3)]
    assert [[each.number for each in read.messages] for read in found] == [[0], [], [2]]
    moved = await move(store, await waiting(store))
    assert moved is not None
    (state, _) = await store.due.states("q-1")
    assert (state.messages, state.bytes) == (0, 0), "nothing of it counts any more"
    assert await one(store, append(messages=1, messages_max=4)) == [3]


class Keeper:
    """A sealer whose keys may be away."""

    def __init__(self) -> None:
        self._sealer = sealing()
        self.is_away = False

    def seal(self, partition: Partition, header: bytes, payload: bytes, count: int) -> bytes:
        return self._sealer.seal(partition, header, payload, count)

    def unseal(self, partition: Partition, header: bytes, sealed: bytes) -> bytes:
        if self.is_away:
            raise Refused("storage_unavailable", "its key cannot be had")
        return self._sealer.unseal(partition, header, sealed)


@pytest.mark.parametrize(
    ("due", "named"), [("inf", member(3)), ("-5", member(3)), ("5", b"no number")]
)
async def test_a_place_in_the_order_that_is_none_holds_up_nothing(
    server: Settings, store: RedisStorage, due: str, named: bytes
) -> None:
    """R30."""
    await one(store, append(messages=2, due=[1, 2]))
    await ask(server, "ZADD", "{q-1}:due:0", due, named)
    read = await store.due.first(P0, FOR_EVER, count_max=9, bytes_max=10**9)
    if due == "inf":
        assert len(read.messages) == 2
        read = await store.due.look(P0)
    assert ([each.number for each in read.messages], len(read.damaged)) == ([0, 1], 1)
    assert await move(store, await waiting(store)) is not None
    assert await ask(server, "EXISTS", "{q-1}:due:0") == 0


async def test_a_row_at_another_place_is_damage_and_a_key_that_is_away_is_none(
    server: Settings,
) -> None:
    """P13, R30: sealed payloads are bound to their number; without a key nothing is decided."""
    sealer = Keeper()
    async with redis_store_of(server, Clock(), sealer=sealer) as store:
        await store.create_queue("q-1", 2)
        await one(store, append(messages=3, due=[1, 1, 1]))
        names = [member(number) for number in range(3)]
        rows = await ask(server, "HMGET", "{q-1}:dm:0", *names)
        assert not any(body(number) in row for number, row in enumerate(rows))
        await ask(server, "HSET", "{q-1}:dm:0", names[0], rows[1], names[1], rows[0])

        sealer.is_away = True
        with pytest.raises(Refused, match="its key"):
            await store.due.first(P0, FOR_EVER, count_max=9, bytes_max=10**9)
        sealer.is_away = False
        read = await store.due.first(P0, FOR_EVER, count_max=9, bytes_max=10**9)
        assert [each.payload for each in read.messages] == [body(2)]
        assert read.damaged == (0, 1)


# --- Several gateways ---------------------------------------------------------------------------


async def test_two_gateways_move_the_same_messages_once(
    server: Settings, store: RedisStorage
) -> None:
    """P1: and both hear of the end of the log."""
    async with redis_store_of(server, Clock()) as other:
        for _ in range(20):
            await one(store, append(due=[1, 2], ids=["x", None], dedup_window_s=0))
            seen = await asyncio.gather(waiting(store), waiting(other))
            moved = await asyncio.gather(move(store, seen[0]), move(other, seen[1]))
            assert sorted(each is None for each in moved) == [False, True]
        assert await log(other) == [b",".join([body(0), body(1)])] * 20


async def test_what_another_gateway_schedules_or_changes_is_heard_of(
    server: Settings, store: RedisStorage
) -> None:
    async with redis_store_of(server, Clock()) as other:
        told: list[tuple[Partition, int]] = []
        other.due.on_due(lambda partition, unix_ms: told.append((partition, unix_ms)))

        async def is_subscribed() -> bool:
            await one(store, append(messages=1, due=[50]))
            return bool(told)

        await becomes(is_subscribed)
        await one(store, append(messages=1, due=[20]))
        await becomes(lambda: (P0, due_unix_ms(20)) in told)
        last = (await waiting(store))[-1]
        assert await store.due.change(replace(last, due_unix_ms=due_unix_ms(10)))
        await becomes(lambda: (P0, due_unix_ms(10)) in told)
        assert not await other.due.change(last), "the other gateway has seen it before"


async def test_what_a_replica_has_not_confirmed_is_neither_scheduled_nor_moved(
    redis_binary: Binary, tmp_path: Path
) -> None:
    """P1, R10: nobody is told so, and nobody is given it. It comes again as a duplicate."""
    with replicated(redis_binary, tmp_path, replicas=1) as servers:
        primary, replica = servers.nodes
        given = replace(settings(primary), library=library())
        await provision(given, INCARNATION, 1)
        async with redis_store_of(given, Clock()) as store:
            await store.create_queue("q-1", 1)
            replica.freeze()
            with pytest.raises(Unknown):
                await one(store, append(due=[1], ids=["x"]))
            replica.thaw()
            servers.wait_in_sync()
            assert await one(store, append(due=[1], ids=["x"])) == ["due 0 again"]
            found = await waiting(store)
            replica.freeze()
            with pytest.raises(Unknown):
                await move(store, found)
            assert await log(store) == []
            replica.thaw()
            servers.wait_in_sync()
            assert await move(store, found) is None
            assert await sequences(store, [1]) == [1]
            assert await log(store) == [body(0), body(1)]
        assert replica.ask("EXISTS", "{q-1}:dm:0") == 0


async def test_a_failover_between_scheduling_and_moving_loses_nothing(
    redis_binary: Binary, tmp_path: Path
) -> None:
    """P1: every ticket that was given out is in the log, once, however often it is tried."""
    with guarded(redis_binary, tmp_path, replicas=2) as servers:
        given = replace(settings(sentinels(servers.sentinels), wait_s=5.0), library=library())
        await provision(given, INCARNATION, 2)
        shard = await RedisShard.open(replace(given, wait_s=1.0, watch_s=0.2), Marks(INCARNATION))
        store = RedisStorage(shard, INCARNATION)
        await store.create_queue("q-1", 1)
        tickets: dict[int, bytes] = {}

        async def scheduled(number: int) -> None:
            runs = [(b"producer-%07d" % number, 0, [number])]
            while True:
                try:
                    (answer,) = await store.append([append(runs=runs, due=[number % 7])])
                except (Refused, Unknown):
                    await asyncio.sleep(0.02)
                    continue
                (outcome,) = answer.outcomes or ()
                assert isinstance(outcome, Scheduled)
                assert outcome.number not in tickets
                tickets[outcome.number] = body(number)
                return

        async def moved_some() -> bool:
            try:
                some = (await store.due.first(P0, FOR_EVER, count_max=9, bytes_max=10**9)).messages
                if some:
                    await move(store, some)
            except TocsinError:
                return False
            return not some and len(tickets) == 300

        await asyncio.gather(*map(scheduled, range(100)))
        lost = servers.primary
        lost.kill()
        more = [asyncio.create_task(scheduled(number)) for number in range(100, 300)]
        await asyncio.to_thread(servers.wait_failover, lost)
        await asyncio.to_thread(lost.start)
        await becomes(moved_some)
        await asyncio.gather(*more)
        there = [each for record in await log(store) for each in record.split(b",")]
        assert sorted(there) == sorted(tickets.values())
        await store.close()


# --- Memory's end (R29), leaving nothing, many --------------------------------------------------


async def test_at_memory_s_end_nothing_is_scheduled_and_what_is_due_still_moves(
    server: Settings, store: RedisStorage
) -> None:
    """R29: cancelling and changing go on too, and duplicates are known."""
    record = append(runs=[(b"producer-ann----", 0, [0, 1, 2])], due=[1, 2, 3])
    assert await one(store, record) == ["due 0", "due 1", "due 2"]
    first, second, third = await waiting(store)
    await ask(server, "CONFIG", "SET", "maxmemory", "1")
    assert await one(store, append(messages=1, due=[1])) == ["storage_full"]
    assert await one(store, record) == ["due 0 again", "due 1 again", "due 2 again"]
    assert await move(store, [first]) is not None
    assert await store.due.cancel(P0, second.number, remember_s=300)
    assert await store.due.change(replace(third, due_unix_ms=due_unix_ms(9)))
    assert await log(store) == [body(0)]
    await ask(server, "CONFIG", "SET", "maxmemory", "0")
    assert await one(store, record) == ["due 0 again", "cancelled", "due 2 again"]
    assert await sequences(store, [3]) == [1], "what was cancelled holds up nothing"


async def test_moving_and_changing_leave_nothing_but_what_is_remembered(
    server: Settings, store: RedisStorage
) -> None:
    await one(store, append(messages=3, due=[1, 2, 3], ids=["x", "y", None], id_hashes=[1, 2, 0]))
    first, second, third = await waiting(store)
    assert await store.due.change(replace(third, due_unix_ms=due_unix_ms(9), payload=body(1, 99)))
    assert await store.due.cancel(P0, second.number, remember_s=300)
    assert await move(store, [first, *(await waiting(store))[1:]]) is not None
    assert await ask(server, "KEYS", "{q-1}:d*") == []
    await one(store, append(due=[1], ids=["z"]))
    await store.purge("q-1", None)
    assert await ask(server, "KEYS", "{q-1}:d*") == []
    await one(store, append(due=[1], ids=["z"]))
    await store.drop_queue("q-1")
    left = await ask(server, "KEYS", "{q-1}:*")
    assert {*left} <= {b"{q-1}:touch", b"{q-1}:gone"}


@pytest.mark.parametrize(
    "filters", [{}, {"key_hash": 7}, {"id_hash": 5}, {"key_hash": 7, "id_hash": 5}]
)
async def test_many_that_are_due_together_are_listed_in_slices(
    store: RedisStorage, monkeypatch: pytest.MonkeyPatch, filters: dict[str, int]
) -> None:
    """Each once, in order, whatever a look has room for."""
    monkeypatch.setattr(redis_due, "LOOK_COUNT", 7)
    monkeypatch.setattr(redis_due, "LOOK_BYTES", 90)
    await one(
        store, append(messages=90, due=[3 + n // 60 for n in range(90)], id_hashes=[5, 6] * 45)
    )
    wanted = [n for n in range(90) if n % 2 == 0 or "id_hash" not in filters]
    seen: list[int] = []
    after = None
    while True:
        read = await store.due.look(P0, **filters, after=after, count_max=10)
        seen += [each.number for each in read.messages]
        if read.next_unix_ms is None:
            break
        last = read.messages[-1]
        after = DuePlace(last.due_unix_ms, last.number)
    assert seen == wanted
    assert [each.number for each in await store.due.find(P0, seen[::-1])] == wanted[::-1]
