"""Master keys of several gateways that share a catalog. No step may leave data that only one of
them can read.

    given       a master key is never made at a start, because each gateway would make its own
    in use      the master key under which the catalog's data keys are wrapped. The order of keys in
                a file or in the environment does not count, because gateways that disagree about it
                would wrap the data keys to and fro
    reported    each gateway reports with its beats which master keys its next start would find; a
                new key is used only when every running gateway has it
"""

import logging
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import msgspec

from gateway.encryption.master_key import MasterKey, Source
from metadata.data_keys import DataKey
from push.errors import Refused

logger = logging.getLogger("tocsin.encryption")

GIVE_ONE = (
    "several gateways may share this catalog, so none of them makes a master key. Give all of them "
    "the same one, in TOCSIN_MASTER_KEY or in a file that TOCSIN_MASTER_KEY_FILE names (32 bytes "
    "as hex or base64, such as the output of `openssl rand -hex 32`), and keep a copy elsewhere"
)
GIVE_NEW = (
    "several gateways may share this catalog. Put the new master key behind the one in use into "
    "the file of each gateway (or into TOCSIN_MASTER_KEY, after a comma, and restart it). Then "
    "name it with --new-key-file"
)


class MasterKeyReport(msgspec.Struct, frozen=True, kw_only=True):
    """Report of a gateway about its master keys. It contains ids, never a key."""

    ids: list[str]
    provider: str
    """The factory of a key management service, which knows its former keys; "": there is none."""
    where: str
    """Host and place of the keys, for people."""


def report_of(source: Source | None) -> str:
    """Return the `MasterKeyReport` about the source that a start would find now. `source` None: it
    would find no key."""
    if source is None:
        report = MasterKeyReport(ids=[], provider="", where=socket.gethostname())
    else:
        ids = [key.key_id for key in (source.current, *source.former)]
        where = f"{socket.gethostname()}: {source.path or source.kind}"
        report = MasterKeyReport(ids=ids, provider=source.provider, where=where)
    return msgspec.json.encode(report).decode()


def gateways_without(reports: Mapping[str, str], key: MasterKey, provider: str) -> list[str]:
    """Return the gateways that could not open data keys under this master key, for people. They
    have neither the key nor its provider, or do not report it (an earlier version, or one that
    seals nothing)."""
    found = []
    for gateway, text in sorted(reports.items()):
        try:
            one = msgspec.json.decode(text, type=MasterKeyReport)
        except msgspec.DecodeError:
            found.append(gateway)
            continue
        has_it = one.provider == provider if provider else key.key_id in one.ids
        if not has_it:
            found.append(f"{gateway} ({one.where})")
    return found


def check_known_to_all(reports: Mapping[str, str], key: MasterKey, provider: str) -> None:
    """Check that every gateway has a master key. Raises Refused(invalid_request) if a running one
    does not have it."""
    found = gateways_without(reports, key, provider)
    if found:
        raise Refused(
            "invalid_request",
            f"nothing was changed, because these gateways do not have the master key {key.key_id}: "
            f"{'; '.join(found)}. First give it to them, behind the one in use. A file is read "
            "every few seconds, the environment at a start",
        )


def in_use(rows: Iterable[DataKey], source: Source) -> MasterKey:
    """Return the master key under which these data keys are wrapped; without data keys the first
    one of the source. An earlier version may have left data keys under several master keys; then it
    is the first of these in the source.

    Raises:
        Refused: storage_unavailable, if the source has none of them.
    """
    if source.kind == "provider":
        return source.current
    ids = {row.master_key_id for row in rows}
    for key in (source.current, *source.former):
        if not ids or key.key_id in ids:
            return key
    raise Refused(
        "storage_unavailable",
        f"the data keys are wrapped under the master key {', '.join(sorted(ids))}, which {source} "
        "does not have. Give it to this gateway too",
    )


def with_current(source: Source, key: MasterKey) -> Source:
    """Return the source's keys with this one in use, and all others as former ones."""
    former = [one for one in (source.current, *source.former) if one.key_id != key.key_id]
    return replace(source, current=key, former=former)


def with_found(source: Source, found: Source) -> Source:
    """Return the keys that are known here, and those that a start would find now. None is
    forgotten, because it may still be needed to open a data key."""
    known = {key.key_id for key in (source.current, *source.former)}
    new = [key for key in (found.current, *found.former) if key.key_id not in known]
    return replace(source, former=[*source.former, *new])


def covers(rows: Sequence[DataKey], known: Sequence[DataKey]) -> bool:
    """Whether all known data keys are among these rows, under any master key."""
    return {row.key_id for row in known} <= {row.key_id for row in rows}
