"""`pip install ./clients/python` into a new environment: the client is there, and no server."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.layout.tree import ROOT, SERVER

ABSENT = (*SERVER, "loadtests", "spark", "starlette", "uvicorn", "uvloop", "orjson")
PROBE = f"""
import importlib.util, pathlib, sys
import tocsin, tocsin.blocking, tocsin.effects, tocsin.cli.main
assert tocsin.__file__.startswith(sys.prefix), tocsin.__file__
assert pathlib.Path(tocsin.__file__).with_name("py.typed").exists()
print([name for name in {ABSENT!r} if importlib.util.find_spec(name)])
"""
OFFLINE = re.compile("NewConnectionError|No matching distribution|Read timed out")
"""What pip says where no package index answers."""


def run(*command: object, cwd: Path) -> tuple[int, str]:
    """Its exit code and output."""
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False,
        timeout=200,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def test_the_client_is_installed_alone(tmp_path: Path) -> None:
    source, environment = tmp_path / "python", tmp_path / "venv"
    left_out = shutil.ignore_patterns("build", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT / "clients/python", source, ignore=left_out)  # pip builds where it stands
    assert run(sys.executable, "-m", "venv", "--without-pip", environment, cwd=tmp_path)[0] == 0
    python = environment / "bin/python"
    pip = (sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check")
    code, output = run(*pip, "install", "-q", "--retries", "1", source, cwd=tmp_path)
    if code and OFFLINE.search(output):
        pytest.skip("no package index answers: nothing can be installed")
    assert code == 0, output
    assert run(python, "-I", "-c", PROBE, cwd=tmp_path) == (0, "[]\n")
    code, output = run(environment / "bin/tocsin", "--help", cwd=tmp_path)
    assert code == 0
    assert "publish" in output
