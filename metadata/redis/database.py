"""The catalog's rows in Redis or Valkey, where several gateways share them.

Each change is one atomic compare-and-set on the version of the whole catalog. When it returns, the
change is on every copy that could be elected (the level `all`). A channel announces each change,
and may lose the notice, so all gateways also poll every `poll_s`. A read may return what is on too
few copies, and what a failover then loses. So it is not used before a later write has been counted
on all copies (`catalog_confirm`).

Changes are rare. The members of groups change often, so each of their rows has a compare-and-set of
its own (R14), apart from the catalog's version. These rows outlive every gateway.

All keys have one hash tag, so that one function can change them together:

    {tocsin}:catalog       hash: incarnation, version, stamp of the last change, secret, touches
    {tocsin}:changes       stream: which rows each of the last changes has written
    {tocsin}:queues …      a hash for each kind of row: id → value

`CatalogShard` repeats the part of `storage.redis.port.Shard` that is used here, because storage and
metadata do not know each other.
"""

import logging
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from metadata.backend import (
    CHANGES_KEPT,
    NO_CONDITION,
    NOWHERE,
    CatalogPlace,
    CatalogRows,
    Lost,
    MembershipRows,
    Raw,
    RowCondition,
    Write,
    other_generation,
)
from metadata.catalog import Membership
from metadata.row_store import FOLLOWED, KINDS, Damaged, pack, pack_struct, read_struct
from push.errors import Refused, Unknown
from push.places import Durability

TAG: Final = "{tocsin}"
STATE: Final = f"{TAG}:catalog"
CHANGES: Final = f"{TAG}:changes"
CHANGED: Final = f"{TAG}:changed"
"""The channel that carries the version after each change."""
MEMBERS_CHANGED: Final = f"{TAG}:members-changed"
"""The channel that carries group id and generation after each change of a membership."""
BEATS: Final = f"{TAG}:beats"
"""Key of the hash gateway → its number (heartbeats)."""
SAID: Final = f"{TAG}:said"
"""Key of the hash gateway → the text that it sends with its beats."""
NODE_BEATS: Final = f"{TAG}:node-beats"
"""Key of the hash node of the metadata service → its number (heartbeats)."""
NODES_SAID: Final = f"{TAG}:nodes-said"
"""Key of the hash node → its text, which is always empty, because nodes' names say everything."""
KEYS: Final = (STATE, CHANGES, *(f"{TAG}:{kind}" for kind in KINDS))
"""The keys that the functions of the catalog get, in their order."""
NUMBERS: Final = {kind: KEYS.index(f"{TAG}:{kind}") + 1 for kind in KINDS}
"""Kind → number of its hash among the keys, from 1 as Lua counts."""
_KIND_OF: Final = {number: kind for kind, number in NUMBERS.items()}


def key_of(kind: str) -> str:
    """Return the key of the hash that holds rows of this kind."""
    return f"{TAG}:{kind}"


def raw_rows(answer: Iterable[Any]) -> Raw:
    """Decode the rows in an answer of catalog_since."""
    raw: Raw = {kind: {} for kind in KINDS}
    for number, row_id, value in answer:
        raw[_KIND_OF[int(number)]][row_id.decode()] = value or None
    return raw


Arg = str | bytes | int
"""An argument of a function."""


class CatalogShard(Protocol):
    """A primary with its replicas. Text in answers is `bytes`."""

    def act(
        self, function: str, keys: Sequence[str], args: Sequence[Arg], *, level: Durability
    ) -> Awaitable[Any]:
        """Call a function that writes. The awaitable has its answer once the number of copies that
        the level demands have it. It raises Unknown when that may have happened, and Refused when
        it did not."""

    async def look(self, function: str, keys: Sequence[str], args: Sequence[Arg]) -> Any:
        """Call a function that only reads, perhaps at a former primary. Raises Refused."""

    def on_message(self, channel_prefix: str, heard: Callable[[bytes, bytes], None]) -> None:
        """Have `heard` called on the event loop with (channel, message); some may be lost."""


_LOG: Final = logging.getLogger("metadata.redis_memberships")
_KIND: Final = "memberships"
_KEYS: Final = (key_of(_KIND), key_of("groups"), STATE)


class RedisMemberships:
    """`metadata.backend.MembershipRows` on a shard."""

    def __init__(self, shard: CatalogShard) -> None:
        self._shard = shard

    async def get(self, group_id: str) -> Membership:
        """Return the row once all copies that could be elected have it. A row that nobody has
        changed yet has no members and the generation 0. A damaged row is returned without members
        and assignment, and the next change mends it; if not even its generation can be read, raises
        Refused(storage_unavailable). Raises Unknown when too few copies answer in time."""
        return await self._read(group_id, "all")

    async def glance(self, group_id: str) -> Membership:
        """Return the row as the primary has it, without waiting for replicas (level `local`). Every
        copy that could be elected has what was confirmed, so it does not matter which one is the
        primary."""
        return await self._read(group_id, "local")

    async def _read(self, group_id: str, level: Durability) -> Membership:
        value = await self._shard.act("catalog_member", _KEYS, [group_id], level=level)
        row = Membership(group_id=group_id, generation=0, members=(), assignment={})
        if value is None:
            return row
        generation, _, content = bytes(value).partition(b" ")
        try:
            return read_struct(_KIND, f"{group_id}:{generation.decode()}", content, Membership)
        except (Damaged, UnicodeDecodeError) as error:
            if not generation.isdigit():
                raise Refused(
                    "storage_unavailable", f"the members of {group_id}: {error}"
                ) from None
            _LOG.error("the members of group %s are forgotten: %s", group_id, error)
            return msgspec.structs.replace(row, generation=int(generation))

    async def change(self, new: Membership, *, expected_generation: int) -> bool:
        """Change the row. Raises Unknown when it may have happened; Refused(group_not_found)."""
        value = pack_struct(_KIND, f"{new.group_id}:{new.generation}", new)
        args: list[Arg] = [
            new.group_id,
            expected_generation,
            new.generation,
            value,
            MEMBERS_CHANGED,
        ]
        answer = await self._shard.act("catalog_membership", _KEYS, args, level="all")
        if answer == -1:
            raise Refused("group_not_found", f"no group of the id {new.group_id!r}")
        return bool(answer == 1)

    async def beat(
        self, gateway: str, number: int, forget: Mapping[str, int], says: str = ""
    ) -> dict[str, int]:
        """Beat without waiting for replicas (level `local`), because a dead replica must not make
        gateways look gone. A number that a failover takes back has changed, too."""
        return await beat(self._shard, (BEATS, SAID), gateway, number, forget, says=says)

    async def said(self) -> dict[str, str]:
        flat = await self._shard.look("catalog_said", [BEATS, SAID], [])
        return {flat[i].decode(): flat[i + 1].decode() for i in range(0, len(flat), 2)}

    def on_changed(self, listener: Callable[[str, int], None]) -> None:
        def heard(_channel: bytes, message: bytes) -> None:
            group_id, _, generation = message.decode().partition(" ")
            listener(group_id, int(generation))

        self._shard.on_message(MEMBERS_CHANGED, heard)

    def dropped(self, group_id: str) -> None:
        """Do nothing, because the row was deleted with the group."""


async def beat(
    shard: CatalogShard,
    keys: tuple[str, str],
    name: str,
    number: int,
    forget: Mapping[str, int],
    *,
    says: str = "",
) -> dict[str, int]:
    """Write a beat into these hashes (of numbers, and of texts), and return all numbers. Raises
    Refused, Unknown."""
    args: list[Arg] = [name, number, says]
    for other, stands_at in forget.items():
        args += [other, stands_at]
    flat = await shard.act("catalog_beat", keys, args, level="local")
    return {flat[i].decode(): int(flat[i + 1]) for i in range(0, len(flat), 2)}


PAGE_ROWS: Final = 1000
READ_AGAIN_MAX: Final = 10
"""Number of tries to read the catalog, because meanwhile more may change than the stream keeps."""


async def read_since(shard: CatalogShard, seen: CatalogPlace) -> CatalogRows | None:
    """Return what has changed since `seen`, once it is on all copies that could be elected. None if
    nothing has.

    Raises:
        Lost: what was seen is no longer part of the catalog, or there is none.
        Refused: storage_unavailable when nobody answers, or too few copies have it; ask again.
    """
    raw: Raw = {}
    is_all = False
    at = seen
    for _ in range(READ_AGAIN_MAX):
        answer = await shard.look("catalog_since", KEYS, [at.version, at.stamp])
        incarnation, version, stamp, secret, kind, changed = answer
        if incarnation is None or kind == b"other" or _is_other(seen, incarnation):
            await _check_lost(shard, seen, is_empty=incarnation is None)
            raise Refused("storage_unavailable", "the primary of the catalog is being replaced")
        at = CatalogPlace(incarnation.decode(), int(version), stamp.decode())
        if kind == b"all":
            raw, is_all = await _all_rows(shard), True
            continue  # with what has changed meanwhile
        if kind == b"same" and at == seen:
            return None
        for name, rows in raw_rows(changed).items():
            raw.setdefault(name, {}).update(rows)
        if await _confirm(shard, at) != 1:
            raise Refused("storage_unavailable", "the primary of the catalog is being replaced")
        return CatalogRows(at, raw, is_all, bytes(secret))
    raise Refused("storage_unavailable", "the catalog changes faster than it can be read")


def _is_other(seen: CatalogPlace, incarnation: bytes) -> bool:
    return seen != NOWHERE and seen.incarnation != incarnation.decode()


async def _confirm(shard: CatalogShard, place: CatalogPlace) -> int:
    args: list[Arg] = [place.incarnation, place.version, place.stamp]
    try:
        return int(await shard.act("catalog_confirm", KEYS, args, level="all"))
    except Unknown as error:  # about a touch: nothing is changed by it
        raise Refused("storage_unavailable", error.detail) from error


async def _check_lost(shard: CatalogShard, seen: CatalogPlace, *, is_empty: bool) -> None:
    """Raise Lost if there is no catalog, or `seen` is no longer part of it. A look may have asked a
    former primary; an act of level `all` cannot."""
    if seen == NOWHERE:
        if is_empty:
            raise Lost("there is no catalog; `{tocsin}:catalog` has no incarnation")
    elif await _confirm(shard, seen) == 0:
        raise Lost(
            f"it is not the catalog that was followed here, or an older copy of it: version "
            f"{seen.version} of the incarnation {seen.incarnation} is not part of it (any more)"
        )


async def _all_rows(shard: CatalogShard) -> Raw:
    raw: Raw = {}
    for kind in FOLLOWED:
        rows: dict[str, bytes | None] = {}
        cursor: str | bytes = "0"
        while True:
            cursor, flat = await shard.look("catalog_rows", [key_of(kind)], [cursor, PAGE_ROWS])
            rows.update((flat[i].decode(), flat[i + 1]) for i in range(0, len(flat), 2))
            if cursor == b"0":
                break
        raw[kind] = rows
    return raw


class RedisDatabase:
    """`metadata.backend.Database` on a shard."""

    poll_s = 0.5
    """Seconds between reads without a notice. So a change is known everywhere within a second, also
    when its notice was lost."""

    known_at = float("-inf")
    """No time at all, because a notice may be lost."""

    def __init__(self, shard: CatalogShard) -> None:
        self._shard = shard

    def on_changed(self, heard: Callable[[int], None]) -> None:
        def message(_channel: bytes, said: bytes) -> None:
            heard(int(said) if said.isdigit() else 0)

        self._shard.on_message(CHANGED, message)

    async def read(self, seen: CatalogPlace) -> CatalogRows | None:
        return await read_since(self._shard, seen)

    async def change(
        self,
        seen: CatalogPlace,
        stamp: str,
        writes: Sequence[Write],
        row: RowCondition = NO_CONDITION,
    ) -> bool:
        args: list[Arg] = [
            seen.incarnation,
            seen.version,
            seen.stamp,
            stamp,
            CHANGES_KEPT,
            CHANGED,
            NUMBERS["memberships"],
            *row,
        ]
        for kind, row_id, value in writes:
            args += [NUMBERS[kind], row_id, value]
        answer = await self._shard.act("catalog_change", KEYS, args, level="all")
        if answer == -1:
            raise other_generation(row.group_id)
        return bool(answer == 1)

    async def is_taken(self, any_id: str) -> bool:
        return await self._shard.look("catalog_row", [key_of("ids")], [any_id]) is not None

    def memberships(self) -> MembershipRows:
        return RedisMemberships(self._shard)

    async def beat_node(self, name: str, number: int, forget: Mapping[str, int]) -> dict[str, int]:
        """Write the beat of a node without waiting for replicas, like that of a gateway."""
        return await beat(self._shard, (NODE_BEATS, NODES_SAID), name, number, forget)

    async def copy_to(self, path: Path) -> None:
        """Raise Refused(storage_unavailable) always, because servers copy their own files."""
        raise Refused(
            "storage_unavailable", "this catalog is on Redis: copy the files of its servers"
        )

    async def close(self) -> None:
        """Do nothing: the shard stays open."""


async def found_catalog(shard: CatalogShard) -> None:
    """Create an empty catalog if there is none; else nothing happens. Raises Refused, Unknown."""
    secret = pack("catalog", "secret", secrets.token_bytes(32))
    args: list[Arg] = [secrets.token_hex(8), secrets.token_hex(8), secret]
    await shard.act("catalog_found", KEYS, args, level="all")
