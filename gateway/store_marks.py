"""What a gateway remembers of the store, outside of it (R30): its incarnation, and how many touches
every copy had once. A store with another one, or with fewer, was exchanged or rolled back.

It is one small file in the data folder. Who loses it, or never had it, believes what the store says
of itself: so gateways come and go, and one that was there before tells when something is wrong.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from push.errors import Refused

FILE: Final = "store.mark"
WRITTEN_EVERY_S: Final = 5.0
"""A store that is rolled back by less than this while this gateway is down is not recognised."""
_LOG: Final = logging.getLogger("tocsin.storage")


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """`touches` by the key of each shard."""

    incarnation: str
    touches: dict[str, int] = {}


def read_mark(data_dir: Path) -> Mark | None:
    """None: this gateway was never at a store. Raises Refused(storage_unavailable): it cannot be
    read, with what to do."""
    path = data_dir / FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=Mark)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise Refused(
            "storage_unavailable",
            f"{path} cannot be read ({error}): it says which store belongs to this gateway; remove "
            "it when you know that the store is the right one",
        ) from None


def write_mark(data_dir: Path, mark: Mark) -> None:
    """Durable when this returns, whole or not at all. Raises OSError."""
    new = data_dir / (FILE + ".new")
    with new.open("wb") as file:
        file.write(msgspec.json.encode(mark))
        file.flush()
        os.fsync(file.fileno())
    new.replace(data_dir / FILE)
    folder = os.open(data_dir, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


class MarkKeeper:
    """Writes the mark down now and then, while touches grow, and at the end. Made by `start`."""

    def __init__(
        self, data_dir: Path, incarnation: str, touches: Callable[[], Mapping[str, int]]
    ) -> None:
        self._data_dir = data_dir
        self._incarnation = incarnation
        self._touches = touches
        self._written: Mark | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Raises OSError: the data folder does not take it."""
        await asyncio.to_thread(self._write)
        self._task = asyncio.get_running_loop().create_task(self._keep(), name="store mark")

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(WRITTEN_EVERY_S)
            try:
                await asyncio.to_thread(self._write)
            except OSError as error:  # the older one is as true, and says less
                _LOG.warning("%s cannot be written: %s", self._data_dir / FILE, error)

    def _write(self) -> None:
        mark = Mark(incarnation=self._incarnation, touches=dict(self._touches()))
        if mark != self._written:
            write_mark(self._data_dir, mark)
            self._written = mark

    async def close(self) -> None:
        """Written once more; a second call does nothing."""
        if self._task is None:
            return
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        self._task = None
        with suppress(OSError):
            await asyncio.to_thread(self._write)
