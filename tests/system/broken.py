"""A deliberately broken broker, the negative control of the soak runs.

`python broken.py --break=receipt-before-commit` or `--break=synchronous-normal` starts `tocsin
serve` with one thing replaced from outside; the product itself has no switch for either. A soak run
that stays green on this proves nothing.
"""

import sys
import time
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from gateway.cli.serve import serve
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
        certified, self._state.certified = self._state.certified, {}
        self._call(self._deliver, answers, certified)
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


BREAKS: Final = {
    "--break=receipt-before-commit": receipt_before_commit,
    "--break=synchronous-normal": synchronous_normal,
}

if __name__ == "__main__":
    BREAKS[sys.argv[1]]()
    del sys.argv[1]
    serve()
