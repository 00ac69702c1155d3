"""Copies of a shard: the number that a level needs, and whether Redis and its replicas can be
believed.

Replicas (R28). WAIT's number counts only if nothing in INFO speaks against it. A replica that was
synced anew confirms writes while its append-only file is still being written for the first time,
and has none of them after a power loss. Its primary does not know that. So each replica is queried
itself whenever the primary's count of whole syncs has grown.

Marks (R30). A server holds the store only if it has the store's incarnation, and at least as many
touches as every copy had once. Otherwise it was emptied, or holds another store or an older copy.

Memory (R29). Publishing stops when less than a share of it is free, and opens again later.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from redis.exceptions import RedisError

from push import limits
from push.errors import Refused
from push.places import Durability
from storage.redis.connection import Address, Reach, pack

STATE: Final = "state="


def copies_needed(level: Durability, replicas: int) -> int:
    """Return the number that WAIT must have counted, the primary excluded, of a shard with
    `replicas` that could be elected (R28): none, a majority of all copies less the primary, or
    all."""
    if level == "local":
        return 0
    return replicas if level == "all" else (replicas + 1) // 2


def fields(info: bytes) -> dict[str, str]:
    """Return the lines of an INFO section, by name.
    Source: https://redis.io/docs/latest/commands/info/"""
    found = {}
    for line in info.decode("utf-8", "replace").splitlines():
        name, colon, text = line.partition(":")
        if colon:
            found[name] = text
    return found


def count_attached(replication: Mapping[str, str]) -> int:
    """Return how many replicas are attached and follow, by INFO replication."""
    return sum(STATE + "online" in text for text in replication.values())


def places(replication: Mapping[str, str]) -> dict[str, str]:
    """Return the places where the replicas in INFO replication listen: `host:port` → the name of
    its line."""
    found = {}
    for name, text in replication.items():
        if name.startswith("slave") and STATE in text:  # slave0:ip=…,port=…,state=online,…
            facts = dict(part.split("=", 1) for part in text.split(",") if "=" in part)
            found[f"{facts['ip']}:{facts['port']}"] = name
    return found


def without_replicas(replication: Mapping[str, str], out: Collection[str]) -> Mapping[str, str]:
    """Return INFO replication as if these replicas, which are not counted, were not attached."""
    lines = {name for place, name in places(replication).items() if place in out} if out else ()
    if not lines:
        return replication
    left = {name: text for name, text in replication.items() if name not in lines}
    return left | {"connected_slaves": str(int(left["connected_slaves"]) - len(lines))}


def shortfall_of(replication: Mapping[str, str], replicas: int, out: Collection[str] = ()) -> str:
    """Return a sentence why the level all is not met now, "" if it is. `replicas` could be elected,
    and those in `out` are not among them. Replicas that must not be believed come first, see
    `doubt_of`."""
    online = count_attached(without_replicas(replication, out))
    few = f"{online} of {replicas} replicas are attached: the level all waits for them"
    return doubt_of(replication, replicas, out) or (few if online < replicas else "")


# enforces: R28
def doubt_of(replication: Mapping[str, str], replicas: int, out: Collection[str] = ()) -> str:
    """Return a sentence why WAIT's number must not be believed, "" if nothing speaks against it.

    A replica that is `out` may lack acknowledged data, and WAIT would count it in place of one that
    could be elected. If no replica is waited for, that does not matter.

    A replica beyond `replicas` could be elected with less than what was counted. One that has come
    back while its old connection is still open is counted twice. Those that are still being synced
    count here, because they may be elected with what they had before, or a moment later.
    """
    if replication.get("role") != "master":
        return "the server is no primary any more"
    barred = sorted(set(places(replication)) & set(out)) if replicas else ()
    if barred:
        return f"{barred[0]} is attached, and is not counted: it may lack what was acknowledged"
    replication = without_replicas(replication, out)
    seen = [
        text
        for name, text in replication.items()
        if name.startswith("slave") and STATE in text  # slave0:ip=…,port=…,state=online,…
    ]
    count = int(replication.get("connected_slaves", "0"))
    if count > replicas:
        return f"{count} replicas are attached, and the shard was set up for {replicas}"
    addresses = {",".join(text.split(",")[:2]) for text in seen}
    if len(addresses) < len(seen):
        return "two replicas have one address: one of them has come back, and counts twice"
    return ""


@dataclass(frozen=True, slots=True)
class ReplicaReadiness:
    """The replies of replicas about themselves."""

    unready: tuple[str, ...]
    """A sentence for each that is known not to have everything on its disk."""
    unasked: tuple[str, ...]
    """A sentence for each that could not be queried."""


def addresses_of(replication: Mapping[str, str]) -> list[Address]:
    """Return the addresses at which the replicas in INFO replication say that they listen."""
    found = []
    for name, text in replication.items():
        if name.startswith("slave") and STATE in text:
            facts = dict(part.split("=", 1) for part in text.split(",") if "=" in part)
            found.append(Address(facts["ip"], int(facts["port"])))
    return found


def unready(told: Mapping[str, str]) -> str:
    """Return the reason, by its INFO persistence, why a replica must not be counted among those
    that make messages safe; "": it counts.

    Source: https://redis.io/docs/latest/commands/info/
    """
    if told.get("loading") != "0":
        return "it is loading its data"
    if told.get("aof_enabled") != "1":
        return "it has no append-only file"
    if told.get("aof_rewrite_in_progress") != "0" or told.get("aof_rewrite_scheduled") != "0":
        return "its append-only file is being rewritten"
    if told.get("aof_last_bgrewrite_status") != "ok":
        return "its append-only file could not be rewritten"
    return ""


async def readiness(
    replication: Mapping[str, str], reach: Reach, timeout_s: float
) -> ReplicaReadiness:
    """Query all replicas in INFO replication, at once, each for at most `timeout_s` seconds."""
    places = addresses_of(replication)
    told = await asyncio.gather(*(_asked(place, reach, timeout_s) for place in places))
    pairs = list(zip(places, told, strict=True))
    return ReplicaReadiness(
        tuple(f"{place}: {why}" for place, (asked, why) in pairs if asked and why),
        tuple(f"{place}: {why}" for place, (asked, why) in pairs if not asked),
    )


async def _asked(place: Address, reach: Reach, timeout_s: float) -> tuple[bool, str]:
    """Return (whether it answered, the reason why it is not ready or did not answer)."""
    try:
        async with asyncio.timeout(timeout_s):
            link = await reach.link(place)
            try:
                (info,) = await link.ask([pack("INFO", "persistence")], timeout_s)
            finally:
                await link.close()
    except (RedisError, OSError) as error:
        return False, str(error) or "no reply in time"
    return (True, unready(fields(info))) if isinstance(info, bytes) else (False, str(info))


MARKED: Final = ("incarnation", "replicas", "touches", "out")
"""Fields of a shard's own hash."""


@dataclass(frozen=True, slots=True)
class Marks:
    """The marks that the shard must have (R30), which are kept outside of it, in the metadata."""

    incarnation: str
    touches: int = 0
    """A number of touches that every copy had once. If there are fewer, an older copy has come
    back."""


class NotOurs(Refused):
    """A server that answers, and does not hold the store. The text says what it is."""

    def __init__(self, detail: str) -> None:
        super().__init__("storage_unavailable", detail)


# enforces: P13, R30
def check_marks(
    held: Sequence[bytes | None], marks: Marks, where: str
) -> tuple[int, frozenset[str]]:
    """Return how many replicas could be elected, and which are not counted among them, by the
    values of MARKED that a server at `where` has.

    A store without its mark is not ours to fill. A gateway that took it for a new one would delete
    what other copies still have.

    Raises:
        NotOurs: it was emptied, belongs to another history, or is an older copy.
    """
    incarnation, replicas, touches, out = held
    if incarnation is None or replicas is None:
        raise NotOurs(f"{where} has no incarnation: it was emptied, or it was never provisioned")
    if incarnation.decode() != marks.incarnation:
        raise NotOurs(
            f"{where} is of the incarnation {incarnation.decode()}, "
            f"and {marks.incarnation} is expected"
        )
    if int(touches or 0) < marks.touches:
        raise NotOurs(
            f"{where} holds an older copy: {int(touches or 0)} touches, "
            f"and there were {marks.touches}"
        )
    return int(replicas), out_of(out)


def out_of(text: bytes | None) -> frozenset[str]:
    """Return the places of the replicas that are not counted, from the shard's hash."""
    return frozenset((text or b"").decode().split())


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Memory in bytes, as the server counts for its bound."""

    used: int
    bound: int
    """The bound; 0: it has none."""

    @property
    def free_share(self) -> float:
        """Share of the bound that is free; 1.0 without a bound. Below 0: more than the bound is
        used, because acks are stored even when memory is full."""
        return 1 - self.used / self.bound if self.bound else 1.0


def memory_of(told: Mapping[str, str]) -> MemoryUse:
    """Decode INFO memory. Buffers for replicas and the file do not count for the bound.

    Source: `getMaxmemoryState` in Redis 7.0's evict.c.
    """
    used = int(told.get("used_memory", "0")) - int(told.get("mem_not_counted_for_evict", "0"))
    return MemoryUse(used, int(told.get("maxmemory", "0")))


class MemoryReserve:
    """Decision whether a primary has room for new messages (`is_open`): no longer when less than
    `share` of its memory is free, and again when MEMORY_RESERVE_REOPENS times as much is. With one
    bound the answer would alternate while consumers catch up."""

    def __init__(self, share: float) -> None:
        self._share = share
        self.is_open = True

    # enforces: R29
    def update(self, memory: MemoryUse) -> bool:
        """Set `is_open` by the server's present memory, and return it; True: messages may be
        published."""
        needed = self._share if self.is_open else self._share * limits.MEMORY_RESERVE_REOPENS
        self.is_open = memory.free_share >= needed
        return self.is_open
