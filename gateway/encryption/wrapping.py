"""How data keys are wrapped under a master key, and opened again. What is wrapped is bound to its
id and to its master key's: none passes for another."""

import os
from collections.abc import Callable, Sequence

from gateway.encryption.encryption import DATA_KEY_BYTES, RecordSealer
from gateway.encryption.key_file import default_master_key_file
from gateway.encryption.master_key import MasterKey, MasterKeySettings, Source, find_source
from metadata.data_keys import DataKey
from push.errors import Refused
from push.record import RecordDamaged


def _bound(key_id: bytes, master_key_id: str) -> bytes:
    return b"tocsin data key\0" + key_id + master_key_id.encode()


def wrap(master: MasterKey, key_id: bytes, key: bytes, created_unix_ms: int) -> DataKey:
    """A row of the catalog. Raises whatever a key management service raises."""
    wrapped = master.wrap(key, _bound(key_id, master.key_id))
    return DataKey(
        key_id=key_id,
        master_key_id=master.key_id,
        created_unix_ms=created_unix_ms,
        wrapped=wrapped,
    )


def unwrap(row: DataKey, master: MasterKey) -> bytes:
    """Raises ValueError: it is not wrapped under this one; Refused: nobody can say."""
    try:
        return master.unwrap(row.wrapped, _bound(row.key_id, row.master_key_id))
    except ValueError:
        raise
    except Exception as error:  # a key management service that does not answer
        raise Refused(
            "storage_unavailable",
            f"the master key {row.master_key_id} cannot be asked ({type(error).__name__}: {error})",
        ) from error


def rewrapped(rows: Sequence[DataKey], source: Source, key: MasterKey) -> list[DataKey]:
    """The rows, wrapped under `key`. Raises Refused(storage_unavailable): one cannot be."""
    fresh = []
    for row in rows:
        old = source.find(row.master_key_id)
        try:
            plain = unwrap(row, old) if old is not None else b""
            new = wrap(key, row.key_id, plain, row.created_unix_ms)
            is_right = len(plain) == DATA_KEY_BYTES and unwrap(new, key) == plain
        except ValueError:
            is_right = False
        if not is_right:
            raise Refused(
                "storage_unavailable",
                f"the data key {row.key_id.hex()} cannot be wrapped anew: nothing was changed",
            )
        fresh.append(new)
    return fresh


def open_key(row: DataKey | None, key_id: bytes, source: Source) -> bytes:
    """The data key of this id, of which the catalog has this row. Raises as
    `push.sealing.Sealer.unseal` does."""
    if row is None:
        raise RecordDamaged(f"its data key {key_id.hex()} is not known")
    master = source.find(row.master_key_id)
    try:
        key = unwrap(row, master) if master is not None else b""
    except ValueError:
        key = b""
    if len(key) != DATA_KEY_BYTES:
        raise RecordDamaged(f"its data key {key_id.hex()} does not unwrap")
    return key


def check_master_key(rows: Sequence[DataKey], source: Source) -> None:
    """That this master key opens the catalog's data keys: with a wrong one, every record would be
    taken for damaged.

    Raises:
        Refused: storage_unavailable: it is another one, or cannot be asked.
    """
    newest = max(rows, key=lambda row: row.created_unix_ms)
    master = source.find(newest.master_key_id)
    try:
        if master is not None and len(unwrap(newest, master)) == DATA_KEY_BYTES:
            return
    except ValueError:
        pass
    raise Refused(
        "storage_unavailable",
        f"the data is sealed under the master key {newest.master_key_id}, and {source} is another "
        "one: give the right one with TOCSIN_MASTER_KEY_FILE or TOCSIN_MASTER_KEY; nothing was "
        "changed",
    )


def opener(wanted: MasterKeySettings) -> Callable[[Sequence[DataKey]], RecordSealer | None]:
    """For files at rest: what opens payloads under the data keys of a catalog. None: no master key
    was named, and the one where it is looked for unless told otherwise is not there or another.

    It raises Refused(storage_unavailable): the master key that was named is not the right one.
    """
    default = default_master_key_file(os.environ)

    def opened(rows: Sequence[DataKey]) -> RecordSealer | None:
        kept = {row.key_id: row for row in rows}
        try:
            source = find_source(wanted, default, may_generate=False)
            check_master_key(rows, source)
        except Refused:
            if wanted.is_named:
                raise
            return None
        return RecordSealer(lambda key_id: open_key(kept.get(key_id), key_id, source))

    return opened
