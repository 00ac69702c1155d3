"""Which Redis and Valkey servers are here, for the tests that run real ones.

`python -m tests.servers.binaries` prints which of the two engines are missing, for scripts/needs.
"""

import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

ENGINES = ("valkey", "redis")
VERSION_MIN = (7, 0)
"""The first with functions."""
WHAT_TO_DO = (
    "the tests of storage on Redis or Valkey need a server of one of them, 7.0 or newer: "
    "`scripts/needs redis` unpacks it into .venv on Debian and Ubuntu; elsewhere put valkey-server "
    "or redis-server on PATH, or name it: TOCSIN_TEST_REDIS=/path/to/valkey-server "
    "(several with : between)"
)


class ServerMissing(RuntimeError):
    """There is no server here that is new enough; the text says what to do."""


class Binary(NamedTuple):
    """A server that can be run."""

    path: str
    engine: str
    """`valkey` or `redis`."""
    version: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.engine} {'.'.join(map(str, self.version))}"


@cache
def binaries() -> tuple[Binary, ...]:
    """One of each engine that is here, Valkey first: what TOCSIN_TEST_REDIS names and nothing
    else, else what is on PATH or in the venv.

    Raises:
        ServerMissing: there is none that starts and is new enough, or one that is named is not.
    """
    named = [path for path in os.environ.get("TOCSIN_TEST_REDIS", "").split(os.pathsep) if path]
    found: dict[str, Binary] = {}
    refused = []
    for path in named or _usual():
        binary = _looked_at(path)
        if binary is not None and binary.version >= VERSION_MIN:
            found.setdefault(binary.engine, binary)
        else:
            refused.append(f"{path} is {binary or 'no server that starts'}")
    if not found or (named and refused):
        raise ServerMissing("; ".join([WHAT_TO_DO, *refused]))
    return tuple(found[engine] for engine in ENGINES if engine in found)


def missing() -> list[str]:
    """The engines that are not here. Where TOCSIN_TEST_REDIS has chosen, none is."""
    try:
        here = {binary.engine for binary in binaries()}
    except ServerMissing:
        here = set()
    if os.environ.get("TOCSIN_TEST_REDIS"):
        return []
    return [engine for engine in ENGINES if engine not in here]


def _usual() -> list[str]:
    paths = []
    for engine in ENGINES:
        name = f"{engine}-server"
        in_venv = Path(sys.prefix) / engine / name
        paths += [path for path in (shutil.which(name), str(in_venv)) if path]
    return [path for path in paths if os.path.exists(path)]


def _looked_at(path: str) -> Binary | None:
    try:
        ran = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    said = re.match(r"(Redis|Valkey) server v=(\d+(?:\.\d+)*)", ran.stdout)
    if said is None:
        return None
    return Binary(path, said[1].lower(), tuple(int(part) for part in said[2].split(".")))


if __name__ == "__main__":
    sys.stdout.write("".join(f"{engine}\n" for engine in missing()))
