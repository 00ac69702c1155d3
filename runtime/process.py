"""What every process of ours does alike: how it takes signals, opens, and ends at once.

How the process logs: lines for people, or one JSON object a line for machines, to stderr.

What is logged holds names and numbers, never bodies, tokens or receipts.

What systemd is told of the process (sd_notify): that it accepts, that it is going down.

Random bytes for many at once.
"""

import asyncio
import contextlib
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Coroutine
from typing import Any, Final, TextIO, TypeVar

import msgspec

from runtime.tracing import current

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
        """As logging.Formatter."""
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


def drawn(count: int, size: int) -> list[bytes]:
    """`count` values of `size` random bytes each, from the operating system (`os.urandom`).

    In one call: each gives up the interpreter's lock, and whoever makes one for every record has to
    get it back from another thread as often.
    """
    together = os.urandom(count * size)
    return [together[place : place + size] for place in range(0, len(together), size)]
