"""The catalog's rows in Redis or Valkey, where several gateways share them.

Each change is one atomic compare-and-set on the version of the whole catalog, on every copy that
could be elected when it returns (the level `all`). Changes are rare; what changes often, the
members of groups, has rows of its own (`metadata.redis.redis_memberships`). Who changes something
says so on a channel, which may lose it: so all ask every `poll_s`, too.
"""

import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from metadata.databases import CHANGES_KEPT, NO_ROW, Place, Reading, RowHeld, Write
from metadata.redis.redis_memberships import RedisMemberships, beat
from metadata.redis.redis_reading import read_since
from metadata.redis.redis_rows import CHANGED, KEYS, NODE_BEATS, NODES_SAID, NUMBERS, key_of
from metadata.redis.shards import Arg, Shard
from metadata.rows import pack
from metadata.stores import MembershipRows, other_generation
from push.errors import Refused


class RedisDatabase:
    """`metadata.databases.Database` on a shard."""

    poll_s = 0.5
    """See Database. A change is known everywhere within a second, also when its notice was lost."""

    known_at = float("-inf")
    """See Database: a message may be lost."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard

    def on_changed(self, heard: Callable[[int], None]) -> None:
        """See Database."""

        def message(_channel: bytes, said: bytes) -> None:
            heard(int(said) if said.isdigit() else 0)

        self._shard.on_message(CHANGED, message)

    async def read(self, seen: Place) -> Reading | None:
        """See Database."""
        return await read_since(self._shard, seen)

    async def change(
        self, seen: Place, stamp: str, writes: Sequence[Write], row: RowHeld = NO_ROW
    ) -> bool:
        """See Database."""
        args: list[Arg] = [
            seen.incarnation, seen.version, seen.stamp, stamp, CHANGES_KEPT, CHANGED,
            NUMBERS["memberships"], *row,
        ]  # fmt: skip
        for kind, row_id, value in writes:
            args += [NUMBERS[kind], row_id, value]
        answer = await self._shard.act("catalog_change", KEYS, args, level="all")
        if answer == -1:
            raise other_generation(row[0])
        return bool(answer == 1)

    async def is_taken(self, any_id: str) -> bool:
        """See Database."""
        return await self._shard.look("catalog_row", [key_of("ids")], [any_id]) is not None

    def memberships(self) -> MembershipRows:
        """See Database."""
        return RedisMemberships(self._shard)

    async def beat_node(self, name: str, number: int, forget: Mapping[str, int]) -> dict[str, int]:
        """See NodeDatabase. Of the level `local`, as the beats of gateways."""
        return await beat(self._shard, (NODE_BEATS, NODES_SAID), name, number, forget)

    async def copy_to(self, path: Path) -> None:
        """See Database. Raises Refused(storage_unavailable) always: servers copy what they hold."""
        raise Refused(
            "storage_unavailable", "this catalog is on Redis: copy the files of its servers"
        )

    async def close(self) -> None:
        """See Database. The shard stays open."""


async def found_catalog(shard: Shard) -> None:
    """Make an empty catalog where there is none; else nothing happens. Raises Refused, Unknown."""
    secret = pack("catalog", "secret", secrets.token_bytes(32))
    args: list[Arg] = [secrets.token_hex(8), secrets.token_hex(8), secret]
    await shard.act("catalog_found", KEYS, args, level="all")
