"""The writer of the delivery log, one thread, which alone touches its files.

The loop hands it chunks of lines, with counts of each kind in them, and never waits for it.

Lines that cannot be written are counted, and an `unlogged` line reports the counts as soon as
writing works again. The lines themselves are not kept for later. The first failure is logged, and
the first success after it.
"""

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, TypedDict

from gateway.deliverylog.counts import (
    CERTIFIED,
    DISPATCHED,
    KINDS,
    SETTLED,
    SPANS,
    Counts,
    SharedCounts,
    memory,
)
from gateway.deliverylog.files import Bounds, LogFolder, recover
from gateway.deliverylog.lines import SCHEMA, UnloggedLine, encode

logger = logging.getLogger("tocsin.deliverylog")
FOLDER: Final = "delivery"
RETRY_S: Final = 1.0
"""Seconds between two tries to write while writing fails. The first thing written is how many lines
are missing."""


Reason = Literal["full", "failed", "killed"]


class Shortfall(TypedDict):
    """Numbers of lines, and of messages of each kind, that are missing in the log since the process
    began."""

    spans: int
    certified: int
    dispatched: int
    settled: int


class LogStatus(TypedDict):
    """State of the log."""

    written_bytes: int
    waiting_bytes: int
    is_failing: bool
    """Whether the latest try to write has failed."""
    unlogged: Shortfall


@dataclass(slots=True)
class Missing:
    """Lines that are missing in the log, and are to be counted there. Times are unix
    microseconds."""

    reason: Reason
    since_unix_us: int
    until_unix_us: int
    counts: Counts

    def add(self, since_unix_us: int, until_unix_us: int, counts: Counts) -> None:
        """Count more as missing."""
        self.since_unix_us = min(self.since_unix_us, since_unix_us)
        self.until_unix_us = max(self.until_unix_us, until_unix_us)
        for kind in range(KINDS):
            self.counts[kind] += counts[kind]


@dataclass(slots=True)
class Chunk:
    """Lines without their ends, in order, and counts of their contents."""

    lines: list[bytes] = field(default_factory=list)
    bytes: int = 0
    """Size of the lines with their ends."""
    counts: Counts = field(default_factory=lambda: [0] * KINDS)
    since_unix_us: int = 0
    until_unix_us: int = 0
    stepped_us: int = 0
    lost: Missing | None = None
    """Earlier lines for which there was no room."""


class LogWriter:
    """The writer of one data folder; `open` makes it."""

    def __init__(
        self,
        files: LogFolder,
        gateway: str,
        shared: SharedCounts | None,
        *,
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Begin without the thread. `shared`: counts that outlive the process; None: there are
        none."""
        self.counts: Counts = shared.happened if shared is not None else [0] * KINDS
        self.is_failing = False
        """Whether the latest try to write has failed."""
        self._files = files
        self._gateway = gateway
        self._shared = shared
        self._now, self._wall = now, wall
        self._queue: queue.SimpleQueue[Chunk | None] = queue.SimpleQueue()
        self._put_bytes = 0
        """Number of bytes that the loop has handed over. Only the loop changes it."""
        self._done_bytes = 0
        """Number of bytes that the thread has worked off. Only the thread changes this and the
        following attributes."""
        self._accounted = [0] * KINDS
        self._finished = [0] * KINDS
        """Part of `_accounted` that is in finished files."""
        self._missing: list[Missing] = []
        """Missing lines that no line of the log has reported yet, one entry for each reason."""
        self._unlogged = [0] * KINDS
        self._written_bytes = 0
        self._thread = threading.Thread(target=self._run, name="delivery log", daemon=True)

    @classmethod
    def open(cls, data_dir: Path, gateway: str, bounds: Bounds) -> "LogWriter":
        """Open the log of a data folder, which the caller has locked. Files that an earlier start
        left are finished first. Blocks. Failures are only logged, because a log that cannot be
        written must not stop the gateway."""
        folder, wall = data_dir / FOLDER, time.time()
        shared: SharedCounts | None = None
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            tmpfs = memory()
            recover(folder, tmpfs)
            shared = SharedCounts(folder, gateway, int(wall * 1_000_000), tmpfs)
        except OSError as error:
            logger.error("the delivery log in %s cannot be opened: %s", folder, error)
        writer = cls(LogFolder(folder, gateway, int(wall * 1000), bounds), gateway, shared)
        writer.start()
        return writer

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    # --- On the loop ----------------------------------------------------------------------------

    @property
    def waiting_bytes(self) -> int:
        """Number of bytes that it was handed and has not worked off."""
        return self._put_bytes - self._done_bytes

    def put(self, chunk: Chunk) -> None:
        """Have the thread write a chunk, or count its lines as missing. Never waits."""
        self._put_bytes += chunk.bytes
        self._queue.put(chunk)

    def stop(self, within_s: float) -> None:
        """Write all chunks that it was handed, and end. Blocks for `within_s` at most."""
        self._queue.put(None)
        self._thread.join(within_s)

    def status(self) -> LogStatus:
        """Return the state of the log."""
        spans, certified, dispatched, settled = self._unlogged
        return {
            "written_bytes": self._written_bytes,
            "waiting_bytes": self.waiting_bytes,
            "is_failing": self.is_failing,
            "unlogged": {
                "spans": spans,
                "certified": certified,
                "dispatched": dispatched,
                "settled": settled,
            },
        }

    # --- In the thread --------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            due_s = self._files.due_s(now=self._now())
            try:
                chunk = self._queue.get(timeout=due_s if not self.is_failing else RETRY_S)
            except queue.Empty:
                self._write_missing()
                if self._files.due_s(now=self._now()) == 0.0:
                    self._finish_file()
                continue
            if chunk is None:
                break
            try:
                self._take(chunk)
            except Exception:  # after a bug the log goes on without this chunk
                logger.exception("a part of the delivery log was lost")
            self._done_bytes += chunk.bytes
            self._save_counts()
        self._write_missing()
        self._finish_file(at_end=True)

    def _take(self, chunk: Chunk) -> None:
        if chunk.lost is not None:
            self._count_missing(chunk.lost)
        self._write_missing()
        if not chunk.lines:
            return
        data = b"\n".join(chunk.lines) + b"\n"
        if not self._write(data, len(chunk.lines), chunk.counts):
            counts = [chunk.counts[kind] for kind in range(KINDS)]
            self._count_missing(Missing("failed", chunk.since_unix_us, chunk.until_unix_us, counts))
        elif self._files.due_s(now=self._now()) == 0.0:
            self._finish_file()

    def _count_missing(self, missing: Missing) -> None:
        for kind in range(KINDS):
            self._unlogged[kind] += missing.counts[kind]
        for one in self._missing:
            if one.reason == missing.reason:
                one.add(missing.since_unix_us, missing.until_unix_us, missing.counts)
                return
        self._missing.append(missing)

    def _write_missing(self) -> None:
        while self._missing:
            one = self._missing[0]
            line = UnloggedLine(
                schema=SCHEMA,
                gateway=self._gateway,
                since_unix_us=one.since_unix_us,
                until_unix_us=one.until_unix_us,
                spans=one.counts[SPANS],
                certified=one.counts[CERTIFIED],
                dispatched=one.counts[DISPATCHED],
                settled=one.counts[SETTLED],
                reason=one.reason,
            )
            if not self._write(encode(line) + b"\n", 1, one.counts):
                return
            del self._missing[0]

    def _write(self, data: bytes, lines: int, counts: Counts) -> bool:
        """Write data, and return whether it is in the file. If so, `counts` are accounted for."""
        try:
            self._files.append(data, lines, now=self._now())
        except OSError as error:
            self._on_failure(error)
            return False
        self._written_bytes += len(data)
        for kind in range(KINDS):
            self._accounted[kind] += counts[kind]
        if self.is_failing:
            self.is_failing = False
            logger.info("the delivery log goes on")
        return True

    def _on_failure(self, error: OSError) -> None:
        if not self.is_failing:
            logger.error(
                "the delivery log cannot be written: %s; the missing lines are counted", error
            )
        self.is_failing = True

    def _finish_file(self, *, at_end: bool = False) -> None:
        try:
            self._files.finish(wall=self._wall(), is_last=at_end and not self._missing)
        except OSError as error:
            self._on_failure(error)
            return
        self._finished = list(self._accounted)
        if self._shared is not None and at_end and not self._missing:
            self._shared.remove()
        else:
            self._save_counts()

    def _save_counts(self) -> None:
        if self._shared is not None:
            with contextlib.suppress(OSError):  # older counts are valid too; files add the rest
                self._shared.save(self._files.number, self._finished)
