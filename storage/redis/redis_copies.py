"""How many copies a level asks for, and whether what Redis says of its replicas can be believed."""

from collections.abc import Collection, Mapping
from typing import Final

from push.places import Durability

STATE: Final = "state="


def copies_needed(level: Durability, replicas: int) -> int:
    """What WAIT must have counted, besides the primary, of a shard with so many replicas that could
    be elected (R28): none, a majority of all copies less the primary, or all."""
    if level == "local":
        return 0
    return replicas if level == "all" else (replicas + 1) // 2


def fields(info: bytes) -> dict[str, str]:
    """The lines of an INFO section, by name. Source: https://redis.io/docs/latest/commands/info/"""
    lines = info.decode("utf-8", "replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def attached(replication: Mapping[str, str]) -> int:
    """How many replicas are there and follow, by INFO replication."""
    return sum(STATE + "online" in text for text in replication.values())


def places(replication: Mapping[str, str]) -> dict[str, str]:
    """Where the replicas that INFO replication lists listen, `host:port` → the name of its line."""
    found = {}
    for name, text in replication.items():
        if name.startswith("slave") and STATE in text:  # slave0:ip=…,port=…,state=online,…
            facts = dict(part.split("=", 1) for part in text.split(",") if "=" in part)
            found[f"{facts['ip']}:{facts['port']}"] = name
    return found


def without(replication: Mapping[str, str], out: Collection[str]) -> Mapping[str, str]:
    """INFO replication as if these replicas, which are not counted, were not attached."""
    lines = {name for place, name in places(replication).items() if place in out} if out else ()
    if not lines:
        return replication
    left = {name: text for name, text in replication.items() if name not in lines}
    return left | {"connected_slaves": str(int(left["connected_slaves"]) - len(lines))}


def awaited(replication: Mapping[str, str], replicas: int, out: Collection[str] = ()) -> str:
    """A sentence why the level all is not met now, "" where it is, of a shard of so many replicas
    that could be elected, these `out` not among them. Those that must not be believed come first,
    see `doubt_of`."""
    online = attached(without(replication, out))
    few = f"{online} of {replicas} replicas are attached: the level all waits for them"
    return doubt_of(replication, replicas, out) or (few if online < replicas else "")


def doubt_of(replication: Mapping[str, str], replicas: int, out: Collection[str] = ()) -> str:
    """A sentence why WAIT's number must not be believed, "" where nothing speaks against it.

    One that is `out` may lack what was acknowledged, and WAIT would count it in place of one that
    could be elected; where no replica is waited for, it is no matter.

    A replica beyond `replicas` could be elected with less than what was counted. One that has come
    back while its old connection still stands is counted twice. Those that are still being synced
    count here: they may be elected with what they had before, or a moment later.
    """
    if replication.get("role") != "master":
        return "the server is no primary any more"
    barred = sorted(set(places(replication)) & set(out)) if replicas else ()
    if barred:
        return f"{barred[0]} is attached, and is not counted: it may lack what was acknowledged"
    replication = without(replication, out)
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
