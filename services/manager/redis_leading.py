"""The managers' row, and what the one that leads says of each cluster, in the catalog's Redis.

Of the level `local`: a dead replica must not keep a manager from dealing with it. A failover may
take the last writes back, and `services.manager.rules.leading` says what becomes of that.
"""

from collections.abc import Mapping
from typing import Final

from metadata.redis.redis_rows import TAG
from metadata.redis.shards import Arg, Shard
from services.manager.rules.leading import Lead

LEADER: Final = f"{TAG}:leader"
"""The hash: holder, term, beat."""
SAID: Final = f"{TAG}:clusters"
"""The hash cluster → what the leader says of it, JSON."""


class RedisLead:
    """The row that managers share, on the catalog's shard."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard

    async def ask(self, change: tuple[Lead, Lead] | None) -> Lead:
        """The row as it is now; with `change`, written before if it is as the first one says.
        Raises Refused, and Unknown: it may have been written."""
        args: list[Arg] = [word for row in change or () for word in row]
        holder, term, beat = await self._shard.act("lead", [LEADER], args, level="local")
        return Lead(bytes(holder or b"").decode(), int(term or 0), int(beat or 0))

    async def say(self, lead: Lead, said: Mapping[str, bytes]) -> bool:
        """Keep what is said of these clusters for `told`, if the leader of this term still has the
        row. Raises Refused, Unknown."""
        args: list[Arg] = [lead.holder, lead.term]
        for cluster, text in said.items():
            args += [cluster, text]
        return bool(await self._shard.act("lead_say", [LEADER, SAID], args, level="local"))

    async def told(self) -> dict[str, bytes]:
        """What was said last of each cluster, and `""` → the leader's name. Raises Refused."""
        holder, flat = await self._shard.look("lead_told", [LEADER, SAID], [])
        said = {flat[at].decode(): bytes(flat[at + 1]) for at in range(0, len(flat), 2)}
        return said | {"": bytes(holder or b"")}
