"""Virtual environments of a test's own, without a network: their packages are links to those of the
environment that runs the tests."""

import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

from tests.layout.tree import ROOT

PACKAGES = Path(sysconfig.get_path("purelib"))
SCRIPTS = Path(sysconfig.get_path("scripts"))


def only_pyspark(folder: Path) -> Path:
    """An environment as `pip install pyspark` makes it."""
    made = _environment(folder, lambda name: name.startswith(("pyspark", "py4j")))
    names = [path.name for path in (PACKAGES / "pyspark/bin").iterdir()]
    for name in (*names, "find_spark_home.py"):
        shutil.copy2(SCRIPTS / name, made / "bin")
    return made


def with_wheels(folder: Path, build: Path) -> Path:
    """An environment that has Tocsin's wheels, and what they need."""
    made = _environment(folder, lambda name: not name.startswith(("tocsin", "__editable__")))
    source = build / "source"
    for name in (
        "push",
        "storage",
        "metadata",
        "runtime",
        "services",
        "gateway",
        "loadtests",
        "spark",
        "clients",
    ):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("node_modules"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, source)
    here = ("--no-deps", "--no-index", "--no-build-isolation")
    _pip("wheel", "-q", *here, "-w", str(build), str(source), str(source / "clients/python"))
    wheels = map(str, build.glob("*.whl"))
    _pip("--python", str(made / "bin/python"), "install", "-q", "--no-deps", "--no-index", *wheels)
    return made


def _environment(folder: Path, takes: Callable[[str], bool]) -> Path:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (packages,) = folder.glob("lib/python3*/site-packages")
    for path in PACKAGES.iterdir():
        if takes(path.name) and path.name != "__pycache__":
            (packages / path.name).symlink_to(path)
    return folder


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
