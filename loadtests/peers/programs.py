"""The other brokers on this machine: on the PATH, where Debian puts them, or unpacked in the venv
by `scripts/peers`. `python -m loadtests.peers.programs` prints the packages of those that are
missing or too old."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

VENV: Final = Path(sys.prefix)
UNPACKED: Final = VENV / "peers"
"""Folder of unpacked packages; each one's files are in `<package>/root`."""
WHAT_TO_DO: Final = "`scripts/peers` unpacks it into .venv on Debian"
REDIS_MIN: Final = (7, 0)
SYNC_ALWAYS_MIN: Final = (2, 10)
"""The first version of NATS with `sync_interval: always`."""


class Missing(RuntimeError):
    """The broker is not installed, or too old; the text says why."""


@dataclass(frozen=True)
class Program:
    """A program that can be started."""

    path: Path
    engine: str
    version: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.engine} {'.'.join(map(str, self.version))}"


@dataclass(frozen=True)
class Rabbit:
    """A RabbitMQ and the Erlang that runs it."""

    script: Path
    erlang: Path
    """The folder that contains `erts-<version>`."""
    root: Path
    version: tuple[int, ...]

    def __str__(self) -> str:
        return f"RabbitMQ {'.'.join(map(str, self.version))}"

    @property
    def binaries(self) -> Path:
        """The folder of erlexec and epmd."""
        return next(iter(sorted(self.erlang.glob("erts-*/bin"))))


def numbers(text: str) -> tuple[int, ...]:
    """Return the first version in a text: `nats-server: v2.9.10` → (2, 9, 10); () if there is
    none."""
    found = re.search(r"\d+(?:\.\d+)+", text)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def roots(package: str) -> list[Path]:
    """Return the folders that may contain a package's files."""
    return [UNPACKED / package / "root", Path("/")]


def nats() -> Program:
    """Find nats-server: the first that can sync each message, or else the first. Raises Missing."""
    named = shutil.which("nats-server")
    places = [Path(named)] if named else []
    places += [root / "usr/sbin/nats-server" for root in roots("nats-server")]
    found = [
        Program(path, "nats-server", version)
        for path in places
        if path.exists() and (version := _version(path, "--version"))
    ]
    if not found:
        raise Missing(f"there is no nats-server here ({WHAT_TO_DO})")
    return next((program for program in found if program.version >= SYNC_ALWAYS_MIN), found[0])


def nats_sync() -> Program:
    """Find a nats-server that can sync each message. Raises Missing."""
    program = nats()
    if program.version < SYNC_ALWAYS_MIN:
        raise Missing(f"{program} cannot sync each message (sync_interval: always); 2.10 can")
    return program


def rabbit() -> Rabbit:
    """Find RabbitMQ with its Erlang. Raises Missing."""
    for root in roots("rabbitmq-server"):
        scripts = sorted(root.glob("usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin/rabbitmq-server"))
        erlangs = [
            found / "usr/lib/erlang"
            for found in (root, Path("/"))
            if any(found.glob("usr/lib/erlang/erts-*/bin/erlexec"))
        ]
        if scripts and erlangs:
            return Rabbit(scripts[-1], erlangs[0], root, numbers(scripts[-1].parts[-3]))
    raise Missing(f"there is no rabbitmq-server here ({WHAT_TO_DO})")


def redis() -> Program:
    """Find a server of Valkey, or else of Redis. If the variable TOCSIN_TEST_REDIS is set, only its
    paths are tried; otherwise, for each of the two, the PATH and then the venv. Raises Missing."""
    named = [
        Path(path) for path in os.environ.get("TOCSIN_TEST_REDIS", "").split(os.pathsep) if path
    ]
    refused = []
    for path in named or _usual_redis():
        version = _version(path, "--version")
        if version >= REDIS_MIN:
            engine = "Valkey" if "valkey" in path.name else "Redis"
            return Program(path, engine, version)
        refused.append(f"{path} is no server, or older than 7.0")
    raise Missing("; ".join(["there is no Redis or Valkey here (`scripts/needs redis`)", *refused]))


def _usual_redis() -> list[Path]:
    found = []
    for name in ("valkey", "redis"):
        on_path = shutil.which(f"{name}-server")
        unpacked = VENV / name / f"{name}-server"
        found += [Path(on_path)] if on_path else []
        found += [unpacked] if unpacked.exists() else []
    return found


def _version(path: Path, option: str) -> tuple[int, ...]:
    """Return the version that a program prints; () if it does not start."""
    try:
        ran = subprocess.run(
            [path, option], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return numbers(ran.stdout) if ran.returncode == 0 else ()


def missing() -> list[str]:
    """Return the packages of brokers that are missing or too old. Redis and Valkey are installed by
    `scripts/needs`."""
    found = []
    for package, find in (("nats-server", nats_sync), ("rabbitmq-server", rabbit)):
        try:
            find()
        except Missing:
            found.append(package)
    return found


if __name__ == "__main__":
    sys.stdout.write("".join(f"{package}\n" for package in missing()))
