"""A deliberately broken broker, the negative control of the soak runs and of bad days.

`python broken.py --break=receipt-before-commit` starts `tocsin serve` with one thing replaced from
outside, or several (BREAKS); the product itself has no switch for any. A run that stays green on
this proves nothing.
"""

import contextlib
import sqlite3
import sys
import time
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from gateway.cli.serve import serve
from gateway.delivery.cursor_writer import CursorWriter
from gateway.publish import commits
from push import commit_sharing
from push.errors import TocsinError
from storage.sqlite.store import SqliteStorage
from storage.sqlite.writer import Answer, StoreWriter, WriteTask

COMMIT_DELAY_S: Final = 0.2
"""Time between the receipt and the commit; a kill within it loses what was promised. It is long
enough for clients on two busy cores to read the receipts."""


def receipt_before_commit() -> None:
    """Answer when the acts have run, and commit afterwards."""

    def commit(self: StoreWriter, batch: list[WriteTask], *, sweep: bool) -> None:
        answers: list[Answer] = []
        for task in batch:
            try:
                answers.append((task.future, task.run(), None))
            except TocsinError as error:
                answers.append((task.future, None, error))
        self._state.flush()
        self._handoff.release()
        certified, self._state.certified = self._state.certified, {}
        noticed, self._state.noticed = self._state.noticed, {}
        self._call(self._deliver, answers, certified, noticed)
        time.sleep(COMMIT_DELAY_S)
        if self._connection.in_transaction:
            self._connection.execute("COMMIT")
        self._state.shrink()

    StoreWriter._commit = commit  # type: ignore[method-assign]


def synchronous_normal() -> None:
    """Open the store without an fsync at each commit."""
    opening = SqliteStorage.open.__func__  # type: ignore[attr-defined]

    async def open_normal(cls: type[SqliteStorage], path: Path, **settings: Any) -> Any:
        return await opening(cls, path, **{**settings, "synchronous": "NORMAL"})

    SqliteStorage.open = classmethod(open_normal)  # type: ignore[assignment, arg-type]


class Stubborn:
    """A connection whose COMMIT never fails."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def execute(self, statement: str, *values: Any) -> Any:
        """Execute a statement; a failed COMMIT is ignored."""
        if statement != "COMMIT":
            return self._connection.execute(statement, *values)
        with contextlib.suppress(sqlite3.Error):
            self._connection.execute(statement)
        return None


def failed_commit_counts() -> None:
    """Answer as if a COMMIT that failed had not, and go on."""
    begin = StoreWriter.__init__

    def init(self: StoreWriter, *args: Any, **named: Any) -> None:
        begin(self, *args, **named)
        self._connection = Stubborn(self._connection)  # type: ignore[assignment]

    StoreWriter.__init__ = init  # type: ignore[method-assign]


def no_pace() -> None:
    """Begin a commit as soon as the last one has ended."""
    vars(commit_sharing)["PACE_S"] = 0.0


def pace_of_a_second() -> None:
    """Keep commits a second apart."""
    vars(commit_sharing)["PACE_S"] = 1.0


def acks_wait_for_ever() -> None:
    """Expect a commit for hours after two, and have acks wait for it as long."""
    vars(commit_sharing)["EXPECTED_S"] = vars(commits)["HELD_S"] = 3600.0


def drain_forgets_acks() -> None:
    """Stop without writing the cursors that have changed."""

    async def drain(self: CursorWriter) -> None:
        pass

    CursorWriter.drain = drain  # type: ignore[method-assign]


BREAKS: Final = {
    "--break=receipt-before-commit": receipt_before_commit,
    "--break=synchronous-normal": synchronous_normal,
    "--break=failed-commit-counts": failed_commit_counts,
    "--break=no-pace": no_pace,
    "--break=pace-of-a-second": pace_of_a_second,
    "--break=acks-wait-for-ever": acks_wait_for_ever,
    "--break=drain-forgets-acks": drain_forgets_acks,
}

if __name__ == "__main__":
    while sys.argv[1:] and sys.argv[1] in BREAKS:
        BREAKS[sys.argv.pop(1)]()
    serve()
