"""What the storage on Redis promises beside the contract: copies, gateways, memory's end."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

import pytest

from push import limits
from push.errors import Refused, Unknown
from push.places import Durability, Partition
from push.ranges import Dead
from push.storage_port import PLAIN, Append, Lane, Retry, Side
from storage.redis.append import append_args
from storage.redis.keys import certified_ends, queue_key
from storage.redis.port import Arg, OnMessage, Shard, ShardHealth
from storage.redis.shard import Marks, RedisShard, Settings
from storage.redis.store import RedisStorage
from storage.rules.append import open_header
from tests.contract.redis_single import INCARNATION, ask, redis_store_of
from tests.contract.stores import (
    ANN,
    G0,
    P0,
    P1,
    START_UNIX_S,
    Clock,
    append,
    change,
    one,
    outcomes,
    sealing,
    sequences,
    with_group,
)
from tests.histories.house import eventually
from tests.servers.shipped import MEMORY_MAX
from tests.storage.standing import Pool, all_kinds


@pytest.fixture
async def server(servers: Pool) -> AsyncIterator[Settings]:
    """Yield one server, empty."""
    alone = servers.of(all_kinds()[0])
    await alone.empty(INCARNATION)
    (settings,) = await alone.settings()
    yield settings
    alone.nodes[0].ask("CONFIG", "SET", "maxmemory", MEMORY_MAX)


@pytest.fixture
async def store(server: Settings) -> AsyncIterator[RedisStorage]:
    """A gateway's storage there."""
    async with redis_store_of(server, Clock()) as opened:
        yield opened


class Losing:
    """A shard that loses answers of acts that happened, and refuses others."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self.lost: set[str] = set()
        self.refused: set[str] = set()
        """Queues, or functions, whose acts do not happen."""
        self.stalled: dict[tuple[str, Durability], asyncio.Event] = {}
        """Acts of a level that wait for a word, and are Unknown then."""
        self.acts: list[tuple[str, Durability]] = []
        self.looks: list[str] = []

    def copies(self, level: Durability) -> int:
        """Implement Shard.copies."""
        return self._shard.copies(level)

    def lane(self, key: str, level: Durability) -> Lane:
        """Implement Shard.lane."""
        return self._shard.lane(key, level)

    async def act(
        self,
        function: str,
        keys: Sequence[str],
        args: Sequence[Arg],
        *,
        level: Durability,
        lane: Lane | None = None,
    ) -> Any:
        """Implement Shard.act."""
        self.acts.append((function, level))
        if keys[0] in self.refused or function in self.refused:
            raise Refused("storage_unavailable", "it is not there")
        if (function, level) in self.stalled:
            await self.stalled[function, level].wait()
            raise Unknown("1 of 2 replicas have confirmed it")
        answer = await self._shard.act(function, keys, args, level=level, lane=lane)
        if function in self.lost:
            self.lost.remove(function)
            raise Unknown("the answer was lost")
        return answer

    async def look(self, function: str, keys: Sequence[str], args: Sequence[Arg]) -> Any:
        """Implement Shard.look."""
        self.looks.append(function)
        return await self._shard.look(function, keys, args)

    def on_message(self, channel_prefix: str, heard: OnMessage) -> None:
        """Implement Shard.on_message."""
        self._shard.on_message(channel_prefix, heard)

    def has_room(self, key: str | None = None) -> bool:
        """Implement Shard.has_room."""
        return self._shard.has_room(key)

    def health(self) -> ShardHealth:
        """Implement Shard.standing."""
        return self._shard.health()

    async def close(self) -> None:
        """Implement Shard.close."""
        await self._shard.close()


@pytest.fixture
async def losing(server: Settings) -> AsyncIterator[tuple[RedisStorage, Losing]]:
    """A storage, and the shard under it that loses answers."""
    shard = Losing(await RedisShard.open(server, Marks(INCARNATION)))
    store = RedisStorage(shard, INCARNATION, wall=Clock())
    yield store, shard
    for stalled in shard.stalled.values():
        stalled.set()
    await store.close()


# --- Certifying (R10) ---------------------------------------------------------------------------


async def test_what_has_no_copies_yet_is_given_to_nobody(
    losing: tuple[RedisStorage, Losing],
) -> None:
    """R10: not read, not found by time, not started behind, not settled."""
    store, shard = losing
    await with_group(store, messages=1)
    shard.lost = {"append"}
    with pytest.raises(Unknown):
        await store.append([append(messages=2)])
    read = await store.read(P0, 0, 10**6)
    assert ([record.first for record in read.records], read.certified) == ([0], 1)
    assert await store.published([(P0, 1)]) == [None]
    assert await store.offset_at(P0, 1 << 50) == 1
    await store.create_group("g-2", "q-1", ["latest", "latest"])
    assert [state.floor for state in await store.cursors("q-1", "g-2")] == [1, 0]
    with pytest.raises(Refused, match="invalid_request"):
        await store.write_cursors([change(settled=[(1, 1)])])
    state = (await store.partitions("q-1"))[0]
    assert (state.end, state.certified, state.messages) == (3, 1, 3)


async def test_whatever_comes_next_certifies_what_was_left_behind(
    losing: tuple[RedisStorage, Losing],
) -> None:
    """R9, R10: also a duplicate, which stores nothing itself."""
    store, shard = losing
    await store.create_queue("q-1", 2)
    shard.lost = {"append"}
    with pytest.raises(Unknown):
        await sequences(store, [1, 2])
    seen: list[tuple[Partition, int]] = []
    store.on_certified(lambda partition, end: seen.append((partition, end)))
    assert await sequences(store, [1, 2]) == [-1, -2]
    assert seen == [(P0, 2)]
    assert (await store.read(P0, 0, 1)).certified == 2


async def test_a_local_append_certifies_itself_in_one_act(
    losing: tuple[RedisStorage, Losing],
) -> None:
    store, shard = losing
    await store.create_queue("q-1", 2)
    shard.acts.clear()
    record = append(messages=2)
    local = Append(P0, record.header, record.payload, durability="local")
    (appended,) = await store.append([local])
    assert (outcomes(appended), appended.certified) == ([0, 1], 2)
    assert shard.acts == [("append", "local")]


async def test_a_local_append_does_not_certify_what_is_before_it(
    losing: tuple[RedisStorage, Losing],
) -> None:
    """R10: copies of that are counted first, at its own level."""
    store, shard = losing
    await store.create_queue("q-1", 2)
    shard.lost = {"append"}
    with pytest.raises(Unknown):
        await store.append([append(messages=1)])
    shard.acts.clear()
    record = append(messages=1)
    local = Append(P0, record.header, record.payload, durability="local")
    assert (await store.append([local]))[0].certified == 2
    assert shard.acts == [("append", "local"), ("certify", "all"), ("certify", "local")]


async def test_a_local_append_does_not_wait_for_copies_of_what_is_before_it(
    losing: tuple[RedisStorage, Losing],
) -> None:
    """R10, R28: an operator has lowered the level because a replica is away. What is stored is
    answered, whoever else publishes is not held up, and nobody is given it until the copies of what
    is before it were counted."""
    store, shard = losing
    for queue_id in ("q-1", "q-2"):
        await store.create_queue(queue_id, 2)
    shard.lost = {"append"}
    with pytest.raises(Unknown):
        await store.append([append(messages=1)])
    shard.stalled["certify", "all"] = away = asyncio.Event()
    record = append(messages=1)
    behind = Append(P0, record.header, record.payload, durability="local")
    beside = Append(Partition("q-2", 0), record.header, record.payload, durability="local")
    for count in (1, 2):
        async with asyncio.timeout(1):
            answers = await store.append([behind, beside])
        assert [outcomes(answer) for answer in answers] == [[count], [count - 1]]
        assert [answer.certified for answer in answers] == [0, count]
    assert not (await store.read(P0, 0, 1)).records
    away.set()
    await eventually(lambda: not store._appender._counts)
    assert (await store.read(P0, 0, 1)).certified == 0
    shard.stalled.clear()
    told: dict[Partition, int] = {}
    store.on_certified(lambda partition, end: told.update({partition: end}))
    await store.append([behind])
    await eventually(lambda: told.get(P0) == 4)
    shard.acts.clear()
    assert (await store.append([behind]))[0].certified == 5
    assert shard.acts == [("append", "local")]


async def of_two_queues(store: RedisStorage) -> tuple[Append, Append]:
    """A record for q-1, and one for q-2."""
    await store.create_queue("q-1", 2)
    await store.create_queue("q-2", 1)
    return append(runs=[(ANN, 0, [1])]), append(Partition("q-2", 0), runs=[(ANN, 0, [1])])


async def test_a_call_that_was_judged_in_part_is_unknown(
    losing: tuple[RedisStorage, Losing],
) -> None:
    """R5, R7: what the store did not judge it does not hold up; sent again, nothing is doubled."""
    store, shard = losing
    here, elsewhere = await of_two_queues(store)
    shard.refused = {"{q-2}:queue"}
    with pytest.raises(Unknown):
        await store.append([here, elsewhere])
    with pytest.raises(Refused, match="storage_unavailable"):
        await store.append([elsewhere])
    shard.refused = set()
    answers = await store.append([here, elsewhere])
    assert [outcomes(answer) for answer in answers] == [[-1], [0]]


async def test_a_call_of_which_something_may_have_happened_is_unknown(
    losing: tuple[RedisStorage, Losing],
) -> None:
    """P2: whatever comes first in the call."""
    store, shard = losing
    here, elsewhere = await of_two_queues(store)
    shard.refused, shard.lost = {"{q-2}:queue"}, {"append"}
    with pytest.raises(Unknown):
        await store.append([elsewhere, here])
    shard.refused = set()
    answers = await store.append([elsewhere, here])
    assert [outcomes(answer) for answer in answers] == [[0], [-1]]


async def test_what_is_stored_and_cannot_be_certified_is_unknown(
    losing: tuple[RedisStorage, Losing],
) -> None:
    """P2: every copy has it, and whoever looks certifies it; what was refused is never given."""
    store, shard = losing
    await store.create_queue("q-1", 2)
    shard.refused = {"certify"}
    with pytest.raises(Unknown):
        await sequences(store, [1])
    shard.refused = set()
    assert await sequences(store, [1]) == [-1]
    assert (await store.read(P0, 0, 1)).certified == 1


# --- Several gateways ---------------------------------------------------------------------------


async def test_two_gateways_write_one_cursor_one_after_the_other(
    server: Settings, store: RedisStorage
) -> None:
    """R15: each decides on what the other left; nothing of either is lost."""
    await with_group(store, messages=10)
    async with redis_store_of(server, Clock()) as other:
        for first in range(0, 8, 2):
            await store.write_cursors([change(settled=[(first, first)])])
            await other.write_cursors([change(settled=[(first + 1, first + 1)])])
        await store.write_cursors([change(aside=[Side(7, (9,))])])
        await other.write_cursors([change(settled=[(9, 9)])])
        assert await store.read_side(G0, 7, -1, 9) == ()
        (state,) = [s for s in await other.cursors("q-1", "g-1") if s.place == G0]
    assert (state.floor, state.settled_above, state.aside) == (8, 1, 0)


async def test_an_owner_elsewhere_fences_what_is_kept_here(
    server: Settings, store: RedisStorage
) -> None:
    """P7: the cursor that this gateway remembers does not outlive its epoch."""
    await with_group(store, messages=4)
    await store.write_cursors([change(settled=[(0, 0)])])
    async with redis_store_of(server, Clock()) as other:
        owned = await other.own(G0, token=b"other", assignment=1)
    assert (owned.epoch, owned.cursor.floor) == (2, 1)
    (written,) = await store.write_cursors([change(settled=[(1, 1)])])
    assert written.fenced
    assert (await store.cursors("q-1", "g-1"))[0].floor == 1


async def test_what_one_gateway_appends_wakes_the_others(server: Settings) -> None:
    """R10: once it is certified, and each of them once."""
    shard = await RedisShard.open(server, Marks(INCARNATION))
    store = RedisStorage(shard, INCARNATION, wall=Clock())
    heard: asyncio.Queue[tuple[Partition, int]] = asyncio.Queue()
    store.on_certified(lambda partition, end: heard.put_nowait((partition, end)))
    await shard.wait_subscribed()
    async with redis_store_of(server, Clock()) as other, asyncio.timeout(10):
        await other.create_queue("q-1", 2)
        await other.append([append(messages=3)])
        assert await heard.get() == (P0, 3)
        await store.append([append(messages=1)])
        assert await heard.get() == (P0, 4)
        await other.append([append(P1, messages=1)])
        assert await heard.get() == (P1, 1)
        assert heard.empty()
    await store.close()


async def test_a_cursor_write_whose_answer_is_lost_can_come_again(
    losing: tuple[RedisStorage, Losing],
) -> None:
    """R29."""
    store, shard = losing
    await with_group(store, messages=6)
    write = change(settled=[(0, 1)], aside=[Side(7, (2, 4))])
    shard.lost = {"write_cursor"}
    with pytest.raises(Unknown):
        await store.write_cursors([write])
    assert (await store.write_cursors([write]))[0].refused == ()
    await store.write_cursors([change(settled=[(3, 4)])])
    (state,) = [s for s in await store.cursors("q-1", "g-1") if s.place == G0]
    assert (state.floor, state.settled_above, state.aside) == (5, 0, 1)


async def test_acks_of_what_was_appended_here_need_no_look(
    losing: tuple[RedisStorage, Losing],
) -> None:
    """The gateway knows how far it is certified; a look before each write would cost as much."""
    store, shard = losing
    await with_group(store, messages=1)
    await store.write_cursors([change(settled=[(0, 0)])])
    shard.looks.clear()
    for offset in range(1, 4):
        await store.append([append(messages=1)])
        await store.write_cursors([change(settled=[(offset, offset)])])
    assert shard.looks == []
    with pytest.raises(Refused, match="offset 4 is not certified; the certified end is 4"):
        await store.write_cursors([change(settled=[(3, 4)])])
    assert shard.looks == ["cursor"], "the end may have moved meanwhile"


@pytest.mark.parametrize("named", ["settled", "ended", "retries", "aside", "dead"])
async def test_what_the_store_has_lost_is_settled_by_nobody(
    store: RedisStorage, named: str
) -> None:
    """R10, P1: the end that this gateway knows is not true any more. The messages that are stored
    at these offsets next would count as settled."""
    await with_group(store, messages=3)
    await store.write_cursors([change(settled=[(0, 0)])])
    store._certified_ends[P0] = 9
    write = {
        "settled": change(settled=[(1, 3)]),
        "ended": change(ended=[(3, 3)]),
        "retries": change(retries=[Retry(3, 1)]),
        "aside": change(aside=[Side(7, (1, 3))]),
        "dead": change(dead=[Dead(3, 3, "rejected")]),
    }[named]
    before = await store.cursor(G0)
    with pytest.raises(Refused, match="offset 3 is not certified; the certified end is 3"):
        await store.write_cursors([write])
    assert await store.cursor(G0) == before
    await store.write_cursors([change(settled=[(1, 2)])])


async def test_what_is_appended_together_is_certified_by_one_act(
    losing: tuple[RedisStorage, Losing], server: Settings
) -> None:
    """R10: for each queue, and other gateways hear of all partitions at once."""
    store, shard = losing
    for queue_id in ("q-1", "q-2"):
        await store.create_queue(queue_id, 3)
    heard: dict[Partition, int] = {}
    async with redis_store_of(server, Clock()) as other:
        other.on_certified(heard.__setitem__)
        await cast(RedisShard, other._shard).wait_subscribed()
        shard.acts.clear()
        places = [Partition(queue_id, n) for queue_id in ("q-1", "q-2") for n in (0, 2)]
        answers = await store.append([append(place, messages=2) for place in places])
        assert [answer.certified for answer in answers] == [2] * 4
        assert shard.acts.count(("certify", "local")) == 2
        await eventually(lambda: len(heard) == 4)
    assert heard == dict.fromkeys(places, 2)


@pytest.mark.parametrize(
    ("channel", "message", "ends"),
    [
        (b"tocsin:certified:{q-1}:", b"0 3 12 7", [(P0, 3), (Partition("q-1", 12), 7)]),
        (b"tocsin:certified:{q-1}:", b"0 3 12", []),
        (b"tocsin:certified:{q-1}:", b"0 x", []),
        (b"tocsin:certified:{q-1}:", b"0 -1", []),
        (b"tocsin:certified:{q-1}:", b"", []),
        (b"tocsin:certified:{q-1}:0", b"3", []),
        (b"tocsin:certified:q-1:", b"0 3", []),
        (b"\xff", b"0 3", []),
    ],
)
def test_a_notice_of_ends_that_is_none_is_passed_over(
    channel: bytes, message: bytes, ends: list[tuple[Partition, int]]
) -> None:
    """Anybody may publish on a channel; a version before used one for each partition."""
    assert certified_ends(channel, message) == ends


async def test_each_partition_is_certified_up_to_its_own_end(
    server: Settings, store: RedisStorage
) -> None:
    """R10: what has no copies yet stays as it is."""
    shard = store._shard
    await store.create_queue("q-1", 2)
    key = [queue_key("q-1")]
    for partition in (P0, P1):
        await shard.act("append", key, _args_of(append(partition, messages=3)), level="all")
    assert await shard.act("certify", key, [0, 3, 1, 1], level="local") == [3, 3, 1, 3]
    assert await shard.act("certify", key, [1, 0, 0, 9], level="local") == [1, 3, 3, 3]
    with pytest.raises(Refused, match="no such partition"):
        await shard.act("certify", key, [1, 3, 2, 1], level="local")
    assert await shard.act("certify", key, [1, 0], level="local") == [1, 3]


def _args_of(record: Append) -> list[Arg]:
    header = open_header(record)
    return append_args(record, header, record.payload, wall_unix_ms=int(START_UNIX_S * 1000))


@pytest.mark.parametrize("is_sealed", [False, True])
async def test_acks_that_are_written_as_records_are_appended_share_their_group(
    server: Settings, is_sealed: bool
) -> None:
    """One WAIT for both. Sealing takes a thread, and the acks wait for it."""
    shard = await RedisShard.open(server, Marks(INCARNATION))
    sealer = sealing() if is_sealed else PLAIN
    store = RedisStorage(shard, INCARNATION, wall=Clock(), sealer=sealer)
    await with_group(store, messages=8)
    await store.write_cursors([change(settled=[(0, 0)])])
    took = shard._pipelines["all"].took_s
    before = took.count
    for offset in range(1, 5):
        await asyncio.gather(
            store.append([append(messages=1)]),
            store.write_cursors([change(settled=[(offset, offset)])]),
        )
    assert took.count == before + 4
    await store.close()


# --- Memory's end (R29), damage (R30), leaving nothing ------------------------------------------


async def test_at_memory_s_end_publishing_stops_and_delivery_goes_on(
    server: Settings, store: RedisStorage
) -> None:
    """R29: duplicates are known, what was refused holds up what is behind it (R7)."""
    await with_group(store)
    assert await sequences(store, [1, 2]) == [0, 1]
    await ask(server, "CONFIG", "SET", "maxmemory", "1")
    assert await sequences(store, [2, 3]) == [-2, "storage_full"]
    owned = await store.own(G0, token=b"next", assignment=1)
    (written,) = await store.write_cursors(
        [change(epoch=owned.epoch, token=b"next", settled=[(0, 1)])]
    )
    assert not written.fenced
    assert await store.trim(P0, retention_s=0, keep_all=True) > 0
    assert await store.seal(P1, []) == 0
    await ask(server, "CONFIG", "SET", "maxmemory", "0")
    assert await sequences(store, [4]) == ["out_of_sequence"]
    assert await sequences(store, [3, 4]) == [2, 3]


async def test_a_log_without_offsets_left_is_no_queue_that_waits(
    server: Settings, store: RedisStorage
) -> None:
    """The last offset is given out, and then nothing makes room again; a full queue comes second,
    for that one passes."""
    await store.create_queue("q-1", 2)
    await ask(
        server, "HSET", "{q-1}:p:0", "next", limits.OFFSET_MAX - 1, "start", limits.OFFSET_MAX - 1,
        "certified", limits.OFFSET_MAX - 1,
    )  # fmt: skip
    assert await one(store, append(messages=2)) == [limits.OFFSET_MAX - 1, "limit_reached"]
    assert await one(store, append(messages=1, messages_max=1)) == ["limit_reached"]
    assert await one(store, append(P1, messages=1, messages_max=1)) == ["queue_full"]


@pytest.mark.parametrize("field", ["p", "h", "n", "s", "m", "c", "d"])
async def test_a_row_that_was_changed_costs_its_record(
    server: Settings, store: RedisStorage, field: str
) -> None:
    """R30: whatever of it was changed; what is behind it flows."""
    await store.create_queue("q-1", 2)
    for number in range(3):
        await sequences(store, [number])
    rows = await ask(server, "XRANGE", "{q-1}:log:0", "-", "+")
    changed = rows[1][1]
    changed[changed.index(field.encode()) + 1] += b"7"
    await ask(server, "DEL", "{q-1}:log:0")
    for identifier, fields in rows:
        await ask(server, "XADD", "{q-1}:log:0", identifier, *fields)
    for _ in range(2):
        read = await store.read(P0, 0, 10**6)
        assert [record.first for record in read.records] == [0, 2]
        assert [(each.first, each.count) for each in read.damage] == [(1, 1)]
    assert (await store.partitions("q-1"))[0].messages == 2
    assert await ask(server, "XLEN", "{q-1}:quarantine:0") == 1


async def test_a_dropped_queue_leaves_no_key(server: Settings, store: RedisStorage) -> None:
    """R1: but the one that says so; nor does a dropped group, but for its name."""
    before = await ask(server, "KEYS", "{q-1}:*")
    await with_group(store)
    kinds = await ask(server, "KEYS", "{q-1}:c*")
    for producer in range(1200):
        name = b"%016d" % producer
        await store.append([append(runs=[(name, 0, [1])], ids=["a"])])
    assert await sequences(store, [1, 2, 3], messages_max=1202) != []
    await store.write_cursors([change(aside=[Side(7, (0, 1))])])
    await store.drop_group("g-1", "q-1")
    assert len(kinds) == 2
    assert await ask(server, "KEYS", "{q-1}:c*") == []
    await store.create_group("g-2", "q-1", [0, 0])
    await store.drop_queue("q-1")
    left = {*await ask(server, "KEYS", "{q-1}:*")} - {b"{q-1}:touch", b"{q-1}:gone"}
    assert left == set(before)


async def test_a_group_that_is_dropped_with_its_queue_leaves_no_key(
    server: Settings, store: RedisStorage
) -> None:
    """Between two slices of the queue's drop."""
    await with_group(store)
    shard, key = await RedisShard.open(server, Marks(INCARNATION)), [queue_key("q-1")]
    assert await shard.act("drop_queue", key, [], level="all") == 1
    await shard.act("drop_group", key, ["g-1"], level="all")
    while await shard.act("drop_queue", key, [], level="all"):
        pass
    await shard.close()
    assert await ask(server, "KEYS", "{q-1}:c*") == []


async def test_long_logs_are_trimmed_in_slices(
    store: RedisStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R31: one act looks at this many records, the next goes on behind them."""
    monkeypatch.setattr("storage.redis.store.TRIM_ENTRIES", 3)
    await with_group(store)
    for _ in range(10):
        await store.append([append(messages=1)])
    await store.write_cursors([change(settled=[(7, 9)])])
    assert await store.trim(P0, retention_s=0, keep_all=True) > 0
    freed = 0
    while more := await store.trim(P0, retention_s=0, keep_all=True):
        freed += more
    assert [r.first for r in (await store.read(P0, 0, 10**6)).records] == [*range(7)]
    assert await store.offset_at(P0, 1 << 50) == 10
    assert await store.published([(P0, 7)]) == [None]


async def test_a_queue_of_many_partitions_is_purged_in_slices(
    store: RedisStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage.redis.store.PURGE_PARTITIONS", 3)
    await with_group(store, partitions=8)
    await store.append([append(Partition("q-1", n), messages=n + 1) for n in range(8)])
    assert await store.purge("q-1", "g-1") == 36
    assert [state.floor for state in await store.cursors("q-1", "g-1")] == [*range(1, 9)]
    assert await store.purge("q-1", None) == 36
    assert [(s.start, s.messages) for s in await store.partitions("q-1")] == [
        (n + 1, 0) for n in range(8)
    ]


async def test_an_offset_is_found_by_time_whatever_the_clocks_of_gateways_say(
    store: RedisStorage,
) -> None:
    """The second gateway's clock is behind: the first record of that time or later is found, as by
    going over all of them."""
    await store.create_queue("q-1", 1)
    late, early = START_UNIX_S - 50, START_UNIX_S - 500
    times = [early, early + 1, late, early + 2, early + 3, late, late + 9, early, late + 9]
    for second in times:
        await store.append([append(messages=2, published_unix_s=second)])
    for second in {*times, early - 1, late + 1}:
        first = [2 * n for n, published in enumerate(times) if published >= second]
        assert await store.offset_at(P0, int(second * 1000)) == (first or [18])[0]
    assert await store.offset_at(P0, 1 << 50) == 18


async def test_single_records_are_read_in_one_look(losing: tuple[RedisStorage, Losing]) -> None:
    store, shard = losing
    await store.create_queue("q-1", 1)
    for _ in range(30):
        await store.append([append(messages=2)])
    shard.looks.clear()
    found = await store.read_each(P0, range(0, 60, 3), 10**6)
    assert [record.first for record in found if record] == [n - n % 2 for n in range(0, 60, 3)]
    assert shard.looks == ["read_each"]


async def test_a_sequence_beyond_what_functions_count_is_refused(store: RedisStorage) -> None:
    """P12: 2^53 and 2^53 + 1 are one number there."""
    await store.create_queue("q-1", 2)
    largest = (1 << 53) - 1
    assert await sequences(store, [largest]) == [0]
    with pytest.raises(Refused, match="invalid_message"):
        await sequences(store, [largest + 1])
    assert await sequences(store, [largest]) == [-1]
