"""What every process of ours does alike: how it takes signals, opens, and ends at once."""

import asyncio
import contextlib
import logging
import os
import resource
import signal
import sys
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

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
