"""What the catalog on Redis asks of its connections: as `storage.redis.redis_ports.Shard`, said
here too because storage and metadata do not know each other."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from push.places import Durability

Arg = str | bytes | int
"""An argument of a function."""


class Shard(Protocol):
    """One primary with its replicas. Text in answers is `bytes`."""

    async def act(
        self, function: str, keys: Sequence[str], args: Sequence[Arg], *, level: Durability
    ) -> Any:
        """One function that writes; its answer once as many copies have it as the level asks for.
        Raises Unknown: it may have happened; Refused: it did not."""

    async def look(self, function: str, keys: Sequence[str], args: Sequence[Arg]) -> Any:
        """One function that only reads, perhaps from a primary of before. Raises Refused."""

    def on_message(self, channel_prefix: str, heard: Callable[[bytes, bytes], None]) -> None:
        """Have `heard` called on the event loop with (channel, message); some may be lost."""
