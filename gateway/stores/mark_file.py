"""A mark: a small file in the data folder, in which a gateway remembers what it has seen of
something that is kept elsewhere (R30).

It is written down now and then while it changes. Who loses it, or never had it, believes what that
says of itself: gateways come and go, and one that was there before tells when something is wrong.
"""

import asyncio
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, Generic, TypeVar

import msgspec

from push.errors import Refused

WRITTEN_EVERY_S: Final = 5.0
"""What is rolled back by less than this while this gateway is down is not recognised."""
MarkT = TypeVar("MarkT")


def read_file(path: Path, form: type[MarkT], what_it_is: str) -> MarkT | None:
    """None: there is none. Raises Refused(storage_unavailable): it cannot be read; `what_it_is`
    says what to do."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=form)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        detail = f"{path} cannot be read ({error}): {what_it_is}"
        raise Refused("storage_unavailable", detail) from None


def write_file(path: Path, mark: object) -> None:
    """Durable when this returns, whole or not at all. Raises OSError."""
    new = path.with_name(f"{path.name}.new")
    with new.open("wb") as file:
        file.write(msgspec.json.encode(mark))
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


class FileKeeper(Generic[MarkT]):
    """Writes down what `found` says, where that has changed: every WRITTEN_EVERY_S from `start` on,
    and at the end."""

    def __init__(self, path: Path, found: Callable[[], MarkT], log: logging.Logger) -> None:
        self._path = path
        self._found = found
        self._log = log
        self._written: MarkT | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Raises OSError: the data folder does not take it."""
        await asyncio.to_thread(self._write)
        self._task = asyncio.get_running_loop().create_task(self._keep(), name=self._path.name)

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(WRITTEN_EVERY_S)
            try:
                await asyncio.to_thread(self._write)
            except OSError as error:  # the older one is as true, and says less
                self._log.warning("%s cannot be written: %s", self._path, error)

    def _write(self) -> None:
        mark = self._found()
        if mark != self._written:
            write_file(self._path, mark)
            self._written = mark

    async def close(self) -> None:
        """Written once more. Not started, or closed before: nothing happens."""
        if self._task is None:
            return
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        self._task = None
        with suppress(OSError):
            await asyncio.to_thread(self._write)
