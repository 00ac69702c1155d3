"""The world that is broken: store nodes, Sentinels and gateways, each on a host whose link can be
cut, and the clients beside them.

A store of one primary and two replicas with three Sentinels on hosts of their own, or a Cluster of
three such primaries; and gateways that run `tocsin serve`. All of it dies with the test.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from loadtests.clients.recorder import Door
from loadtests.server import Server
from metadata.service.protocol import Layout as MetadataLayout
from services.manager.keeper import LOOK_S
from tests.chaos.breaks import BREAKS, Break
from tests.layout.tree import ROOT
from tests.servers.binaries import Binary
from tests.servers.layouts import Cluster, Guarded, Layout, clustered, guarded
from tests.servers.network import Host, Network, network
from tests.servers.node import Node, until
from tests.servers.shipped import DOWN_AFTER_MS, MASTER, NODE_TIMEOUT_MS, login

PRIMARIES: Final[dict[Layout, int]] = {"sentinel": 1, "cluster": 3}
NODE_TIMEOUTS_S: Final[dict[Layout, float]] = {
    "sentinel": DOWN_AFTER_MS / 1000,
    "cluster": NODE_TIMEOUT_MS / 1000,
}
"""After which a store gives up a node."""
REPLICAS: Final = 2
"""Of each primary."""
SENTINELS: Final = 3
MANAGERS: Final = 2
COUNTED_S: Final = 60.0
SETTLED_S: Final = 3 * LOOK_S
"""So long managers have to have done nothing."""
GATEWAY_PORT: Final = 8080
METADATA_NODES: Final = 3
METADATA_PORT: Final = 8090
NODE_PORT: Final = 6379
SENTINEL_PORT: Final = 26379
ADMIN_TIMEOUT_S: Final = 60.0
STORE: Final = "store"
"""The folder of its servers' own folders."""
QUEUE_KEYS: Final = "{*}:queue"
"""See storage.redis.keys."""
TOKEN: Final = "chaos-" + "0123456789abcdef" * 2
ENTER: Final = str(Path(__file__).with_name("gateway.py"))
Side = Iterable[Host | None]
"""Hosts on one side of a cut; None: the clients."""


@dataclass
class Gateway:
    """One of them, over all its starts. Its name, its host, its process, and its door."""

    name: str
    host: Host
    server: Server
    door: Door
    is_frozen: bool = False


class Manager:
    """A process of `tocsin manager serve`."""

    def __init__(self, host: Host, folder: Path, url: str, broken: str) -> None:
        self.name = host.name
        self.log = folder / f"{host.name}.log"
        self._before = self.log.stat().st_size if self.log.exists() else 0
        command = [ENTER, f"--inside={host.pid}", f"--break={broken}", "manager", "serve"]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, *command], env=os.environ | {"TOCSIN_STORAGE": url}, stderr=log
            )

    def leads(self) -> bool:
        """Whether it has said so, in this life."""
        return b"this manager leads" in self.log.read_bytes()[self._before :]

    def kill(self) -> None:
        """kill -9. One that is gone already is no error."""
        self._process.kill()
        self._process.wait()


@dataclass
class MetadataNode:
    """A node of the metadata service: its host and its process."""

    name: str
    host: Host
    server: Server


@dataclass
class World:
    """See the module. Made by `world`."""

    net: Network
    store: Guarded | Cluster
    url: str
    """The store's, for who administers it."""
    hosts: dict[Node, Host]
    sentinel_hosts: list[Host]
    """None in a Cluster."""
    manager_hosts: list[Host]
    """Where managers run while something asks for them; none in a Cluster."""
    folder: Path
    gateways: list[Gateway]
    planted: str = ""
    """The name of the negative control that this is; "": none."""
    metadata: list[MetadataNode] = field(default_factory=list)
    """Behind which the catalog is; none: gateways find it in the store."""
    starts: int = 0
    """Of gateways, all together."""
    _blocked: list[tuple[Host | None, Host | None]] = field(default_factory=list)
    _cut: list[Host] = field(default_factory=list)

    @property
    def broken(self) -> Break | None:
        """The negative control."""
        return BREAKS[self.planted] if self.planted else None

    @property
    def store_hosts(self) -> list[Host]:
        """Of the nodes, not of the Sentinels."""
        return list(self.hosts.values())

    def all_hosts(self) -> list[Host | None]:
        """Everybody, and the clients."""
        gateways = [gateway.host for gateway in self.gateways]
        nodes = [node.host for node in self.metadata]
        return [*self.store_hosts, *self.sentinel_hosts, *gateways, *nodes, None]

    def cut(self, host: Host) -> None:
        """Nothing passes to or from it."""
        self.net.cut(host)
        self._cut.append(host)

    def join(self, host: Host) -> None:
        """End a cut."""
        self.net.heal(host)
        self._cut.remove(host)

    def part(self, one: Side, other: Side, *, both_ways: bool = True) -> None:
        """Nothing passes from one side to the other, nor back, unless it is one-way."""
        ways = [(source, target) for source in one for target in other]
        if both_ways:
            ways += [(target, source) for source, target in ways]
        self._blocked += ways
        self.net.block(ways)

    def heal(self) -> None:
        """All links stand."""
        while self._cut:
            self.net.heal(self._cut.pop())
        blocked, self._blocked = self._blocked, []
        self.net.unblock(blocked)

    @property
    def servers(self) -> list[Node]:
        """The store's processes: nodes, and Sentinels where there are any."""
        sentinels = self.store.sentinels if isinstance(self.store, Guarded) else []
        return [*self.store.nodes, *sentinels]

    def shards(self) -> dict[Node, list[Node]]:
        """Each primary with its replicas. To be asked while all is well. Raises TimeoutError."""
        return until(self.store.shards, "the store names its primaries")

    def busy_shards(self) -> dict[Node, list[Node]]:
        """Those that have messages: a queue is at one primary, and a Cluster's others have none."""
        shards = self.shards()
        return {one: shards[one] for one in shards if one.ask("KEYS", QUEUE_KEYS)} or shards

    def voters(self, primary: Node) -> list[Host]:
        """On which those are who, besides this one, say that it is gone: the Sentinels, or the
        other primaries."""
        others = [self.hosts[node] for node in self.shards() if node is not primary]
        return self.sentinel_hosts or others

    def count_out(self, gone: Sequence[Node]) -> None:
        """What an operator does when one replica of each primary has gone: it cannot be elected
        any more, and is not waited for. In a Cluster, one that comes back without having followed
        its primary is not elected anyway; Sentinel elects it. Raises TimeoutError."""
        assert not any(node.is_running for node in gone)
        if self.broken and self.broken.forgets_nobody:  # the command refuses that
            (primary,) = self.shards()
            (key,) = primary.ask("KEYS", "{tocsin*}:shard")
            primary.ask("HSET", key, "replicas", REPLICAS - 1)
            return
        if isinstance(self.store, Guarded):
            self.store.count_out()
        self._set_replicas(REPLICAS - 1)

    def count_in(self, back: Sequence[Node]) -> None:
        """And when they are there again, and a primary is, too. Raises TimeoutError."""
        self._set_replicas(REPLICAS)
        if isinstance(self.store, Guarded):  # nobody else tells those whom the primary is now
            (primary,) = self.shards()
            self.store.count_in(back, primary)

    def _set_replicas(self, replicas: int) -> None:
        words = ("set-replicas", "--replicas", str(replicas))
        until(
            lambda: _admin(self.url, self.planted, *words).returncode == 0, " ".join(words),
            within_s=ADMIN_TIMEOUT_S,
        )  # fmt: skip

    @contextlib.contextmanager
    def managers(self) -> "Iterator[list[Manager]]":
        """One on each of their hosts, started, until the end of this; `wait_managed` says when they
        are at work. Their logs lie in the world's folder."""
        assert self.manager_hosts, "there are no managers here"
        url = self.url.replace(":".join(login("tocsin-admin")), ":".join(login("tocsin-manager")))
        running = [Manager(host, self.folder, url, self.planted) for host in self.manager_hosts]
        try:
            yield running
        finally:
            for one in running:
                one.kill()

    def wait_managed(self, managers: "Sequence[Manager]") -> None:
        """Wait until one of them leads and has seen all nodes, and all are counted. Raises
        TimeoutError."""
        (primary,) = self.shards()
        seen = [f"user:{node.address}:{node.port}" for node in self.store.nodes]
        until(
            lambda: all(primary.ask("HMGET", "{tocsin}:managed", *seen)),
            "a manager has seen all nodes",
        )
        until(lambda: any(one.leads() for one in managers), "a manager leads")
        self.wait_counted([])

    def wait_counted(self, out: Sequence[Node]) -> None:
        """Wait until all are counted but for these, and whoever is counted may be elected: as who
        is primary has it. Raises TimeoutError."""
        what = f"all are counted but for {list(out)}"
        until(lambda: self._are_counted(out), what, within_s=COUNTED_S)

    def wait_settled(self) -> None:
        """Wait until managers have nothing left to do: all are counted and follow the primary, and
        still do after more than one look of a manager. All are counted between two acts of one as
        well: who ends all managers there leaves a shard that waits for the next one. Raises
        TimeoutError."""
        store, since = self.store, time.monotonic()
        assert isinstance(store, Guarded), "managers here look after servers with Sentinels"

        def have_settled() -> bool:
            nonlocal since
            so_far, since = since, time.monotonic()  # nor have they where a server cannot be asked
            if self._are_counted([]) and store.are_in_sync():
                since = so_far
            return time.monotonic() - since > SETTLED_S

        until(have_settled, "managers have nothing left to do", within_s=COUNTED_S)

    def _are_counted(self, out: Sequence[Node]) -> bool:
        primaries = list(self.store.shards())
        if len(primaries) != 1:
            return False
        held = primaries[0].ask("HMGET", "{tocsin}:shard", "replicas", "out")
        places = " ".join(sorted(f"{node.address}:{node.port}" for node in out))
        counted = [node for node in self.store.nodes if node not in out]
        return [word or "" for word in held] == [str(REPLICAS - len(out)), places] and all(
            node.ask("CONFIG", "GET", "replica-priority")[1] != "0" for node in counted
        )

    def weaken(self) -> None:
        """Set on every node what a negative control sets, in its file, too: one that restarts has
        it from the beginning. Not before the gateways run: they refuse such nodes."""
        if self.broken is not None and self.broken.on_nodes:
            for node in self.store.nodes:
                node.ask("CONFIG", "SET", *self.broken.on_nodes)
                node.ask("CONFIG", "REWRITE")

    def spawn(self, gateway: Gateway) -> int:
        """Start it; the number of this start, from now on its door's."""
        gateway.server.spawn()
        self.starts += 1
        gateway.door.server = self.starts
        return self.starts


@contextlib.contextmanager
def world(
    binary: Binary,
    folder: Path,
    *,
    layout: Layout = "sentinel",
    gateways: int = 2,
    broken: str = "",
    metadata: MetadataLayout | None = None,
) -> Iterator[World]:
    """A whole one, in sync and provisioned, whose gateways are not started yet. `broken`: of
    `tests.chaos.breaks`, what is planted in them. `metadata`: the layout of a metadata service;
    None: there is none. Enter it in the main thread."""
    with network() as net, contextlib.ExitStack() as stack:
        hosts = [net.host(place.name) for place in node_folders(layout, folder)]
        sentinel_hosts: list[Host] = []
        store: Guarded | Cluster
        if layout == "cluster":
            url = f"redis+cluster://{{}}@{_places(hosts, NODE_PORT)}"
            store = stack.enter_context(
                clustered(
                    binary, folder / STORE, primaries=PRIMARIES[layout], replicas=REPLICAS,
                    hosts=hosts, with_users=True,
                )
            )  # fmt: skip
        else:
            sentinel_hosts = [net.host(f"sentinel-{n}") for n in range(SENTINELS)]
            url = f"redis+sentinel://{{}}@{_places(sentinel_hosts, SENTINEL_PORT)}/{MASTER}"
            store = stack.enter_context(
                guarded(
                    binary, folder / STORE, replicas=REPLICAS, sentinels=SENTINELS,
                    hosts=hosts, sentinel_hosts=sentinel_hosts, with_users=True,
                )
            )  # fmt: skip
        admin = _as(url, "tocsin-admin")
        _admin(admin, broken, "provision", "--replicas", str(REPLICAS)).check_returncode()
        made = World(
            net, store, admin, dict(zip(store.nodes, hosts, strict=True)), sentinel_hosts,
            [net.host(f"manager-{n}") for n in range(MANAGERS if sentinel_hosts else 0)], folder,
            [], broken,
        )  # fmt: skip
        settings = {"TOCSIN_STORAGE": _as(url, "tocsin"), "TOCSIN_METADATA_TOKEN": TOKEN}
        for number in range(METADATA_NODES if metadata is not None else 0):
            one = _metadata(net.host(f"metadata-{number}"), folder, metadata, settings)
            stack.callback(_end, one)
            made.metadata.append(one)
            one.server.spawn()
        for one in made.metadata:
            one.server.wait_ready()
        if made.metadata:
            settings["TOCSIN_METADATA"] = " ".join(one.server.url for one in made.metadata)
        for number in range(gateways):
            host = net.host(f"gateway-{number}")
            gateway = _gateway(host, folder, settings, broken)
            stack.callback(_end, gateway)
            made.gateways.append(gateway)
        yield made


def node_folders(layout: Layout, folder: Path) -> list[Path]:
    """Where the nodes of a store in this layout keep their files, in a world's folder."""
    return [folder / STORE / f"node-{n}" for n in range(PRIMARIES[layout] * (1 + REPLICAS))]


def _places(hosts: Iterable[Host], port: int) -> str:
    return ",".join(f"{host.address}:{port}" for host in hosts)


def _as(url: str, user: str) -> str:
    return url.format(":".join(login(user)))


def _admin(url: str, broken: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """What is broken in the store's functions is provisioned so: gateways may not load any."""
    code = "from tocsin_command import main; main()"
    if broken:
        code = f"from tests.chaos.breaks import plant; plant({broken!r}); {code}"
    return subprocess.run(
        [sys.executable, "-c", code, "admin", *arguments], cwd=ROOT,
        env=os.environ | {"TOCSIN_STORAGE": url}, check=False, capture_output=True, text=True,
    )  # fmt: skip


def _metadata(
    host: Host, folder: Path, layout: MetadataLayout | None, settings: dict[str, str]
) -> MetadataNode:
    server = Server(
        folder / host.name,
        port=METADATA_PORT,
        command=(ENTER, f"--inside={host.pid}", "--break=", "metadata", "serve", "--plain"),
        settings=settings | {
            "TOCSIN_METADATA_HOST": host.address,
            "TOCSIN_METADATA_PORT": str(METADATA_PORT),
            "TOCSIN_METADATA_LAYOUT": str(layout),
        },
    )  # fmt: skip
    server.url = f"http://{host.address}:{METADATA_PORT}"
    return MetadataNode(host.name, host, server)


def _gateway(host: Host, folder: Path, settings: dict[str, str], broken: str) -> Gateway:
    server = Server(
        folder / host.name,
        port=GATEWAY_PORT,
        command=(ENTER, f"--inside={host.pid}", f"--break={broken}", "serve"),
        level="info",
        settings=settings | {
            "TOCSIN_HOST": host.address,
            "TOCSIN_TOKEN": TOKEN,
            "TOCSIN_PLAIN": "1",
            "TOCSIN_LIMIT_ADDRESS": "",
            "TOCSIN_USAGE": "0",
        },
    )  # fmt: skip
    server.url = f"http://{host.address}:{GATEWAY_PORT}"
    server.key_path = folder / "master.key"  # one for all of them
    return Gateway(host.name, host, server, Door(server.url))


def _end(one: Gateway | MetadataNode) -> None:
    if one.server.running():
        os.kill(one.server.pid, signal.SIGCONT)
    one.server.kill()
