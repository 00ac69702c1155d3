"""The floor of every process: signals, start and end, logs, systemd, random bytes, the collector.

Logs go to stderr, as lines for people or one JSON object a line for machines. They hold names and
numbers, never bodies, tokens or receipts. systemd is notified (sd_notify) when the process accepts
and when it is going down.

Python's garbage collector runs by the clock, and never for more than a share of the time. By itself
it runs when some more objects were made than freed since its last run, and scans all that were made
since then and live. If as many are freed as are made, that never comes, or comes after minutes, and
then everybody waits for a scan of hundreds of thousands of objects: 50 ms, when a thousand clients
had taken each other's places. So it is run here. New objects are scanned often, so that they are
few each time, and more often if many are new: under load that never ends most of them are only on
their way, and gone a moment later. All objects are scanned rarely, and more rarely as long as
nothing is found, for hardly anything here refers to itself in a circle.
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
"""EX_SOFTWARE: a supervisor shall start the process anew."""
Opened = TypeVar("Opened")


def listen_to_signals(stopping: asyncio.Event) -> None:
    """SIGTERM and SIGINT set it; the second one ends the process."""

    def caught(number: int) -> None:
        if stopping.is_set():
            logger.warning("a second signal: ending at once")
            _exit(128 + number)
        stopping.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, caught, number)


async def opened_unless(
    stopping: asyncio.Event, opening: Coroutine[Any, Any, Opened]
) -> Opened | None:
    """What it opens; None: `stopping` was set before, and it was cancelled. A store may take
    minutes to recover: nobody waits for that to end it. Raises what `opening` raises."""
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
    """R31: end without another write. From any thread."""
    logger.critical("the storage cannot go on: %s; exit %d, start anew", reason, EXIT_FATAL)
    _exit(EXIT_FATAL)


def _exit(code: int) -> None:
    # Not sys.exit: that would run the orderly end, which writes.
    logging.shutdown()
    with contextlib.suppress(Exception):  # stdout may be closed, or full
        sys.stdout.flush()
    os._exit(code)


def raise_files_limit() -> int:
    """Raise the soft limit of open files to the hard one: every session is one. Returns what holds
    then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):  # a container may forbid even that
            return soft
    return hard


ABOUT: Final = ("session", "queue", "group", "gateway")
"""What a line may be about: given as `extra` where it is logged."""


class JsonLines(logging.Formatter):
    """One JSON object a line: time (unix seconds), level, logger, message, and where there is one
    the traceback, the W3C trace of the request that it happened in, and the session, queue, group
    and gateway that a line is about."""

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
    """Set the whole process's logging up. Calling it again replaces what was there."""
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
    # uvicorn warns of every malformed request: whoever sends them could fill the disk.
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    logging.getLogger("websockets").setLevel(logging.ERROR)


def tell(state: str) -> None:
    """Say `READY=1` or `STOPPING=1` to who started us and listens (NOTIFY_SOCKET). Nobody does, or
    it does not take it: nothing happens."""
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
"""So many more objects were made than freed since what is new was looked at: it is looked at again.
That takes 1 to 2 ms, in which everybody waits."""
YOUNG_EVERY_S_MAX: Final = 0.25
"""And whatever they were: freed were others than were made, perhaps."""
YOUNG_SHARE: Final = 1 / 10
"""Of the time, for looking at what is new."""
ALL_EVERY_S: Final = 60.0
ALL_EVERY_S_MAX: Final = 600.0
ALL_SHARE: Final = 1 / 500
_LATE_S: Final = 0.001
"""Timers of the loop count in milliseconds and may come a little early: who asks again at once
then asks sixty times until it is time."""
FOUND_MIN: Final = 1000
"""So many objects make a look at everything worth its while: the next one comes as soon as it may.
Else it takes twice as long to come as the last time."""


class Rounds:
    """Which look is due. Pure; times are seconds, monotonic."""

    def __init__(self, *, now: float) -> None:
        self._young_at = now + YOUNG_EVERY_S
        self._young_by = now + YOUNG_EVERY_S_MAX
        self._all_at = now + ALL_EVERY_S
        self._all_every_s = ALL_EVERY_S

    def due(self, new: int, *, now: float) -> int | None:
        """YOUNG, ALL, or None: nothing yet. So many more objects were made than freed since the
        last look."""
        if now >= self._all_at:
            return ALL
        if now < self._young_at:
            return None
        if new >= NEW_MIN or now >= self._young_by:
            return YOUNG
        self._young_at = min(now + YOUNG_EVERY_S, self._young_by)
        return None

    def next_at(self) -> float:
        """When to ask again."""
        return min(self._young_at, self._all_at)

    def took(self, generation: int, seconds: float, found: int, *, now: float) -> None:
        """A look took so long, ended `now`, and found so many objects that nobody held."""
        young_at = now + max(YOUNG_EVERY_S, seconds / YOUNG_SHARE)
        self._young_at = max(self._young_at, young_at)
        self._young_by = max(self._young_at, now + YOUNG_EVERY_S_MAX)
        if generation == ALL:
            self._all_every_s = (
                ALL_EVERY_S if found >= FOUND_MIN else min(2 * self._all_every_s, ALL_EVERY_S_MAX)
            )
            self._all_at = now + max(self._all_every_s, seconds / ALL_SHARE)


class Collector:
    """Looks on the event loop of one process. `collect` as gc.collect."""

    def __init__(self, collect: Callable[[int], int] = gc.collect) -> None:
        self._collect = collect
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """From now on Python's own times count for nothing. What is loaded by now stays: code, the
        catalog, the ring. Frozen, it is never looked at again."""
        gc.collect()
        gc.freeze()
        gc.disable()
        loop = asyncio.get_running_loop()
        rounds = Rounds(now=loop.time())
        self._timer = loop.call_at(rounds.next_at() + _LATE_S, self._look, rounds)

    def stop(self) -> None:
        """Python's own times count again. Not started: nothing happens."""
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
