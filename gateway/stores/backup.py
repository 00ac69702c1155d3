"""Backups of the running broker: the store first, then the catalog, then the manifest.

The catalog knows every queue and group of the store, because it is copied later and creating goes
through it first (`gateway.catalog.changes`). It may know some that the copy of the store does not
have, and may have forgotten some that it has: a restore settles both after the catalog.
"""

import asyncio
import time
from pathlib import Path

import msgspec

from gateway.stores.backup_folder import (
    FORMAT,
    BackupError,
    Manifest,
    digests,
    discard,
    take_folder,
    write_manifest,
)
from gateway.upkeep_values import BackupProgress
from metadata.inprocess import InProcessMetadata
from metadata.sqlite.store import FILE as CATALOG_FILE
from push.errors import Refused
from storage.sqlite.sqlite import SqliteStorage
from storage.sqlite.sqlite_open import FILE as STORE_FILE


class Backups:
    """Makes one backup at a time of what this broker keeps on this machine."""

    def __init__(self, metadata: InProcessMetadata, storage: SqliteStorage) -> None:
        self._metadata = metadata
        self._storage = storage
        self._under_way: asyncio.Task[Manifest] | None = None

    async def make(self, folder: Path, progress: BackupProgress) -> dict[str, object]:
        """A backup in this folder, complete and durable when this returns; its manifest.
        Cancelled, or when it raises, what it has written is removed.

        Raises:
            Refused: invalid_request: the folder's path is relative, it is not empty or cannot be
                made, or a backup is under way; storage_full, storage_unavailable: it failed.
        """
        if self._under_way is not None:
            raise Refused("invalid_request", "a backup is under way: one at a time")
        if not folder.is_absolute():
            raise Refused("invalid_request", "the folder's path is not absolute")
        # A task of its own: `close` ends it, whoever waits for it.
        task = self._under_way = asyncio.create_task(self._make(folder, progress))
        task.add_done_callback(self._ended)
        try:
            return {"folder": str(folder), **msgspec.to_builtins(await task)}
        except BaseException:
            task.cancel()
            await asyncio.wait((task,))
            raise

    def _ended(self, _task: object) -> None:
        self._under_way = None

    async def close(self) -> None:
        """Break off the backup that is under way."""
        if self._under_way is not None:
            self._under_way.cancel()
            await asyncio.wait((self._under_way,))

    async def _make(self, folder: Path, progress: BackupProgress) -> Manifest:
        try:
            made = await asyncio.to_thread(take_folder, folder)
        except BackupError as error:
            raise Refused("invalid_request", str(error)) from None
        try:
            return await self._fill(folder, progress)
        except BaseException as error:
            # Not in a thread: whoever is cancelled again meanwhile would leave it undone.
            discard(folder, made=made)
            if isinstance(error, OSError):
                raise Refused("storage_unavailable", f"the backup failed: {error}") from error
            raise

    async def _fill(self, folder: Path, progress: BackupProgress) -> Manifest:
        began_unix_ms = time.time_ns() // 1_000_000
        await self._storage.copy_to(
            folder / STORE_FILE, lambda done, total: progress("copied", done, total)
        )
        await self._metadata.copy_to(folder / CATALOG_FILE)
        files = await asyncio.to_thread(digests, folder, progress, "summed up")
        manifest = Manifest(
            format=FORMAT,
            incarnation=await self._storage.incarnation(),
            began_unix_ms=began_unix_ms,
            ended_unix_ms=time.time_ns() // 1_000_000,
            sqlite=(await self._storage.state()).detail["sqlite"],
            files=files,
        )
        await asyncio.to_thread(write_manifest, folder, manifest)
        return manifest
