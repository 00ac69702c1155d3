"""SECURITY.md names only tests that exist, limits that hold, and trials that can be run."""

import ast
import re
from pathlib import Path

from loadtests.trials.__main__ import trials
from push import limits
from tests.layout.tree import ROOT, text

DOCUMENT = text(Path("SECURITY.md"))


def named_in(name: str) -> set[str]:
    """Return the tests in all files of this name."""
    found: set[str] = set()
    for path in (ROOT / "tests").rglob(name):
        tree = ast.parse(path.read_text())
        found |= {
            node.name
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }
    return found


def test_every_test_that_security_names_exists() -> None:
    named = re.findall(r"`(test_\w+\.py)(?:::(test_\w+))?`", DOCUMENT)
    assert len(named) > 80
    files = {file: named_in(file) for file, _ in named}
    assert [file for file, tests in files.items() if not tests] == []
    assert [f"{file}::{name}" for file, name in named if name and name not in files[file]] == []


def test_every_trial_that_security_names_can_be_run() -> None:
    named = re.findall(r"trials? ((?:`\w+`(?:, )?)+)", DOCUMENT)
    names = {name for one in named for name in re.findall(r"`(\w+)`", one)}
    assert {"fuzz", "hostile", "seal", "revoke"} <= names <= set(trials.commands)


def test_the_bounds_that_security_tells_are_those_of_the_code() -> None:
    assert limits.DATA_KEY_MESSAGES_MAX == 2**28
    assert limits.DATA_KEY_BYTES_MAX == 64 * 2**30
    assert limits.DATA_KEY_S_MAX == 24 * 3600
    assert "2^28 messages, 64 GiB or 24 h" in DOCUMENT
