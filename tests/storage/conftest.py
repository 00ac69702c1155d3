"""The embedded storage in a folder of its own, which can be closed, damaged and opened again."""

import sqlite3
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from storage.sqlite.open import APPLICATION_ID, STEPS
from storage.sqlite.store import SqliteStorage
from tests.contract.stores import Clock


class Embedded:
    """Opens the store of this test again and again."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "store.sqlite"
        self.clock = Clock()
        self.fatal: list[str] = []
        self._open: SqliteStorage | None = None

    async def open(self, **named: Any) -> SqliteStorage:
        """Close it if it is open, then open it."""
        await self.close()
        named = {"free_bytes_reserve": 0, "wall": self.clock, **named}
        self._open = await SqliteStorage.open(self.path, on_fatal=self.fatal.append, **named)
        return self._open

    async def close(self) -> None:
        """Close it if it is open."""
        if self._open is not None:
            await self._open.close()
            self._open = None

    def make_old(self, version: int) -> None:
        """Make the file as a program of this schema version left it."""
        self.path.parent.mkdir()
        rows = Path(__file__).parent / "sqlite" / f"version_{version}.sql"
        connection = sqlite3.connect(self.path)
        for text in (*STEPS[:version], rows.read_text(encoding="utf-8")):
            connection.executescript(text)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.close()

    def sql(self, statement: str, *values: object) -> list[Any]:
        """Run a statement on the closed or open file, as somebody with a tool would."""
        connection = sqlite3.connect(self.path, isolation_level=None, timeout=5)
        try:
            return connection.execute(statement, values).fetchall()
        finally:
            connection.close()


async def commits(store: SqliteStorage) -> int:
    """Transactions that have ended since it was opened."""
    return int((await store.state()).detail["commits"])


@pytest.fixture
async def embedded(tmp_path: Path) -> AsyncIterator[Embedded]:
    """An embedded storage, not open yet."""
    store = Embedded(tmp_path / "data")
    yield store
    await store.close()


@pytest.fixture
def unasked() -> Iterator[None]:
    """Nobody loses the interpreter's lock who does not give it up."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(20.0)
    yield
    sys.setswitchinterval(before)
