"""The standard streams of a command, whose failures have names."""

import asyncio
import contextlib
import errno
import io
import os
import select
import stat
import sys
from collections.abc import Callable, Iterator
from typing import Any, TextIO


class StreamFailed(Exception):
    """A standard stream cannot be read or written. Not an OSError, because others handle that."""

    def __init__(self, error: OSError) -> None:
        super().__init__(error.strerror)
        self.errno = error.errno

    def __str__(self) -> str:
        return "it is closed" if self.errno == errno.EBADF else super().__str__()


class OutputFailed(StreamFailed):
    """Standard output cannot be written, because it is closed, full, or its reader has gone."""

    @property
    def is_gone(self) -> bool:
        """Whether the reader of the output has gone."""
        return self.errno == errno.EPIPE


class InputFailed(StreamFailed):
    """Standard input, or a file that is read in its place, cannot be read."""


@contextlib.contextmanager
def watched_output(on_gone: Callable[[], None] | None) -> Iterator[None]:
    """Call `on_gone` once, inside this block, when the reader of standard output, a pipe, has gone.

    Without this, a command learns of that only when it writes. None watches nothing.
    """
    if on_gone is None or not _is_pipe(1):
        yield
        return
    loop = asyncio.get_running_loop()

    def looked() -> None:
        poll = select.poll()
        poll.register(1, select.POLLOUT)
        if any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0)):
            loop.remove_reader(1)
            on_gone()

    try:
        loop.add_reader(1, looked)  # a pipe that is written becomes readable when its reader goes
    except (OSError, RuntimeError):  # some event loops cannot watch it
        yield  # it is noticed at the next write
        return
    try:
        yield
    finally:
        loop.remove_reader(1)


def _is_pipe(descriptor: int) -> bool:
    try:
        return stat.S_ISFIFO(os.fstat(descriptor).st_mode)
    except OSError:
        return False


class _Output(io.FileIO):
    """Standard output. A failed write raises OutputFailed, once. Later output is dropped, so that
    the interpreter does not find it in a buffer at its end and complain."""

    _has_failed = False

    def write(self, data: Any) -> int:
        if self._has_failed:
            return memoryview(data).nbytes
        try:
            return _written(self, data)
        except OSError as error:
            self._has_failed = True
            raise OutputFailed(error) from None


class _Notices(io.FileIO):
    """Standard error. A notice that cannot be written does not end the work."""

    def write(self, data: Any) -> int:
        try:
            return _written(self, data)
        except OSError:
            return memoryview(data).nbytes


def _written(stream: io.FileIO, data: Any) -> int:
    """Write some of the data. Waits if another process has made the descriptor non-blocking."""
    while True:
        count = io.FileIO.write(stream, data)
        if count is not None:
            return count
        select.select([], [stream.fileno()], [])


def wrap_streams() -> None:
    """Replace Python's standard streams by ones that fail in the ways that commands know."""
    if os.name != "posix":
        return  # a console of Windows is no file
    sys.stdin = sys.stdin or open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = _wrapped(_Output(1, "wb", closefd=False), sys.stdout)
    sys.stderr = _wrapped(_Notices(2, "wb", closefd=False), sys.stderr)


def _wrapped(raw: io.FileIO, stream: TextIO | None) -> TextIO:
    """Return a text stream over `raw`, with the encoding of `stream`; None means that the
    descriptor was closed. A character that the encoding does not have is written as an escape."""
    with contextlib.suppress(OSError, AttributeError, ValueError):
        if stream is not None:
            stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=getattr(stream, "encoding", None) or "utf-8",
        errors="backslashreplace",
        line_buffering=raw.isatty() or isinstance(raw, _Notices),
        write_through=bool(getattr(stream, "write_through", False)),
    )
