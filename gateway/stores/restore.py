"""Check of a backup or a data folder at rest, and restoration of a backup (R30).

A restored data folder becomes usable when its catalog gets its final name. Until then the broker
refuses it, because it has a store without a catalog.
"""

import contextlib
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from gateway.models import BackupProgress
from gateway.stores.backup import (
    FILES,
    MANIFEST_FILE,
    BackupError,
    Manifest,
    check_size,
    digest,
    read_manifest,
    sum_progress,
)
from metadata.data_keys import DataKey
from metadata.port import STORAGE_INCARNATION
from metadata.sqlite.catalog import FILE as CATALOG_FILE
from metadata.sqlite.catalog import CatalogFile
from metadata.sqlite.verify import CatalogReport, verify_catalog
from push.errors import Refused
from push.storage_port import Sealer
from storage.sqlite.backup import RenewedStore, renew_store
from storage.sqlite.open import FILE as STORE_FILE
from storage.sqlite.open import lock_store, sync_folder
from storage.sqlite.verify import StoreReport, verify_store

LOCK_FILE: Final = str(Path(STORE_FILE).with_suffix(".lock"))
RAISED_BITS: Final = 22
"""Number of bits of the random number by which each restore raises the generations. Two restores of
one backup must differ, and a thousand restores one after another must fit into 32 bits."""
_RESTORING: Final = f"{CATALOG_FILE}.restoring"


# --- Verifying -----------------------------------------------------------------------------------


class VerifiedBackup(msgspec.Struct, kw_only=True):
    """Result of verifying a folder."""

    folder: str
    kind: str
    """Kind of the folder, `backup` or `data`."""
    findings: list[str]
    """A sentence for each damage; empty if there is none."""
    incarnation: str
    rows: dict[str, int]
    damaged: dict[str, int]
    """Number of damaged rows by table. Tables without damage are left out."""
    quarantined: int
    """Number of records and scheduled messages that the broker itself has found damaged and put
    aside. They are known, and no findings."""
    sealed: int
    """Number of records and scheduled messages whose payloads are sealed."""
    opened: bool
    """Whether sealed payloads were opened too, instead of only checking their checksums."""
    master_key_id: str
    """Id of the master key that wraps the newest data key; empty if there are no data keys."""
    began_unix_ms: int | None = None
    """Time at which the backup began; None for a data folder, or without a manifest."""


Opener = Callable[[Sequence[DataKey]], Sealer | None]
"""Function that is given the catalog's data keys, and returns a sealer that opens payloads under
them; None: their master key is not known."""


def verify(
    folder: Path, progress: BackupProgress, opener: Opener = lambda _: None
) -> VerifiedBackup:
    """Check a backup, or the data folder of a stopped broker. Changes nothing. Raises what `opener`
    raises, too.

    Raises:
        BackupError: the folder is neither, or a broker runs on it.
    """
    if not (folder / STORE_FILE).exists() and not (folder / MANIFEST_FILE).exists():
        raise BackupError(
            f"{folder} is neither a backup nor a data folder, because it has no {STORE_FILE}"
        )
    is_data = (folder / LOCK_FILE).exists()
    manifest = None
    findings: list[str] = []
    with _locked(folder) if is_data else contextlib.nullcontext():
        if not is_data:
            try:
                manifest = read_manifest(folder)
            except BackupError as error:
                findings.append(str(error))
        if manifest is not None:
            findings += _compare_to_manifest(folder, manifest, progress)
        catalog = verify_catalog(folder / CATALOG_FILE)
        sealer = opener(catalog.data_keys) if catalog.data_keys else None
        store = verify_store(
            folder / STORE_FILE, lambda done, total: progress("rows checked", done, total), sealer
        )
    findings += store.findings + catalog.findings + _cross_check(store, catalog, manifest)
    return VerifiedBackup(
        folder=str(folder),
        kind="data" if is_data else "backup",
        findings=findings,
        incarnation=store.incarnation,
        rows=store.rows | catalog.rows,
        damaged=store.damaged | catalog.damaged,
        quarantined=store.quarantined,
        sealed=store.sealed,
        opened=sealer is not None,
        master_key_id=_master_key_id(catalog.data_keys),
        began_unix_ms=manifest.began_unix_ms if manifest is not None else None,
    )


def _master_key_id(rows: Sequence[DataKey]) -> str:
    return max(rows, key=lambda row: row.created_unix_ms).master_key_id if rows else ""


def _compare_to_manifest(
    folder: Path, manifest: Manifest, progress: BackupProgress
) -> Iterator[str]:
    """Yield a sentence for each difference from the manifest."""
    advance = sum_progress(progress, "bytes checked", manifest.bytes)
    for name in FILES:
        try:
            check_size(folder, manifest, name)
            if digest(folder / name, advance) != manifest.files[name].sha256:
                yield f"{folder / name} is damaged: it does not match the manifest's checksum"
        except BackupError as error:
            yield str(error)
        except OSError as error:
            yield f"{folder / name} cannot be read: {error.strerror}"


def _cross_check(
    store: StoreReport, catalog: CatalogReport, manifest: Manifest | None
) -> list[str]:
    """Return a sentence for each contradiction between the files, if both could be read."""
    if not (store.schema_version and catalog.schema_version):
        return []
    findings = []
    if catalog.storage_incarnation != store.incarnation:
        findings.append(
            f"the catalog belongs to a store with the incarnation "
            f"{catalog.storage_incarnation or '?'}, but this one has {store.incarnation or '?'}"
        )
    if manifest is not None and manifest.incarnation != store.incarnation:
        findings.append(f"the manifest has another incarnation, {manifest.incarnation}")
    unknown = store.queue_ids - catalog.ids
    if unknown:
        findings.append(f"the store has {len(unknown)} queues that the catalog never knew")
    return findings


@contextlib.contextmanager
def _locked(data_dir: Path) -> Iterator[None]:
    """Keep brokers out of the data folder during the block. Raises BackupError."""
    try:
        lock = lock_store(data_dir / STORE_FILE)
    except Refused as error:
        raise BackupError(error.detail) from None
    except OSError as error:
        raise BackupError(f"{data_dir} cannot be used: {error.strerror}") from None
    try:
        yield
    finally:
        os.close(lock)


# --- Restoring -----------------------------------------------------------------------------------


class Restored(msgspec.Struct, kw_only=True):
    """Result of a restore."""

    data_dir: str
    backup: str
    incarnation: str
    """The new incarnation; `incarnation_before` is the backup's."""
    incarnation_before: str
    began_unix_ms: int
    """Time of the backup's beginning. Everything that was acknowledged before is restored."""
    queues: int
    damaged: int
    """Number of rows of partitions and cursors that were already damaged in the backup."""
    master_key_id: str
    """Id of the master key that wraps the newest data key of the backup; empty if it has none."""
    tokens: int
    """Number of tokens that are good again, including those that were revoked after the backup."""


def restore(backup: Path, data_dir: Path, progress: BackupProgress) -> Restored:
    """Make a data folder of a backup, with a new incarnation and with all generations raised.

    Raises:
        BackupError: the backup is damaged or was not finished, or the data folder is not empty or
            belongs to a running broker. Nothing of the backup is left in the data folder.
    """
    manifest = read_manifest(backup)
    for name in FILES:
        check_size(backup, manifest, name)
    if data_dir.exists():
        with _locked(data_dir) if (data_dir / LOCK_FILE).exists() else contextlib.nullcontext():
            _check_empty(data_dir)
    made = _make(data_dir)
    with _locked(data_dir):
        _check_empty(data_dir)  # another process may have used it in between
        with _undo_on_error(data_dir, made=made):
            _copy(backup, data_dir, manifest, progress)
    # From here on the missing catalog keeps a broker away, instead of the lock.
    with _undo_on_error(data_dir, made=made):
        return _renew(backup, data_dir, manifest)


def _check_empty(data_dir: Path) -> None:
    try:
        there = sorted({path.name for path in data_dir.iterdir()} - {LOCK_FILE})
    except OSError as error:
        raise BackupError(f"{data_dir} cannot be used: {error.strerror}") from None
    if there:
        more = ", …" if there[3:] else ""
        raise BackupError(
            f"{data_dir} is not empty ({', '.join(there[:3])}{more}). Restore into a folder of its "
            "own, or move these files away"
        )


def _make(data_dir: Path) -> bool:
    """Make the data folder. Returns whether it did not exist before."""
    made = not data_dir.exists()
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        sync_folder(data_dir.parent)
    except OSError as error:
        raise BackupError(f"{data_dir} cannot be made: {error.strerror}") from None
    return made


@contextlib.contextmanager
def _undo_on_error(data_dir: Path, *, made: bool) -> Iterator[None]:
    """Remove what the restore has put into the folder if the block fails, and the folder if it was
    `made`. The folder was empty, and no other process uses it."""
    try:
        yield
    except BaseException as error:
        for name in (STORE_FILE, _RESTORING):
            for suffix in ("", "-wal", "-shm"):
                (data_dir / f"{name}{suffix}").unlink(missing_ok=True)
        (data_dir / LOCK_FILE).unlink(missing_ok=True)
        if made:
            data_dir.rmdir()
        if isinstance(error, Refused):
            raise BackupError(f"the backup cannot be restored: {error.detail}") from error
        if isinstance(error, OSError):
            raise BackupError(f"the restore failed: {error}") from error
        raise


def _copy(backup: Path, data_dir: Path, manifest: Manifest, progress: BackupProgress) -> None:
    advance = sum_progress(progress, "restored", manifest.bytes)
    for name, target in ((STORE_FILE, STORE_FILE), (CATALOG_FILE, _RESTORING)):
        found = digest(backup / name, advance, copy_to=data_dir / target)
        if found != manifest.files[name].sha256:
            raise BackupError(
                f"{backup / name} is damaged: it does not match the manifest's checksum. "
                "`tocsin admin verify` says more"
            )


def _renew(backup: Path, data_dir: Path, manifest: Manifest) -> Restored:
    known = verify_catalog(data_dir / _RESTORING).ids
    catalog = CatalogFile(data_dir / _RESTORING)
    try:
        contents = catalog.load()
        partitions = {queue.queue_id: queue.settings.partitions for queue in contents.queues}
        renewed = renew_store(
            data_dir / STORE_FILE,
            raised_by=1 + secrets.randbelow(1 << RAISED_BITS),
            partitions=partitions,
        )
        if renewed.queue_ids - known:
            raise BackupError(
                f"{backup} is damaged: its store has queues that its catalog never knew"
            )
        groups = {group.group_id for group in contents.groups}
        catalog.drop_again(_dropped_meanwhile(renewed, set(partitions), groups))
        catalog.forget_memberships()
        catalog.set_mark(STORAGE_INCARNATION, renewed.incarnation)
    finally:
        catalog.close()
    sync_folder(data_dir)
    (data_dir / _RESTORING).rename(data_dir / CATALOG_FILE)
    sync_folder(data_dir)
    return Restored(
        data_dir=str(data_dir),
        backup=str(backup),
        incarnation=renewed.incarnation,
        incarnation_before=manifest.incarnation,
        began_unix_ms=manifest.began_unix_ms,
        queues=len(partitions),
        damaged=renewed.damaged,
        master_key_id=_master_key_id(contents.data_keys),
        tokens=len(contents.tokens),
    )


def _dropped_meanwhile(
    renewed: RenewedStore, queue_ids: set[str], group_ids: set[str]
) -> list[str]:
    """Return the ids of queues and groups that were deleted between the copy of the store and that
    of the catalog. The broker drops them from the store at its start."""
    groups = {
        group_id
        for queue_id, group_id in renewed.groups
        if queue_id in queue_ids and group_id not in group_ids
    }
    return sorted((renewed.queue_ids - queue_ids) | groups)
