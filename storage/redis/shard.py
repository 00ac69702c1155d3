"""A shard (`storage.redis.port.Shard`): one primary with its replicas."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from redis.exceptions import RedisError

from push import limits
from push.histogram import Took
from push.places import Durability
from push.storage_port import Lane
from storage.redis.answers import refused, unavailable
from storage.redis.connection import Address, Connection, Reach, ReadPool, Subscriber, pack
from storage.redis.discovery import PERIOD_S, Find, Watch
from storage.redis.library import Library, library
from storage.redis.pipeline import BEHIND, REPLICAS, PipelineTerms, ReplicatedPipeline
from storage.redis.port import Arg, OnMessage, ShardHealth
from storage.redis.replication import (
    MARKED,
    Marks,
    MemoryReserve,
    check_marks,
    copies_needed,
    fields,
    readiness,
    without_replicas,
)

__all__ = ["LEVELS", "Marks", "RedisShard", "Settings"]
_LOG: Final = logging.getLogger("storage.redis_shard")
LEVELS: Final[tuple[Durability, ...]] = ("local", "quorum", "all")


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings by which a shard is reached. `key`: the key of its own hash; in a Cluster the tag
    puts it into a slot of the shard. `wait_s`: how long copies are waited for. `silence_s`: how
    long any reply may take, that of a group of acts in addition to `wait_s`. `watch_s`: the period
    of the watch. `reserve_share`: the share of free memory below which publishing stops (R29)."""

    find: Find
    reach: Reach = field(default_factory=Reach)
    key: str = "{tocsin}:shard"
    wait_s: float = 1.0
    silence_s: float = 2.0
    watch_s: float = PERIOD_S
    reserve_share: float = limits.MEMORY_RESERVE_SHARE
    library: Library = field(default_factory=library)

    @property
    def managed(self) -> str:
        """The key of the hash that has the manager, and the user of each of its servers."""
        return self.key.replace(":shard", ":managed")

    def call(self, function: str, keys: Sequence[str], args: Sequence[Arg]) -> bytes:
        """Return a packed FCALL. Source: https://redis.io/docs/latest/commands/fcall/"""
        return pack("FCALL", self.library.function(function), len(keys), *keys, *args)

    async def open(self) -> Connection:
        """Open a link to a server that says that it is the primary. Raises Refused."""
        address = await self.find()
        try:
            link = await self.reach.link(address)
        except (RedisError, OSError) as error:
            raise unavailable(f"{address}: {str(error) or 'no connection in time'}") from None
        info = await self.ask(link, pack("INFO", "replication"))
        role = fields(info).get("role") if isinstance(info, bytes) else ""
        if role != "master":
            await link.close()
            raise unavailable(f"{address} is no primary: {role or info}")
        return link

    async def ask(self, link: Connection, command: bytes) -> Any:
        """Send a command, and return its one reply; an error of Redis is a value. Raises Refused if
        the connection is lost."""
        try:
            return (await link.ask([command], self.silence_s))[0]
        except (RedisError, OSError) as error:
            raise unavailable(f"{link.address}: {str(error) or 'no reply in time'}") from None

    async def load(self, link: Connection) -> None:
        """Load the library, if the server lacks it. Raises Refused if it cannot be loaded.

        Source: https://redis.io/docs/latest/commands/function-load/
        """
        name = self.library.name
        listed = await self.ask(link, pack("FUNCTION", "LIST", "LIBRARYNAME", name))
        if isinstance(listed, list) and listed:
            return
        # REPLACE: another gateway may have loaded the same text in between
        loaded = await self.ask(link, pack("FUNCTION", "LOAD", "REPLACE", self.library.code))
        if isinstance(loaded, RedisError):
            await link.close()
            raise unavailable(f"the functions of this version cannot be loaded: {loaded}")


class RedisShard:
    """`storage.redis.port.Shard` over one primary. Make one with `open`."""

    def __init__(
        self, settings: Settings, marks: Marks, on_fatal: Callable[[str], None] | None = None
    ) -> None:
        self._settings = settings
        self._marks = marks
        self._on_fatal = on_fatal
        self.broken: str | None = None
        """The reason why the store must not be used any more; None: it is well."""
        self._touches = marks.touches
        self._replicas = 0
        self._address: Address | None = None
        self._renewals: set[asyncio.Task[None]] = set()
        terms = PipelineTerms(
            settings.call("touch", [settings.key], [marks.incarnation]),
            settings.wait_s,
            settings.silence_s,
        )
        self._pipelines = {
            level: ReplicatedPipeline(
                level, partial(self._connect_level, level), terms, self._on_confirmed
            )
            for level in LEVELS
        }
        self._reads = ReadPool(self._connect, settings.silence_s)
        self._subscribers: list[Subscriber] = []
        self._reserve = MemoryReserve(settings.reserve_share)
        self._watch: Watch | None = None
        self._closed = False

    @classmethod
    async def open(
        cls,
        settings: Settings,
        marks: Marks,
        *,
        on_fatal: Callable[[str], None] | None = None,
    ) -> "RedisShard":
        """Open a shard whose primary was found, is ours and as new as `marks` says.

        `on_fatal` is called on the event loop, once, with a sentence, when the store was emptied or
        exchanged, or an older copy was put in its place (R30), also while the gateway is idle.
        Everything that this gateway remembers is then about another store, and it must end. All
        acts and looks are refused from then on.

        Raises Refused(storage_unavailable), with a sentence: it does not answer; it has another
        incarnation or none; an older copy is in its place; its functions cannot be loaded.
        """
        shard = cls(settings, marks, on_fatal)
        try:
            link = await shard._connect()
        except BaseException:
            await shard.close()
            raise
        await link.close()
        shard._start_watch()
        return shard

    def _start_watch(self) -> None:
        settings = self._settings
        self._watch = Watch(
            settings.find,
            self._connect,
            self._check,
            self._reserve,
            self._stop,
            used=settings.call("used", [settings.key], []),
            period_s=settings.watch_s,
            silence_s=settings.silence_s,
        )

    @property
    def key(self) -> str:
        """The key of its own hash, which distinguishes it from other shards."""
        return self._settings.key

    @property
    def touches(self) -> int:
        """A number of touches that every copy has, which `Marks.touches` may be from now on."""
        return self._touches

    def copies(self, level: Durability) -> int:
        """Return how many servers have what an act of this level has written when it is answered,
        by the number of replicas that the store named last."""
        return 1 + copies_needed(level, self._replicas)

    def has_room(self, key: str | None = None) -> bool:
        return self._reserve.is_open

    @property
    def answers(self) -> bool:
        """Whether the primary answered at the last look of the watch, within the last seconds, and
        the store may be used. No server is queried."""
        return self._watch is not None and self._watch.answers and self.broken is None

    def health(self) -> ShardHealth:
        watch = self._watch
        took = tuple(
            Took("copies", level, self.key, pipeline.took_s)
            for level, pipeline in self._pipelines.items()
            if pipeline.took_s.total
        )
        if watch is None or not watch.seen:
            return ShardHealth((), {}, took)
        waits_for = (watch.waits_for,) if watch.waits_for else ()
        return ShardHealth(waits_for, {self.key: watch.seen}, took)

    def lane(self, key: str, level: Durability) -> Lane:
        """Return the lane of acts of this level, the same for all keys. Each level has a held
        connection of its own."""
        return Lane(LEVELS.index(level), self._pipelines[level].doubts)

    def act(
        self,
        function: str,
        keys: Sequence[str],
        args: Sequence[Arg],
        *,
        level: Durability,
        lane: Lane | None = None,
    ) -> asyncio.Future[Any]:
        if self.broken is not None:
            return refused(unavailable(self.broken))
        if lane is not None and lane != self.lane(keys[0], level):
            return refused(unavailable(BEHIND))
        order = f"{keys[0]}{args[0]!r}" if lane is not None else ""
        return self._pipelines[level].act(self._settings.call(function, keys, args), order)

    async def look(self, function: str, keys: Sequence[str], args: Sequence[Arg]) -> Any:
        self._check_usable()
        name = self._settings.library.function(function)
        return await self._reads.look(pack("FCALL_RO", name, len(keys), *keys, *args))

    def on_message(self, channel_prefix: str, heard: OnMessage) -> None:
        self._subscribers.append(Subscriber(self._connect, channel_prefix, heard))

    async def wait_subscribed(self) -> None:
        """Wait until the subscriptions made with `on_message` are active. Messages published from
        then on are received, while the connection lasts."""
        for subscriber in self._subscribers:
            await subscriber.is_subscribed.wait()

    async def close(self) -> None:
        self._closed = True
        if self._watch is not None:
            await self._watch.close()
        await asyncio.gather(*(pipeline.close() for pipeline in self._pipelines.values()))
        for subscriber in self._subscribers:
            await subscriber.close()
        await self._reads.close()
        await asyncio.gather(*self._renewals)

    async def _connect(self) -> Connection:
        """Open a link to the primary, found anew and checked. Raises Refused."""
        link = await self._settings.open()
        try:
            await self._check(link)
            await self._settings.load(link)
        except BaseException:
            await link.close()
            raise
        self._on_primary(link.address)
        return link

    async def _connect_level(self, level: Durability) -> Connection:
        """Open a link for acts of this level, after querying the replicas whether they have on
        their disks what they confirm. Raises Refused.

        At `all`, Refused is raised if a replica says that it has not, or does not answer. At
        `quorum`, one that does not answer must not hold up the level, and those that say that they
        have not are noted in `link.unready`, and not counted.
        """
        link = await self._connect()
        if level == "local":
            return link
        settings = self._settings
        try:
            info = await settings.ask(link, REPLICAS)
            if not isinstance(info, bytes):
                raise unavailable(f"{link.address}: {info}")
            told = without_replicas(fields(info), link.out)
            said = await readiness(told, settings.reach, settings.silence_s)
            if level == "all" and (said.unready or said.unasked):
                raise unavailable("; ".join([*said.unready, *said.unasked]))
        except BaseException:
            await link.close()
            raise
        link.syncs = told.get("sync_full", "")
        link.unready = len(said.unready)
        return link

    async def _check(self, link: Connection) -> None:
        """Check the marks of R30. Raises NotOurs, and Refused if the server does not answer."""
        marks = replace(self._marks, touches=self._touches)  # of before: more come meanwhile
        held = await self._settings.ask(link, pack("HMGET", self._settings.key, *MARKED))
        if not isinstance(held, list):
            raise unavailable(f"{link.address}: {held}")
        link.replicas, link.out = check_marks(held, marks, str(link.address))
        self._replicas = link.replicas

    def _stop(self, why: str) -> None:
        self.broken = why
        if self._on_fatal is not None:
            self._on_fatal(why)

    def _check_usable(self) -> None:
        if self.broken is not None:
            raise unavailable(self.broken)

    def _on_primary(self, address: Address) -> None:
        """Note the primary's address. If it is another one, all connections to the earlier one are
        renewed."""
        before, self._address = self._address, address
        if before in (None, address) or self._closed:
            return
        _LOG.warning("the primary is %s now, and was %s", address, before)
        for pipeline in self._pipelines.values():
            pipeline.renew()
        others: list[ReadPool | Subscriber] = [self._reads, *self._subscribers]
        for other in others:
            task = asyncio.create_task(other.renew())
            self._renewals.add(task)
            task.add_done_callback(self._renewals.discard)

    def _on_confirmed(self, level: Durability, touches: int, replicas: int) -> None:
        self._replicas = replicas
        # At the other levels a failover may take touches back, and rightly so.
        if level == "all":
            self._touches = max(self._touches, touches)
