"""The world that is broken: store nodes, Sentinels and gateways, each on a host whose link can be
cut, and the clients beside them.

A store of one primary and two replicas, three Sentinels on hosts of their own, and gateways that
run `tocsin serve`. All of it dies with the test.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from loadtests.field import Door
from loadtests.server import Server
from tests.chaos.breaks import BREAKS
from tests.servers.binaries import Binary
from tests.servers.layouts import Guarded, guarded
from tests.servers.network import Host, Network, network
from tests.servers.node import Node, until
from tests.servers.shipped import MASTER

REPLICAS: Final = 2
SENTINELS: Final = 3
GATEWAY_PORT: Final = 8080
SENTINEL_PORT: Final = 26379
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


@dataclass
class World:
    """See the module. Made by `world`."""

    net: Network
    store: Guarded
    hosts: dict[Node, Host]
    sentinel_hosts: list[Host]
    gateways: list[Gateway]
    on_nodes: tuple[str, ...] = ()
    """What CONFIG SET is told, of a negative control."""
    starts: int = 0
    """Of gateways, all together."""
    _blocked: list[tuple[Host | None, Host | None]] = field(default_factory=list)
    _cut: list[Host] = field(default_factory=list)

    @property
    def store_hosts(self) -> list[Host]:
        """Of the nodes, not of the Sentinels."""
        return list(self.hosts.values())

    def all_hosts(self) -> list[Host | None]:
        """Everybody, and the clients."""
        gateways = [gateway.host for gateway in self.gateways]
        return [*self.store_hosts, *self.sentinel_hosts, *gateways, None]

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

    def primary(self) -> Node:
        """Whom the Sentinels name, all of them. Raises TimeoutError."""
        found = until(self.store.named, "the Sentinels agree on a primary")
        assert found is not None
        return found

    def weaken(self) -> None:
        """Set on every node what a negative control sets. A node that restarts has it no more."""
        if self.on_nodes:
            for node in self.store.nodes:
                node.ask("CONFIG", "SET", *self.on_nodes)

    def spawn(self, gateway: Gateway) -> int:
        """Start it; the number of this start, from now on its door's."""
        gateway.server.spawn()
        self.starts += 1
        gateway.door.server = self.starts
        return self.starts


@contextlib.contextmanager
def world(binary: Binary, folder: Path, *, gateways: int = 2, broken: str = "") -> Iterator[World]:
    """A whole one, in sync and provisioned, whose gateways are not started yet. `broken`: of
    `tests.chaos.breaks`, what is planted in them. Enter it in the main thread."""
    with network() as net, contextlib.ExitStack() as stack:
        store_hosts = [net.host(f"store-{n}") for n in range(1 + REPLICAS)]
        sentinel_hosts = [net.host(f"sentinel-{n}") for n in range(SENTINELS)]
        store = stack.enter_context(
            guarded(
                binary, folder / "store", replicas=REPLICAS, sentinels=SENTINELS,
                hosts=store_hosts, sentinel_hosts=sentinel_hosts,
            )
        )  # fmt: skip
        places = ",".join(f"{host.address}:{SENTINEL_PORT}" for host in sentinel_hosts)
        url = f"redis+sentinel://{places}/{MASTER}"
        _provision(url)
        made = World(
            net, store, dict(zip(store.nodes, store_hosts, strict=True)), sentinel_hosts, [],
            BREAKS[broken].on_nodes if broken else (),
        )  # fmt: skip
        for number in range(gateways):
            gateway = _gateway(net.host(f"gateway-{number}"), folder, url, broken)
            stack.callback(_end, gateway)
            made.gateways.append(gateway)
        yield made


def _provision(url: str) -> None:
    arguments = ["admin", "provision", "--replicas", str(REPLICAS)]
    subprocess.run(
        [sys.executable, "-c", "from tocsin.cli.main import main; main()", *arguments],
        env=os.environ | {"TOCSIN_STORAGE": url}, check=True, capture_output=True,
    )  # fmt: skip


def _gateway(host: Host, folder: Path, url: str, broken: str) -> Gateway:
    server = Server(
        folder / host.name,
        port=GATEWAY_PORT,
        command=(ENTER, f"--inside={host.pid}", f"--break={broken}", "serve"),
        level="info",
        settings={
            "TOCSIN_HOST": host.address,
            "TOCSIN_STORAGE": url,
            "TOCSIN_TOKEN": TOKEN,
            "TOCSIN_PLAIN": "1",
            "TOCSIN_LIMIT_ADDRESS": "",
            "TOCSIN_USAGE": "0",
        },
    )
    server.url = f"http://{host.address}:{GATEWAY_PORT}"
    server.key_path = folder / "master.key"  # one for all of them
    return Gateway(host.name, host, server, Door(server.url))


def _end(gateway: Gateway) -> None:
    if gateway.is_frozen and gateway.server.running():
        os.kill(gateway.server.pid, signal.SIGCONT)
    gateway.server.kill()
