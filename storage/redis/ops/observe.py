"""Observation of a shard for a manager: its servers, its Sentinels, and how full it is.

Each server and Sentinel is queried, at about the same moment, about itself and about the others.
The primaries say how full a storage cluster is, past the connections of gateways.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from push.errors import TocsinError
from push.replicas import Follower, Sentinel, ShardServer, ShardView
from storage.redis.answers import unavailable
from storage.redis.connection import Address, ConnectionCache, Reach, pack
from storage.redis.ops.settings import as_mapping
from storage.redis.replication import MemoryUse, fields, memory_of, out_of, places, unready
from storage.redis.shard import Settings
from storage.redis.target import Target

SERVER: Final = (
    pack("INFO"),
    pack("CONFIG", "GET", "masteruser", "replica-priority"),
    pack("ACL", "LIST"),
)
UNHEARD_S: Final = 3.0
"""Time in seconds for which a server that did not answer is not queried again, unless the primary
has had a sign of life of it within this time. Each query takes a second, and publishing may be
waiting. A server that is frozen, or cut off, stays attached for most of a minute."""
_USER: Final = b"user:"


class TermSuperseded(Exception):
    """Error: a later manager, of this `term`, has been at the server or shard. The present manager
    does nothing there any more."""

    def __init__(self, term: int) -> None:
        super().__init__(f"a manager of the term {term} has been here")
        self.term = term


@dataclass(frozen=True, slots=True)
class WatchedShard:
    """A shard to look at. Its primary is found in one of three ways.

    - By Sentinels: `guards` are their addresses, and they call the primary `name`.
    - Without Sentinels `guards` is empty, and the primary is at `home` for good.
    - `in_cluster`: the shard is a part of a Redis Cluster, and `settings.find` finds the primary.
    """

    settings: Settings
    reach: Reach
    guards: tuple[Address, ...] = ()
    name: str = ""
    home: Address | None = None
    in_cluster: bool = False


async def managed_at(
    primary: str,
    watched: WatchedShard,
    cache: ConnectionCache,
    *,
    holder: str,
    term: int,
    learned: Mapping[str, str],
) -> tuple[int, frozenset[str], dict[str, str]] | str:
    """Return (R, the replicas that are out, the user of each server) as the shard has it, or the
    reason why it does not say. The shard notes this manager (`holder`, `term`), and keeps the users
    that were `learned`. Raises TermSuperseded if it has noted a later one."""
    settings = watched.settings
    words = [word for pair in learned.items() for word in pair]
    replies = await cache.try_ask(
        primary,
        [
            settings.call("manage", [settings.managed, settings.key], [holder, term, *words]),
            pack("HMGET", settings.key, "replicas", "out"),
        ],
    )
    if isinstance(replies, str):
        return replies
    (is_accepted, latest, *row), (replicas, out) = replies
    if not is_accepted:
        raise TermSuperseded(int(latest))
    if replicas is None:
        return "it was never provisioned, or it was emptied"
    (flat,) = row
    users = {
        flat[at][len(_USER) :].decode(): flat[at + 1].decode()
        for at in range(0, len(flat), 2)
        if flat[at].startswith(_USER)
    }
    return int(replicas), out_of(out), users


class ShardObserver:
    """Observer of one shard that is not in a Cluster."""

    def __init__(self, watched: WatchedShard, cache: ConnectionCache) -> None:
        self._watched = watched
        self._cache = cache
        self._users: dict[str, str] = {}
        """Place → user of each server, as the shard keeps them."""
        self._learned: dict[str, str] = {}
        """Place → user of the servers whose users the shard does not keep yet."""
        self._unheard: dict[str, tuple[float, str]] = {}
        """Place → (loop time, reason) of the servers that did not answer when last queried."""

    async def look(self, holder: str, term: int) -> ShardView:
        """Return what the shard's servers and Sentinels report now. `holder`, `term`: the manager
        that looks. Raises TermSuperseded."""
        watched = self._watched
        guards = [str(place) for place in watched.guards]
        said = await asyncio.gather(*(self._sentinel(place) for place in guards))
        silent = {
            place: one for place, one in zip(guards, said, strict=True) if isinstance(one, str)
        }
        sentinels = {
            place: one for place, one in zip(guards, said, strict=True) if not isinstance(one, str)
        }
        primary = _named(sentinels.values()) if guards else str(watched.home)
        replicas, out = 0, frozenset[str]()
        if primary:
            held = await managed_at(
                primary,
                self._watched,
                self._cache,
                holder=holder,
                term=term,
                learned=self._learned,
            )
            if isinstance(held, str):
                silent[primary] = held
            else:
                replicas, out, self._users = held
        servers, more = await self._servers(primary, sentinels.values(), out)
        silent = more | silent if primary in silent else silent | more
        if primary in silent:
            servers.pop(primary, None)
        seen = {place: one.user for place, one in servers.items() if one.user}
        return ShardView(
            primary,
            servers,
            sentinels,
            frozenset(guards),
            silent,
            replicas,
            out,
            self._users | seen,
        )

    async def _sentinel(self, place: str) -> Sentinel | str:
        name = self._watched.name
        replies = await self._cache.try_ask(
            place, [pack("SENTINEL", word, name) for word in ("MASTER", "REPLICAS", "SENTINELS")]
        )
        if isinstance(replies, str):
            return replies
        try:
            named, *lists = replies
            (master,), known, others = [rows_of([named]), *map(rows_of, lists)]
            return Sentinel(
                place_of(master),
                master["flags"] == "master",
                frozenset(map(place_of, known)),
                frozenset(map(place_of, others)),
            )
        except (TypeError, KeyError, ValueError) as error:
            return f"not understood: {error!r}"

    async def _servers(
        self, primary: str, sentinels: Iterable[Sentinel], out: frozenset[str]
    ) -> tuple[dict[str, ShardServer], dict[str, str]]:
        """Query all servers that the Sentinels, the shard or the primary know, the primary first,
        because it says which others are attached. Returns the reports by place, and why other
        servers gave none."""
        known = {place for one in sentinels for place in one.replicas}
        wanted = (known | set(self._users) | out) - {primary, ""}
        first = await self._server(primary) if primary else "nobody is named"
        heard: set[str] = set()
        servers: dict[str, ShardServer] = {}
        silent: dict[str, str] = {}
        if isinstance(first, ShardServer):
            servers[primary] = first
            heard = {one.place for one in first.followers if one.lag_s < UNHEARD_S}
            wanted |= {one.place for one in first.followers}
        elif primary:
            silent[primary] = first
        now = asyncio.get_running_loop().time()
        for place in wanted - heard:
            at, why = self._unheard.get(place, (-UNHEARD_S, ""))
            if now - at < UNHEARD_S:
                silent[place] = why
        each = sorted(wanted - set(silent))
        for place, one in zip(each, await asyncio.gather(*map(self._server, each)), strict=True):
            if isinstance(one, ShardServer):
                servers[place] = one
                self._unheard.pop(place, None)
            else:
                silent[place] = one
                self._unheard[place] = (asyncio.get_running_loop().time(), one)
        self._learned = {
            place: one.user
            for place, one in servers.items()
            if one.user and self._users.get(place) != one.user
        }
        return servers, silent

    async def _server(self, place: str) -> ShardServer | str:
        replies = await self._cache.try_ask(place, SERVER)
        if isinstance(replies, str):
            return replies
        try:
            info, config, users = replies
            return server_of(place, fields(info), as_mapping(config), users)
        except (TypeError, KeyError, ValueError) as error:
            return f"not understood: {error!r}"


def server_of(
    place: str, told: Mapping[str, str], config: Mapping[str, str], users: Iterable[bytes]
) -> ShardServer:
    """Decode the replies of a server: INFO, CONFIG GET, ACL LIST. Raises KeyError, ValueError for
    another form.

    Source: https://redis.io/docs/latest/commands/info/, …/acl-list/
    """
    is_primary = told["role"] == "master"
    words = [line.decode("utf-8", "replace").split() for line in users]
    return ShardServer(
        place=place,
        run_id=told["run_id"],
        user=config.get("masteruser", ""),
        is_primary=is_primary,
        follows="" if is_primary else f"{told['master_host']}:{told['master_port']}",
        is_linked=not is_primary
        and told["master_link_status"] == "up"
        and told["master_sync_in_progress"] == "0",
        is_electable=config["replica-priority"] != "0",
        offset=int(told["master_repl_offset" if is_primary else "slave_repl_offset"]),
        unready=unready(told),
        locked=frozenset(line[1] for line in words if len(line) > 2 and line[2] == "off"),
        followers=tuple(_followers(told)),
    )


def _followers(told: Mapping[str, str]) -> Iterable[Follower]:
    for place, line in places(told).items():
        facts = dict(part.split("=", 1) for part in told[line].split(",") if "=" in part)
        yield Follower(place, facts["state"] == "online", int(facts["offset"]), float(facts["lag"]))


def rows_of(reply: Any) -> list[dict[str, str]]:
    """Decode a reply of SENTINEL: maps as flat lists."""
    texts = [[word.decode("utf-8", "replace") for word in row] for row in reply]
    return [dict(zip(row[::2], row[1::2], strict=True)) for row in texts]


def place_of(row: Mapping[str, str]) -> str:
    """Return the place that a row names."""
    return f"{row['ip']}:{row['port']}"


def _named(sentinels: Iterable[Sentinel]) -> str:
    """Return the primary that most of the Sentinels name; "": none names any."""
    names = [one.primary for one in sentinels]
    return max(sorted(set(names)), key=names.count, default="")


ASKED_S = 3.0
"""Longest time in seconds of `use_of`, because the caller has other storage clusters to query."""


class FullestPrimary(NamedTuple):
    """Memory of the fullest primary. `why`: the reason why it is not known; "": it is."""

    memory: MemoryUse
    why: str = ""


async def use_of(target: Target, incarnation: str | None = None) -> FullestPrimary:
    """Return the memory of a storage cluster's fullest primary. Never raises an error of a server.
    `incarnation`: the store that it should be; None: any."""
    try:
        async with asyncio.timeout(ASKED_S):
            parts = await target.parts()
            found = await asyncio.gather(*(_memory(part.settings, incarnation) for part in parts))
    except TocsinError as error:
        return FullestPrimary(MemoryUse(0, 0), error.detail)
    except TimeoutError:
        return FullestPrimary(MemoryUse(0, 0), f"no answer within {ASKED_S:g} s")
    return FullestPrimary(min(found, key=lambda memory: memory.free_share))


async def _memory(settings: Settings, incarnation: str | None) -> MemoryUse:
    """Return the memory of one primary. Raises Refused."""
    link = await settings.open()
    try:
        told = await settings.ask(link, pack("INFO", "memory"))
        there = await settings.ask(link, pack("HGET", settings.key, "incarnation"))
    finally:
        await link.close()
    if not isinstance(told, bytes):
        raise unavailable(f"{link.address}: {told}")
    if incarnation is not None and there != incarnation.encode():
        raise unavailable(f"{link.address} is not the store that it was: nothing is kept there")
    return memory_of(fields(told))
