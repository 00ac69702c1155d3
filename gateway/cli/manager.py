"""`tocsin manager serve`, and `tocsin admin clusters`: what the managers see and do."""

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
"""Age from which on a report is outdated."""


@click.group("manager")
def manager_group() -> None:
    """Look after the servers that several brokers share."""


def clusters_of(storage: str | None) -> list[tuple[str, Target]]:
    """Each cluster that the setting names, with what it is called. What is wrong ends the
    command."""
    text = settings_of(("TOCSIN_STORAGE",), {"storage": storage}).storage
    if text == SQLITE:
        raise click.UsageError(
            "There is nothing to manage for the store in a data folder; name another one by "
            "--storage or TOCSIN_STORAGE."
        )
    targets = redis_target.parse_all(text)
    if len(targets) == 1:
        return [(targets[0].name, targets[0])]
    return [(target.cluster, target) for target in targets]


def nodes_of_metadata() -> Callable[[], NodeClient] | None:
    """The nodes of the metadata service, as gateways are told of them; None: there is none."""
    names = ("TOCSIN_METADATA", "TOCSIN_METADATA_TOKEN", "TOCSIN_METADATA_CA_FILE")
    # A gateway's settings name a store as well; which one makes no difference here.
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
    help="The same clusters, as the user tocsin. (env TOCSIN_PLACING_STORAGE) [as --storage]",
)
@click.option(
    "--scale-hook",
    envvar="TOCSIN_SCALE_HOOK",
    default=None,
    metavar="TEXT",
    help="A program or an address that is told when storage clusters are too few or too many. "
    "(env TOCSIN_SCALE_HOOK)",
)
@click.option(
    "--hot-percent",
    envvar="TOCSIN_HOT_PERCENT",
    type=click.IntRange(20, 95),
    default=round(100 * HOT_SHARE),
    show_default=True,
    help="Of its memory, from which on a cluster is given no new partitions. "
    "(env TOCSIN_HOT_PERCENT)",
)
@click.option(
    "--metrics-host",
    envvar="TOCSIN_METRICS_HOST",
    default="127.0.0.1",
    show_default=True,
    help="Where metrics are told; on an address that other machines "
    "reach to who shows TOCSIN_METRICS_TOKEN. (env TOCSIN_METRICS_HOST)",
)
@click.option(
    "--metrics-port",
    envvar="TOCSIN_METRICS_PORT",
    default=None,
    type=click.IntRange(0, 65_535),
    help="The port for that. (env TOCSIN_METRICS_PORT) [none]",
)
@click.option("--log-level", default="info", show_default=True, help="What is logged.")
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
    """Take replicas that are away out of what could be elected, and let them in again.

    While a replica is away publishing at the level `all` waits for it. After 10 s a manager has the
    others lock it out and the Sentinels forget it; then it is not waited for. When it is back it is
    given everything before it is counted and may be elected. Start two or three managers, on
    different machines: one leads, and another takes over within seconds when it is gone.

    Of several storage clusters it finds out how full they are and which are away, so that new
    queues are placed where there is room, and frees what deleted queues held: for that it needs
    their URLs once more, with the user tocsin, in TOCSIN_PLACING_STORAGE; and TOCSIN_METADATA
    with its token, where gateways have these. The program of
    --scale-hook gets a JSON object on its standard input, the address a POST of it, once for each
    time that all clusters have become hot, or idle, for a minute.

    It needs the user tocsin-manager of deploy/redis, on servers and Sentinels.

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
                "TOCSIN_PLACING_STORAGE names other clusters than TOCSIN_STORAGE, or in another "
                "order."
            )
    try:
        hook = ScaleHook(check_hook(scale_hook)) if scale_hook is not None else None
    except ValueError:
        raise click.UsageError(
            "--scale-hook is an http or https address, or the path of a program that can be run."
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
    """Where metrics are told; None: nowhere. What is wrong ends the command."""
    if port is None:
        return None
    token = os.environ.get("TOCSIN_METRICS_TOKEN") or None
    if token is None and not is_loopback(host):
        raise click.UsageError(
            f"Other machines may reach {host}, and there is no token: set TOCSIN_METRICS_TOKEN to "
            "a long random text that Prometheus shows."
        )
    return manager.Scraped(host, port, token)


@click.command("clusters")
@storage_option
@json_option
def clusters_command(storage: str | None, as_json: bool) -> None:
    """Say what the managers see of the storage clusters: who is primary, who follows and how far
    behind, who is away or not counted, and what is being done.

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
    """Return who leads, and what the leader says. Raises Refused: the database does not answer."""
    shard = await manager.database_of(clusters[0][1])
    try:
        said = await RedisLeaderRow(shard).reports()
    finally:
        await shard.close()
    holder = said.pop("").decode()
    told = [msgspec.json.decode(text, type=ClusterTold) for _, text in sorted(said.items())]
    return holder, told


def lines_of(told: ClusterTold, *, wall_s: float) -> list[str]:
    """For people."""
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
