"""SQL statements over many rows at a time.

Every step of a statement gives up the GIL and has to get it back from the event loop. One
statement with thirty rows costs one such step, thirty statements cost thirty.
"""

import sqlite3
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Final

from storage.sqlite.sqlite_codec import Row

ROWS_MAX: Final = 64
"""Rows of one statement. Each number of rows is a statement of its own in SQLite's cache."""


class Many:
    """`head` (?,…),(?,…),… `tail`: a statement over any number of rows, `rows_max` at a time."""

    def __init__(self, head: str, columns: int, tail: str = "", rows_max: int = ROWS_MAX) -> None:
        self._head = head
        self._rows_max = rows_max
        self._row = f"({','.join('?' * columns)})"
        self._tail = tail
        self._texts: dict[int, str] = {}

    def _text(self, count: int) -> str:
        text = self._texts.get(count)
        if text is None:
            rows = ",".join([self._row] * count)
            text = self._texts[count] = f"{self._head} {rows} {self._tail}"
        return text

    def execute(self, connection: sqlite3.Connection, rows: Sequence[Row]) -> None:
        """Run it over these rows; none: nothing happens."""
        for low in range(0, len(rows), self._rows_max):
            some = rows[low : low + self._rows_max]
            connection.execute(self._text(len(some)), tuple(chain.from_iterable(some)))


def insert(table: str, columns: str, rows_max: int = ROWS_MAX) -> Many:
    """INSERT OR REPLACE into these columns."""
    count = columns.count(",") + 1
    return Many(f"INSERT OR REPLACE INTO {table} ({columns}) VALUES", count, rows_max=rows_max)


def update(table: str, columns: str) -> Many:
    """UPDATE of rows by their id; the first column is the id. An upsert would first look for
    conflicts in every other index."""
    names = [name.strip() for name in columns.split(",")]
    changes = ", ".join(f"{name} = v.column{i}" for i, name in enumerate(names[1:], 2))
    return Many(
        f"UPDATE {table} SET {changes} FROM (VALUES",
        len(names),
        f") AS v WHERE {table}.{names[0]} = v.column1",
    )


def delete_each(
    connection: sqlite3.Connection,
    table: str,
    owner: str,
    key: str,
    gone: Iterable[tuple[int, int]],
) -> None:
    """DELETE the rows of these (owner, key): one statement per owner, because SQLite scans the
    table for a list of pairs."""
    by_owner: dict[int, list[int]] = {}
    for owner_id, key_id in gone:
        by_owner.setdefault(owner_id, []).append(key_id)
    for owner_id, keys in by_owner.items():
        for low in range(0, len(keys), ROWS_MAX):
            some = keys[low : low + ROWS_MAX]
            places = ",".join("?" * len(some))
            connection.execute(
                f"DELETE FROM {table} WHERE {owner} = ? AND {key} IN ({places})",
                (owner_id, *some),
            )
