"""The configurations of deploy/redis, in a folder of a test: on its ports, small and quick."""

import hashlib
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.layout.tree import ROOT
from tests.servers.node import Login

SHIPPED: Final = ROOT / "deploy/redis"
MASTER: Final = "tocsin"
"""What the Sentinels call the primary."""
USERS: Final = ("tocsin", "tocsin-admin", "tocsin-manager", "replica", "sentinel", "operator")
NODE_TIMEOUT_MS: Final = 1000
DOWN_AFTER_MS: Final = 500
MEMORY_MAX: Final = "256mb"
SMALLER: Final = {
    "maxmemory 4gb": f"maxmemory {MEMORY_MAX}",
    "client-output-buffer-limit replica 1gb 0 0": "client-output-buffer-limit replica 256mb 0 0",
    "repl-backlog-size 256mb": "repl-backlog-size 16mb",
}
"""Tests run on small machines, many at once."""
QUICKER: Final = {
    "cluster-node-timeout 5000": f"cluster-node-timeout {NODE_TIMEOUT_MS}",
    "down-after-milliseconds tocsin 5000": f"down-after-milliseconds tocsin {DOWN_AFTER_MS}",
    "failover-timeout tocsin 20000": "failover-timeout tocsin 2000",
}


def login(user: str) -> Login:
    """A user of the shipped ACL files, under the password that tests give it: replicas have the
    same."""
    return Login(user, "password-of-" + re.sub(r"-\d$", "", user))


@dataclass(frozen=True)
class Setting:
    """Where one node's configuration goes, and what is its own in it."""

    folder: Path
    address: str
    port: int
    primary: tuple[str, int] | None = None
    """Whom it follows, or what a Sentinel watches."""
    bus_port: int = 0
    """Of a Cluster's node."""
    with_users: bool = False
    """Under the shipped ACL files; else everybody may do everything, without a password."""
    replica: str = "replica-1"
    """Who it is to whom it follows."""
    more: tuple[str, ...] = field(default=())
    """Lines at the end."""

    def write(self, name: str) -> None:
        """Write the shipped `<name>.conf` as `node.conf`, with what it includes beside it.

        Raises:
            AssertionError: a shipped file no longer has a line that is the node's own.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        main = (SHIPPED / f"{name}.conf").read_text()
        paths = {"/etc/redis/": f"{self.folder}/", "dir /var/lib/redis": f'dir "{self.folder}"'}
        if "include " in main:
            common = (SHIPPED / "node.conf").read_text()
            common = self._placed(_changed(common, paths | SMALLER), "6379")
            (self.folder / "common.conf").write_text(common)
            main = _changed(main, {"/etc/redis/node.conf": f"{self.folder}/common.conf"})
        else:
            main = self._placed(_changed(main, paths), "26379")
        if self.primary is not None:
            main = _changed(main, {"10.0.3.11 6379": "{} {}".format(*self.primary)})
        main = _changed(main, {old: new for old, new in QUICKER.items() if old in main})
        lines = [main, *self.more]
        if self.bus_port:
            lines.append(f"cluster-port {self.bus_port}")
        (self.folder / "node.conf").write_text("\n".join(lines) + "\n")

    def _placed(self, text: str, port: str) -> str:
        """With this node's address and users."""
        text = _changed(text, {
            "bind 127.0.0.1": f"bind {self.address}",
            f"port {port}": f"port {self.port}",
        })  # fmt: skip
        if not self.with_users:
            users = r"^(aclfile|masteruser|masterauth|sentinel (auth|sentinel)-\w+) .*\n"
            text = re.sub(users, "", text, flags=re.MULTILINE)
            return _changed(text, {"protected-mode yes": "protected-mode no"})
        text = text.replace("masteruser replica-1", f"masteruser {self.replica}")
        for user in USERS:
            text = text.replace(f"{user.upper()}_PASSWORD", login(user).password)
        for file in ("users.acl", "sentinel-users.acl"):
            (self.folder / file).write_text(users_file(file))
        return text


def users_file(name: str) -> str:
    """A shipped ACL file with the tests' passwords."""
    text = (SHIPPED / name).read_text()
    for user in USERS:
        word = user.removeprefix("tocsin-").upper() + "_SHA256"
        text = text.replace(word, hashlib.sha256(login(user).password.encode()).hexdigest())
    assert "_SHA256" not in text
    return text


def _changed(text: str, changes: dict[str, str]) -> str:
    for before, after in changes.items():
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    return text
