"""Installations by pip are complete: the client alone, and the server with all its files."""

import json
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest

from loadtests.server import Server
from tests.layout.tree import ROOT, SERVER, text

ABSENT = (*SERVER, "loadtests", "spark", "starlette", "uvicorn", "uvloop", "orjson")
PROBE = f"""
import importlib.util, pathlib, sys
import tocsin, tocsin.blocking, tocsin.effects, tocsin.cli.main
assert tocsin.__file__.startswith(sys.prefix), tocsin.__file__
assert pathlib.Path(tocsin.__file__).with_name("py.typed").exists()
print([name for name in {ABSENT!r} if importlib.util.find_spec(name)])
"""
OFFLINE = re.compile("NewConnectionError|No matching distribution|Read timed out")
"""pip's messages when no package index answers."""


def run(*command: object, cwd: Path) -> tuple[int, str]:
    """Run a command; return its exit code and output."""
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False,
        timeout=200,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def test_the_client_is_installed_alone(tmp_path: Path) -> None:
    source, environment = tmp_path / "python", tmp_path / "venv"
    left_out = shutil.ignore_patterns("build", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT / "clients/python", source, ignore=left_out)  # pip builds inside it
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


LEFT_OUT = shutil.ignore_patterns("build", "*.egg-info", "__pycache__", ".*")
NOT_INSTALLED = {"build", "clients", "deploy", "docs", "scripts", "tests"}


def packages() -> set[str]:
    """Return the folders of the checkout whose modules belong to the server's distribution."""
    return {
        path.name
        for path in ROOT.iterdir()
        if path.is_dir()
        and not path.name.startswith(".")
        and path.name not in NOT_INSTALLED
        and next(path.rglob("*.py"), None) is not None
    }


def contents(package: Path) -> set[str]:
    """Return the files of a package, data included, relative to it."""
    return {
        path.relative_to(package).as_posix()
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".md"
    }


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheels of the server and of the client, and nothing else."""
    folder = tmp_path_factory.mktemp("install")
    source, wheels, target = folder / "source", folder / "wheels", folder / "target"
    for name in (*packages(), "clients/python"):  # pip builds inside the source folders
        shutil.copytree(ROOT / name, source / name, ignore=LEFT_OUT)
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, source)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    build = ("wheel", "-q", "--no-deps", "--no-index", "--no-build-isolation", "-w", wheels)
    assert run(*pip, *build, source / "clients/python", source, cwd=folder) == (0, "")
    install = ("install", "-q", "--no-deps", "--no-index", "--no-compile", "--target", target)
    assert run(*pip, *install, *sorted(wheels.iterdir()), cwd=folder) == (0, "")
    return target


def beside(installed: Path, code: str) -> tuple[str, ...]:
    """Return arguments with which Python runs code with the installed packages, without the
    checkout. -S leaves out the links of an editable installation."""
    libraries = sysconfig.get_path("purelib")
    paths = f"import sys; sys.path[:0] = [{str(installed)!r}]; sys.path.append({libraries!r})"
    return ("-I", "-S", "-c", f"{paths}\n{code}")


def test_every_package_of_the_server_is_known() -> None:
    here = packages()
    assert here - set(SERVER) == {"loadtests", "spark"}
    project = tomllib.loads(text(Path("pyproject.toml")))
    include = project["tool"]["setuptools"]["packages"]["find"]["include"]
    assert {pattern.rstrip("*") for pattern in include} >= here


def test_the_container_has_every_package_of_the_server() -> None:
    """The container has no PySpark, and so no jobs."""
    recipe = text(Path("deploy/container/Containerfile"))
    copied = set(re.findall(r"^COPY (\w+) \1$", recipe, re.M))
    assert copied == {*packages(), "clients"} - {"spark"}
    compiled = re.search(r"compileall -q (.*)$", recipe, re.M)
    assert compiled is not None
    assert set(compiled[1].split()) == {*packages(), "clients/python/src"} - {"spark", "loadtests"}


@pytest.mark.parametrize("package", sorted(packages()))
def test_a_package_is_installed_with_all_its_files(installed: Path, package: str) -> None:
    missing = contents(ROOT / package) - contents(installed / package)
    developers = {name for name in missing if name.startswith(("peers/published/", "screenshots/"))}
    assert missing - developers == set()


def test_every_command_that_is_installed_loads(installed: Path, tmp_path: Path) -> None:
    points = tomllib.loads(text(Path("pyproject.toml")))["project"]["entry-points"]
    code = (
        "from importlib.metadata import entry_points\n"
        "import json\n"
        "found = {one.name: one.load() for one in entry_points(group='tocsin.commands')}\n"
        "files = [sys.modules[one.value.partition(':')[0]].__file__"
        " for one in entry_points(group='tocsin.commands')]\n"
        "print(json.dumps([sorted(found), files]))"
    )
    code_of, output = run(sys.executable, *beside(installed, code), cwd=tmp_path)
    assert code_of == 0, output
    names, files = json.loads(output)
    assert names == sorted(points["tocsin.commands"])
    assert all(Path(file).is_relative_to(installed) for file in files), files


def test_the_server_that_is_installed_serves(installed: Path, tmp_path: Path) -> None:
    code = "import sys; sys.argv = ['tocsin', 'serve']\nfrom tocsin_command import main; main()"
    with Server(tmp_path / "data", command=beside(installed, code)) as server:
        assert server.running()  # it must also report that it is ready
