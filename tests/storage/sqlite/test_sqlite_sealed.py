"""Sealed payloads in the embedded storage: what is on the disk, and what moving it about does."""

from pathlib import Path
from typing import Any

from push.storage_port import PLAIN
from storage.sqlite import codec
from tests.contract.stores import P0, P1, append, body, sealing, with_group
from tests.storage.conftest import Embedded


def bytes_on_disk(folder: Path) -> bytes:
    """Of every file, the write-ahead log too."""
    return b"".join(path.read_bytes() for path in sorted(folder.iterdir()))


def rewrite(embedded: Embedded, row_id: int, **columns: Any) -> None:
    """Change a record's row, and its checksum with it: who writes to the disk can do that."""
    names = "count, published_unix_ms, bytes, skips, header, payload"
    ((*fields, skips, header, payload),) = embedded.sql(
        f"SELECT {names} FROM record WHERE id = ?", row_id
    )
    header, payload = columns.get("header", header), columns.get("payload", payload)
    checksum = codec.record_checksum(row_id, tuple(fields), skips or b"", header, payload)
    embedded.sql(
        "UPDATE record SET header = ?, payload = ?, checksum = ? WHERE id = ?",
        header, payload, checksum, row_id,
    )  # fmt: skip


async def test_no_payload_is_plain_in_any_file(embedded: Embedded) -> None:
    """Not in the write-ahead log either, nor in the quarantine."""
    sealer = sealing()
    store = await embedded.open(sealer=sealer)
    await with_group(store, messages=3)
    assert body(2) not in bytes_on_disk(embedded.path.parent)
    await embedded.close()
    assert body(2) not in bytes_on_disk(embedded.path.parent)
    ((payload,),) = embedded.sql("SELECT payload FROM record")
    rewrite(embedded, 1 << 40, payload=payload[:-1] + b"?")
    store = await embedded.open(sealer=sealer)
    (damage,) = (await store.read(P0, 0, 10**6)).damage
    assert damage.reason == (
        "its payload cannot be opened, because it was changed or belongs elsewhere"
    )
    await embedded.close()
    assert embedded.sql("SELECT reason FROM quarantine") == [(damage.reason,)]
    assert body(2) not in bytes_on_disk(embedded.path.parent)


async def test_a_sealed_payload_that_changes_places_does_not_open(embedded: Embedded) -> None:
    """R9, P2: what its consumers would get was published, but not there."""
    sealer = sealing()
    store = await embedded.open(sealer=sealer)
    await with_group(store)
    for place in (P0, P1):
        await store.append([append(place, messages=2)])
    await embedded.close()
    rows = dict(embedded.sql("SELECT id, payload FROM record"))
    first, second = sorted(rows)
    rewrite(embedded, first, payload=rows[second])
    rewrite(embedded, second, payload=rows[first])
    store = await embedded.open(sealer=sealer)
    for place in (P0, P1):
        read = await store.read(place, 0, 10**6)
        assert (read.records, [one.first for one in read.damage]) == ((), [0])
        assert "belongs elsewhere" in read.damage[0].reason
    state = await store.state()
    assert "belongs elsewhere" in state.detail["damage_latest"]


async def test_a_data_key_that_is_gone_costs_what_it_sealed_and_nothing_else(
    embedded: Embedded,
) -> None:
    """R30, P13: another process sealed under another key; what comes under ours is read."""
    store = await embedded.open(sealer=sealing(b"one" * 10 + b"00"))
    await with_group(store, messages=1)
    store = await embedded.open(sealer=sealing(b"two" * 10 + b"00"))
    await store.append([append(messages=2)])
    read = await store.read(P0, 0, 10**6)
    assert [(record.first, record.last) for record in read.records] == [(1, 2)]
    (damage,) = read.damage
    assert (damage.first, damage.count) == (0, 1)
    assert damage.reason == f"its data key {b'oneoneon'.hex()} is not known"


async def test_encryption_can_be_switched_on_and_off(embedded: Embedded) -> None:
    """A store with plain and sealed records reads as one."""
    sealer = sealing()
    for times in range(4):
        store = await embedded.open(sealer=sealer if times % 2 else PLAIN)
        if not times:
            await with_group(store)
        await store.append([append(messages=1)])
    store = await embedded.open(sealer=sealer)
    read = await store.read(P0, 0, 10**6)
    assert [record.payload for record in read.records] == [body(0)] * 4
    assert read.damage == ()
    sealed = [row[0][:1] == b"\x01" for row in embedded.sql("SELECT payload FROM record")]
    assert sealed == [False, True, False, True]
