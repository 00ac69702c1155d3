"""Writer of the files of accounting: usage, minute by minute, and the audit trail.

It is the shell around `gateway.accounting.usage` and `gateway.accounting.audit`: a timer that ends
the minutes, and one thread that writes. No request waits for usage. A minute that could not be
written to a full disk is written with the next one, SIGTERM writes the last one, and a kill -9
loses at most the current one. Without a data folder everything is counted, and nothing is kept.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import msgspec

from gateway.accounting.audit import NOT_LET_IN, Actor, Audit, AuditTrail, why_of
from gateway.accounting.journal import Journal
from gateway.accounting.usage import Exists, SessionAccounting, Usage, UsageLine
from gateway.models import Admission
from push import limits
from push.errors import TocsinError

logger = logging.getLogger("tocsin.usage")
FOLDER: Final = "usage"
NAME: Final = "usage"
USAGE_BYTES_MAX: Final = 256 * 1_048_576
AUDIT_BYTES_MAX: Final = 1024 * 1_048_576
STOP_S: Final = 5.0
"""Seconds that `stop` waits until the last lines are written."""


class AccountingWriter:
    """The accounting of a gateway: its usage and its audit trail, and their files. `open` makes it,
    or the constructor if nothing is to be kept."""

    def __init__(
        self,
        *,
        usage: Usage | None = None,
        journal: Journal | None = None,
        trail: AuditTrail | None = None,
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Begin without a timer. `now`: monotonic seconds; `wall`: unix seconds."""
        self.now = now
        self._wall = wall
        self._journal = journal
        self._lines: deque[UsageLine] = deque(maxlen=limits.USAGE_LINES_KEPT_MAX)
        """Lines of usage that could not be written yet. Only the writing thread uses them."""
        self._is_failing = False
        self._timer: asyncio.TimerHandle | None = None
        is_kept = journal is not None or trail is not None
        self._executor = ThreadPoolExecutor(1, "accounting") if is_kept else None
        self.usage = usage if usage is not None else Usage(now=now(), wall=wall())
        self.audit = Audit(trail, self._executor, wall=wall)

    @classmethod
    def open(
        cls,
        data_dir: Path,
        *,
        is_usage_on: bool = True,
        usage_bytes_max: int = USAGE_BYTES_MAX,
        audit_bytes_max: int = AUDIT_BYTES_MAX,
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> "AccountingWriter":
        """Open the files of a data folder, which the caller has locked. Blocks.

        Raises:
            OSError: the existing trail cannot be read.
        """
        return cls(
            usage=Usage(now=now(), wall=wall(), is_on=is_usage_on),
            journal=Journal(data_dir / FOLDER, NAME, bytes_max=usage_bytes_max),
            trail=AuditTrail.open(data_dir, audit_bytes_max),
            now=now,
            wall=wall,
        )

    def session(
        self, exists: Exists, address: str | None = None, admission: Admission | None = None
    ) -> SessionAccounting:
        """Begin the accounting of a session. `address`: the client's, if it is known."""
        return SessionAccounting(self.usage, self.audit, exists, address, admission, now=self.now)

    def refuse_handshake(self, error: TocsinError, address: str | None) -> None:
        """Count a WebSocket that was not opened, because of this error, as a request of an unknown
        client. The audit trail counts it too, if a credential or its absence was the reason."""
        code = error.code.name
        counter = self.usage.counter(None, None, None)
        counter.requests += 1
        counter.count_refusal(code)
        if code in NOT_LET_IN:
            self.audit.note_rejection(Actor(address=address), code, *why_of(error))

    def start(self) -> None:
        """Start the timer that ends each minute. If nothing is kept, nothing happens."""
        if self._executor is not None:
            due_s = self.usage.due_s(wall=self._wall())
            self._timer = asyncio.get_running_loop().call_later(due_s, self._end_minute)

    def _end_minute(self) -> None:
        self.audit.end_minute()
        self._put(self.usage.lines(now=self.now(), wall=self._wall()))
        self.start()

    def _put(self, lines: Sequence[UsageLine]) -> None:
        if self._executor is not None and self._journal is not None and lines:
            self._executor.submit(self._write, self._journal, lines)

    def _write(self, journal: Journal, lines: Sequence[UsageLine]) -> None:
        """Encode and write lines, in the writing thread, because there may be thousands."""
        lost = len(self._lines) + len(lines) - limits.USAGE_LINES_KEPT_MAX
        self._lines.extend(lines)
        encoded = b"".join(msgspec.json.encode(line) + b"\n" for line in self._lines)
        try:
            journal.append(encoded, wall=self._wall())
        except OSError as error:
            if not self._is_failing:
                logger.error("usage cannot be written: %s; the broker will try again", error)
            self._is_failing = True
            if lost > 0:
                logger.error("%d lines of usage are lost", lost)
        else:
            self._lines.clear()
            self._is_failing = False

    async def stop(self) -> None:
        """Write what is left, including the minute that is not over yet. Waits at most STOP_S."""
        if self._timer is not None:
            self._timer.cancel()
        executor, self._executor = self._executor, None
        if executor is None:
            return
        self.audit.end_minute()
        lines = self.usage.end(now=self.now(), wall=self._wall())
        if self._journal is not None and lines:
            executor.submit(self._write, self._journal, lines)
        closing = asyncio.wrap_future(executor.submit(self._close))
        await asyncio.wait((closing,), timeout=STOP_S)
        executor.shutdown(wait=False)

    def _close(self) -> None:
        self.audit.close()
        if self._journal is not None:
            self._journal.close()
