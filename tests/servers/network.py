"""Hosts of a test in network namespaces, whose links it cuts. Needs root and iproute2.

Everything hangs on processes that die with the test: no namespace has a name, and when the last
process in one has gone, it and its links go. The switch is a namespace with a bridge; each host is
one with a link to it; the test itself has a link too. The kernel of a killed process still sends
what it had, and that of a frozen one still takes: whoever tests the loss of a machine cuts first.
"""

import contextlib
import itertools
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.servers.node import until

_NETS = 512
"""198.18.0.0/15 is for measuring networks (RFC 2544): no network that a machine is in has it."""
_NOBODY = "02:00:00:00:00:00"
"""A link address of no host."""
_numbers = itertools.count(os.getpid())


def needs() -> str:
    """Why there can be no network of hosts here; empty where there can."""
    if os.getuid() != 0:
        return "links are cut in network namespaces, which need root"
    gone = [name for name in ("ip", "unshare", "nsenter", "setpriv") if not shutil.which(name)]
    return f"{', '.join(gone)} is missing (Debian: iproute2, util-linux)" if gone else ""


@dataclass(frozen=True)
class Host:
    """A namespace with an address."""

    name: str
    address: str
    pid: int
    """Of the process that keeps it."""
    link: str
    """The switch's end of its link."""

    @property
    def inside(self) -> list[str]:
        """The command that runs another on this host."""
        return ["nsenter", f"--net=/proc/{self.pid}/ns/net", "--"]


class Network:
    """A switch and the hosts on it, which the test reaches at their addresses. Use `network`."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self._net = self._free_net()
        self.address = f"{self._net}.1"
        """Our own."""
        self._hosts = 0
        self._switch = self._keeper()
        self._in_switch("link", "add", "switch", "type", "bridge", "forward_delay", "0")
        self._in_switch("link", "set", "switch", "up")
        self.interface = f"tocsin{self._switch}"
        """Our end of our own link."""
        _ip(
            "link",
            "add",
            self.interface,
            "type",
            "veth",
            "peer",
            "test",
            "netns",
            str(self._switch),
        )
        _ip("address", "add", f"{self.address}/24", "dev", self.interface)
        _ip("link", "set", self.interface, "up")
        self._plug("test")

    def host(self, name: str) -> Host:
        """One more host, connected."""
        self._hosts += 1
        pid = self._keeper()
        link = f"port{self._hosts}"
        host = Host(name, f"{self._net}.{self._hosts + 1}", pid, link)
        self._in_switch("link", "add", link, "type", "veth", "peer", "eth0", "netns", str(pid))
        self._plug(link)
        for words in (
            ("link", "set", "lo", "up"),
            ("address", "add", f"{host.address}/24", "dev", "eth0"),
            ("link", "set", "eth0", "up"),
        ):
            subprocess.run([*host.inside, "ip", *words], check=True)
        return host

    def cut(self, host: Host) -> None:
        """From now on nothing passes between this host and any other, or us."""
        self._in_switch("link", "set", host.link, "down")

    def heal(self, host: Host) -> None:
        """End a cut."""
        self._in_switch("link", "set", host.link, "up")

    def block(self, ways: Iterable[tuple[Host | None, Host | None]]) -> None:
        """From now on nothing passes from the first to the second of each pair (None: from or to
        us); the other way it does. What is sent there goes to a link address that nobody has."""
        self._ways(ways, ("replace", "lladdr", _NOBODY, "nud", "permanent"))

    def unblock(self, ways: Iterable[tuple[Host | None, Host | None]]) -> None:
        """End a block."""
        self._ways(ways, ("delete",))

    def _ways(
        self, ways: Iterable[tuple[Host | None, Host | None]], words: tuple[str, ...]
    ) -> None:
        verb, *rest = words
        lines: dict[Host | None, list[str]] = {}
        for source, target in ways:
            address = target.address if target is not None else self.address
            link = "eth0" if source is not None else self.interface
            line = " ".join(["neigh", verb, address, *rest, "dev", link])
            lines.setdefault(source, []).append(line)
        for source, batch in lines.items():
            inside = source.inside if source is not None else []
            subprocess.run(
                [*inside, "ip", "-force", "-batch", "-"], input="\n".join(batch), text=True,
                capture_output=True, check=verb == "replace",
            )  # fmt: skip

    def _plug(self, link: str) -> None:
        self._in_switch("link", "set", link, "master", "switch", "up")

    def _in_switch(self, *words: str) -> None:
        namespace = f"--net=/proc/{self._switch}/ns/net"
        subprocess.run(["nsenter", namespace, "--", "ip", *words], check=True)

    def _keeper(self) -> int:
        """A process in a namespace of its own, which dies with us."""
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "sleep", "infinity"]
        )
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        here = os.readlink("/proc/self/ns/net")
        until(lambda: os.readlink(f"/proc/{process.pid}/ns/net") != here, "a namespace is there")
        return process.pid

    @staticmethod
    def _free_net() -> str:
        """The first three numbers of a net that no interface of ours is in."""
        shown = subprocess.run(
            ["ip", "-o", "-4", "address"], capture_output=True, text=True, check=True
        ).stdout
        for number in itertools.islice(_numbers, _NETS):
            net = f"198.{18 + number // 256 % 2}.{number % 256}"
            if f" {net}." not in shown:
                return net
        raise RuntimeError("every net of 198.18.0.0/15 is in use here")


@contextlib.contextmanager
def network() -> Iterator[Network]:
    """A network without hosts; at the end, or when we die, all of it is gone."""
    with contextlib.ExitStack() as stack:
        made = Network(stack)
        yield made
    # The kernel takes the links down after the processes: our end may linger for a moment.
    ours = Path("/sys/class/net") / made.interface
    until(lambda: not ours.exists(), "the network has gone")


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)
