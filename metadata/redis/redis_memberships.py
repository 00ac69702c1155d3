"""The groups' rows where several gateways share a catalog: one compare-and-set each (R14), apart
from the catalog's own changes. They outlive every gateway."""

import logging
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from metadata.catalog import Membership
from metadata.redis.redis_rows import BEATS, MEMBERS_CHANGED, SAID, STATE, key_of
from metadata.redis.shards import Arg, Shard
from metadata.rows import Damaged, pack_struct, read_struct
from push.errors import Refused
from push.places import Durability

_LOG: Final = logging.getLogger("metadata.redis_memberships")
_KIND: Final = "memberships"
_KEYS: Final = (key_of(_KIND), key_of("groups"), STATE)


class RedisMemberships:
    """`metadata.stores.MembershipRows` on a shard."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard

    async def get(self, group_id: str) -> Membership:
        """See MembershipRows; on all copies that could be elected. Nobody has changed it yet:
        generation 0. A damaged one is without members, and the next change mends it. Raises
        Unknown: too few copies have it."""
        return await self._read(group_id, "all")

    async def glance(self, group_id: str) -> Membership:
        """See MembershipRows. Of the level `local`: what was confirmed is on every copy that could
        be elected, whichever one this is."""
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
        """See MembershipRows. Raises Unknown: it may have happened; Refused(group_not_found)."""
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
        """See MembershipRows. Of the level `local`: a number that a failover takes back moves, too,
        and a dead replica must not make gateways look gone."""
        return await beat(self._shard, (BEATS, SAID), gateway, number, forget, says=says)

    async def said(self) -> dict[str, str]:
        """See MembershipRows."""
        flat = await self._shard.look("catalog_said", [BEATS, SAID], [])
        return {flat[i].decode(): flat[i + 1].decode() for i in range(0, len(flat), 2)}

    def on_changed(self, listener: Callable[[str, int], None]) -> None:
        """See MembershipRows."""

        def heard(_channel: bytes, message: bytes) -> None:
            group_id, _, generation = message.decode().partition(" ")
            listener(group_id, int(generation))

        self._shard.on_message(MEMBERS_CHANGED, heard)

    def dropped(self, group_id: str) -> None:
        """See MembershipRows: it went with the group."""


async def beat(
    shard: Shard,
    keys: tuple[str, str],
    name: str,
    number: int,
    forget: Mapping[str, int],
    *,
    says: str = "",
) -> dict[str, int]:
    """Say in these hashes (of numbers, and of what is said with them) that somebody is there, and
    hear all numbers. Raises Refused, Unknown."""
    args: list[Arg] = [name, number, says]
    for other, stands_at in forget.items():
        args += [other, stands_at]
    flat = await shard.act("catalog_beat", keys, args, level="local")
    return {flat[i].decode(): int(flat[i + 1]) for i in range(0, len(flat), 2)}
