"""What is broken on purpose, so that the checker must turn red: the negative controls.

Each is planted in a gateway's process before it serves (`tests.chaos.gateway`), or set in the
store's nodes; the product has no switch for any of them.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gateway.delivery import group, presence
from services.manager.rules import election as electable
from storage.redis import connection as redis_link
from storage.redis import cursors as redis_cursors
from storage.redis import library as redis_library
from storage.redis import pipeline as redis_held
from storage.redis import shard as redis_shard
from storage.redis import target as redis_target
from tests.servers.layouts import Layout


@dataclass(frozen=True)
class Break:
    """`plant` breaks it in a gateway's process. `faults`: those that must bring it to light, and
    `shows`: as violations of these kinds, one of which must be found."""

    does: str
    plant: Callable[[], None]
    faults: Sequence[str]
    shows: frozenset[str]
    with_disks: bool = False
    serving: int = 1
    on_nodes: tuple[str, ...] = ()
    """What CONFIG SET is told, on every node."""
    forgets_nobody: bool = False
    """The operator has replicas that are gone not counted, and leaves them to be elected."""
    layout: Layout | None = None
    """Of the store that it is about; None: of any."""


def _unguarded() -> None:
    """Gateways do not remember how new the store was: else they refuse the older copy that comes
    back (R30), and nobody sees what it has lost."""
    redis_shard.RedisShard._on_confirmed = lambda *_: None  # type: ignore[method-assign]


def _wait_one() -> None:
    _unguarded()

    def copies_needed(level: str, replicas: int) -> int:
        return 0 if level == "local" else min(1, replicas)

    redis_held.copies_needed = copies_needed  # type: ignore[attr-defined]


def _wait_elsewhere() -> None:
    """WAIT and what follows it go over a connection that has written nothing."""
    _unguarded()
    wait = b"$4\r\nWAIT\r\n"
    ask = redis_link.Connection.ask
    # The store's own connections log in, those to Sentinels do not wait for copies.
    reach = redis_target.parse(os.environ["TOCSIN_STORAGE"]).reach

    async def elsewhere(
        self: redis_link.Connection, commands: Sequence[bytes], timeout_s: float
    ) -> list[Any]:
        place = next((n for n, one in enumerate(commands) if wait in one[:20]), len(commands))
        replies = await ask(self, commands[:place], timeout_s)
        if place < len(commands):
            other = await reach.link(self.address)
            try:
                replies += await ask(other, commands[place:], timeout_s)
            finally:
                await other.close()
        return replies

    redis_link.Connection.ask = elsewhere  # type: ignore[method-assign]


def _lua(old: str, new: str) -> Callable[[], None]:
    """Functions of the store with another text."""

    def plant() -> None:
        joined = redis_library.joined

        def changed(begin: str, *others: str) -> redis_library.Library:
            assert sum(fragment.count(old) for fragment in (begin, *others)) == 1, old
            return joined(begin, *(fragment.replace(old, new) for fragment in others))

        redis_library.joined = changed

    return plant


def _no_epoch_check() -> None:
    _lua(
        "if not row[1] or row[2] == '' or row[1] ~= args[3] or row[2] ~= args[4] then",
        "if not row[1] or row[2] == '' then",
    )()
    redis_cursors._is_by_owner = lambda *_: True
    # Nor does it find out by itself that it was: the epoch alone has to hold.
    presence.GONE_S = 1e9  # type: ignore[attr-defined]
    group.GroupRuntime.fence = lambda *_: None  # type: ignore[method-assign]


def _managers_forget_nobody() -> None:
    """They lower R, and neither lock anybody out nor have Sentinels forget."""
    _unguarded()
    electable.Electable._locks = lambda *_, **__: []  # type: ignore[method-assign]
    electable.Electable._knowing = lambda *_: []  # type: ignore[method-assign]


LOST: Final = frozenset({"lost", "read_lost", "stored_twice", "shared_place"})
BREAKS: Final = {
    "wait-one": Break(
        "one copy is enough, whatever the level", _wait_one, ["stale-failover"] * 3, LOST
    ),
    "wait-elsewhere": Break(
        "copies are counted on another connection", _wait_elsewhere, ["stale-failover"] * 3, LOST
    ),
    "everysec": Break(
        "the store's files are synced once a second", _unguarded, ["power-loss"] * 3,
        LOST,
        with_disks=True, on_nodes=("appendfsync", "everysec"),
    ),
    "beyond-certified": Break(
        "messages are given before their copies were counted",
        _lua("if args[2] == 'local' and log.certified == first then",
             "if log.certified == first then"),
        ["stale-failover"] * 3, LOST,
    ),
    "no-epoch-check": Break(
        "an owner of before may write cursors, and does not notice that it is one",
        _no_epoch_check, ["gateway-from-store"] * 4,
        frozenset({"zombie_settled", "stale_settled", "given_after_ack", "given_late", "lost"}),
        serving=0,
    ),
    "validity-zero": Break(
        "a replica that has not had the data since it was started may become primary",
        _unguarded, ["stale-restart"], LOST,
        on_nodes=("cluster-replica-validity-factor", "0"), layout="cluster",
    ),
    "not-forgotten": Break(
        "Sentinels still know a replica that is not counted any more", _unguarded,
        ["stale-restart"], LOST,
        forgets_nobody=True, layout="sentinel",
    ),
    "managers-forget-nobody": Break(
        "managers do not count whom they leave to be elected", _managers_forget_nobody,
        ["stale-away"], LOST, layout="sentinel",
    ),
}  # fmt: skip


def plant(name: str) -> None:
    """Break it, in this process. Raises KeyError: there is no such break."""
    BREAKS[name].plant()
