"""The contract of `push.storage_port.Storage`: purges, and reads for operators. Over every
storage."""

from dataclasses import replace
from pathlib import Path

import pytest

from push import limits
from push.errors import Refused
from push.places import CursorPlace, Parked, Partition
from push.storage_port import MessageStatus, Retry, Side, Storage
from storage.sqlite.store import SqliteStorage
from tests.contract.stores import G0, P0, START_UNIX_S, append, change, one, with_group

KEY = 0xFFFF_FFFF_FFFF_FFF1  # more than SQLite's integers hold


async def retained(store: Storage) -> list[tuple[int, int, int, int]]:
    """Return (start, end, messages, bytes) of each partition."""
    return [(s.start, s.end, s.messages, s.bytes) for s in await store.partitions("q-1")]


# --- Purging ------------------------------------------------------------------------------------


async def test_a_purge_for_a_group_drops_what_it_had_not_settled(store: Storage) -> None:
    """R12: messages in side lines count, settled ones above the floor do not. Other groups keep
    theirs, and so does retention."""
    await with_group(store, messages=6)
    await store.create_group("g-2", "q-1", ["earliest", "earliest"])
    await store.append([append(Partition("q-1", 1), messages=2)])
    await store.write_cursors([change(settled=[(0, 1), (4, 4)], aside=[Side(KEY, (2,))])])
    assert await store.purge("q-1", "g-1") == 3 + 2  # 2, 3, 5, and partition 1
    (written,) = await store.write_cursors([change(settled=[(5, 5)])])
    assert written.fenced
    assert [state.floor for state in await store.cursors("q-1", "g-1")] == [6, 2]
    assert [state.floor for state in await store.cursors("q-1", "g-2")] == [0, 0]
    assert await store.read_side(G0, KEY, -1, 10) == ()
    owned = await store.own(G0, token=b"new", assignment=1)
    assert (owned.epoch, owned.cursor.floor, owned.cursor.passed) == (3, 6, ())
    assert [start for start, *_ in await retained(store)] == [0, 0]
    assert await store.purge("q-1", "g-1") == 0
    assert await one(store, append(messages=1)) == [6]
    assert await store.purge("q-1", "g-1") == 1


async def test_a_purge_for_all_leaves_nothing_to_groups_and_readers(store: Storage) -> None:
    """R2: offsets continue after it; R12: the retention line moves at once."""
    await with_group(store)
    for _ in range(3):
        await store.append([append(messages=4)])
    await store.write_cursors([change(settled=[(0, 5)])])
    assert await store.purge("q-1", None) == 12
    assert await retained(store) == [(12, 12, 0, 0), (0, 0, 0, 0)]
    read = await store.read(P0, 0, 1 << 20)
    assert (read.records, read.start, read.certified) == ((), 12, 12)
    assert await store.read_each(P0, [0, 5, 11], 1 << 20) == (None, None, None)
    assert await store.offset_at(P0, 0) == 12
    assert [state.floor for state in await store.cursors("q-1", "g-1")] == [12, 0]
    (written,) = await store.write_cursors([change(settled=[(6, 6)])])
    assert written.fenced
    assert await one(store, append(messages=2)) == [12, 13]
    (record,) = (await store.read(P0, 0, 1 << 20)).records
    assert (record.first, record.last) == (12, 13)
    await store.create_group("g-2", "q-1", ["earliest", "earliest"])
    assert [state.floor for state in await store.cursors("q-1", "g-2")] == [12, 0]
    while await store.trim(P0, retention_s=0, keep_all=False):
        pass
    assert (await retained(store))[0][:3] == (12, 14, 2)


@pytest.mark.bounds
async def test_a_purge_makes_room_and_forgets_no_id(store: Storage) -> None:
    """The queue's bounds count retained messages; a purged message's id still makes a duplicate
    (R8)."""
    await with_group(store)
    full = append(ids=["a", "b"], messages_max=2)
    assert await one(store, full) == [0, 1]
    assert await one(store, append(messages=1, messages_max=2)) == ["queue_full"]
    assert await store.purge("q-1", None) == 2
    assert await one(store, append(ids=["b", "c"], messages_max=2)) == [-2, 2]
    assert (await retained(store))[0][:3] == (2, 3, 1)


async def test_a_purge_of_what_is_not_there_changes_nothing(store: Storage) -> None:
    await with_group(store, messages=2)
    with pytest.raises(Refused, match="queue_not_found"):
        await store.purge("q-9", None)
    with pytest.raises(Refused, match="queue_not_found"):
        await store.purge("q-9", "g-1")
    with pytest.raises(Refused, match="group_not_found"):
        await store.purge("q-1", "g-9")
    assert await retained(store) == [(0, 2, 2, 40), (0, 0, 0, 0)]
    (written,) = await store.write_cursors([change(settled=[(0, 0)])])
    assert not written.fenced


async def test_purged_records_leave_the_file_in_slices(tmp_path: Path) -> None:
    """R31: even if the broker was restarted in between, without any group, and if they were
    retained."""
    path = tmp_path / "store.sqlite"
    store = await SqliteStorage.open(path, free_bytes_reserve=0)
    await store.create_queue("q-1", 1)
    size = limits.TRIM_BYTES_PER_COMMIT_MAX // 2
    for _ in range(5):
        await store.append([append(messages=1, size=size)])
    assert await store.purge("q-1", None) == 5
    await store.close()
    store = await SqliteStorage.open(path, free_bytes_reserve=0)
    assert await retained(store) == [(5, 5, 0, 0)]
    await store.append([append(messages=1)])
    freed = []
    while slice_ := await store.trim(P0, retention_s=3600, keep_all=True):
        freed.append(slice_)
    assert len(freed) == 3
    assert sum(freed) > 5 * size
    assert await retained(store) == [(5, 6, 1, 20)]
    assert len((await store.read(P0, 0, 1 << 20)).records) == 1
    await store.close()


# --- States -------------------------------------------------------------------------------------


async def test_where_messages_stand_is_said_for_each(store: Storage) -> None:
    await with_group(store, messages=9)
    parked = replace(change(), parked=(Parked(KEY, "exhausted", 1),))
    await store.write_cursors(
        [
            change(
                settled=[(0, 1), (5, 5)],
                retries=[Retry(2, 3), Retry(3, 1), Retry(6, 2)],
                aside=[Side(KEY, (2, 4)), Side(9, (3,))],
            ),
            parked,
        ]
    )
    assert await store.standings(G0, 0, 8) == [
        MessageStatus("settled"),
        MessageStatus("settled"),
        MessageStatus("parked", 3),
        MessageStatus("waiting", 1),
        MessageStatus("parked"),
        MessageStatus("settled"),
        MessageStatus("ready", 2),
        MessageStatus("ready"),
        MessageStatus("ready"),
    ]
    assert await store.standings(G0, 3, 3) == [MessageStatus("waiting", 1)]
    await store.write_cursors([change(settled=[(2, 4)])])
    assert {s.state for s in await store.standings(G0, 0, 5)} == {"settled"}


async def test_who_is_unknown_stands_nowhere(store: Storage) -> None:
    await with_group(store, messages=1)
    assert await store.standings(CursorPlace("g-9", P0), 0, 0) == []
    assert await store.standings(CursorPlace("g-1", Partition("q-9", 0)), 0, 0) == []


# --- Reading cursors and times ------------------------------------------------------------------


async def test_a_cursor_can_be_looked_at_as_its_next_owner_finds_it(store: Storage) -> None:
    """The read does not take ownership: the epoch stays, and the owner's writes count (P7)."""
    await with_group(store, messages=8)
    assert await store.cursor(CursorPlace("nobody", P0)) is None
    await store.write_cursors(
        [
            replace(
                change(
                    settled=[(0, 1), (4, 4)],
                    retries=[Retry(2, 3, 1_700_000_060_000)],
                    aside=[Side(KEY, (5, 6))],
                ),
                parked=(Parked(KEY, "exhausted", 1_700_000_000_000),),
            )
        ]
    )
    seen = await store.cursor(G0)
    assert seen is not None
    assert (seen.floor, seen.passed) == (2, ((4, 6),))
    assert seen.retries == (Retry(2, 3, 1_700_000_060_000),)
    assert seen.lines == ((KEY, 2),)
    assert seen.parked == (Parked(KEY, "exhausted", 1_700_000_000_000),)
    (written,) = await store.write_cursors([change(settled=[(2, 2)])])
    assert not written.fenced
    assert (await store.own(G0, token=b"next", assignment=1)).cursor == await store.cursor(G0)


async def test_the_first_offset_aside_is_known(store: Storage) -> None:
    await with_group(store, messages=8)
    assert (await store.cursors("q-1", "g-1"))[0].aside_first is None
    await store.write_cursors([change(aside=[Side(KEY, (5, 6)), Side(7, (3,))])])
    assert (await store.cursors("q-1", "g-1"))[0].aside_first == 3
    await store.write_cursors([change(settled=[(3, 3)])])
    assert (await store.cursors("q-1", "g-1"))[0].aside_first == 5


async def test_when_what_stands_somewhere_was_published(store: Storage) -> None:
    """The time of the record that holds the offset, or of the next one that is retained."""
    await with_group(store, messages=2)
    early, late = START_UNIX_S - 20, START_UNIX_S - 10
    await store.append([append(messages=3, published_unix_s=early)])
    await store.append([append(messages=1, published_unix_s=late)])
    places = [(P0, offset) for offset in range(7)]
    elsewhere = [(Partition("q-1", 1), 0), (Partition("q-9", 0), 0)]
    times = [int(at * 1000) for at in (START_UNIX_S, early, late)]
    assert await store.published([*places, *elsewhere]) == [
        times[0], times[0], times[1], times[1], times[1], times[2], None, None, None,
    ]  # fmt: skip
    await store.purge("q-1", None)
    assert await store.published(places) == [None] * 7
    await store.append([append(messages=1, published_unix_s=late)])
    assert await store.published(places) == [times[2]] * 7
