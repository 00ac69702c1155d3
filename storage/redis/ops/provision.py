"""Acts of an operator: make a shard ours, set how many replicas it has, examine it (R28, R30)."""

from collections.abc import Collection, Sequence
from typing import Any, Final

from redis.exceptions import RedisError

from push.errors import Refused, Unknown
from storage.redis.answers import answer, unavailable
from storage.redis.connection import Address, Connection, Reach, pack
from storage.redis.library import PREFIX
from storage.redis.ops.settings import REPLAYED, as_mapping, broken_promises, broken_replay
from storage.redis.port import Arg
from storage.redis.replication import doubt_of, fields, out_of, places
from storage.redis.shard import Settings

UNUSED_S: Final = 7 * 86_400
"""Time in seconds after which functions that no gateway has used are deleted."""


async def provision(settings: Settings, incarnation: str, replicas: int) -> None:
    """Make an empty shard ours, with this number of replicas that could be elected. If it is ours
    already, under this incarnation, nothing happens, and the number of replicas stays as it was
    set.

    Raises:
        Refused: it belongs to another incarnation, or holds something else, or does not answer.
        Unknown: fewer copies than `replicas` have confirmed it, or the connection was lost; doing
            it again is safe.

    Functions that no gateway uses any more are deleted (see `retire`).
    """
    link = await settings.open()
    try:
        await settings.load(link)
        await govern(
            settings,
            link,
            "provision",
            [settings.key],
            [incarnation, replicas],
            copies=replicas,
            replicas=replicas,
        )
        await retire(settings, link)
    finally:
        await link.close()


async def retire(settings: Settings, link: Connection) -> list[str]:
    """Delete the functions of versions of the broker that no gateway has used for UNUSED_S, and
    return their names. A gateway says now and then that it uses its own, because in a rollout
    several are in use for a while.

    Raises Refused(storage_unavailable) if the connection is lost. A user without the right to
    delete deletes nothing.
    Source: https://redis.io/docs/latest/commands/function-delete/
    """
    listed = await settings.ask(link, pack("FUNCTION", "LIST", "LIBRARYNAME", f"{PREFIX}*"))
    if not isinstance(listed, list):
        return []
    names = [bytes(one[one.index(b"library_name") + 1]).decode() for one in listed]
    others = [name for name in names if name != settings.library.name]
    call = settings.call("unused", [settings.key], [UNUSED_S, *others])
    unused = await settings.ask(link, call) if others else []
    gone = []
    for name in unused if isinstance(unused, list) else ():
        deleted = await settings.ask(link, pack("FUNCTION", "DELETE", name))
        if not isinstance(deleted, RedisError):
            gone.append(bytes(name).decode())
    return gone


async def _electable(settings: Settings, link: Connection) -> tuple[int, frozenset[str]]:
    """Return the number of replicas that could be elected, and the places of those that are out.
    Raises Refused."""
    held = await settings.ask(link, pack("HMGET", settings.key, "replicas", "out"))
    match held:
        case [bytes(replicas), out]:
            return int(replicas), out_of(out)
    raise unavailable(f"{link.address} was never provisioned: {held}")


async def set_replicas(settings: Settings, replicas: int) -> None:
    """Set how many replicas could be elected. The number is raised before a replica is attached,
    and lowered only when one that was removed cannot be elected any more.

    Raises:
        Refused: invalid_request: more than that are attached, or the attached ones cannot be
            counted (`doubt_of`); storage_unavailable: the shard was never provisioned, or does not
            answer.
        Unknown: as `provision` does.
    """
    link = await settings.open()
    try:
        await settings.load(link)
        before, out = await _electable(settings, link)
        info = await settings.ask(link, pack("INFO", "replication"))
        doubt = doubt_of(fields(info), replicas, out) if isinstance(info, bytes) else str(info)
        if doubt:
            raise Refused("invalid_request", f"{link.address}: {doubt}")
        # A replica that has yet to be attached cannot confirm, nor can one that has left.
        copies = min(before, replicas)
        await govern(
            settings,
            link,
            "set_replicas",
            [settings.key],
            [replicas],
            copies=copies,
            replicas=replicas,
            out=out,
        )
    finally:
        await link.close()


async def forget_server(settings: Settings, place: str) -> bool:
    """Forget a server that managers have taken out, and that will never be back. `place`:
    host:port. Returns whether it was one of this shard's that are out.

    Raises:
        Refused: invalid_request: it is attached; storage_unavailable: the shard does not answer.
        Unknown: as `provision` does; doing it again is safe.
    """
    link = await settings.open()
    try:
        await settings.load(link)
        replicas, out = await _electable(settings, link)
        if place not in out:
            return False
        info = await settings.ask(link, pack("INFO", "replication"))
        if not isinstance(info, bytes) or place in places(fields(info)):
            raise Refused("invalid_request", f"{place} is attached to {link.address}")
        said = await govern(
            settings,
            link,
            "forget_server",
            [settings.managed, settings.key],
            [place],
            copies=replicas,
            replicas=replicas,
            out=out - {place},
        )
    finally:
        await link.close()
    return bool(said == 1)


async def examine(address: Address, reach: Reach, *, silence_s: float = 2.0) -> list[str]:
    """Return a sentence for each setting of this server that breaks a promise, as `broken_promises`
    and `broken_replay` do; none: all is well. To be called for each server of a shard, because any
    of them may become the primary.

    Raises Refused(storage_unavailable) if it does not answer.
    Source: https://redis.io/docs/latest/commands/config-get/
    """
    try:
        link = await reach.link(address)
        try:
            commands = [pack("INFO", "server"), pack("CONFIG", "GET", "*")]
            commands += [pack("ACL", "DRYRUN", "default", *words) for words in REPLAYED]
            server, config, *replayed = await link.ask(commands, silence_s)
        finally:
            await link.close()
    except (RedisError, OSError) as error:
        raise unavailable(f"{address}: {str(error) or 'no reply in time'}") from None
    if not isinstance(server, bytes) or not isinstance(config, list):
        raise unavailable(f"{address} does not show its settings: {server!r:.80} {config!r:.80}")
    return [*broken_promises(as_mapping(config), fields(server)), *broken_replay(replayed)]


async def govern(
    settings: Settings,
    link: Connection,
    function: str,
    keys: Sequence[str],
    args: Sequence[Arg],
    *,
    copies: int,
    replicas: int,
    out: Collection[str] = (),
) -> Any:
    """Execute an act that `copies` copies must confirm, and return its answer. At most `replicas`
    may be attached; those in `out` are not counted.

    Raises Refused if it did not happen, and Unknown if it may have, and too few copies may have it.
    """
    commands = [
        settings.call(function, keys, args),
        pack("WAIT", copies, round(settings.wait_s * 1000)),
        pack("INFO", "replication"),
    ]
    try:
        reply, counted, info = await link.ask(commands, settings.wait_s + settings.silence_s)
    except (RedisError, OSError) as error:
        raise Unknown(f"{link.address}: {str(error) or 'no reply in time'}") from None
    said = answer(reply, "")
    if not isinstance(counted, int) or counted < copies:
        raise Unknown(f"{counted} of {copies} replicas have confirmed it")
    doubt = doubt_of(fields(info), replicas, out) if isinstance(info, bytes) else str(info)
    if doubt:
        raise Unknown(doubt)
    return said
