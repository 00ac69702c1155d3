"""The port between the storage on Redis or Valkey and its connections.

The storage (which keys, which acts) knows a `Shard` and no socket; the connections know functions,
levels and answers, and no key but the few of the shard itself.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from push.histogram import Took
from push.places import Durability
from push.storage_port import Lane

Arg = str | bytes | int
"""An argument of a function, as Redis is sent it: text as UTF-8, a whole number in decimal."""

OnMessage = Callable[[bytes, bytes], None]
"""Called on the event loop with (channel, message)."""


@dataclass(frozen=True, slots=True)
class ShardHealth:
    """How servers stand. `waits_for`: a sentence for each primary where the level `all` is not met;
    `facts`: what is to be said of each primary, by its shard's key."""

    waits_for: tuple[str, ...]
    facts: dict[str, str]
    took: tuple[Took, ...] = ()


class Shard(Protocol):
    """A primary with its replicas. Calls may overlap; acts of one level take effect in the order
    of the calls. Text in answers is `bytes`, as Redis gave it."""

    def copies(self, level: Durability) -> int:
        """How many servers have what an act of this level has written when it is answered."""

    def lane(self, key: str, level: Durability) -> Lane:
        """Where acts of this level on this key go, now. Its doubts grow whenever a group of acts
        has failed there, before anybody hears of it."""

    async def act(
        self,
        function: str,
        keys: Sequence[str],
        args: Sequence[Arg],
        *,
        level: Durability,
        lane: Lane | None = None,
    ) -> Any:
        """Execute one FCALL on the held connection of its level, in a group commit; its answer once
        WAIT has counted the copies that the level asks for. With `lane`, as it was when this was
        decided: it is refused where that is another one by now, or has failed since, because what
        it was to come behind may not have happened (R7). Nor does it happen where one before it, of
        the same first argument (a partition) and also with a lane, did not, though it is asked for
        before that is known.

        Every act must write, whatever it finds: from Redis 7.2 on, a WAIT behind one that wrote
        nothing counts copies of something older (R9).

        Raises:
            Unknown: it may have happened, and fewer copies may have it than the level asks for.
            Refused: it did not happen, and why: what the function said (`TOCSIN <code> <detail>`),
                `storage_full`, `storage_unavailable`.
            Fenced: the function said `TOCSIN fenced <detail>`; it did not happen.
        """

    async def look(self, function: str, keys: Sequence[str], args: Sequence[Arg]) -> Any:
        """Execute one FCALL_RO on a pooled connection; waits for no copies.

        Raises:
            Refused: what the function said, or `storage_unavailable`.
            Fenced: the function said `TOCSIN fenced <detail>`.
        """

    def on_message(self, channel_prefix: str, heard: OnMessage) -> None:
        """Have `heard` called for each message published on a channel that begins with
        `channel_prefix`. Messages may be lost, at a reconnect or without: it is a hint to look."""

    def has_room(self, key: str | None = None) -> bool:
        """Whether the memory that is free there is above the reserve (R29); without a key, whether
        it is everywhere. As it was seen last; nobody is asked."""

    def health(self) -> ShardHealth:
        """How the servers stand, for people. As it was seen last; nobody is asked."""

    async def close(self) -> None:
        """Finish what was accepted, then close. Calls after it raise Refused."""
