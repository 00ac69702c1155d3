"""The port between the storage on Redis or Valkey and its connections.

The storage (which keys, which acts) knows a `Shard` and no socket; the connections know functions,
levels and answers, and no key but the few of the shard itself.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from push.histogram import Took
from push.places import Durability
from push.storage_port import Lane

Arg = str | bytes | int
"""An argument of a function, as Redis gets it: text as UTF-8, a whole number in decimal."""

OnMessage = Callable[[bytes, bytes], None]
"""Called on the event loop with (channel, message)."""


@dataclass(frozen=True, slots=True)
class ShardHealth:
    """State of the servers. `waits_for`: a sentence for each primary where the level `all` is not
    met; `facts`: facts about each primary, by its shard's key."""

    waits_for: tuple[str, ...]
    facts: dict[str, str]
    took: tuple[Took, ...] = ()


class Shard(Protocol):
    """A primary with its replicas. Calls may overlap; acts of one level take effect in the order
    of the calls. Text in answers is `bytes`, as Redis gave it."""

    def copies(self, level: Durability) -> int:
        """Return how many servers have what an act of this level has written when it is
        answered."""

    def lane(self, key: str, level: Durability) -> Lane:
        """Return the present lane of acts of this level on this key. Its doubts grow whenever a
        group of acts has failed there, before any caller learns of it."""

    def act(
        self,
        function: str,
        keys: Sequence[str],
        args: Sequence[Arg],
        *,
        level: Durability,
        lane: Lane | None = None,
    ) -> Awaitable[Any]:
        """Execute one FCALL on the held connection of its level, in a group commit. It is handed
        over when this returns. The awaitable has its answer once WAIT has counted the copies that
        the level requires. `lane`: the lane when this was decided. If it is another one by now, or
        has failed since, the act is refused, because acts before it may not have happened (R7). Nor
        does it happen if one before it, of the same first argument (a partition) and also with a
        lane, did not, even if it is requested before that is known.

        Every act must write, whatever it finds. From Redis 7.2 on, a WAIT after one that wrote
        nothing counts copies of something older (R9).

        What the awaitable raises:
            Unknown: it may have happened, and fewer copies may have it than the level requires.
            Refused: it did not happen, and why: the function's reason (`TOCSIN <code> <detail>`),
                `storage_full`, `storage_unavailable`.
            Fenced: the function said `TOCSIN fenced <detail>`; it did not happen.
        """

    async def look(self, function: str, keys: Sequence[str], args: Sequence[Arg]) -> Any:
        """Execute one FCALL_RO on a pooled connection; waits for no copies.

        Raises:
            Refused: the function's reason, or `storage_unavailable`.
            Fenced: the function said `TOCSIN fenced <detail>`.
        """

    def on_message(self, channel_prefix: str, heard: OnMessage) -> None:
        """Have `heard` called for each message published on a channel that begins with
        `channel_prefix`. Messages may be lost, at a reconnect or without, so each is only a hint to
        look."""

    def has_room(self, key: str | None = None) -> bool:
        """Whether the primary that has this key has free memory above the reserve (R29); without a
        key, whether all primaries have. The result is that of the last look; no server is
        queried."""

    def health(self) -> ShardHealth:
        """Return the state of the servers, for people. The result is that of the last look; no
        server is queried."""

    async def close(self) -> None:
        """Finish what was accepted, then close. Calls after it raise Refused."""
