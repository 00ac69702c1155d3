"""`tocsin admin doctor`, `provision`, `set-replicas` and `forget-server`, which check and change
the Redis or Valkey of a broker."""

import asyncio
import secrets
import sys
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

import click
from tocsin.cli.common import run

from gateway.cli.options import json_option, settings_of, to_json
from gateway.settings import SQLITE
from gateway.stores.clusters import examine_all, open_shard
from gateway.stores.marks import ClusterMark
from metadata.redis.database import found_catalog
from push.errors import Refused, TocsinError
from storage.redis import target as redis_target
from storage.redis.connection import address_of
from storage.redis.discovery import known_replicas
from storage.redis.ops import provision as redis_provision
from storage.redis.ops.examine import ExaminedShard
from storage.redis.target import Target

T = TypeVar("T")
REPLICAS_MAX: Final = 16
ANSWERS_S: Final = 2.0
"""Seconds within which a server has to accept a connection. If it does not, it counts as switched
off."""

storage_option: Final = click.option(
    "--storage",
    default=None,
    metavar="TEXT",
    help="The URL of the store, as for tocsin serve. (env TOCSIN_STORAGE)",
)
cluster_option: Final = click.option(
    "--cluster",
    default=None,
    metavar="NAME",
    help="Use only this one of several storage clusters. NAME is the one in its URL.",
)
replicas_option: Final = click.option(
    "--replicas",
    type=click.IntRange(0, REPLICAS_MAX),
    required=True,
    help="Number of replicas of each primary that may be elected.",
)


def _targets(text: str | None, cluster: str | None) -> list[Target]:
    """Return the storage clusters of the setting `text`, or only the one with the name `cluster`;
    [] for a store in a data folder. A wrong setting or name ends the command."""
    storage = settings_of(("TOCSIN_STORAGE",), {"storage": text}).storage
    if storage == SQLITE:
        return []
    targets = redis_target.parse_all(storage)
    found = [target for target in targets if cluster in (None, target.cluster)]
    if not found:
        names = ", ".join(target.cluster for target in targets)
        raise click.UsageError(f"There is no storage cluster {cluster}. Name one of: {names}.")
    return found


def _shared_targets(text: str | None, cluster: str | None) -> list[Target]:
    targets = _targets(text, cluster)
    if not targets:
        raise click.UsageError(
            "This command does nothing for the store in a data folder. Name another store with "
            "--storage or TOCSIN_STORAGE."
        )
    return targets


def _run(work: Coroutine[Any, Any, T]) -> T:
    try:
        return run(work)
    except TocsinError as error:
        raise click.ClickException(f"{error.detail.rstrip('.')}.") from None


@click.command()
@storage_option
@cluster_option
@json_option
def doctor(storage: str | None, cluster: str | None, as_json: bool) -> None:
    """Check whether the store's servers keep the broker's promises.

    Checks the settings of each server, as a broker does before it starts, and whether all copies
    exist. The exit code is 1 if a promise is broken.

    \b
    Examples:
      tocsin admin doctor --storage redis://127.0.0.1:6379
      TOCSIN_STORAGE=redis+sentinel://… tocsin admin doctor --json
    """
    targets = _targets(storage, cluster)
    if not targets:
        message = "The store in the data folder is checked at each start. To read all of it, use "
        click.echo(to_json({}) if as_json else message + "`tocsin admin verify`.")
        return
    shards: list[dict[str, object]] = []
    all_well = True
    for target in targets:
        try:
            found = run(examine_all(target))
        except TocsinError as error:
            if len(targets) == 1:
                raise click.ClickException(f"{error.detail.rstrip('.')}.") from None
            all_well = False
            shards.append({"cluster": target.cluster, "unasked": error.detail})
            if not as_json:
                click.echo(f"{target.cluster}  {target.shown}  not examined: {error.detail}")
            continue
        is_well = not any(one.problems or one.incarnation is None for one in found)
        all_well = all_well and is_well
        shards += [{"cluster": target.cluster, **_as_json(one)} for one in found]
        if not as_json:
            _print_all(target, found, is_well=is_well)
    if as_json:
        click.echo(to_json({"ok": all_well, "shards": shards}))
    sys.exit(0 if all_well else 1)


def _print_all(target: Target, found: list[ExaminedShard], *, is_well: bool) -> None:
    for one in found:
        _print_shard(one)
    verdict = "keeps the promises" if is_well else "does NOT keep the promises"
    click.echo(f"{target.shown} {verdict}.")


def _as_json(found: ExaminedShard) -> dict[str, object]:
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


def _print_shard(found: ExaminedShard) -> None:
    for one in found.servers:
        said = f"not examined: {one.unasked}" if one.unasked else "well"
        click.echo(f"{one.place}  {one.role}  {said if not one.problems else ''}".rstrip())
        for problem in one.problems:
            click.echo(f"  BROKEN  {problem}")
    if found.incarnation is None:
        click.echo(
            "  BROKEN  no incarnation: it was emptied, or never provisioned. If it is a new store, "
            "run `tocsin admin provision`"
        )
    else:
        click.echo(f"  incarnation {found.incarnation}, {found.replicas} replicas")
    for doubt in found.doubts:
        click.echo(f"  now  {doubt}")


@click.command()
@storage_option
@cluster_option
@replicas_option
def provision(storage: str | None, cluster: str | None, replicas: int) -> None:
    """Make empty servers a store of this broker, once, and load its functions.

    If the broker's own user may not load functions, run this with the admin's user, and again with
    each new version before it starts. On an existing store it only loads the functions. Of several
    storage clusters, each becomes a store, and the first one gets the catalog.

    \b
    Examples:
      tocsin admin provision --storage redis://127.0.0.1:6379 --replicas 0
      TOCSIN_STORAGE=redis+sentinel://…/tocsin tocsin admin provision --replicas 2
    """
    targets = _shared_targets(storage, cluster)
    home = _shared_targets(storage, None)[0]
    for target in targets:
        incarnation = _run(_provision(target, replicas, has_catalog=target == home))
        click.echo(f"{target.shown} is a store of the incarnation {incarnation}.")


async def _provision(target: Target, replicas: int, *, has_catalog: bool) -> str:
    found = await examine_all(target)
    _check_replicas(found, replicas)
    incarnation = next((one.incarnation for one in found if one.incarnation), None)
    incarnation = incarnation or secrets.token_hex(8)
    for part, one in zip(await target.parts(), found, strict=True):
        # Excluded replicas cannot confirm it.
        await redis_provision.provision(part.settings, incarnation, replicas - len(one.out))
    shard = await open_shard(target, ClusterMark(incarnation=incarnation))
    try:
        if has_catalog:
            await found_catalog(shard)
    finally:
        await shard.close()
    return incarnation


def _check_replicas(found: list[ExaminedShard], replicas: int) -> None:
    """Check the number of replicas, before anything is written. Raises Refused if there are more or
    fewer, with advice what to do."""
    for one in found:
        place = one.servers[0].place
        known = None if one.replicas is None else one.replicas + len(one.out)
        if known is not None and known != replicas:
            raise Refused(
                "invalid_request",
                f"{place} is already a store of this broker with {known} replicas. To change the "
                f"number, use `tocsin admin set-replicas --replicas {replicas}`",
            )
        there = len(one.servers) - 1
        if one.replicas is None and there != replicas:
            raise Refused(
                "invalid_request",
                f"{there} replicas are attached to {place}, but --replicas is {replicas}. Attach "
                f"or detach some first, or use --replicas {there}",
            )


@click.command("set-replicas")
@storage_option
@cluster_option
@replicas_option
def set_replicas(storage: str | None, cluster: str | None, replicas: int) -> None:
    """Set the number of replicas of each primary that may be elected.

    Raise the number before you attach a replica. Lower it when a replica cannot be elected any
    more. Until then publishing waits for it. The level `all` waits for this number of copies, in
    addition to the primary.

    A Sentinel may elect a replica that was away for any time. So the number can be lowered only
    when the Sentinels know no more replicas than that. While the replica is off, lock it out of the
    other servers (ACL SETUSER replica-3 off, ACL SAVE), so that the Sentinels do not learn of it
    again. Then send SENTINEL RESET to each Sentinel. deploy/redis/README.md shows it step by step.
    A shard of a Cluster that has more replicas attached keeps its number.

    \b
    Examples:
      tocsin admin set-replicas --replicas 1 --storage redis+sentinel://…/tocsin
    """
    targets = _shared_targets(storage, cluster)
    if len(targets) > 1:
        names = ", ".join(target.cluster for target in targets)
        raise click.UsageError(f"Name the storage cluster with --cluster, one of: {names}.")
    target = targets[0]
    for note in _run(_set_replicas(target, replicas)):
        click.echo(note, err=True)
    click.echo(f"{target.shown} now has {replicas} replicas of each primary.")


async def _set_replicas(target: Target, replicas: int) -> list[str]:
    """Set the number of replicas in every shard. Return notes for the operator, among them the
    shards that refused the number and are unchanged. Raises TocsinError if all shards refused it,
    or one failed for another reason."""
    notes = await _check_known_replicas(target, replicas) if target.kind == "sentinel" else []
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


@click.command("forget-server")
@click.argument("address")
@storage_option
@cluster_option
def forget_server(address: str, storage: str | None, cluster: str | None) -> None:
    """Forget an excluded server that will never come back.

    ADDRESS is its own address, as `tocsin admin clusters` shows it. The server is a replica that
    the managers have excluded, and whose machine is gone for good. First delete its user on all
    servers (ACL DELUSER replica-3, ACL SAVE). A forgotten server is no longer locked out,
    not even of servers that join later.

    \b
    Examples:
      tocsin admin forget-server 10.0.0.3:6379 --storage redis+sentinel://…/tocsin
    """
    try:
        host, port = address_of(address)
    except ValueError:
        raise click.UsageError(f"{address} is no address with a port. Give HOST:PORT.") from None
    targets = _shared_targets(storage, cluster)
    place = f"{host}:{port}"
    if _run(_answers(host, port)):
        raise click.ClickException(f"{place} still answers. First switch it off for good.")
    found = [_run(_forget(target, place)) for target in targets]
    if not any(found):
        raise click.ClickException(
            f"{place} is not one of the excluded servers, so nothing was changed. `tocsin admin "
            "clusters` shows them."
        )
    click.echo(f"{place} is forgotten.")


async def _forget(target: Target, place: str) -> bool:
    """Forget an excluded server in every shard of a cluster. Returns False if no shard has it among
    its excluded servers."""
    parts = await target.parts()
    found = [await redis_provision.forget_server(part.settings, place) for part in parts]
    return any(found)


async def _answers(host: str, port: int) -> bool:
    """Whether a server accepts a connection at this host and port within ANSWERS_S."""
    try:
        async with asyncio.timeout(ANSWERS_S):
            _, writer = await asyncio.open_connection(host, port)
    except OSError:  # a TimeoutError, too
        return False
    writer.close()
    return True


async def _check_known_replicas(target: Target, replicas: int) -> list[str]:
    """Return notes about Sentinels that cannot be asked. Raises Refused if a Sentinel knows more
    replicas than this number."""
    known = await known_replicas(target.places, target.name, target.reach)
    for place, count in known.items():
        if isinstance(count, int) and count > replicas:
            raise Refused(
                "invalid_request",
                f"the Sentinel {place} knows {count} replicas, and may elect any of them. Switch "
                "off the replica that goes, lock it out of the other servers, send SENTINEL RESET "
                f"{target.name} to each Sentinel, then run this again",
            )
    return [
        f"a Sentinel could not be asked, and may know more replicas: {why}"
        for why in known.values()
        if isinstance(why, str)
    ]
