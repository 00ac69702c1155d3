"""A value of another type than its column (P13, R30): one flipped bit in the header of a row, which
SQLite does not notice when it reads. It costs its row, and the storage goes on."""

import os
import re
import sqlite3
from collections.abc import Awaitable
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from push.due import DuePlace
from push.errors import Refused, TocsinError
from push.places import CursorPlace, Parked
from push.ranges import Dead
from push.storage_port import Retry, Side
from storage.sqlite.store import SqliteStorage
from storage.sqlite.verify import verify_store
from tests.contract.stores import (
    ANN,
    G0,
    P0,
    P1,
    append,
    change,
    digest,
    due_unix_ms,
    sequences,
    with_group,
)
from tests.storage.conftest import Embedded

VALUES: Final = ("NULL", "CAST(x'ff00' AS TEXT)", "1.5")
MORE: Final = ("x'ff'", "'a'", "1 << 62", "-1")
"""Values of each type, a text that is not UTF-8, and numbers that are none of the store's. In `make
test` a column has three of them, in `make soak` (TOCSIN_SOAK=1) all."""
WHOLE: Final = bool(os.environ.get("TOCSIN_SOAK"))
TABLES: Final = (
    "client_id",
    "cursor",
    "cursor_log",
    "dead",
    "due",
    "ended",
    "garbage",
    "parked",
    "partition",
    "producer",
    "record",
    "retry",
    "side",
    "side_line",
)


async def fill(embedded: Embedded) -> None:
    """Make a store that has rows in all of its tables but `quarantine`."""
    store = await embedded.open()
    await store.create_queue("q-0", 1)
    await with_group(store, messages=1000)
    await sequences(store, [0])
    await sequences(store, [0, 1, 2])
    await store.append([append(ids=["a", "b"])])
    await store.append([append(P1, messages=2)])
    settled = [(number, number) for number in range(11, 1000, 2)]
    await store.write_cursors([change(settled=settled, aside=[Side(7, (6, 8))])])
    write = change(
        retries=[Retry(4, 2)], parked=[Parked(7, "no", 1)], dead=[Dead(10, 10, "expired")]
    )
    await store.write_cursors([write])
    await store.write_cursors([change(settled=[(0, 0), (3, 3)], ended=[(3, 3)])])
    await store.append([append(due=[5, 9, 20], ids=["d", None, "e"], id_hashes=[4, 0, 5])])
    await store.drop_queue("q-0")
    await embedded.close()
    embedded.sql("INSERT OR IGNORE INTO garbage VALUES ('cursor', 4000)")
    embedded.sql("INSERT OR IGNORE INTO garbage VALUES ('partition', 4000)")


def columns(path: Path, table: str) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return [
            name
            for (name,) in connection.execute(
                "SELECT name FROM pragma_table_info(?) ORDER BY cid", (table,)
            )
        ]


def put(path: Path, table: str, column: str, value: str, *, last: bool) -> bool:
    """Write a value of any type to a column of the table's first or last row, as damage would.
    Returns False if even a table without rules does not take it."""
    order = "DESC" if last else "ASC"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        (key,) = connection.execute(
            "SELECT group_concat(name) FROM pragma_table_info(?) WHERE pk > 0", (table,)
        ).fetchone()
        (sql,) = connection.execute(
            "SELECT sql FROM sqlite_schema WHERE name = ?", (table,)
        ).fetchone()
        loose = re.sub(r"\) STRICT(, )?", lambda found: ") " if found[1] else ")", sql)
        loose = loose.replace(" NOT NULL", "")
        write_schema(connection, table, loose)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        try:
            changed = connection.execute(
                f"UPDATE {table} SET {column} = {value} WHERE ({key}) = "
                f"(SELECT {key} FROM {table} ORDER BY {key} {order} LIMIT 1)"
            )
        except sqlite3.IntegrityError:
            return False
        assert changed.rowcount == 1
        write_schema(connection, table, sql)
    return True


def write_schema(connection: sqlite3.Connection, table: str, sql: str) -> None:
    connection.execute("PRAGMA writable_schema = ON")
    connection.execute("UPDATE sqlite_schema SET sql = ? WHERE name = ?", (sql, table))
    connection.execute("PRAGMA writable_schema = RESET")


async def use(store: SqliteStorage) -> None:
    """Use all that a store has. What is damaged may be refused."""
    other = CursorPlace("g-1", P1)
    uses: list[Awaitable[object]] = [
        store.read(P0, 0, 10**6),
        store.read_each(P0, [0, 5, 40, 41], 10**6),
        store.offset_at(P0, 1),
        store.append([append(runs=[(ANN, 0, [1, 9])])]),
        store.append([append(ids=["a", "c"])]),
        store.append([append(P1, messages=1)]),
        store.partitions("q-1"),
        store.cursors("q-1", "g-1"),
        store.cursor(G0),
        store.standings(G0, 0, 20),
        store.parked(G0),
        store.read_side(G0, 7, -1, 10),
        store.published([(P0, 0), (P0, 41)]),
        store.own(G0, token=b"b", assignment=1),
        store.own(other, token=b"b", assignment=1),
        store.write_cursors([change(epoch=2, token=b"b", settled=[(0, 5)])]),
        store.write_cursors([change(epoch=2, token=b"b", aside=[Side(7, (30,))])]),
        store.trim(P0, retention_s=0, keep_all=True),
        store.trim(P1, retention_s=0, keep_all=False),
        store.trimmable(P0, retention_s=0, keep_all=False, after=0),
        store.seek("g-1", "q-1", ["latest", "latest"]),
        store.trim(P0, retention_s=0, keep_all=True),
        store.create_group("g-2", "q-1", ["earliest"] * 2),
        store.drop_group("g-1", "q-1"),
        store.purge("q-1", None),
    ]
    for one_use in [use_due(store), *uses]:
        with suppress(TocsinError):
            await one_use


async def use_due(store: SqliteStorage) -> None:
    """Use what is scheduled. What is sound can be moved."""
    due, far = store.due, due_unix_ms(10**6)
    await due.states("q-1")
    await due.look(P0)
    await due.look(P0, key_hash=7, after=DuePlace(1, 0))
    await due.look(P0, id_hash=4)
    await due.fate(P0, 1)
    await due.known(P0, digest("d"))
    await store.append([append(due=[5], ids=["d"], id_hashes=[4])])
    for message in await due.find(P0, [0, 1]):
        await due.change(message)
    await due.cancel(P0, 0, remember_s=300)
    for _ in range(3):
        read = await due.first(P0, far, count_max=10, bytes_max=10**6)
        if read.messages:
            record = append(sizes=[len(each.payload) for each in read.messages])
            record = replace(record, payload=b",".join(each.payload for each in read.messages))
            await due.move(read.messages, record)
    assert not (await due.first(P0, far, count_max=10, bytes_max=10**6)).messages
    states = await due.states("q-1")
    assert {(one.messages, one.bytes, one.first_unix_ms) for one in states} == {(0, 0, None)}


@pytest.mark.parametrize("table", TABLES)
async def test_a_value_of_another_type_costs_its_row_and_stops_nothing(
    embedded: Embedded, table: str
) -> None:
    await fill(embedded)
    whole = embedded.path.read_bytes()
    failures: list[str] = []
    for column in columns(embedded.path, table):
        for number, value in enumerate(VALUES + MORE * WHOLE):
            for old in embedded.path.parent.glob("store.sqlite*"):
                old.unlink()
            embedded.path.write_bytes(whole)
            if not put(embedded.path, table, column, value, last=False):
                continue
            if number % 2 == 0:  # as after a kill: the structure is checked at the start
                embedded.sql("UPDATE meta SET value = '0' WHERE name = 'clean'")
            verify_store(embedded.path, lambda *_: None)
            try:
                store = await embedded.open()
                await use(store)
                await commits_again(store)
                assert not embedded.fatal
                assert (await store.state()).writable
            except Exception as error:
                failures.append(f"{column} = {value}: {error!r} {embedded.fatal}")
                break  # the process would have ended
            embedded.fatal.clear()
            await embedded.close()
    assert not failures, "\n".join(failures)


async def commits_again(store: SqliteStorage) -> None:
    """A commit with a sweep goes through."""
    await store.create_queue("q-2", 1)
    for _ in range(3):
        assert len(await store.append([append(P0._replace(queue_id="q-2"), messages=1)])) == 1


async def test_a_word_that_says_what_to_delete_is_not_guessed(embedded: Embedded) -> None:
    """The rows of something that was dropped are deleted later, by its kind and number. Of another
    kind, the number is that of a living cursor."""
    store = await embedded.open()
    await with_group(store, messages=3)
    await store.write_cursors([change(aside=[Side(7, (1,))])])
    await embedded.close()
    embedded.sql("INSERT INTO garbage SELECT 'partitioN', id FROM cursor WHERE partition = 1")
    store = await embedded.open()
    await commits_again(store)
    store = await embedded.open()
    assert embedded.sql("SELECT count(*) FROM garbage") == [(0,)]
    assert (await store.own(G0, token=b"b", assignment=1)).cursor.lines == ((7, 1),)


async def test_what_a_group_without_a_name_may_need_is_kept(embedded: Embedded) -> None:
    """P1: nobody knows what it has had."""
    store = await embedded.open()
    await with_group(store, messages=3)
    await embedded.close()
    assert put(embedded.path, "cursor", "group_id", "CAST(x'ff00' AS TEXT)", last=False)
    store = await embedded.open()
    with pytest.raises(Refused, match="the name of a group"):
        await store.trim(P0, retention_s=0, keep_all=False)
    assert len((await store.read(P0, 0, 10**6)).records) == 1
