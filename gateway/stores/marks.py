"""Marks, which are files in which a gateway remembers the store elsewhere that belongs to it (R30).

A mark is a small file in the data folder that is written now and then while it changes. A gateway
that loses it, or never had it, accepts the store as it is. Gateways come and go, and one that was
there before notices if something is wrong.

    store.mark     the incarnation of each storage cluster, and a number of touches that every copy
                   had once. A store with another incarnation, or with fewer touches, was exchanged
                   or rolled back. Of the embedded store, the number of its starts and clean stops
    catalog.mark   the incarnation of a metadata service's catalog, and its version. A catalog with
                   another incarnation, or an older version, is refused at the start and never
                   adopted, because its queues are not those whose messages are in the storage
                   (P13). A running gateway notices that by the stamps of single changes
                   (`metadata.service.client`)

The catalog itself remembers the incarnation of the storage that belongs to it.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, Generic, TypeVar

import msgspec

from metadata.backend import CatalogPlace
from metadata.port import STORAGE_INCARNATION, Metadata
from push.errors import Refused
from push.storage_port import Storage

WRITTEN_EVERY_S: Final = 5.0
"""Seconds between two writes of a mark. A rollback by less than this, while the gateway is down, is
not noticed."""
MarkT = TypeVar("MarkT")


def read_file(path: Path, form: type[MarkT], what_it_is: str) -> MarkT | None:
    """Read a mark; None: the file does not exist. Raises Refused(storage_unavailable) if it cannot
    be read, with the advice in `what_it_is`."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=form)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        detail = f"{path} cannot be read ({error}). {what_it_is}"
        raise Refused("storage_unavailable", detail) from None


def write_file(path: Path, mark: object) -> None:
    """Write a mark durably, whole or not at all. Raises OSError."""
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
    """Write the mark that `current` returns, if it has changed, every WRITTEN_EVERY_S after `start`
    and at the end."""

    def __init__(self, path: Path, current: Callable[[], MarkT], log: logging.Logger) -> None:
        self._path = path
        self._current = current
        self._log = log
        self._written: MarkT | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self, *, is_needed: bool = True) -> None:
        """Write the mark, and begin to keep it. Raises OSError if it cannot be written and
        `is_needed`. Otherwise it is written later."""
        try:
            await asyncio.to_thread(self._write)
        except OSError as error:
            if is_needed:
                raise
            self._log.warning("%s cannot be written: %s", self._path, error)
        self._task = asyncio.get_running_loop().create_task(self._keep(), name=self._path.name)

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(WRITTEN_EVERY_S)
            try:
                await asyncio.to_thread(self._write)
            except OSError as error:  # the older mark is still true, but notices less
                self._log.warning("%s cannot be written: %s", self._path, error)

    def _write(self) -> None:
        mark = self._current()
        if mark != self._written:
            write_file(self._path, mark)
            self._written = mark

    async def close(self) -> None:
        """Write the mark once more. If it was not started, or is closed already, nothing
        happens."""
        if self._task is None:
            return
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        self._task = None
        with suppress(OSError):
            await asyncio.to_thread(self._write)


STORE_MARK_FILE: Final = "store.mark"
_STORE_MARK_HELP: Final = (
    "It says which store belongs to this gateway. If you know that the store is the right one, "
    "remove the file"
)
_STORAGE_LOG: Final = logging.getLogger("tocsin.storage")


class ClusterMark(msgspec.Struct, frozen=True, kw_only=True):
    """Mark of one storage cluster, with the `touches` by the key of each shard."""

    incarnation: str
    touches: dict[str, int] = {}


class Mark(ClusterMark, frozen=True, kw_only=True):
    """Mark of the first cluster, with the marks of the others by their names."""

    others: dict[str, ClusterMark] = {}


def read_store_mark(data_dir: Path) -> Mark | None:
    """Read the mark of the store. None: this gateway has never used a store, or has lost the mark.
    Raises Refused(storage_unavailable) if the file cannot be read, with what to do."""
    return read_file(data_dir / STORE_MARK_FILE, Mark, _STORE_MARK_HELP)


class MarkKeeper:
    """Keep the mark up to date while touches grow, from `start` on."""

    def __init__(
        self, data_dir: Path, incarnation: str, touches: Callable[[], Mapping[str, int]]
    ) -> None:
        self._incarnation = incarnation
        self._touches = touches
        self._others: dict[str, Callable[[], ClusterMark]] = {}
        self._file = FileKeeper(data_dir / STORE_MARK_FILE, self._mark, _STORAGE_LOG)

    def add(self, cluster: str, mark: Callable[[], ClusterMark]) -> None:
        """Add one more storage cluster, or replace the mark of a known one."""
        self._others[cluster] = mark

    async def start(self, *, is_needed: bool = True) -> None:
        """Begin to keep it, as `FileKeeper.start` says."""
        await self._file.start(is_needed=is_needed)

    async def close(self) -> None:
        await self._file.close()

    def _mark(self) -> Mark:
        return Mark(
            incarnation=self._incarnation,
            touches=dict(self._touches()),
            others={name: other() for name, other in list(self._others.items())},
        )


CATALOG_MARK_FILE: Final = "catalog.mark"
_CATALOG_MARK_HELP: Final = (
    "It says which catalog belongs to this gateway. If you know that the metadata service has the "
    "right one, remove the file"
)
_CATALOG_LOG: Final = logging.getLogger("tocsin.metadata")


def check_catalog_mark(data_dir: Path, place: CatalogPlace) -> None:
    """Check that this is the catalog of the mark, if there is one, and not an older version. Raises
    Refused(storage_unavailable), with what to do."""
    path = data_dir / CATALOG_MARK_FILE
    before = read_file(path, CatalogPlace, _CATALOG_MARK_HELP)
    if before is None:
        return
    if before.incarnation != place.incarnation:
        what = f"the incarnation {place.incarnation}, but {path} has {before.incarnation}"
    elif before.version > place.version:
        what = f"version {place.version}, but {path} has {before.version}: it was rolled back"
    else:
        return
    raise Refused(
        "storage_unavailable",
        f"the catalog of the metadata service has {what}. Start the service over the right "
        f"database, or remove {path} to begin with this one",
    )


def catalog_keeper(data_dir: Path, place: Callable[[], CatalogPlace]) -> FileKeeper[CatalogPlace]:
    """Return a keeper of the mark of the catalog, with its incarnation and version."""
    return FileKeeper(data_dir / CATALOG_MARK_FILE, place, _CATALOG_LOG)


# enforces: P13, R30
async def check_storage(storage: Storage, metadata: Metadata) -> None:
    """Refuse an emptied or exchanged storage, and never adopt it (R30), because it would begin
    every partition anew, below every cursor and position. The first storage of a catalog is
    remembered.

    Raises:
        Refused: storage_unavailable, if it is not the storage of this catalog (P13).
    """
    incarnation = await storage.incarnation()
    known = metadata.mark(STORAGE_INCARNATION)
    if known is None:
        await metadata.set_mark(STORAGE_INCARNATION, incarnation)
    elif known != incarnation:
        raise Refused(
            "storage_unavailable",
            f"the storage has the incarnation {incarnation}, but the catalog knows {known}, so one "
            "of the two was emptied or exchanged. Put back the one that belongs to the other, or "
            "move both away to begin anew",
        )
