"""`tocsin admin doctor`, `provision` and `set-replicas`: the Redis or Valkey of a broker."""

import asyncio
import secrets
import sys
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

import click

from gateway.admin_options import json_option, settings_of, to_json
from gateway.setting_values import SQLITE
from gateway.stores import examine_all
from metadata.redis_store import found_catalog
from push.errors import Refused, TocsinError
from storage import redis_provision, redis_target
from storage.redis_cluster import ClusterShard
from storage.redis_examining import Examined
from storage.redis_primary import replicas_known
from storage.redis_shard import Marks, RedisShard
from storage.redis_target import Target

T = TypeVar("T")
REPLICAS_MAX: Final = 16

storage_option: Final = click.option(
    "--storage",
    default=None,
    metavar="TEXT",
    help="Where it is, as for tocsin serve. (env TOCSIN_STORAGE)",
)
replicas_option: Final = click.option(
    "--replicas",
    type=click.IntRange(0, REPLICAS_MAX),
    required=True,
    help="How many replicas of each primary could be elected.",
)


def _target(text: str | None) -> Target | None:
    """None: it is the embedded store. What is wrong ends the command."""
    storage = settings_of(("TOCSIN_STORAGE",), {"storage": text}).storage
    return None if storage == SQLITE else redis_target.parse(storage)


def _shared(text: str | None) -> Target:
    target = _target(text)
    if target is None:
        raise click.UsageError(
            "There is nothing to do for the store in the data folder; name another one by "
            "--storage or TOCSIN_STORAGE."
        )
    return target


def _run(work: Coroutine[Any, Any, T]) -> T:
    try:
        return asyncio.run(work)
    except TocsinError as error:
        raise click.ClickException(f"{error.detail.rstrip('.')}.") from None


@click.command()
@storage_option
@json_option
def doctor(storage: str | None, as_json: bool) -> None:
    """Say whether the store's servers keep what is promised.

    Asks each of them for its settings, which a broker does before it starts, and whether all
    copies are there. Ends with 1 when something breaks a promise.

    \b
    Examples:
      tocsin admin doctor --storage redis://127.0.0.1:6379
      TOCSIN_STORAGE=redis+sentinel://… tocsin admin doctor --json
    """
    target = _target(storage)
    if target is None:
        message = "The store in the data folder is checked at each start; `tocsin admin verify` "
        click.echo(to_json({}) if as_json else message + "reads all of it.")
        return
    found = _run(examine_all(target))
    is_well = not any(one.problems or one.incarnation is None for one in found)
    if as_json:
        click.echo(to_json({"ok": is_well, "shards": [_as_json(one) for one in found]}))
    else:
        for one in found:
            _tell(one)
        verdict = "keeps what is promised" if is_well else "does NOT keep what is promised"
        click.echo(f"{target.shown} {verdict}.")
    sys.exit(0 if is_well else 1)


def _as_json(found: Examined) -> dict[str, object]:
    servers = [
        {
            "address": str(one.place),
            "role": one.role,
            "problems": list(one.problems),
            "unasked": one.unasked,
        }
        for one in found.servers
    ]
    return {
        "incarnation": found.incarnation,
        "replicas": found.replicas,
        "servers": servers,
        "doubts": list(found.doubts),
    }


def _tell(found: Examined) -> None:
    for one in found.servers:
        said = f"not examined: {one.unasked}" if one.unasked else "well"
        click.echo(f"{one.place}  {one.role}  {said if not one.problems else ''}".rstrip())
        for problem in one.problems:
            click.echo(f"  BROKEN  {problem}")
    if found.incarnation is None:
        click.echo("  BROKEN  no incarnation: it was emptied, or `tocsin admin provision` is to do")
    else:
        click.echo(f"  incarnation {found.incarnation}, {found.replicas} replicas")
    for doubt in found.doubts:
        click.echo(f"  now  {doubt}")


@click.command()
@storage_option
@replicas_option
def provision(storage: str | None, replicas: int) -> None:
    """Make empty servers a store of this broker, once, and load its functions.

    Where the broker's own user may not load functions, run this with the admin's user, and again
    with each new version before it starts: on a store that is ours it changes nothing else.

    \b
    Examples:
      tocsin admin provision --storage redis://127.0.0.1:6379 --replicas 0
      TOCSIN_STORAGE=redis+sentinel://…/tocsin tocsin admin provision --replicas 2
    """
    target = _shared(storage)
    incarnation = _run(_provision(target, replicas))
    click.echo(f"{target.shown} is a store of the incarnation {incarnation}.")


async def _provision(target: Target, replicas: int) -> str:
    found = await examine_all(target)
    _check_replicas(found, replicas)
    incarnation = next((one.incarnation for one in found if one.incarnation), None)
    incarnation = incarnation or secrets.token_hex(8)
    parts = await target.parts()
    for part in parts:
        await redis_provision.provision(part.settings, incarnation, replicas)
    shard: RedisShard | ClusterShard
    if target.kind == "cluster":
        shard = await ClusterShard.open(parts, incarnation, {})
    else:
        shard = await RedisShard.open(parts[0].settings, Marks(incarnation))
    try:
        await found_catalog(shard)
    finally:
        await shard.close()
    return incarnation


def _check_replicas(found: list[Examined], replicas: int) -> None:
    """Before anything is written. Raises Refused: there are more or fewer, with what to do."""
    for one in found:
        place = one.servers[0].place
        if one.replicas is not None and one.replicas != replicas:
            raise Refused(
                "invalid_request",
                f"{place} is a store of this broker with {one.replicas} replicas already: "
                f"`tocsin admin set-replicas --replicas {replicas}` changes that",
            )
        there = len(one.servers) - 1
        if one.replicas is None and there != replicas:
            raise Refused(
                "invalid_request",
                f"{there} replicas are attached to {place}, and --replicas says {replicas}: attach "
                f"or detach some first, or say --replicas {there}",
            )


@click.command("set-replicas")
@storage_option
@replicas_option
def set_replicas(storage: str | None, replicas: int) -> None:
    """Say how many replicas of each primary could be elected.

    Raise it before a replica is attached, and lower it when one cannot be elected any more: until
    then publishing waits for it. The level `all` counts so many copies besides the primary.

    A Sentinel has a replica elected that was away for however long. So the number is lowered only
    when the Sentinels know no more than that: while the replica is off, lock it out of the others
    (ACL SETUSER replica-3 off, ACL SAVE), lest they hear of it again, and say SENTINEL RESET to
    each of them; deploy/redis/README.md has it step by step. A shard of a Cluster that has more
    replicas attached keeps its number.

    \b
    Examples:
      tocsin admin set-replicas --replicas 1 --storage redis+sentinel://…/tocsin
    """
    target = _shared(storage)
    for note in _run(_set_replicas(target, replicas)):
        click.echo(note, err=True)
    click.echo(f"{target.shown} has {replicas} replicas of each primary now.")


async def _set_replicas(target: Target, replicas: int) -> list[str]:
    """What is to be known besides."""
    notes = await _remembered(target, replicas) if target.kind == "sentinel" else []
    parts = await target.parts()
    errors: list[TocsinError] = []
    for part in parts:
        try:
            await redis_provision.set_replicas(part.settings, replicas)
        except TocsinError as error:
            errors.append(error)
    grave = [error for error in errors if error.code.name != "invalid_request"]
    if grave or len(errors) == len(parts):
        raise (grave or errors)[0]
    return notes + [f"unchanged: {error.detail}" for error in errors]


async def _remembered(target: Target, replicas: int) -> list[str]:
    """Sentinels that cannot be asked. Raises Refused: one knows more replicas than that."""
    known = await replicas_known(target.places, target.name, target.reach)
    for place, count in known.items():
        if isinstance(count, int) and count > replicas:
            raise Refused(
                "invalid_request",
                f"the Sentinel {place} knows {count} replicas, and may have any of them elected: "
                "with the one that has gone switched off, and locked out of the others, say "
                f"SENTINEL RESET {target.name} to each Sentinel, then this again",
            )
    return [
        f"not asked, and may know of more replicas: {why}"
        for why in known.values() if isinstance(why, str)
    ]  # fmt: skip
