"""`tocsin metadata serve` and `status`, which run and query nodes of the metadata service."""

import os
import sys
from typing import Final

import click
import msgspec
from tocsin.cli.common import run as run_work

from gateway.cli.options import json_option, say, settings_of, to_json
from gateway.config import Config, is_loopback
from gateway.settings import parse_host, parse_port, parse_service_url
from gateway.stores.open import node_client
from metadata.service.client import LOOK_TRY_S, NoNodeAnswers
from metadata.service.protocol import LAYOUTS, NodeInfo
from push.errors import TocsinError
from runtime import process as logs
from runtime.listener import StartError
from services.metadata_node.server import NodeServer, NodeSettings, data_dir_of_node, run

PORT: Final = 8090
VARIABLES: Final = (
    "TOCSIN_DATA_DIR",
    "XDG_DATA_HOME",
    "TOCSIN_STORAGE",
    "TOCSIN_TLS_CERT",
    "TOCSIN_TLS_KEY",
    "TOCSIN_METADATA_TOKEN",
    "TOCSIN_METADATA_CA_FILE",
    "TOCSIN_LOG_LEVEL",
)
SERVE_EXAMPLES: Final = """
\b
Examples:
  tocsin metadata serve                           one node, which keeps the catalog in a file
  export TOCSIN_STORAGE=redis+sentinel://…/tocsin  several, over the database that they share
  export TOCSIN_METADATA_TOKEN=$(openssl rand -hex 32)
  tocsin metadata serve --host 0.0.0.0 --layout ring --advertise https://10.0.0.1:8090 \\
      --tls-cert c.pem --tls-key k.pem

Give gateways TOCSIN_METADATA="https://10.0.0.1:8090 https://10.0.0.2:8090 …" and the token.
Stop a node with Ctrl-C or SIGTERM. It sends its gateways to other nodes.
"""


@click.group()
def metadata() -> None:
    """Run and query the metadata service, which keeps queues, groups and tokens."""


@metadata.command(epilog=SERVE_EXAMPLES)
@click.option(
    "--host",
    envvar="TOCSIN_METADATA_HOST",
    default="127.0.0.1",
    show_default=True,
    help="The host to listen on. (env TOCSIN_METADATA_HOST)",
)
@click.option(
    "--port",
    envvar="TOCSIN_METADATA_PORT",
    default=str(PORT),
    show_default=True,
    help="The TCP port to listen on, or 0 for any free one. (env TOCSIN_METADATA_PORT)",
)
@click.option(
    "--layout",
    envvar="TOCSIN_METADATA_LAYOUT",
    default=LAYOUTS[0],
    show_default=True,
    type=click.Choice(LAYOUTS),
    help="What a node keeps in memory. whole: everything, for use behind a balancer; ring: its "
    "shards, and gateways find the right node; forward: its shards, and it asks other nodes for "
    "theirs. (env TOCSIN_METADATA_LAYOUT)",
)
@click.option(
    "--advertise",
    envvar="TOCSIN_METADATA_ADVERTISE",
    default=None,
    metavar="URL",
    help="The URL at which gateways and other nodes reach this node. [its host and port] "
    "(env TOCSIN_METADATA_ADVERTISE)",
)
@click.option(
    "--data-dir",
    default=None,
    metavar="TEXT",
    help="The data folder. The node keeps its files in `metadata` below it. (env TOCSIN_DATA_DIR)",
)
@click.option(
    "--storage",
    default=None,
    metavar="TEXT",
    help="The catalog's database. sqlite: is a file for a single node. Several nodes share Redis "
    "or Valkey, the first cluster that the gateways name. (env TOCSIN_STORAGE) [sqlite:]",
)
@click.option(
    "--tls-cert",
    default=None,
    metavar="TEXT",
    help="A PEM file with the certificate chain. (env TOCSIN_TLS_CERT)",
)
@click.option(
    "--tls-key",
    default=None,
    metavar="TEXT",
    help="A PEM file with the certificate's key. (env TOCSIN_TLS_KEY)",
)
@click.option(
    "--metadata-ca-file",
    default=None,
    metavar="TEXT",
    help="A PEM file with the authorities that sign the other nodes' certificates. "
    "(env TOCSIN_METADATA_CA_FILE)",
)
@click.option(
    "--plain/--no-plain", default=False, help="Let other machines connect without encryption."
)
@click.option(
    "--log-level",
    default=None,
    metavar="TEXT",
    help="The lowest level to log. (env TOCSIN_LOG_LEVEL) [info]",
)
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object per line.")
def serve(
    *,
    host: str,
    port: str,
    layout: str,
    advertise: str | None,
    plain: bool,
    as_json: bool,
    **flags: str | None,
) -> None:
    """Start a node of the metadata service.

    A single node keeps the catalog in a file of its own. Several nodes share one database, Redis or
    Valkey, and any of them may stop at any time. Gateways present the token in
    TOCSIN_METADATA_TOKEN. Without one, only clients on this machine are let in. The token in
    TOCSIN_METRICS_TOKEN gives access to /metrics, and to nothing else.
    """
    config = settings_of(VARIABLES, flags)
    node = _settings(config, host, port, layout, advertise)
    if not is_loopback(node.host):
        _check_reach(node, plain=plain)
    logs.configure(config.log_level, as_json=as_json)

    def announce(started: NodeServer) -> None:
        say(_start_line(started, node, as_json=as_json))

    try:
        sys.exit(run(node, announce=announce))
    except StartError as error:
        raise click.ClickException(str(error)) from None


def _settings(
    config: Config, host: str, port: str, layout: str, advertise: str | None
) -> NodeSettings:
    try:
        url = parse_service_url(advertise) if advertise is not None else None
        return NodeSettings(
            msgspec.structs.replace(config, data_dir=data_dir_of_node(config.data_dir)),
            parse_host(host),
            parse_port(port),
            next(known for known in LAYOUTS if known == layout),
            url,
            os.environ.get("TOCSIN_METRICS_TOKEN") or None,
        )
    except ValueError:
        raise click.ClickException(
            f"--host {host!r}, --port {port!r} or --advertise {advertise!r} is invalid. Give a "
            "host name or address, a port from 0 to 65535, and a URL such as https://HOST:PORT."
        ) from None


def _check_reach(node: NodeSettings, *, plain: bool) -> None:
    if node.config.metadata_token is None:
        raise click.ClickException(
            f"Other machines may reach {node.host}, but no token is set. Set "
            "TOCSIN_METADATA_TOKEN to a long random text, here and for the gateways."
        )
    if node.config.tls_cert is None and not plain:
        raise click.ClickException(
            f"Other machines may reach {node.host} without encryption. Set --tls-cert and "
            "--tls-key, or accept with --plain that the token can be read on the way."
        )


def _start_line(started: NodeServer, node: NodeSettings, *, as_json: bool) -> str:
    database = node.config.storage_shown
    if as_json:
        fields = {
            "event": "started",
            "url": started.node.url,
            "layout": node.layout,
            "database": database,
            "data_dir": str(node.config.data_dir),
            "pid": os.getpid(),
        }
        return to_json(fields)
    return (
        f"The metadata service listens on {started.node.url} (layout {node.layout}) over "
        f"{database} in {node.config.data_dir}. Stop it with Ctrl-C."
    )


@metadata.command()
@click.option(
    "--metadata",
    "urls",
    default=None,
    metavar="TEXT",
    help="The addresses of the nodes. (env TOCSIN_METADATA)",
)
@json_option
def status(urls: str | None, as_json: bool) -> None:
    """Show which nodes each node sees.

    The exit code is 1 if a node does not answer.
    """
    names = ("TOCSIN_METADATA", "TOCSIN_METADATA_TOKEN", "TOCSIN_METADATA_CA_FILE")
    # A gateway's settings must name a store too; which one makes no difference here.
    config = settings_of(names, {"metadata": urls, "storage": "redis://127.0.0.1"})
    addresses = config.metadata_urls or (f"http://127.0.0.1:{PORT}",)
    seen = run_work(_ask_nodes(config, addresses))
    if as_json:
        click.echo(to_json(seen))
    else:
        for url, found in seen.items():
            click.echo(f"{url}  {found if isinstance(found, str) else 'answers'}")
            for one in found if not isinstance(found, str) else ():
                click.echo(f"  sees {one.url} ({one.layout})")
    sys.exit(1 if any(isinstance(found, str) for found in seen.values()) else 0)


async def _ask_nodes(
    config: Config, urls: tuple[str, ...]
) -> dict[str, tuple[NodeInfo, ...] | str]:
    asking = node_client(config, urls)
    found: dict[str, tuple[NodeInfo, ...] | str] = {}
    for url in urls:
        try:
            found[url] = await asking.ask_one(
                url, "GET", "/v1/nodes", None, tuple[NodeInfo, ...], try_s=2 * LOOK_TRY_S
            )
        except (NoNodeAnswers, TocsinError) as error:
            found[url] = error.detail
    await asking.close()
    return found
