"""Master keys where several gateways share a catalog: no step may leave data that one alone can
read.

    given       a master key is never made at a start: each gateway would make its own
    in use      is the one that the catalog's data keys are wrapped under. The order in a file or in
                the environment counts nowhere: gateways that disagree about it would wrap them to
                and fro
    reported    each gateway says with its beats which master keys its next start would find;
                a new one is used when every gateway that is there has it
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
    "several gateways may share this catalog, and each would make a master key of its own: give "
    "all of them the same one, in TOCSIN_MASTER_KEY or in a file that TOCSIN_MASTER_KEY_FILE names "
    "(32 bytes as hex or base64, as `openssl rand -hex 32` prints them), and keep a copy elsewhere"
)
GIVE_NEW = (
    "several gateways may share this catalog: put the new master key behind the one in use into "
    "the file of each gateway (or into TOCSIN_MASTER_KEY, with a comma, and restart it), then name "
    "it with --new-key-file"
)


class MasterKeyReport(msgspec.Struct, frozen=True, kw_only=True):
    """Report of a gateway about its master keys: ids, never a key."""

    ids: list[str]
    provider: str
    """The factory of a key management service, which knows its former keys; "": it has none."""
    where: str
    """Host and place of the keys, for people."""


def report_of(source: Source | None) -> str:
    """Return the `MasterKeyReport` of what a start would find now. None: it would find none."""
    if source is None:
        report = MasterKeyReport(ids=[], provider="", where=socket.gethostname())
    else:
        ids = [key.key_id for key in (source.current, *source.former)]
        where = f"{socket.gethostname()}: {source.path or source.kind}"
        report = MasterKeyReport(ids=ids, provider=source.provider, where=where)
    return msgspec.json.encode(report).decode()


def gateways_without(reports: Mapping[str, str], key: MasterKey, provider: str) -> list[str]:
    """Return the gateways, for people, that could not open what is wrapped under this key: they
    have neither it nor its provider, or do not say so (an earlier version, or one that seals
    nothing)."""
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
    """Check that every gateway has a master key. Raises Refused(invalid_request): one that is there
    does not have it."""
    found = gateways_without(reports, key, provider)
    if found:
        raise Refused(
            "invalid_request",
            f"nothing was changed: the master key {key.key_id} is not known to {'; '.join(found)}. "
            "Give it to them first, behind the one in use: a file is read again every few seconds, "
            "the environment at a start",
        )


def in_use(rows: Iterable[DataKey], source: Source) -> MasterKey:
    """Return the master key that these data keys are wrapped under, of those that are here; without
    data keys the first one. Of several, as one of an earlier version may have left them, the first.

    Raises Refused(storage_unavailable): none of them is here."""
    if source.kind == "provider":
        return source.current
    ids = {row.master_key_id for row in rows}
    for key in (source.current, *source.former):
        if not ids or key.key_id in ids:
            return key
    raise Refused(
        "storage_unavailable",
        f"the data keys are wrapped under the master key {', '.join(sorted(ids))}, which {source} "
        "does not have: give it to this gateway, too",
    )


def with_current(source: Source, key: MasterKey) -> Source:
    """Return the same keys, with this one in use."""
    former = [one for one in (source.current, *source.former) if one.key_id != key.key_id]
    return replace(source, current=key, former=former)


def with_found(source: Source, found: Source) -> Source:
    """Return the keys that are known here with those that a start would find now: none is forgotten
    that may still be needed to open something."""
    known = {key.key_id for key in (source.current, *source.former)}
    new = [key for key in (found.current, *found.former) if key.key_id not in known]
    return replace(source, former=[*source.former, *new])


def covers(rows: Sequence[DataKey], known: Sequence[DataKey]) -> bool:
    """Whether all known data keys are among these rows, whatever they are wrapped under."""
    return {row.key_id for row in known} <= {row.key_id for row in rows}
