"""A store at rest, seen from outside: its records, their nonces, bits of them flipped, and whatever
text its files hold."""

import sqlite3
import zlib
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

STORE: Final = "store.sqlite"
CATALOG: Final = "catalog.sqlite"
_OFFSET_BITS: Final = 40
_NONCE: Final = slice(1, 21)
"""Of a sealed payload: behind its version the data key's id, 8 bytes, and the nonce, 12."""
Place = tuple[int, int]
"""(partition, offset)"""


@dataclass(frozen=True)
class Row:
    """A record of a store."""

    row_id: int
    partition: int
    first: int
    count: int

    def places(self) -> list[Place]:
        """Of its messages."""
        return [(self.partition, offset) for offset in range(self.first, self.first + self.count)]


def rows_of(folder: Path, queue: str) -> list[Row]:
    """The records of a queue, in a store that nobody has open."""
    with closing(sqlite3.connect(folder / CATALOG)) as catalog:
        found = catalog.execute("SELECT queue_id FROM queues WHERE name = ?", (queue,)).fetchone()
    with closing(sqlite3.connect(folder / STORE)) as store:
        rows = store.execute(
            "SELECT record.id, number, count FROM record JOIN partition "
            f"ON partition.id = record.id >> {_OFFSET_BITS} WHERE queue_id = ? ORDER BY record.id",
            found,
        ).fetchall()
    mask = (1 << _OFFSET_BITS) - 1
    return [Row(row_id, number, row_id & mask, count) for row_id, number, count in rows]


def nonces_of(folder: Path) -> tuple[int, int]:
    """(records that are sealed, different pairs of data key and nonce among them), those in the
    quarantine too. Raises AssertionError: a record is plain."""
    with closing(sqlite3.connect(folder / STORE)) as store:
        payloads = store.execute(
            "SELECT payload FROM record UNION ALL SELECT payload FROM quarantine"
        ).fetchall()
    assert all(payload[:1] == b"\x01" for (payload,) in payloads), "a payload is plain"
    return len(payloads), len({payload[_NONCE] for (payload,) in payloads})


def quarantined_in(folder: Path) -> int:
    """How many records were put aside."""
    with closing(sqlite3.connect(folder / STORE)) as store:
        (count,) = store.execute("SELECT count(*) FROM quarantine").fetchone()
    return int(count)


def flip(folder: Path, rows: Iterable[Row], random: Random) -> None:
    """Flip one bit of the header or the payload of each of these records. Every other one gets the
    checksum that fits, as somebody would do who writes to the disk on purpose: then only the tag
    can tell."""
    with closing(sqlite3.connect(folder / STORE)) as store:
        for number, row in enumerate(rows):
            found = store.execute(
                "SELECT count, published_unix_ms, bytes, skips, header, payload FROM record "
                "WHERE id = ?",
                (row.row_id,),
            ).fetchone()
            *fields, skips, header, payload = found
            blobs = {"header": bytearray(header), "payload": bytearray(payload)}
            column = random.choice(("header", "payload", "payload"))
            bit = random.randrange(8 * len(blobs[column]))
            blobs[column][bit // 8] ^= 1 << bit % 8
            store.execute(
                f"UPDATE record SET {column} = ? WHERE id = ?", (bytes(blobs[column]), row.row_id)
            )
            if number % 2:
                checksum = _checksum(row.row_id, fields, (skips or b"", *blobs.values()))
                store.execute("UPDATE record SET checksum = ? WHERE id = ?", (checksum, row.row_id))
        store.commit()


def _checksum(row_id: int, fields: Sequence[int], blobs: Iterable[bytes | bytearray]) -> int:
    crc = zlib.crc32(repr((row_id, tuple(fields))).encode())
    for blob in blobs:
        crc = zlib.crc32(blob, crc)
    return crc


def files_with(text: str, *folders: Path) -> tuple[int, list[str]]:
    """(how many files were looked into, those that hold this text), in these folders and below
    them; a path of a file is looked into as well."""
    files = [path for folder in folders for path in (folder, *folder.rglob("*")) if path.is_file()]
    raw = text.encode()
    return len(files), [str(path) for path in files if raw in path.read_bytes()]
