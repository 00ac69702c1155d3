"""A small installation with a Prometheus: one process of each kind."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gateway.admin import client as admin
from loadtests.server import Server, free_port
from tests.histories.redis_gateways import a_server, emptied
from tests.servers.node import Node
from tests.system.prometheus import Running, scraping

TOKEN: Final = "token-of-the-operator"
SCRAPER: Final = "token-of-a-prometheus"
NODES: Final = "token-of-the-metadata-service"
ENTER: Final = (
    "-c",
    "import click\n"
    "from gateway.cli.manager import manager_group\n"
    "from gateway.cli.metadata import metadata\n"
    "click.Group(commands={'manager': manager_group, 'metadata': metadata})()",
)
READY: Final = ("embedded", "shared")
"""The processes that report readiness, beside the node; a manager does not."""


@dataclass
class World:
    """`embedded` is a gateway with a store of its own, `shared` one over `store`, `node` one of the
    metadata service, `manager` a manager. `at`: the address of each one's metrics."""

    store: Node
    processes: dict[str, Server]
    at: dict[str, str]
    prometheus: Running


def settings(port: int) -> dict[str, str]:
    """Return the settings of a gateway or manager that serves its metrics on this port."""
    return {
        "TOCSIN_TOKEN": TOKEN, "TOCSIN_METRICS_TOKEN": SCRAPER, "TOCSIN_METRICS_PORT": str(port),
    }  # fmt: skip


def same(text: str) -> str:
    """Return the text unchanged."""
    return text


@contextmanager
def monitored(
    folder: Path,
    jobs: Mapping[str, list[str]],
    *,
    embedded: Mapping[str, str] | None = None,
    beside: Mapping[str, str] | None = None,
    rules: Callable[[str], str] = same,
) -> Iterator[World]:
    """Run the installation. `jobs`: the processes that each job scrapes. `beside`: further
    processes with metrics, and their addresses. `embedded`: more settings of that gateway. Its
    holder observes the queue orders."""
    ports = {name: free_port() for name in ("embedded", "shared", "node", "manager")}
    at = {name: f"127.0.0.1:{port}" for name, port in ports.items()} | dict(beside or {})
    alone = Server(folder / "embedded", settings=settings(ports["embedded"]) | dict(embedded or {}))
    targets = {job: [at[name] for name in names] for job, names in jobs.items()}
    targets["tocsin-orders"] = [alone.url.removeprefix("http://")]
    with a_server() as store, scraping(folder / "prometheus", targets, rules) as prometheus:
        url = {"TOCSIN_STORAGE": asyncio.run(emptied(store)), "TOCSIN_METADATA_TOKEN": NODES}
        service = url | {"TOCSIN_METADATA": f"http://{at['node']}"}
        own = {"TOCSIN_METADATA_PORT": str(ports["node"]), "TOCSIN_METRICS_TOKEN": SCRAPER}
        processes = {
            "node": Server(
                folder / "node", port=ports["node"], command=(*ENTER, "metadata", "serve"),
                settings=url | own,
            ),
            "embedded": alone,
            "shared": Server(
                folder / "shared",
                settings=service | settings(ports["shared"]) | {"TOCSIN_ENCRYPTION": "no"},
            ),
            "manager": Server(
                folder / "manager", command=(*ENTER, "manager", "serve"),
                settings=service | settings(ports["manager"]),
            ),
        }  # fmt: skip
        try:
            processes["node"].start()  # no gateway starts without one
            for name in ("embedded", "shared", "manager"):
                processes[name].spawn()
            for name in READY:
                processes[name].wait_ready()
            wanted: dict[str, object] = {"name": "holder", "rights": ["observe:orders"]}
            orders = str(admin.create_token(alone.data_dir, wanted)["token"])
            (prometheus.folder / "orders.token").write_text(orders)
            (prometheus.folder / "metrics.token").write_text(SCRAPER)
            yield World(store, processes, at, prometheus)
            last = processes["node"]
            with ThreadPoolExecutor() as threads:
                list(threads.map(Server.stop, [one for one in processes.values() if one != last]))
            last.stop()
        finally:
            for process in processes.values():
                process.kill()
