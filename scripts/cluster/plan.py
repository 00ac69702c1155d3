"""The parts of a cluster on this machine, and the order in which they are started."""

import json
import os
import secrets
import shlex
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from loadtests.server import SERVE, tocsin
from scripts.cluster.parts import Part, PartFailed, Parts
from scripts.cluster.stores import PORTS, REPLICAS, SENTINELS, STAYS_DOWN_S, Store
from tests.servers.balancing import Place, haproxy_command
from tests.servers.binaries import Binary
from tests.servers.node import until

NAMES: Final = ("one", "two", "three", "four")
"""The names of storage clusters. Each is in its own zone."""
ZONES: Final = "abcd"
PROVISION_TIMEOUT_S: Final = 60.0
DRAIN_S: Final = "5"
_HERE: Final = "127.0.0.1"


@dataclass
class Cluster:
    """The whole cluster. `ports` gives the balancer's port, then those of all other parts, in
    order."""

    folder: Path
    binary: Binary
    ports: Iterator[int]
    gateways: int = 3
    clusters: int = 2
    nodes: int = 3
    """The number of nodes of the metadata service; with 0, gateways keep the catalog themselves."""
    layout: str = "ring"
    """The layout of the metadata service."""
    managers: int = 2
    has_demo: bool = True
    stores: list[Store] = field(default_factory=list)
    url: str = ""
    """The balancer's URL, for clients."""
    _metadata: dict[str, str] = field(default_factory=dict)
    """The metadata settings of gateways."""

    @property
    def logs(self) -> Path:
        """The folder with a log of each part."""
        return self.folder / "logs"

    def start(self, parts: Parts) -> None:
        """Start everything, stage by stage. Raises PartFailed."""
        port = next(self.ports)
        self.url = f"http://{_HERE}:{port}"
        self._start_stores(parts)
        if self.nodes:
            self._start_metadata(parts)
        if self.managers:
            managers = [self._manager(number + 1) for number in range(self.managers)]
            parts.start(f"{self.managers} managers", *managers)
        gateways = [self._gateway(number + 1) for number in range(self.gateways)]
        parts.start(f"{self.gateways} gateways", *gateways)
        parts.start("the balancer, HAProxy", self._balancer(port, gateways))
        if self.has_demo:
            parts.start("the demo", self._demo())

    def _start_stores(self, parts: Parts) -> None:
        for number in range(self.clusters):
            store = Store(
                NAMES[number], self.folder, self.logs, self.binary,
                [next(self.ports) for _ in range(PORTS)],
                zone=ZONES[number] if self.clusters > 1 else "",
            )  # fmt: skip
            self.stores.append(store)
            nodes, sentinels = store.parts()
            what = f"storage cluster {store.name}"
            parts.start(f"{what}, a primary and {REPLICAS} replicas", *nodes)
            parts.start(f"{what}, {SENTINELS} Sentinels", *sentinels)
            until(store.is_whole, f"storage cluster {store.name} is whole")
        done = subprocess.run(
            tocsin("admin", "provision", "--replicas", str(REPLICAS)),
            env=os.environ | {"TOCSIN_STORAGE": self.storage("tocsin-admin")},
            capture_output=True, text=True, check=False, timeout=PROVISION_TIMEOUT_S,
        )  # fmt: skip
        if done.returncode != 0:
            raise PartFailed(f"the storage cannot be provisioned:\n{done.stderr}")

    def storage(self, user: str) -> str:
        """Return TOCSIN_STORAGE for this user of the servers."""
        return " ".join(store.url(user) for store in self.stores)

    def _start_metadata(self, parts: Parts) -> None:
        token = {"TOCSIN_METADATA_TOKEN": secrets.token_hex(32)}
        nodes = []
        for number in range(self.nodes):
            name, at = f"metadata-{number + 1}", f"{_HERE}:{next(self.ports)}"
            settings = {
                **token,
                "TOCSIN_METADATA_PORT": at.rpartition(":")[2],
                "TOCSIN_METADATA_LAYOUT": self.layout,
                "TOCSIN_DATA_DIR": str(self.folder / name),
                "TOCSIN_STORAGE": self.stores[0].url("tocsin"),
            }
            nodes.append(self._tocsin(name, at, settings, "metadata", "serve"))
        parts.start(f"{self.nodes} nodes of the metadata service, layout {self.layout}", *nodes)
        self._metadata = {**token, "TOCSIN_METADATA": " ".join(f"http://{n.at}" for n in nodes)}

    def _manager(self, number: int) -> Part:
        port = next(self.ports)
        settings = {
            **self._metadata,
            "TOCSIN_STORAGE": self.storage("tocsin-manager"),
            "TOCSIN_PLACING_STORAGE": self.storage("tocsin"),
            "TOCSIN_METRICS_PORT": str(port),
        }
        made = self._tocsin(f"manager-{number}", "", settings, "manager", "serve")
        made.at = f"{_HERE}:{port}"  # for Prometheus only
        return made

    def _tocsin(self, name: str, at: str, settings: dict[str, str], *words: str) -> Part:
        """Return one of our processes. If it listens, it is ready when it says so."""
        command = [*_python(), *SERVE] if words == ("serve",) else tocsin(*words)
        return Part(
            name, command, self.logs, at, settings,
            is_ready=lambda: not at or is_ready(f"http://{at}"),
        )  # fmt: skip

    def _gateway(self, number: int) -> Part:
        name, at = f"gateway-{number}", f"{_HERE}:{next(self.ports)}"
        key = self.folder / "master.key"
        if not key.exists():
            key.touch(mode=0o600)
            key.write_text(secrets.token_hex(32))
        settings = {
            **self._metadata,
            "TOCSIN_HOST": _HERE,
            "TOCSIN_PORT": at.rpartition(":")[2],
            "TOCSIN_DATA_DIR": str(self.folder / name),
            "TOCSIN_STORAGE": self.storage("tocsin"),
            "TOCSIN_MASTER_KEY_FILE": str(key),
            "TOCSIN_TRUSTED_PROXIES": _HERE,
            "TOCSIN_DRAIN_S": DRAIN_S,
        }
        return self._tocsin(name, at, settings, "serve")

    def _balancer(self, port: int, gateways: list[Part]) -> Part:
        places = [(_HERE, int(part.at.rpartition(":")[2])) for part in gateways]
        place = Place(
            self.folder / "balancer", places, bind=_HERE, port=port, alive=next(self.ports),
            peer_port=next(self.ports),
        )  # fmt: skip
        return Part(
            "balancer", haproxy_command(place), self.logs, f"{_HERE}:{port}",
            is_ready=lambda: is_ready(self.url),
        )  # fmt: skip

    def operators_settings(self) -> Path:
        """Write a file for a shell, with the settings of `tocsin` for an operator here. Only the
        owner may read its folder."""
        path = self.folder / "operator.env"
        settings = {
            **self._metadata,
            "TOCSIN_URL": self.url,
            "TOCSIN_STORAGE": self.storage("tocsin-admin"),
            "TOCSIN_MASTER_KEY_FILE": str(self.folder / "master.key"),
        }
        lines = [f"export {name}={shlex.quote(value)}" for name, value in settings.items()]
        lines.append(f'export PATH={shlex.quote(str(Path(sys.prefix) / "bin"))}:"$PATH"')
        path.touch(mode=0o600)
        path.write_text("\n".join(lines) + "\n")
        return path

    def _demo(self) -> Part:
        command = tocsin("demo", "--url", self.url)
        return Part("demo", command, self.logs, "", is_ready=self._is_demo_there)

    def _is_demo_there(self) -> bool:
        return bool(get(f"{self.url}/v1/queues/machine"))


def _python() -> list[str]:
    return tocsin()[:1]


def is_ready(url: str) -> bool:
    """Whether the broker at this address says that it is ready."""
    return get(f"{url}/readyz") is not None


def get(url: str) -> object:
    """Return the JSON of an answer with status 200; None for any other outcome."""
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return json.load(answer)
    except (OSError, ValueError, urllib.error.URLError):
        return None


def page(cluster: Cluster, parts: Parts) -> str:
    """Return one page for people with the places of all parts."""
    url, words = cluster.url, cluster.operators_settings()
    rows = [
        "",
        f"  Clients go to          {url}  (HAProxy, before {cluster.gateways} gateways)",
        f"  The demo               {url}/demo" if cluster.has_demo else "",
        f"  The console            {url}/console",
        f"  Logs                   {cluster.logs}/NAME.log",
        "",
        "  part                   at                 process",
    ]
    for part in parts.all():
        rows.append(f"  {part.name:<22} {part.at or '-':<18} {part.program.pid}")
    where = ", ".join(f"{store.name}: {store.primary()}" for store in cluster.stores)
    first = "machine" if cluster.has_demo else "orders"
    rows += [
        "",
        f"  Primary now            {where}",
        "",
        f"  . {words}  in another shell: addresses, passwords, and tocsin on PATH",
        f"  tocsin queue list; tocsin consume {first} --read",
        "  tocsin admin clusters  each store and its servers, and what the managers do",
        "  kill -9 PROCESS        and see the others go on; it is restarted, as said here;",
        f"                         a store's in {STAYS_DOWN_S:.0f} s: another is primary by then",
        "  kill -STOP PROCESS     a primary that hangs is replaced in ten seconds; -CONT ends it",
        "",
        "Stop all of it with Ctrl-C. Nothing is kept.",
    ]
    return "\n".join(rows)


def described(cluster: Cluster, parts: Parts) -> dict[str, object]:
    """Return the same for machines."""
    return {
        "event": "started",
        "url": cluster.url,
        "logs": str(cluster.logs),
        "settings": str(cluster.operators_settings()),
        "parts": [
            {"name": part.name, "at": part.at, "pid": part.program.pid} for part in parts.all()
        ],
    }
