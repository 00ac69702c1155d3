"""The balancers of deploy/, in a folder of a test: on its ports, before its gateways."""

import grp
import os
import pwd
import re
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.layout.tree import ROOT
from tests.servers.network import Host
from tests.servers.programs import Program, needed

DEPLOY: Final = ROOT / "deploy"
ADDRESSES: Final = ("10.0.1.101", "10.0.1.102")
"""The virtual ones of the shipped keepalived.conf."""
NAMES: Final = ("balancer-1", "balancer-2")
ADMIN_SOCKET: Final = "admin.sock"
"""In its folder, and named from there: a socket's whole path has 97 characters at most."""
AS_ITS_OWN_USER: Final = "    user haproxy\n    group haproxy\n    chroot /var/lib/haproxy\n"
_OF_TLS: Final = (
    "    http-request set-header X-Forwarded-Proto https\n",
    "    http-response set-header Strict-Transport-Security max-age=31536000\n",
)
_GATEWAYS: Final = re.compile(
    r"^( +server (?:gateway-1 )?)10\.0\.2\.1:8080(.*)\n(?: +server .*10\.0\.2\.[23]:8080.*\n){2}",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Place:
    """Where one balancer stands, and what it stands before."""

    folder: Path
    gateways: Sequence[tuple[str, int]]
    """Addresses and ports."""
    bind: str = "127.0.0.1"
    port: int = 443
    certificate: Path | None = None
    """With its key in the same file; None: clients come without TLS."""
    name: str = NAMES[0]
    peers: Mapping[str, str] = field(default_factory=dict)
    """Addresses of both of a pair, by name; empty: it is alone."""
    alive: int = 8405
    """The port that keepalived asks."""
    peer_port: int = 10000
    """Where the other one of a pair, and the process of after a reload, are told what is known."""
    check_every: str = "1s"
    """How often HAProxy asks the gateways."""

    def haproxy(self) -> Path:
        """The shipped balancer.cfg as this one's; its path."""
        text = (DEPLOY / "haproxy/balancer.cfg").read_text()
        tls = f" ssl crt {self.certificate} alpn http/1.1" if self.certificate else ""
        changes = {
            "    log /dev/log local0 info": "    log stdout format raw local0 info",
            "/run/haproxy/admin.sock mode 660": f"unix@{ADMIN_SOCKET} mode 600",
            "maxconn 100000": "maxconn 1000",
            "bind :443 ssl crt /etc/haproxy/tocsin.pem alpn http/1.1":
                f"bind {self.bind}:{self.port}{tls}",
            "bind 127.0.0.1:8405": f"bind 127.0.0.1:{self.alive}",
        }  # fmt: skip
        if not self.certificate:
            changes |= dict.fromkeys(_OF_TLS, "")
        changes[AS_ITS_OWN_USER] = ""  # who becomes another user outlives a test that is killed
        text = _changed(text, changes).replace("check inter 1s", f"check inter {self.check_every}")
        pair = self.peers or {self.name: self.bind}
        peers = [f"    peer {name} {where}:{self.peer_port}" for name, where in pair.items()]
        text = re.sub(r"^    peer .*\n    peer .*$", "\n".join(peers), text, flags=re.MULTILINE)
        return self._written("haproxy.cfg", self._with_gateways(text))

    def nginx(self, *, without: Sequence[int] = ()) -> Path:
        """The shipped nginx.conf as this one's; its path. `without`: gateways, counted from 0, that
        an operator has taken out. Needs a certificate."""
        assert self.certificate is not None
        temporary = "".join(
            f"    {kind}_temp_path {self.folder / kind};\n"
            for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        text = _changed((DEPLOY / "nginx/nginx.conf").read_text(), {
            "user www-data;\n": "" if os.getuid() else "user root;\n",
            "worker_processes auto": "worker_processes 1",
            "/run/nginx.pid": str(self.folder / "nginx.pid"),
            "worker_rlimit_nofile 200000;\n": "",
            "worker_connections 100000": "worker_connections 500",
            "/var/log/nginx/error.log": str(self.folder / "error.log"),
            "/var/log/nginx/access.log": str(self.folder / "access.log"),
            "    server_tokens off;\n": f"    server_tokens off;\n{temporary}",
            "listen 443 ssl": f"listen {self.bind}:{self.port} ssl",
            "/etc/nginx/tocsin.pem": str(self.certificate),
            "/etc/nginx/tocsin.key": str(self.certificate),
        })  # fmt: skip
        text = self._with_gateways(text, without=without)
        return self._written("nginx.conf", text)

    def keepalived(self, addresses: Sequence[str], interface: str = "eth0") -> Path:
        """The shipped keepalived.conf as this one's, for these virtual addresses; its path."""
        one, two = self.peers.values()
        changes = {
            "/etc/keepalived/haproxy-answers": str(DEPLOY / "keepalived/haproxy-answers"),
            # Nobody else may look into a folder of tests, or into many a checkout.
            "    enable_script_security\n    script_user nobody\n": "    script_user root\n",
        }
        text = _changed((DEPLOY / "keepalived/keepalived.conf").read_text(), changes)
        for before, after in (
            *zip(ADDRESSES, addresses, strict=True),
            ("10.0.1.11", one), ("10.0.1.12", two), ("interface eth0", f"interface {interface}"),
            ("preempt_delay 60", "preempt_delay 1"),
        ):  # fmt: skip
            assert before in text, before
            text = re.sub(rf"{re.escape(before)}(?!\d)", after, text)
        return self._written("keepalived.conf", text)

    def _with_gateways(self, text: str, *, without: Sequence[int] = ()) -> str:
        """Each run of lines with the shipped gateways, with ours in their place."""

        def ours(found: re.Match[str]) -> str:
            name, rest = found[1], found[2]
            lines = []
            for number, (address, port) in enumerate(self.gateways):
                named = name.replace("-1", f"-{number + 1}")
                ending = rest.replace(";", " down;") if number in without else rest
                lines.append(f"{named}{address}:{port}{ending}\n")
            return "".join(lines)

        changed, count = _GATEWAYS.subn(ours, text)
        assert count > 1, "no lines with gateways"
        return changed

    def _written(self, name: str, text: str) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / name
        path.write_text(text)
        return path


def haproxy(place: Place, host: Host | None = None) -> Program:
    """This balancer's HAProxy, not started yet."""
    inside = host.inside if host else ()
    return Program(haproxy_command(place), place.folder / "haproxy.log", inside=inside)


def haproxy_command(place: Place) -> list[str]:
    """Return what starts it, its file written."""
    return [
        needed("haproxy"), "-db", "-L", place.name,
        "-C", str(place.folder), "-f", str(place.haproxy()),
    ]  # fmt: skip


def told(place: Place, command: str) -> str:
    """Return what this balancer's HAProxy answers to a command of its admin socket."""
    folder = os.open(place.folder, os.O_PATH)
    try:
        with socket.socket(socket.AF_UNIX) as asked:
            asked.connect(f"/proc/self/fd/{folder}/{ADMIN_SOCKET}")
            asked.sendall(f"{command}\n".encode())
            return b"".join(iter(lambda: asked.recv(65536), b"")).decode()
    finally:
        os.close(folder)


def nginx(place: Place) -> Program:
    """This balancer's nginx, not started yet; SIGHUP has it read its file again."""
    command = [
        needed("nginx"), "-p", str(place.folder), "-c", str(place.nginx()),
        "-e", str(place.folder / "error.log"), "-g", "daemon off;",
    ]  # fmt: skip
    return Program(command, place.folder / "nginx.log")


def keepalived(place: Place, host: Host, addresses: Sequence[str]) -> Program:
    """This balancer's keepalived, not started yet, for these virtual addresses."""
    folder = place.folder
    command = [
        needed("keepalived"), "--dont-fork", "--vrrp", "--log-console", "--log-detail",
        "--config-id", place.name, "--use-file", str(place.keepalived(addresses)),
        "--pid", str(folder / "keepalived.pid"), "--vrrp_pid", str(folder / "vrrp.pid"),
    ]  # fmt: skip
    return Program(command, folder / "keepalived.log", inside=host.inside)


def may_be_itself() -> bool:
    """Whether HAProxy can be the user that its package has made, and be locked into its folder."""
    with suppress(KeyError):
        return os.getuid() == 0 and bool(pwd.getpwnam("haproxy") and grp.getgrnam("haproxy"))
    return False


def _changed(text: str, changes: Mapping[str, str]) -> str:
    for before, after in changes.items():
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    return text
