"""Rooms of the JavaScript SDK: a module imports only from rooms below its own, and `proto` is
pure."""

import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Final

import pytest

from tests.layout.tree import ROOT, each, files

SOURCES: Final = Path("clients/javascript/src")
ROOMS: Final = ("proto", "io", "api")
"""The rooms from the bottom to the top; `index.js` is above them."""
MODULES: Final = files(".js", str(SOURCES))
PURE: Final = [path for path in MODULES if path.parent.name == "proto"]
IMPORTED: Final = re.compile(r'^(?:import|export)\b[^;"]*?\bfrom\s*"([^"]+)"', re.MULTILINE)
IMPURE: Final = re.compile(
    r"\b(?:globalThis|window|document|navigator|performance|crypto|console|process|fetch"
    r"|localStorage|sessionStorage|WebSocket|setTimeout|setInterval|queueMicrotask"
    r"|Date\.now|Math\.random)\b|\bnew Date\(\)|\bawait\b"
)


def code(text: str) -> str:
    """Return a source without its comments."""
    return re.sub(r"/\*.*?\*/|(?<!:)//[^\n]*", "", text, flags=re.DOTALL)


def imported(path: Path) -> Iterator[Path]:
    """Yield the modules that a module imports, relative to the root."""
    for name in IMPORTED.findall(code((ROOT / path).read_text())):
        yield (ROOT / path.parent / name).resolve().relative_to(ROOT)


def room(path: Path) -> int:
    """Return the height of a module: the number of rooms below its own."""
    inner = path.relative_to(SOURCES)
    return ROOMS.index(inner.parts[0]) if len(inner.parts) > 1 else len(ROOMS)


def impure(text: str) -> list[str]:
    """Return every use of the outside world in a source: a clock, chance, a timer, the network."""
    return IMPURE.findall(code(text))


def test_every_module_but_the_entry_has_a_room() -> None:
    assert {path.parent for path in MODULES} == {SOURCES, *(SOURCES / name for name in ROOMS)}
    assert [path.name for path in MODULES if path.parent == SOURCES] == ["index.js"]


@each(MODULES)
def test_a_module_imports_only_modules_below_it(path: Path) -> None:
    assert [str(found) for found in imported(path) if room(found) > room(path)] == []


def test_no_modules_import_each_other() -> None:
    graph = {path: list(imported(path)) for path in MODULES}
    assert sum(map(len, graph.values())) > len(MODULES), "imports are found"
    TopologicalSorter(graph).prepare()  # raises CycleError


@each(PURE)
def test_the_rules_of_the_sdk_are_pure(path: Path) -> None:
    text = (ROOT / path).read_text()
    assert "Pure." in text.split("*/")[0]
    assert impure(text) == []


@pytest.mark.parametrize(
    "line", ["now = Date.now();", "await answer;", "setTimeout(next, 5);", "r = Math.random();"]
)
def test_what_is_impure_is_found(line: str) -> None:
    assert impure(f"/** await fetch */\n{line} // console\n") != []
