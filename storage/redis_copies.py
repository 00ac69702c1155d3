"""How many copies a level asks for, and whether what Redis says of its replicas can be believed."""

from collections.abc import Mapping
from typing import Final

from push.ports import Durability

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


def awaited(replication: Mapping[str, str], replicas: int) -> str:
    """A sentence why the level all is not met now, "" where it is, of a shard of so many replicas
    that could be elected. Those that must not be believed come first, see `doubt_of`."""
    online = attached(replication)
    few = f"{online} of {replicas} replicas are attached: the level all waits for them"
    return doubt_of(replication, replicas) or (few if online < replicas else "")


def doubt_of(replication: Mapping[str, str], replicas: int) -> str:
    """A sentence why WAIT's number must not be believed, "" where nothing speaks against it.

    A replica beyond `replicas` could be elected with less than what was counted. One that has come
    back while its old connection still stands is counted twice. Those that are still being synced
    count here: they may be elected with what they had before, or a moment later.
    """
    if replication.get("role") != "master":
        return "the server is no primary any more"
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
