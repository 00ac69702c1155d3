"""Settings of a server that cannot keep the promises, each in a sentence for people."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

VERSION_MIN: Final = (7, 0)


@dataclass(frozen=True, slots=True)
class RequiredSetting:
    """A setting, the values that will do, and the promise that another value breaks."""

    name: str
    values: tuple[str, ...]
    why: str
    in_cluster: bool = False
    """Whether it matters in a Cluster only."""


ALWAYS: Final = (
    RequiredSetting("appendonly", ("yes",), "a restart loses what was acknowledged"),
    RequiredSetting(
        "appendfsync", ("always",), "a power loss, and a kill, loses what was acknowledged"
    ),
    RequiredSetting(
        "no-appendfsync-on-rewrite",
        ("no",),
        "while the append-only file is rewritten, nothing is synced",
    ),
    RequiredSetting(
        "replica-ignore-disk-write-errors",
        ("no",),
        "a replica confirms what it could not write to its disk",
    ),
    RequiredSetting(
        "maxmemory-policy", ("noeviction",), "stored messages are deleted when memory is short"
    ),
    RequiredSetting(
        "save", ("",), "a snapshot that fails refuses every write, acknowledgements too"
    ),
    RequiredSetting(
        "min-replicas-to-write",
        ("0",),
        "a dead replica refuses every level, and acknowledgements too; copies are counted anyway",
    ),
    RequiredSetting("replica-read-only", ("yes",), "a replica takes writes that no other copy has"),
    RequiredSetting(
        "repl-diskless-load", ("disabled",), "a replica deletes its copy before it has another"
    ),
    RequiredSetting(
        "io-threads", ("1",), "answers are known to follow the disk with one thread only"
    ),
    RequiredSetting(
        "timeout", ("0",), "idle connections are closed under the next write: it is unknown"
    ),
    RequiredSetting(
        "cluster-replica-validity-factor",
        (),
        "at 0 a replica without any data can be elected",
        in_cluster=True,
    ),
    RequiredSetting(
        "cluster-allow-replica-migration",
        ("no",),
        "replicas wander between primaries, and more of them than were counted can be elected",
        in_cluster=True,
    ),
    RequiredSetting(
        "cluster-allow-reads-when-down",
        ("no",),
        "a node that is cut off answers from what it had",
        in_cluster=True,
    ),
)
"""Settings that every server needs. An empty `values` means anything but 0."""
UNBOUNDED: Final = "maxmemory is 0: the system kills the server when memory ends; set a bound"
BACKLOG_SHARE: Final = 2
"""Number of parts of `maxmemory`, of which the replication backlog may take one."""

REPLAYED: Final = (
    ("HSET", "{tocsin}:replayed", "field", "value"),
    ("XADD", "{tocsin}:replayed", "1-1", "field", "value"),
    ("UNLINK", "{tocsin}:replayed"),
)
"""Commands that an append-only file has in its transactions. Each represents others of its kind."""
_REPLAY: Final = (
    "let it be off and without a password, which lets nobody in, and let it do everything "
    "(`user default off resetpass ~* &* +@all`)"
)


def version_of(server: Mapping[str, str]) -> tuple[int, ...]:
    """Return the version in INFO server; () if it has none. Valkey names the Redis that it is
    compatible with.

    Source: https://redis.io/docs/latest/commands/info/
    """
    parts = server.get("redis_version", "").split(".")
    return tuple(int(part) for part in parts if part.isdigit())


def broken_promises(config: Mapping[str, str], server: Mapping[str, str]) -> list[str]:
    """Return a sentence for each setting that breaks a promise, or one if the version is too old;
    none: all is well.

    `config`: the answer to CONFIG GET *; `server`: the fields of INFO server. A setting that is not
    in `config` breaks a promise, too, because it could not be read. To be called for each server,
    replicas too, because any of them may become the primary.
    Source: https://redis.io/docs/latest/operate/oss_and_stack/management/config-file/
    """
    version = version_of(server)
    if version < VERSION_MIN:
        named = server.get("redis_version", "unknown")
        return [f"the server is of version {named}, and 7.0 is the first with functions"]
    in_cluster = config.get("cluster-enabled") == "yes"
    found = [
        sentence
        for needed in ALWAYS
        if (in_cluster or not needed.in_cluster)
        and (sentence := _sentence(needed, config.get(needed.name)))
    ]
    if config.get("maxmemory") in (None, "0"):
        found.append(UNBOUNDED)
    elif int(config.get("repl-backlog-size", "0")) * BACKLOG_SHARE > int(config["maxmemory"]):
        found.append(
            f"repl-backlog-size is {config['repl-backlog-size']} and counts towards maxmemory, "
            f"{config['maxmemory']}: memory stays full when everything is consumed, and publishing "
            "never goes on; let it be half of that at most"
        )
    return found


def broken_replay(answers: Sequence[object]) -> list[str]:
    """Return a sentence if a restart would lose acknowledged data, or if that is unknown because
    this user may not use ACL DRYRUN; none: all is well. `answers`: the replies to ACL DRYRUN
    default with each of REPLAYED.

    A function that writes twice is in the append-only file as a transaction. When the file is
    loaded, the server checks the rights of the user `default`, off or not, for each command. It
    leaves out those that this user may not execute, with no more than a line in its log.
    Source: execCommand in multi.c, createAOFClient in aof.c (Redis 7.0, Valkey 8.0)
    """
    for said in answers:
        if isinstance(said, Exception):
            return [
                "nobody can tell whether a restart loses what was acknowledged: this user may not "
                f"ask for the rights of the user default (+acl|dryrun): {said}"
            ]
        if said != b"OK":
            why = said.decode("utf-8", "replace") if isinstance(said, bytes) else repr(said)
            return [
                "a restart loses what was acknowledged: transactions of the append-only file are "
                f"loaded with the rights of the user default ({why}); {_REPLAY}"
            ]
    return []


def _sentence(needed: RequiredSetting, value: str | None) -> str:
    wanted = " or ".join(f'"{text}"' for text in needed.values) or "more than 0"
    if value is None:
        return f"{needed.name} could not be read; it must be {wanted}"
    good = value in needed.values if needed.values else value != "0"
    return "" if good else f'{needed.name} is "{value}" and must be {wanted}: {needed.why}'


def as_mapping(reply: Sequence[bytes]) -> dict[str, str]:
    """Decode a reply of CONFIG GET, names and values in turns."""
    words = [word.decode("utf-8", "replace") for word in reply]
    return dict(zip(words[::2], words[1::2], strict=True))
