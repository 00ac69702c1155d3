"""Damage in the embedded storage: found, reported, and small (R30, P13)."""

from dataclasses import replace

import pytest

from push.errors import Refused
from push.places import Parked
from push.storage_port import Damage, Retry, Side
from tests.contract.stores import (
    G0,
    P0,
    P1,
    append,
    change,
    one,
    outcomes,
    sequences,
    with_group,
)
from tests.storage.conftest import Embedded


async def _flip(embedded: Embedded, table: str, column: str, where: str = "1") -> None:
    """Change one bit of a blob or number of the first such row, with the storage closed."""
    await embedded.close()
    ((row, value),) = embedded.sql(
        f"SELECT rowid, {column} FROM {table} WHERE {where} ORDER BY rowid LIMIT 1"
    )
    if isinstance(value, bytes):
        value = value[:-1] + bytes([value[-1] ^ 4])
    else:
        value ^= 4
    embedded.sql(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", value, row)


@pytest.mark.parametrize("column", ["payload", "header", "count", "published_unix_ms", "skips"])
async def test_a_flipped_bit_costs_its_record_and_is_reported(
    embedded: Embedded, column: str
) -> None:
    """P13, R30."""
    store = await embedded.open()
    await store.create_queue("q-1", 2)
    await sequences(store, [0])
    for first in (0, 3, 6):  # the first message of each is a duplicate: they have skips
        await sequences(store, [0, first + 1, first + 2, first + 3])
    await _flip(embedded, "record", column, "id & 0xff = 4")
    store = await embedded.open()
    for _ in range(2):  # each group and reader is told
        read = await store.read(P0, 0, 10**6)
        assert [(r.first, r.last) for r in read.records] == [(0, 0), (1, 3), (7, 9)]
        assert read.damage == (Damage(P0, 4, 3, "the checksum does not match"),)
    assert [d.first for d in (await store.read(P0, 5, 10**6)).damage] == [4]
    assert (await store.read(P0, 7, 10**6)).damage == ()
    assert (await store.read(P0, 0, 10**6, until=3)).damage == ()
    assert embedded.sql("SELECT count(*), reason FROM quarantine") == [
        (1, "the checksum does not match")
    ]
    assert (await store.partitions("q-1"))[0].messages == 7
    state = await store.state()
    assert (state.writable, state.detail["damage_reports"]) == (True, "1")
    assert "3 messages from offset 4 on" in state.detail["damage_latest"]
    assert await sequences(store, [5, 10]) == [-6, 10]


async def test_what_is_damaged_at_the_end_does_not_hide_what_comes(embedded: Embedded) -> None:
    store = await embedded.open()
    await with_group(store, messages=3)
    await _flip(embedded, "record", "payload")
    store = await embedded.open()
    read = await store.read(P0, 0, 1)
    assert (read.records, [(d.first, d.count) for d in read.damage]) == ((), [(0, 3)])
    assert await one(store, append(messages=1)) == [3]
    assert [r.first for r in (await store.read(P0, 0, 1)).records] == [3]


async def test_what_is_put_aside_makes_room_in_its_queue(embedded: Embedded) -> None:
    """P13: the quarantine is not counted against the queue's bounds."""
    store = await embedded.open()
    await with_group(store, messages=3)
    await store.append([append(P1, messages=2)])
    await _flip(embedded, "record", "payload")
    store = await embedded.open()
    assert await one(store, append(P1, messages=1, messages_max=5)) == ["queue_full"]
    await store.read(P0, 0, 10**6)
    answers = await one(store, append(P1, messages=4, messages_max=5))
    assert answers == [2, 3, 4, "queue_full"]


async def test_a_damaged_partition_does_not_fill_its_queue(embedded: Embedded) -> None:
    """P13: it is refused itself; what its row says is not believed, and the others go on."""
    store = await embedded.open()
    await with_group(store, messages=3)
    await store.append([append(P1, messages=2)])
    await _flip(embedded, "partition", "messages")
    store = await embedded.open()
    answers = await one(store, append(P1, messages=4, messages_max=5))
    assert answers == [2, 3, 4, "queue_full"]
    with pytest.raises(Refused, match="damaged"):
        await one(store, append(messages=1, messages_max=50))


async def test_a_damaged_record_does_not_stop_trimming(embedded: Embedded) -> None:
    store = await embedded.open()
    await with_group(store)
    for _ in range(3):
        await store.append([append(messages=2)])
    await _flip(embedded, "record", "payload", "id & 0xff = 2")
    store = await embedded.open()
    await store.read(P0, 0, 10**6)
    await store.own(G0, token=b"b", assignment=1)
    await store.write_cursors([change(epoch=2, token=b"b", settled=[(0, 5)])])
    assert await store.trim(P0, retention_s=0, keep_all=True) > 0
    state = (await store.partitions("q-1"))[0]
    assert (state.start, state.messages) == (6, 0)


async def test_a_damaged_cursor_begins_anew_above_every_epoch(embedded: Embedded) -> None:
    """P1 before P5: its messages come again, none is lost; its old owner is fenced."""
    store = await embedded.open()
    await with_group(store, messages=10)
    await store.write_cursors([change(settled=[(0, 4)], aside=[Side(7, (6,))])])
    await _flip(embedded, "cursor", "floor")
    store = await embedded.open()
    (written,) = await store.write_cursors([change(settled=[(5, 5)])])
    assert written.fenced
    owned = await store.own(G0, token=b"b", assignment=1)
    assert owned.epoch > 1 << 32
    assert (owned.cursor.floor, owned.cursor.passed) == (0, ((6, 6),))
    assert owned.cursor.lines == ((7, 1),)
    assert "a cursor" in (await store.state()).detail["damage_latest"]
    store = await embedded.open()
    assert (await store.own(G0, token=b"c", assignment=1)).epoch == owned.epoch + 1


async def test_damage_beside_a_cursor_costs_only_that_part(embedded: Embedded) -> None:
    store = await embedded.open()
    await with_group(store, messages=1000)
    await store.write_cursors([change(settled=[(n, n) for n in range(1, 1000, 2)])])
    await store.write_cursors([change(settled=[(0, 0)])])
    write = change(retries=[Retry(4, 2)], aside=[Side(7, (6, 8))])
    await store.write_cursors([replace(write, parked=(Parked(7, "no", 1),))])
    await store.write_cursors([change(settled=[(3, 3)], ended=[(3, 3)])])
    await embedded.close()
    embedded.sql("UPDATE cursor_log SET checksum = 1 WHERE number = 0")
    embedded.sql("UPDATE retry SET attempts = 3")
    embedded.sql("UPDATE side_line SET entries = 9")
    embedded.sql("UPDATE parked SET since_unix_ms = 2")
    embedded.sql("UPDATE ended SET ranges = zeroblob(16)")
    store = await embedded.open()
    cursor = (await store.own(G0, token=b"b", assignment=1)).cursor
    assert cursor.floor == 0  # the settlement of 0 was in the damaged row
    assert (cursor.retries, cursor.lines) == ((), ((7, 2),))
    assert cursor.parked == (Parked(7, "no", 2),)
    assert cursor.ended == ()
    assert (await store.state()).detail["damage_reports"] == "5"


async def test_a_damaged_producer_begins_anew(embedded: Embedded) -> None:
    store = await embedded.open()
    await store.create_queue("q-1", 1)
    await sequences(store, [1, 2])
    await _flip(embedded, "producer", "top")
    store = await embedded.open()
    assert await sequences(store, [3]) == [2]
    assert await sequences(store, [3]) == [-3]
    assert (await store.state()).detail["damage_reports"] == "1"


async def test_a_damaged_id_names_no_offset(embedded: Embedded) -> None:
    store = await embedded.open()
    await store.create_queue("q-1", 1)
    await one(store, append(ids=["a"]))
    await embedded.close()
    embedded.sql("UPDATE client_id SET place = 77")
    store = await embedded.open()
    assert await one(store, append(ids=["a"])) == [1]


async def test_a_damaged_partition_is_refused_and_its_neighbour_is_not(
    embedded: Embedded,
) -> None:
    """Its next offset is not known: to guess would give an offset twice (R2)."""
    store = await embedded.open()
    await store.create_queue("q-1", 2)
    await store.append([append(messages=2)])
    await _flip(embedded, "partition", "next_offset")
    store = await embedded.open()
    with pytest.raises(Refused, match="row of partition 0 of q-1 is damaged"):
        await store.append([append(messages=1)])
    with pytest.raises(Refused, match="row of partition 0 of q-1 is damaged"):
        await store.read(P0, 0, 10**6)
    (appended,) = await store.append([append(P0._replace(number=1), messages=1)])
    assert outcomes(appended) == [0]
