"""TCP ports for servers that tests kill and start again: nobody else takes them meanwhile."""

import random
import socket
from pathlib import Path
from typing import Self

_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST = 10_000


class ClaimedPort:
    """A port of loopback that no other test process takes while this is open, even while nobody
    listens on it.

    It lies below the ports that the kernel gives to clients, so that no connection has it when a
    killed server comes back; an abstract socket of its name is the claim, and goes with us."""

    def __init__(self) -> None:
        last = int(_EPHEMERAL.read_text().split()[0]) - 1
        while True:
            self.number = random.randint(_FIRST, last)
            self._claim = socket.socket(socket.AF_UNIX)
            try:
                self._claim.bind(f"\0tocsin-tests-port-{self.number}")
                with socket.socket() as probe:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind(("127.0.0.1", self.number))
            except OSError:
                self._claim.close()
            else:
                return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._claim.close()
