"""Basics of every process: signals, start and end, logs, systemd, the garbage collector.

Logs go to stderr, as lines for people or one JSON object a line for machines. They hold names and
numbers, never bodies, tokens or receipts. systemd is notified (sd_notify) when the process accepts
and when it is going down.

Python's garbage collector runs by the clock, and never for more than a share of the time. By itself
it would run when some more objects were made than freed since its last run, and scan all that were
made since then and live. If as many are freed as are made, that never happens, or happens after
minutes, and then a scan of hundreds of thousands of objects stops everything (measured:
docs/benchmarks/tuning.md#garbage-collection). So it is run here. New objects are scanned often, so
that they are few each time, and more often if many are new. Under load that never ends, most of
them live for a moment only. All objects are scanned rarely, and more rarely while nothing is found,
because hardly any object here refers to itself in a circle.
"""

import asyncio
import contextlib
import gc
import logging
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, TextIO, TypeVar

import msgspec

from runtime.trace_context import current

logger = logging.getLogger("tocsin.process")

EXIT_FATAL: Final = 70
"""EX_SOFTWARE: a supervisor should start the process anew."""
Opened = TypeVar("Opened")


def listen_to_signals(stopping: asyncio.Event) -> None:
    """Have `stopping` set on the first SIGTERM or SIGINT; a second signal ends the process at
    once."""

    def caught(number: int) -> None:
        if stopping.is_set():
            logger.warning("received a second signal, ending at once")
            _exit(128 + number)
        stopping.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, caught, number)


async def opened_unless(
    stopping: asyncio.Event, opening: Coroutine[Any, Any, Opened]
) -> Opened | None:
    """Return what `opening` opens. None if `stopping` was set first; then `opening` was cancelled.
    A store may take minutes to recover, and a signal must not wait for that. Raises what `opening`
    raises."""
    task = asyncio.create_task(opening)
    stopped = asyncio.create_task(stopping.wait())
    await asyncio.wait((task, stopped), return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if not task.done():
        task.cancel()
        await asyncio.wait((task,))
        if task.cancelled():
            return None
    return task.result()


def end_at_once(reason: str) -> None:
    """End the process at once: no cleanup, and no further write to the storage (R31). Only
    `reason` is logged. Works in any thread."""
    logger.critical(
        "the storage cannot go on: %s. The process ends with exit code %d; start it anew",
        reason,
        EXIT_FATAL,
    )
    _exit(EXIT_FATAL)


def _exit(code: int) -> None:
    # Not sys.exit, which would run the orderly end, and that writes.
    logging.shutdown()
    with contextlib.suppress(Exception):  # stdout may be closed, or full
        sys.stdout.flush()
    os._exit(code)


def raise_files_limit() -> int:
    """Raise the soft limit of open files to the hard one, because every session is one. Returns the
    limit in effect then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):  # a container may forbid even that
            return soft
    return hard


ABOUT: Final = ("session", "queue", "group", "gateway")
"""Names of a line's subjects, which are passed as `extra` where it is logged."""


class JsonLines(logging.Formatter):
    """Formats one JSON object a line: time (unix seconds), level, logger, message. If there are
    any, also the traceback, the W3C trace of the request that it happened in, and the session,
    queue, group and gateway that a line is about."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        trace = current()
        if trace is not None:
            fields["trace_id"] = trace.trace_id
        for name in ABOUT:
            if name in record.__dict__:
                fields[name] = record.__dict__[name]
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(fields).decode()


def configure(level: str, *, as_json: bool, stream: TextIO | None = None) -> None:
    """Set up the whole process's logging. A second call replaces the first one's."""
    handler = logging.StreamHandler(stream or sys.stderr)
    if as_json:
        handler.setFormatter(JsonLines())
    else:
        text = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
        handler.setFormatter(logging.Formatter(text, "%Y-%m-%d %H:%M:%S"))
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
        old.close()
    root.addHandler(handler)
    root.setLevel(level.upper())
    # uvicorn warns of every malformed request, so any client could fill the disk.
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    logging.getLogger("websockets").setLevel(logging.ERROR)


def tell(state: str) -> None:
    """Send `READY=1` or `STOPPING=1` to the supervisor that listens at NOTIFY_SOCKET. Nothing
    happens if there is none, or it does not take it."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):  # an abstract one
        address = "\0" + address[1:]
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as said,
    ):
        said.setblocking(False)
        said.sendto(state.encode(), address)


YOUNG: Final = 0
ALL: Final = 2
YOUNG_EVERY_S: Final = 0.05
NEW_MIN: Final = 5000
"""Number of objects by which more must have been made than freed before the collector looks at new
ones, because the whole process waits for a look (measured:
docs/benchmarks/tuning.md#garbage-collection)."""
YOUNG_EVERY_S_MAX: Final = 0.25
"""Seconds after which new objects are looked at in any case, because other objects may have been
freed than were made."""
YOUNG_SHARE: Final = 1 / 10
"""Largest share of the time that the collector spends on new objects."""
ALL_EVERY_S: Final = 60.0
ALL_EVERY_S_MAX: Final = 600.0
ALL_SHARE: Final = 1 / 500
_LATE_S: Final = 0.001
"""Added to the time of each timer, in seconds, because the loop's timers count in milliseconds and
may fire a little early. Without it, the timer would be set again at once, dozens of times, until a
look is due."""
FOUND_MIN: Final = 1000
"""Number of unreferenced objects that make a look at all objects worthwhile. If fewer are found,
the time until the next such look doubles, up to ALL_EVERY_S_MAX."""


class Rounds:
    """Decides when the garbage collector looks at new objects (YOUNG) or at all (ALL). Pure; times
    are seconds, monotonic."""

    def __init__(self, *, now: float) -> None:
        self._young_at = now + YOUNG_EVERY_S
        self._young_by = now + YOUNG_EVERY_S_MAX
        self._all_at = now + ALL_EVERY_S
        self._all_every_s = ALL_EVERY_S

    def due(self, new: int, *, now: float) -> int | None:
        """Return which look is due: YOUNG, ALL, or None if none is yet. `new`: how many more
        objects were made than freed since the last look."""
        if now >= self._all_at:
            return ALL
        if now < self._young_at:
            return None
        if new >= NEW_MIN or now >= self._young_by:
            return YOUNG
        self._young_at = min(now + YOUNG_EVERY_S, self._young_by)
        return None

    def next_at(self) -> float:
        """Return the time at which `due` is to be called again."""
        return min(self._young_at, self._all_at)

    def took(self, generation: int, seconds: float, found: int, *, now: float) -> None:
        """Note a look that took `seconds`, ended at `now`, and found this many unreferenced
        objects."""
        young_at = now + max(YOUNG_EVERY_S, seconds / YOUNG_SHARE)
        self._young_at = max(self._young_at, young_at)
        self._young_by = max(self._young_at, now + YOUNG_EVERY_S_MAX)
        if generation == ALL:
            self._all_every_s = (
                ALL_EVERY_S if found >= FOUND_MIN else min(2 * self._all_every_s, ALL_EVERY_S_MAX)
            )
            self._all_at = now + max(self._all_every_s, seconds / ALL_SHARE)


class Collector:
    """Runs the garbage collector on the event loop, at the times of `Rounds`. `collect` has the
    form of gc.collect."""

    def __init__(self, collect: Callable[[int], int] = gc.collect) -> None:
        self._collect = collect
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Run the collector from now on instead of Python. Objects that are loaded by now (code,
        the catalog, the ring) are frozen, and never looked at again."""
        gc.collect()
        gc.freeze()
        gc.disable()
        loop = asyncio.get_running_loop()
        rounds = Rounds(now=loop.time())
        self._timer = loop.call_at(rounds.next_at() + _LATE_S, self._look, rounds)

    def stop(self) -> None:
        """Let Python run the garbage collector by itself again. Nothing happens without `start`
        before."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            gc.enable()
            gc.unfreeze()

    def _look(self, rounds: Rounds) -> None:
        loop = asyncio.get_running_loop()
        generation = rounds.due(gc.get_count()[YOUNG], now=loop.time())
        if generation is not None:
            began = time.perf_counter()
            found = self._collect(generation)
            seconds = time.perf_counter() - began
            rounds.took(generation, seconds, found, now=loop.time() + seconds)
        self._timer = loop.call_at(rounds.next_at() + _LATE_S, self._look, rounds)
