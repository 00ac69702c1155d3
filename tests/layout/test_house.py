"""The house: locks match the requirements, mutants still apply, targets exist."""

import ast
import contextlib
import importlib.util
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import HealthCheck, settings
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.layout.tree import ROOT, files, parsed, text

LOCKS = ("requirements.lock", "requirements-spark.lock", "requirements-dev.lock")


def names(lines: list[str]) -> set[str]:
    """Return the normalised project names at the beginning of requirement lines."""
    found = [re.match(r"[A-Za-z0-9._-]+", line) for line in lines]
    return {re.sub(r"[-_.]+", "-", match[0]).lower() for match in found if match}


def locked(lock: str) -> set[str]:
    """Return the projects that a lock pins."""
    return names([line for line in text(Path(lock)).splitlines() if "==" in line])


def test_locks_pin_everything_that_is_wanted() -> None:
    server = tomllib.loads(text(Path("pyproject.toml")))
    client = tomllib.loads(text(Path("clients/python/pyproject.toml")))
    running = names(server["project"]["dependencies"] + client["project"]["dependencies"])
    assert running - {"tocsin"} <= locked("requirements.lock")
    analytics = names(server["project"]["optional-dependencies"]["spark"])
    assert analytics <= locked("requirements-spark.lock")
    assert names(server["dependency-groups"]["dev"]) <= locked("requirements-dev.lock")


def test_locks_agree_with_each_other() -> None:
    pins: dict[str, set[str]] = {}
    for lock in LOCKS:
        for name, version in re.findall(r"^([\w.-]+)==(\S+)", text(Path(lock)), re.MULTILINE):
            pins.setdefault(name, set()).add(version)
    assert {name for name, versions in pins.items() if len(versions) > 1} == set()


def test_locks_name_hashes_and_no_index_or_folder() -> None:
    for lock in LOCKS:
        for line in text(Path(lock)).splitlines():
            assert re.fullmatch(
                r"#.*|[\w.-]+==[\w.]+( ; [^/]+)? \\|    --hash=sha256:[0-9a-f]{64}( \\)?", line
            ), f"{lock}: {line}"


def held(lock: str, machine: dict[str, str]) -> dict[str, str]:
    """Return the versions by project that this machine installs from a lock."""
    found: dict[str, str] = {}
    for line in text(Path(lock)).splitlines():
        if "==" in line:
            pinned = Requirement(line.removesuffix("\\").strip())
            if pinned.marker is None or pinned.marker.evaluate(machine):
                found[str(canonicalize_name(pinned.name))] = str(pinned.specifier).removeprefix(
                    "=="
                )
    return found


def lacking(pins: dict[str, str], wanted: list[str], machine: dict[str, str]) -> set[str]:
    """Return the projects of `wanted`, and of everything that these need in turn, that the pins
    lack."""
    missing, todo, seen = set(), [(line, "the project", "") for line in wanted], set()
    while todo:
        line, by, extra = todo.pop()
        need = Requirement(line)
        if need.marker is not None and not need.marker.evaluate(machine | {"extra": extra}):
            continue
        name = str(canonicalize_name(need.name))
        if name not in pins or not need.specifier.contains(pins[name], prereleases=True):
            missing.add(f"{line} (for {by})")
        for more in ["", *need.extras]:
            if (name, more) not in seen:
                seen.add((name, more))
                with contextlib.suppress(metadata.PackageNotFoundError):  # of another machine
                    todo += [(line, name, more) for line in metadata.requires(name) or []]
    return missing


@pytest.mark.parametrize("version", ["3.11.0", "3.11.2", "3.12.3", "3.13.5", "3.14.0"])
@pytest.mark.parametrize("platform", ["linux", "darwin"])
def test_locks_have_all_that_each_python_needs(version: str, platform: str) -> None:
    """3.11.2 is Debian 12's Python: redis needs async-timeout there, and nothing from 3.11.3 on."""
    machine = {
        "python_full_version": version,
        "python_version": version.rpartition(".")[0],
        "sys_platform": platform,
        "platform_system": {"linux": "Linux", "darwin": "Darwin"}[platform],
        "platform_python_implementation": "CPython",
        "implementation_name": "cpython",
        "implementation_version": version,
        "os_name": "posix",
        "platform_machine": {"linux": "x86_64", "darwin": "arm64"}[platform],
    }
    server = tomllib.loads(text(Path("pyproject.toml")))
    client = tomllib.loads(text(Path("clients/python/pyproject.toml")))
    running = server["project"]["dependencies"] + client["project"]["dependencies"]
    running = [line for line in running if not line.startswith("tocsin==")]
    pins = held("requirements.lock", machine)
    assert lacking(pins, running, machine) == set()
    pins |= held("requirements-spark.lock", machine)
    assert lacking(pins, server["project"]["optional-dependencies"]["spark"], machine) == set()
    pins |= held("requirements-dev.lock", machine)
    developing = server["dependency-groups"]["dev"]
    assert lacking(pins, developing, machine) == set()


def mutants() -> ModuleType:
    """Import scripts/mutants.py as a module."""
    spec = importlib.util.spec_from_file_location("mutants", ROOT / "scripts/mutants.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["mutants"] = module
    spec.loader.exec_module(module)
    return module


def test_every_mutant_still_applies_and_names_tests_that_exist() -> None:
    listed = mutants().load()
    assert len(listed) >= 20
    assert len({mutant.name for mutant in listed}) == len(listed)
    for mutant in listed:
        assert text(Path(mutant.file)).count(mutant.old) == 1, mutant.name
        assert mutant.tests, mutant.name
        assert re.fullmatch(r"[RP]\d+", mutant.rule), mutant.name
        for selector in mutant.tests:
            path, *nodes = selector.split("::")
            assert (ROOT / path).is_file(), f"{mutant.name}: {path} is gone"
            for node in nodes:
                assert node in text(Path(path)), f"{mutant.name}: no {node} in {path}"


@pytest.mark.parametrize(
    ("old", "new", "output", "is_planted"),
    [
        ("close(a)", "shut(a)", "x.py:3: NameError: name 'shut' is not defined", True),
        (
            "a.close()",
            "a.shut()",
            "x.py:3: AttributeError: 'A' object has no attribute 'shut'",
            True,
        ),
        (
            "a.close()",
            "a.open()",
            "x.py:9: AttributeError: 'B' object has no attribute 'end'",
            False,
        ),
        ("a.b", "a.b.c", "x.py:9: AttributeError: 'NoneType' object has no attribute 'c'", False),
        ("x = 1", "x = (", "SyntaxError: '(' was never closed", True),
        ("x = 1", "x = 2", "x.py:9: AssertionError: assert 2 == 1", False),
    ],
)
def test_a_mutant_is_not_caught_by_a_name_that_it_plants(
    old: str, new: str, output: str, is_planted: bool
) -> None:
    mutant = mutants().Mutant("name", "P1", "x.py", old, new, "reason", ["tests/test_x.py"])
    assert (mutant.planted_name(output) is not None) is is_planted


def test_a_verdict_rests_on_what_its_tests_reach() -> None:
    """A change of a module that the tests of a rule never import leaves its verdict valid; a change
    of the rule's own module does not."""
    reached = mutants().reached(ROOT / "tests/push/test_ranges.py")
    assert ROOT / "push/ranges.py" in reached
    assert ROOT / "gateway/server.py" not in reached


def test_a_verdict_rests_on_what_a_program_does_and_not_on_its_words() -> None:
    meaning = mutants().meaning
    plain = b"LIMIT = 5\n\ndef over(n: int) -> bool:\n    return n > LIMIT\n"
    worded = (
        b'"""A bound."""\nLIMIT = 5\n"""Inclusive."""\n\n'
        b'def over(n: int) -> bool:\n    """Whether it is over."""\n    # One more is.\n'
        b"    return (\n        n > LIMIT\n    )\n"
    )
    assert meaning(worded) == meaning(plain)
    assert meaning(plain.replace(b" > ", b" >= ")) != meaning(plain)
    assert meaning(plain.replace(b"5", b"6")) != meaning(plain)


def test_make_alone_lists_every_target() -> None:
    makefile = text(Path("Makefile"))
    targets = set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
    shown = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert set(re.findall(r"make ([a-z]+)", shown)) == targets
    phony = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert phony is not None
    assert set(phony[1].split()) == targets


@pytest.mark.parametrize("target", ["load", "swarm", "peers", "chaos"])
def test_make_installs_nothing_large_before_it_helps(target: str) -> None:
    def commands(*arguments: str) -> str:
        command = ["make", "--dry-run", target, *arguments]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout

    assert "scripts/setup dev" in commands()
    helped = commands("ARGS=--seconds 1 --help")
    assert "scripts/setup run" in helped
    assert not re.search("setup dev|scripts/needs|scripts/peers", helped)


def test_no_example_of_hypothesis_is_judged_by_its_seconds() -> None:
    """A busy machine fails no test. tests/conftest.py sets this for all, and no test overrides
    it."""
    assert settings().deadline is None
    assert HealthCheck.too_slow in settings().suppress_health_check
    for path in files(".py", "tests"):
        for node in ast.walk(parsed(path)) if "settings(" in text(path) else ():
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "settings":
                said = {word.arg: ast.unparse(word.value) for word in node.keywords}
                assert "deadline" not in said, path
                allowed = said.get("suppress_health_check", "too_slow")
                assert "too_slow" in allowed or allowed == "list(HealthCheck)", path
