"""A storage cluster on this machine: a primary, its replicas and three Sentinels.

Each is set up as deploy/redis says, small, and with its own passwords.
"""

import hashlib
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import redis

from scripts.cluster.parts import PAUSE_S, Part
from tests.servers.binaries import Binary
from tests.servers.node import Login, Node, fields, in_sync
from tests.servers.shipped import MASTER, SHIPPED, SMALLER

REPLICAS: Final = 2
SENTINELS: Final = 3
PORTS: Final = 1 + REPLICAS + SENTINELS
STAYS_DOWN_S: Final = 15.0
"""The time for which a killed node stays down, in seconds.

This is longer than a failover (5 s until a primary counts as lost, and some seconds more). A node
that is started at once would be primary again, without a failover.
"""
STOP_TIMEOUT_S: Final = 3.0
"""The time for a server to end, in seconds. A server that writes its first append-only file does
not end, and its data is removed anyway."""
_HERE: Final = "127.0.0.1"
_PLACEHOLDER: Final = re.compile(r"\b([A-Z]+)_(SHA256|PASSWORD)\b")


@dataclass
class Store:
    """A storage cluster of this name, with its files in `folder`.

    `ports` are those of the nodes, of which the first is the first primary, and then of the
    Sentinels.
    """

    name: str
    folder: Path
    logs: Path
    binary: Binary
    ports: Sequence[int]
    zone: str = ""
    _passwords: dict[str, str] = field(default_factory=dict)

    def parts(self) -> tuple[list[Part], list[Part]]:
        """Return the nodes and the Sentinels, after writing their files. Start the Sentinels
        last."""
        nodes, guards = self.ports[: 1 + REPLICAS], self.ports[1 + REPLICAS :]
        primary = (_HERE, nodes[0])
        made: list[Part] = []
        for number, port in enumerate(nodes):
            name = f"store-{self.name}-{number + 1}"
            change = {"masteruser replica-1": f"masteruser replica-{number + 1}"}
            self._write(name, "replica" if number else "primary", port, primary, change)
            made.append(self._part(name, port))
        sentinels = []
        for number, port in enumerate(guards):
            name = f"sentinel-{self.name}-{number + 1}"
            self._write(name, "sentinel", port, primary, {})
            sentinels.append(self._part(name, port, is_sentinel=True))
        return made, sentinels

    def url(self, user: str) -> str:
        """Return the address of the cluster for this user, with the password."""
        password = self.password(user.removeprefix("tocsin-"))
        places = ",".join(f"{_HERE}:{port}" for port in self.ports[1 + REPLICAS :])
        where = f"redis+sentinel://{user}:{password}@{places}/{MASTER}"
        return f"{where}?cluster={self.name}&zone={self.zone}" if self.zone else where

    def password(self, user: str) -> str:
        """Return the user's password, which is made at the first call."""
        return self._passwords.setdefault(user, secrets.token_hex(16))

    def is_whole(self) -> bool:
        """Whether all replicas have the primary's data, and the Sentinels know all of them."""
        primary, *replicas = [self._asked(port) for port in self.ports[: 1 + REPLICAS]]
        if not in_sync(primary, replicas):
            return False
        for port in self.ports[1 + REPLICAS :]:
            said = iter(self._asked(port).ask("SENTINEL", "MASTER", MASTER))
            state = dict(zip(said, said, strict=True))
            known = (int(state["num-slaves"]), int(state["num-other-sentinels"]))
            if known != (REPLICAS, SENTINELS - 1):
                return False
        return True

    def primary(self) -> str:
        """Return the primary's address, from a Sentinel; empty if none knows it."""
        for port in self.ports[1 + REPLICAS :]:
            try:
                host, number = self._asked(port).ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER)
            except redis.RedisError:
                continue
            return f"{host}:{number}"
        return ""

    def _part(self, name: str, port: int, *, is_sentinel: bool = False) -> Part:
        words = [self.binary.path, str(self.folder / name / "node.conf")]
        asked = self._asked(port)

        def answers() -> bool:
            return asked.ask("PING") == "PONG" and (
                is_sentinel or fields(asked.ask("INFO", "persistence"))["loading"] == "0"
            )

        return Part(
            name, [*words, *["--sentinel"] * is_sentinel], self.logs, f"{_HERE}:{port}",
            is_ready=answers, stop_timeout_s=STOP_TIMEOUT_S,
            stays_down_s=PAUSE_S if is_sentinel else STAYS_DOWN_S,
        )  # fmt: skip

    def _asked(self, port: int) -> Node:
        """Return a connection for queries, as the operator. The process itself is a Part's."""
        login = Login("operator", self.password("operator"))
        return Node(self.binary, self.folder, _HERE, port, login=login)

    def _write(
        self, name: str, kind: str, port: int, primary: tuple[str, int], change: Mapping[str, str]
    ) -> None:
        """Write the files of one server, made of the shipped ones, into its own folder."""
        folder = self.folder / name
        folder.mkdir(parents=True)
        wanted = {
            "node.conf": f"{kind}.conf",
            "common.conf": "node.conf",
            "users.acl": "users.acl",
            "sentinel-users.acl": "sentinel-users.acl",
        }
        for written, shipped in wanted.items():
            text = (SHIPPED / shipped).read_text()
            for before, after in {
                "include /etc/redis/node.conf": f"include {folder}/common.conf",
                "/etc/redis/": f"{folder}/",
                "dir /var/lib/redis": f"dir {folder}",
                "10.0.3.11 6379": "{} {}".format(*primary),
                "port 26379": f"port {port}",
                "port 6379": f"port {port}",
                **SMALLER,
                **change,
            }.items():
                text = text.replace(before, after)
            path = folder / written
            path.touch(mode=0o600)
            path.write_text(_PLACEHOLDER.sub(self._secret, text))

    def _secret(self, found: re.Match[str]) -> str:
        password = self.password(found[1].lower())
        if found[2] == "PASSWORD":
            return password
        return hashlib.sha256(password.encode()).hexdigest()
