"""Acts of a manager on the servers of a shard (`push.replicas` has them), each act fenced.

An act is not done at a server where a manager of a later term has been. The fence is a hash beside
the shard's, which the first look of a manager's term writes at the primary and which replicas have
from there. An act on a server watches it, so that no other manager can have begun there unnoticed
between the look at the term and the act.
"""

import asyncio
from typing import Any, Final

from redis.exceptions import RedisError

from push.errors import Refused
from push.replicas import Elect, Follow, LetIn, LockOut, Prepare, RecordReplicas, ReplicaAct, Reset
from storage.redis.answers import unavailable
from storage.redis.connection import ConnectionCache, address_of, pack
from storage.redis.ops.observe import TermSuperseded, WatchedShard, place_of, rows_of
from storage.redis.ops.provision import govern
from storage.redis.replication import fields

PRIORITY: Final = 100
"""The priority of a server that may be elected; at 0 it is not."""
DEBUG: Final = pack("SENTINEL", "DEBUG")
INFO_PERIOD: Final = ("SENTINEL", "DEBUG", "info-period")
INFO_PERIOD_MS: Final = 10_000
SOON_MS: Final = 100
LOOKS_MAX: Final = 20
"""Most checks, SOON_MS apart, whether a Sentinel knows the expected replicas after a RESET."""
LINK: Final = pack("INFO", "replication")
KEEP_USERS: Final = pack("ACL", "SAVE")
KEEP_SETTINGS: Final = pack("CONFIG", "REWRITE")


class ReplicaControl:
    """Acts on the servers of one shard. `do` is for shards outside of a Cluster."""

    def __init__(self, watched: WatchedShard, cache: ConnectionCache) -> None:
        self._watched = watched
        self._cache = cache

    async def do(self, act: ReplicaAct, holder: str, term: int) -> bool:
        """Do an act for this manager. Returns whether it was done. An act that is answered as not
        done may have been, in part; it is safe to do it again.

        Raises:
            TermSuperseded: a later manager has been there.
            Refused, Unknown: it cannot be done now, with a sentence.
        """
        match act:
            case LockOut(at, user):
                close = pack("CLIENT", "KILL", "USER", user)
                words = [pack("ACL", "SETUSER", user, "off"), KEEP_USERS, close]
                await self.fenced(at, words, holder, term)
            case LetIn(at, user):
                words = [pack("ACL", "SETUSER", user, "on"), KEEP_USERS]
                await self.fenced(at, words, holder, term)
            case Prepare(at):
                words = [pack("CONFIG", "SET", "replica-priority", 0), KEEP_SETTINGS]
                await self.fenced(at, words, holder, term)
            case Elect(at):
                words = [pack("CONFIG", "SET", "replica-priority", PRIORITY), KEEP_SETTINGS]
                await self.fenced(at, words, holder, term, must_be_linked=True)
            case Follow(at, primary):
                words = [pack("REPLICAOF", *address_of(primary)), KEEP_SETTINGS]
                await self.fenced(at, words, holder, term)
            case Reset(sentinel, expected):
                await self._forget(sentinel, expected)
            case RecordReplicas():
                return await count(self._watched, act, holder, term)
            case _:
                raise AssertionError(f"in a Cluster only: {act}")
        return True

    async def fenced(
        self, at: str, words: list[bytes], holder: str, term: int, *, must_be_linked: bool = False
    ) -> None:
        """Execute all of these commands at the server `at`, or none if a later manager has been
        there. A server that has come back may not know of a later manager before it has everything
        from its upstream. If `must_be_linked`, only a server whose link is up, or that is the
        primary, is changed; others are Refused. Raises TermSuperseded and Refused."""
        key = self._watched.settings.managed
        whose = pack("HMGET", key, "holder", "term")
        _, (before, term_before), link = await self.ask(at, [pack("WATCH", key), whose, LINK])
        before, latest = before or b"", int(term_before or 0)
        if latest > term or (latest == term and before.decode() not in ("", holder)):
            await self.ask(at, [pack("UNWATCH")])
            raise TermSuperseded(latest)
        if must_be_linked and not is_linked(link):
            await self.ask(at, [pack("UNWATCH")])
            raise unavailable(f"{at}: it has not everything yet")
        done = (await self.ask(at, [pack("MULTI"), *words, pack("EXEC")]))[-1]
        if done is None:
            raise unavailable(f"{at}: another manager has begun there")
        for reply in done:
            if isinstance(reply, RedisError):
                raise unavailable(f"{at}: {reply}")

    async def _forget(self, sentinel: str, expected: frozenset[str]) -> None:
        """Have a Sentinel forget its replicas, and learn of the `expected` ones soon. It queries
        the primary for its replicas every ten seconds, also after a RESET, and publishing waits
        until the next Sentinel may forget. So its period is shortened meanwhile (`SENTINEL DEBUG`).
        If it refuses that, it only takes longer. Its file does not keep the period.

        Source: sentinel.c, sentinelResetMaster and sentinelSendPeriodicCommands (info_refresh)
        """
        name = self._watched.name
        period_ms = info_period_ms(await self._cache.try_ask(sentinel, [DEBUG]))
        await self._cache.try_ask(sentinel, [pack(*INFO_PERIOD, SOON_MS)])
        try:
            await self.ask(sentinel, [pack("SENTINEL", "RESET", name)])
            for _ in range(LOOKS_MAX):
                if expected <= await self._known_to(sentinel):
                    break
                await asyncio.sleep(SOON_MS / 1000)
        finally:
            await self._cache.try_ask(sentinel, [pack(*INFO_PERIOD, period_ms)])

    async def _known_to(self, sentinel: str) -> frozenset[str]:
        """Return the places of the replicas that a Sentinel knows. Raises Refused."""
        (rows,) = await self.ask(sentinel, [pack("SENTINEL", "REPLICAS", self._watched.name)])
        return frozenset(map(place_of, rows_of(rows)))

    async def ask(self, at: str, words: list[bytes]) -> list[Any]:
        """Send commands to the server at `at`, and return the replies. Raises Refused if there are
        none, or one is an error."""
        replies = await self._cache.try_ask(at, words)
        if isinstance(replies, str):
            raise unavailable(f"{at}: {replies}")
        return replies


def is_linked(replication: bytes) -> bool:
    """Whether a server has everything from its upstream, or is the primary, by its INFO
    replication.

    Source: https://redis.io/docs/latest/commands/info/
    """
    told = fields(replication)
    return told.get("role") == "master" or (
        told.get("master_link_status") == "up" and told.get("master_sync_in_progress") == "0"
    )


def info_period_ms(told: list[Any] | str) -> int:
    """Return how often a Sentinel queries INFO, by its answer to SENTINEL DEBUG, which has names
    and values in turns. If it did not say, or says the short period of a manager that ended before
    it set it back, the result is INFO_PERIOD_MS."""
    words = told[0] if isinstance(told, list) and isinstance(told[0], list) else []
    for name, value in zip(words[::2], words[1::2], strict=False):
        if isinstance(name, bytes) and name.lower() == b"info-period" and int(value) > SOON_MS:
            return int(value)
    return INFO_PERIOD_MS


async def count(watched: WatchedShard, act: RecordReplicas, holder: str, term: int) -> bool:
    """Record in the shard how many replicas are counted and which are out. As many copies must
    confirm it as are counted both before and after. Replicas that leave or are added have the
    record, or are given it, by the order in which a manager acts. Returns and raises like
    `ReplicaControl.do`."""
    settings = watched.settings
    link = await settings.open()
    try:
        said = await govern(
            settings,
            link,
            "count",
            [settings.managed, settings.key],
            [
                holder,
                term,
                act.replicas_before,
                _text(act.out_before),
                act.replicas,
                _text(act.out),
            ],
            copies=min(act.replicas_before, act.replicas),
            replicas=act.replicas,
            out=act.out,
        )
    finally:
        await link.close()
    if said == -1:
        raise Refused("storage_unavailable", f"{link.address}: a later manager has been here")
    return bool(said == 1)


def _text(out: frozenset[str]) -> str:
    return " ".join(sorted(out))
