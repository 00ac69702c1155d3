"""Ctrl-C, and its effect while a command imports, works, and ends.

While nothing has to be undone, Ctrl-C ends the process at once and in silence. Commands that undo
something use KeyboardInterrupt, which may be raised between any two steps of a program. Commands
that wait use asyncio's own handlers.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

Handler = Callable[[int, Any], Any] | int | signal.Handlers | None


def end_now(number: int, _frame: object) -> None:
    """Handle a signal: end the process with the signal's status."""
    os._exit(128 + number)


@contextlib.contextmanager
def quiet_interrupt() -> Iterator[None]:
    """Let Ctrl-C end the process at once, inside this block."""
    with _handled(end_now):
        yield


@contextlib.contextmanager
def raised_interrupt() -> Iterator[None]:
    """Let Ctrl-C raise KeyboardInterrupt, inside this block."""
    with _handled(signal.default_int_handler):
        yield


@contextlib.contextmanager
def _handled(handler: Handler) -> Iterator[None]:
    before: Handler = signal.getsignal(signal.SIGINT)
    is_ours = threading.current_thread() is threading.main_thread()
    if before is signal.SIG_IGN or not is_ours:
        yield
        return
    signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
