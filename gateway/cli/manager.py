"""`tocsin manager serve`, and `tocsin admin clusters`, which shows what the managers see and do."""

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from functools import partial

import click
import msgspec
from tocsin.cli.common import run

from gateway.cli.options import json_option, settings_of, to_json
from gateway.cli.store import storage_option
from gateway.config import is_loopback
from gateway.settings import SQLITE
from gateway.stores.open import node_client
from metadata.placement import HOT_SHARE
from metadata.service.client import NodeClient
from push.errors import TocsinError
from runtime import process as logs
from runtime.listener import StartError
from runtime.webhook import ScaleHook, check_hook
from services.manager import manager
from services.manager.keeper import ClusterTold
from services.manager.leader import RedisLeaderRow
from services.manager.placement import Placing
from storage.redis import target as redis_target
from storage.redis.target import Target

OLD_S = 10.0
"""Seconds after which `lines_of` says how old a manager's report is."""


@click.group("manager")
def manager_group() -> None:
    """Manage the servers that several brokers share."""


def clusters_of(storage: str | None) -> list[tuple[str, Target]]:
    """Return (name, target) of each storage cluster. `storage`: the value of --storage; None: the
    environment's. A wrong setting, or a store in a data folder, ends the command."""
    text = settings_of(("TOCSIN_STORAGE",), {"storage": storage}).storage
    if text == SQLITE:
        raise click.UsageError(
            "A store in a data folder needs no manager. Name another store with --storage or "
            "TOCSIN_STORAGE."
        )
    targets = redis_target.parse_all(text)
    if len(targets) == 1:
        return [(targets[0].name, targets[0])]
    return [(target.cluster, target) for target in targets]


def nodes_of_metadata() -> Callable[[], NodeClient] | None:
    """Return a function that makes a client of the metadata service, from the settings that
    gateways have too; None: no service is configured."""
    names = ("TOCSIN_METADATA", "TOCSIN_METADATA_TOKEN", "TOCSIN_METADATA_CA_FILE")
    # A gateway's settings must name a store too; which one makes no difference here.
    config = settings_of(names, {"storage": "redis://127.0.0.1"})
    if not config.metadata_urls:
        return None
    return partial(node_client, config, config.metadata_urls)


@manager_group.command()
@storage_option
@click.option(
    "--placing-storage",
    default=None,
    metavar="TEXT",
    help="URLs of the same clusters with the user tocsin. (env TOCSIN_PLACING_STORAGE) "
    "[as --storage]",
)
@click.option(
    "--scale-hook",
    envvar="TOCSIN_SCALE_HOOK",
    default=None,
    metavar="TEXT",
    help="A program or an address to call when there are too few or too many storage clusters. "
    "(env TOCSIN_SCALE_HOOK)",
)
@click.option(
    "--hot-percent",
    envvar="TOCSIN_HOT_PERCENT",
    type=click.IntRange(20, 95),
    default=round(100 * HOT_SHARE),
    show_default=True,
    help="Use of its memory, in percent, from which a cluster gets no new partitions. "
    "(env TOCSIN_HOT_PERCENT)",
)
@click.option(
    "--metrics-host",
    envvar="TOCSIN_METRICS_HOST",
    default="127.0.0.1",
    show_default=True,
    help="Host on which to serve metrics. If other machines can reach it, set "
    "TOCSIN_METRICS_TOKEN, which scrapes must present. (env TOCSIN_METRICS_HOST)",
)
@click.option(
    "--metrics-port",
    envvar="TOCSIN_METRICS_PORT",
    default=None,
    type=click.IntRange(0, 65_535),
    help="Port on which to serve metrics. (env TOCSIN_METRICS_PORT) [none]",
)
@click.option("--log-level", default="info", show_default=True, help="The lowest level to log.")
@click.option("--json", "as_json", is_flag=True, help="Log JSON lines, for machines.")
def serve(
    *,
    storage: str | None,
    placing_storage: str | None,
    scale_hook: str | None,
    hot_percent: int,
    metrics_host: str,
    metrics_port: int | None,
    log_level: str,
    as_json: bool,
) -> None:
    """Start a manager, which excludes replicas that are away and includes them again.

    While a replica is away, publishing at the level `all` waits for it. After 10 s a manager lets
    the other servers lock it out and the Sentinels forget it. Then publishing no longer waits. When
    the replica is back, it first receives all data. Only then does it count, and may be elected.
    Start two or three managers on different machines. One leads. If it fails, another one takes
    over within seconds.

    With several storage clusters, it finds out how full they are and which are away, so that new
    queues are placed where there is room. It also frees the memory of deleted queues. For both it
    needs their URLs once more, with the user tocsin, in TOCSIN_PLACING_STORAGE. If the gateways
    have TOCSIN_METADATA and its token, give it these too. When all clusters have been hot, or
    idle, for a minute, --scale-hook is called once. A program gets a JSON object on its standard
    input, an address gets it by POST.

    A manager needs the user tocsin-manager of deploy/redis, on servers and Sentinels.

    \b
    Examples:
      TOCSIN_STORAGE=redis+sentinel://tocsin-manager:…@a,b,c/tocsin tocsin manager serve
    """
    clusters = clusters_of(storage)
    targets = [target for _, target in clusters]
    placing_storage = placing_storage or os.environ.get("TOCSIN_PLACING_STORAGE")
    if placing_storage is not None:
        targets = [target for _, target in clusters_of(placing_storage)]
        if [one.cluster for one in targets] != [one.cluster for _, one in clusters]:
            raise click.UsageError(
                "TOCSIN_PLACING_STORAGE and TOCSIN_STORAGE must name the same clusters in the same "
                "order."
            )
    try:
        hook = ScaleHook(check_hook(scale_hook)) if scale_hook is not None else None
    except ValueError:
        raise click.UsageError(
            "--scale-hook must be an http or https address, or the path of an executable program."
        ) from None
    scraped = _scrape_settings(metrics_host, metrics_port)
    placing = Placing(targets, hook, hot_percent / 100, nodes_of_metadata())
    logs.configure(log_level, as_json=as_json)
    try:
        asyncio.run(manager.serve(clusters, placing=placing, scraped=scraped))
    except TocsinError as error:
        raise click.ClickException(f"{error.detail.rstrip('.')}.") from None
    except StartError as error:
        raise click.ClickException(str(error)) from None


def _scrape_settings(host: str, port: int | None) -> manager.Scraped | None:
    """Return where metrics are served; None: nowhere. A missing token ends the command, unless only
    this machine reaches the host."""
    if port is None:
        return None
    token = os.environ.get("TOCSIN_METRICS_TOKEN") or None
    if token is None and not is_loopback(host):
        raise click.UsageError(
            f"Other machines may reach {host}, but no token is set. Set TOCSIN_METRICS_TOKEN to a "
            "long random text, and configure Prometheus to present it."
        )
    return manager.Scraped(host, port, token)


@click.command("clusters")
@storage_option
@json_option
def clusters_command(storage: str | None, as_json: bool) -> None:
    """Show the storage clusters as the managers see them.

    For each server it shows whether it is a primary or a replica, how far it is behind, and whether
    it is away or excluded. It also shows what the managers are doing.

    \b
    Examples:
      tocsin admin clusters --storage redis+sentinel://…/tocsin
      tocsin admin clusters --json
    """
    try:
        holder, told = run(_read_reports(clusters_of(storage)))
    except TocsinError as error:
        raise click.ClickException(f"{error.detail.rstrip('.')}.") from None
    if as_json:
        click.echo(to_json({"manager": holder, "clusters": told}))
        return
    click.echo(f"the manager {holder} leads" if holder else "no manager leads")
    for one in told:
        for line in lines_of(one, wall_s=time.time()):
            click.echo(line)


async def _read_reports(clusters: Sequence[tuple[str, Target]]) -> tuple[str, list[ClusterTold]]:
    """Return (the name of the manager that leads, or "" if none does; the last report about each
    cluster). Raises Refused if the database does not answer."""
    shard = await manager.database_of(clusters[0][1])
    try:
        said = await RedisLeaderRow(shard).reports()
    finally:
        await shard.close()
    holder = said.pop("").decode()
    told = [msgspec.json.decode(text, type=ClusterTold) for _, text in sorted(said.items())]
    return holder, told


def lines_of(told: ClusterTold, *, wall_s: float) -> list[str]:
    """Return the report about a cluster as lines for people. `wall_s`: the time now in unix
    seconds, from which the report's age is computed."""
    age_s = wall_s - told.seen_unix_s
    old = f", as seen {age_s:.0f} s ago" if age_s > OLD_S else ""
    lines = [f"{told.name}  {told.store}  R {told.replicas}{old}"]
    for one in told.servers:
        words = [f"  {one.address:<21} {one.state:<9}"]
        if one.behind_bytes:
            words.append(f"{one.behind_bytes} bytes behind")
        if one.state == "away" and one.since_s:
            words.append(f"for {one.since_s:.0f} s")
        if one.why:
            words.append(f"({one.why})")
        lines.append(" ".join(words).rstrip())
    lines += [f"  Sentinel {place} {said}" for place, said in sorted(told.sentinels.items())]
    lines += [f"  now  {sentence}" for sentence in told.says]
    return lines
