"""Backups of the running broker, which copy the store first, then the catalog, then the manifest.

The catalog knows every queue and group of the store, because it is copied later and creating goes
through it first (`gateway.catalog.reconcile`). It may know some that the copy of the store does not
have, and may have forgotten some that the copy has. A restore follows the catalog in both cases.

A backup is a folder with the two files of a data folder and a manifest, which is written last. A
folder without a manifest is a backup that was not finished, and one whose files do not match the
manifest is damaged; neither is ever restored.
"""

import asyncio
import contextlib
import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from gateway.models import BackupProgress
from metadata.catalog_service import CatalogService
from metadata.sqlite.catalog import FILE as CATALOG_FILE
from metadata.sqlite.catalog import MIGRATIONS
from push.errors import Refused
from storage.sqlite.open import FILE as STORE_FILE
from storage.sqlite.open import STEPS, sync_folder
from storage.sqlite.store import SqliteStorage

MANIFEST_FILE: Final = "manifest.json"
FORMAT: Final = 1
FILES: Final = (STORE_FILE, CATALOG_FILE)
SCHEMAS: Final = {STORE_FILE: len(STEPS), CATALOG_FILE: len(MIGRATIONS)}
"""Schema versions that this program writes, the newest that it knows."""
_PARTIAL: Final = f"{MANIFEST_FILE}.partial"
_CHUNK_BYTES: Final = 1_048_576


class BackupError(Exception):
    """Error of a backup or restore, which was not done. The text is a sentence that says why."""


class FileEntry(msgspec.Struct, frozen=True):
    """A file of a backup."""

    bytes: int
    sha256: str
    schema_version: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Description of a backup, by which its files are recognized."""

    format: int
    incarnation: str
    """Incarnation of the store that was copied."""
    began_unix_ms: int
    """Time at which the backup began. The backup contains everything that was acknowledged
    before."""
    ended_unix_ms: int
    sqlite: str
    files: dict[str, FileEntry]

    @property
    def bytes(self) -> int:
        """Size of all files of the backup."""
        return sum(entry.bytes for entry in self.files.values())


class _SealedManifest(msgspec.Struct, frozen=True):
    manifest: msgspec.Raw
    sha256: str


def take_folder(folder: Path) -> bool:
    """Make the folder (True), or find it empty (False).

    Raises:
        BackupError: it is not empty, is no folder, or cannot be made. Nothing was changed.
    """
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        if not folder.is_dir() or any(folder.iterdir()):
            raise BackupError(
                f"{folder} is not an empty folder: give each backup a folder of its own"
            ) from None
        return False
    except FileNotFoundError:
        raise BackupError(
            f"{folder} cannot be made, because {folder.parent} does not exist: make that first"
        ) from None
    except OSError as error:
        raise BackupError(f"{folder} cannot be made: {error.strerror}") from None
    return True


def discard(folder: Path, *, made: bool) -> None:
    """Remove the files of a backup that failed, and the folder if it was `made` for the backup."""
    with contextlib.suppress(OSError):
        for name in (MANIFEST_FILE, _PARTIAL, *FILES):
            (folder / name).unlink(missing_ok=True)
        if made:
            folder.rmdir()


def digest(path: Path, progress: Callable[[int], None], *, copy_to: Path | None = None) -> str:
    """Return the SHA-256 of a file, in hex. With `copy_to` the file is copied at the same time to a
    new file, which is fsynced. `progress` gets the size of each piece. Raises OSError."""
    sha = hashlib.sha256()
    with contextlib.ExitStack() as stack:
        source = stack.enter_context(path.open("rb"))
        target = None
        if copy_to is not None:
            handle = os.open(copy_to, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            target = stack.enter_context(os.fdopen(handle, "wb"))
        while piece := source.read(_CHUNK_BYTES):
            sha.update(piece)
            if target is not None:
                target.write(piece)
            progress(len(piece))
        if target is not None:
            target.flush()
            os.fsync(target.fileno())
    return sha.hexdigest()


def sum_progress(progress: BackupProgress, what: str, total: int) -> Callable[[int], None]:
    """Return a function that takes the size of each piece and reports the sum to `progress`."""
    done = 0

    def advance(size: int) -> None:
        nonlocal done
        done += size
        progress(what, done, total)

    return advance


def file_entries(folder: Path, progress: BackupProgress, what: str) -> dict[str, FileEntry]:
    """Return the entries of the files in a folder. Raises OSError."""
    advance = sum_progress(progress, what, sum((folder / name).stat().st_size for name in FILES))
    return {
        name: FileEntry(
            bytes=(folder / name).stat().st_size,
            sha256=digest(folder / name, advance),
            schema_version=SCHEMAS[name],
        )
        for name in FILES
    }


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest, the last act of a backup. When this returns, the backup is complete, even
    after a power loss. The caller has fsynced the files. Raises OSError."""
    raw = msgspec.json.encode(manifest)
    sealed = _SealedManifest(msgspec.Raw(raw), hashlib.sha256(raw).hexdigest())
    partial = folder / _PARTIAL
    handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(msgspec.json.encode(sealed))
        file.flush()
        os.fsync(file.fileno())
    sync_folder(folder)
    partial.rename(folder / MANIFEST_FILE)
    sync_folder(folder)
    sync_folder(folder.parent)


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a finished backup.

    Raises:
        BackupError: the manifest is missing or damaged, or of a newer program.
    """
    path = folder / MANIFEST_FILE
    try:
        sealed = msgspec.json.decode(path.read_bytes(), type=_SealedManifest)
        intact = hashlib.sha256(sealed.manifest).hexdigest() == sealed.sha256
        manifest = msgspec.json.decode(sealed.manifest, type=Manifest) if intact else None
    except FileNotFoundError:
        if any((folder / name).exists() for name in FILES):
            raise BackupError(
                f"{folder} has no {MANIFEST_FILE}, because this backup was not finished: use "
                "another one"
            ) from None
        raise BackupError(f"{folder} is not a backup, because it has no {MANIFEST_FILE}") from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        manifest = None
    except OSError as error:
        raise BackupError(f"{path} cannot be read: {error.strerror}") from None
    if manifest is None or not manifest.files.keys() >= set(FILES):
        raise BackupError(f"{path} is damaged: it does not match its checksum")
    newer = [name for name in FILES if manifest.files[name].schema_version > SCHEMAS[name]]
    if manifest.format > FORMAT or newer:
        raise BackupError(f"{folder} was made by a newer version of Tocsin: use that version")
    return manifest


def check_size(folder: Path, manifest: Manifest, name: str) -> None:
    """Check that a file of a backup exists and has the size in the manifest.

    Raises:
        BackupError: it cannot be read, or has another size.
    """
    try:
        size = (folder / name).stat().st_size
    except OSError as error:
        raise BackupError(f"{folder / name} cannot be read: {error.strerror}") from None
    if size != manifest.files[name].bytes:
        raise BackupError(
            f"{folder / name} is damaged: it has {size} bytes instead of "
            f"{manifest.files[name].bytes}"
        )


class Backups:
    """Make backups of the files of this broker on this machine, one at a time."""

    def __init__(self, metadata: CatalogService, storage: SqliteStorage) -> None:
        self._metadata = metadata
        self._storage = storage
        self._under_way: asyncio.Task[Manifest] | None = None

    async def make(self, folder: Path, progress: BackupProgress) -> dict[str, object]:
        """Make a backup in this folder, and return its manifest. The backup is complete and durable
        when this returns. If it is cancelled or raises, its files are removed.

        Raises:
            Refused: invalid_request, if the folder's path is relative, the folder is not empty or
                cannot be made, or a backup is under way; storage_full or storage_unavailable, if
                it failed.
        """
        if self._under_way is not None:
            raise Refused("invalid_request", "another backup is under way: wait until it ends")
        if not folder.is_absolute():
            raise Refused("invalid_request", "the folder's path must be absolute")
        # A task of its own, which `close` can end while a caller waits for it.
        task = self._under_way = asyncio.create_task(self._make(folder, progress))
        task.add_done_callback(self._on_end)
        try:
            return {"folder": str(folder), **msgspec.to_builtins(await task)}
        except BaseException:
            task.cancel()
            await asyncio.wait((task,))
            raise

    def _on_end(self, _task: object) -> None:
        self._under_way = None

    async def close(self) -> None:
        """Break off the backup that is under way, if any."""
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
            # Not in a thread, because a second cancellation meanwhile would leave it undone.
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
        files = await asyncio.to_thread(file_entries, folder, progress, "summed up")
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
