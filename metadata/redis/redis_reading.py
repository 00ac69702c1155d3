"""Reading the catalog on Redis: all of it at the start, what has changed afterwards.

What is read here may be on fewer copies than it must be, and then go again with its server: so
nothing is believed before a write behind it has been counted on all copies (`catalog_confirm`).
"""

from typing import Final

from metadata.databases import NOWHERE, Lost, Place, Raw, Reading
from metadata.redis.redis_rows import KEYS, key_of, raw_rows
from metadata.redis.shards import Arg, Shard
from metadata.rows import FOLLOWED
from push.errors import Refused, Unknown

PAGE_ROWS: Final = 1000
READ_AGAIN_MAX: Final = 10
"""So often all rows are read anew because more changed meanwhile than the stream keeps."""


async def read_since(shard: Shard, seen: Place) -> Reading | None:
    """What has changed since; on all copies that could be elected. None: nothing has.

    Raises:
        Lost: what was seen is no longer part of the catalog, or there is none.
        Refused: storage_unavailable: nobody answers, or too few copies have it; ask again.
    """
    raw: Raw = {}
    is_all = False
    at = seen
    for _ in range(READ_AGAIN_MAX):
        answer = await shard.look("catalog_since", KEYS, [at.version, at.stamp])
        kind = bytes(answer[4])
        if answer[0] is None or kind == b"other" or _is_other(seen, answer[0]):
            await _check_lost(shard, seen, is_empty=answer[0] is None)
            raise Refused("storage_unavailable", "the primary of the catalog is being replaced")
        at = Place(answer[0].decode(), int(answer[1]), answer[2].decode())
        secret = bytes(answer[3])
        if kind == b"all":
            raw, is_all = await _all_rows(shard), True
            continue  # with what has changed meanwhile
        if kind == b"same" and at == seen:
            return None
        for name, rows in raw_rows(answer[5]).items():
            raw.setdefault(name, {}).update(rows)
        if await _confirm(shard, at) != 1:
            raise Refused("storage_unavailable", "the primary of the catalog is being replaced")
        return Reading(at, raw, is_all, secret)
    raise Refused("storage_unavailable", "the catalog changes faster than it can be read")


def _is_other(seen: Place, incarnation: bytes) -> bool:
    return seen != NOWHERE and seen.incarnation != incarnation.decode()


async def _confirm(shard: Shard, place: Place) -> int:
    args: list[Arg] = [place.incarnation, place.version, place.stamp]
    try:
        return int(await shard.act("catalog_confirm", KEYS, args, level="all"))
    except Unknown as error:  # about a touch: nothing is changed by it
        raise Refused("storage_unavailable", error.detail) from error


async def _check_lost(shard: Shard, seen: Place, *, is_empty: bool) -> None:
    """A look may have asked a primary of before; an act of level `all` cannot."""
    if seen == NOWHERE:
        if is_empty:
            raise Lost("there is no catalog; `{tocsin}:catalog` has no incarnation")
    elif await _confirm(shard, seen) == 0:
        raise Lost(
            f"it is not the catalog that was followed here, or an older copy of it: version "
            f"{seen.version} of the incarnation {seen.incarnation} is not part of it (any more)"
        )


async def _all_rows(shard: Shard) -> Raw:
    raw: Raw = {}
    for kind in FOLLOWED:
        rows: dict[str, bytes | None] = {}
        cursor: str | bytes = "0"
        while True:
            answer = await shard.look("catalog_rows", [key_of(kind)], [cursor, PAGE_ROWS])
            cursor, flat = bytes(answer[0]), answer[1]
            rows.update((flat[i].decode(), flat[i + 1]) for i in range(0, len(flat), 2))
            if cursor == b"0":
                break
        raw[kind] = rows
    return raw
