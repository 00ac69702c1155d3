"""The files of this checkout, for the layout tests."""

import ast
import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
SERVER = ("push", "storage", "metadata", "gateway", "runtime", "services")
"""The packages of the server, even if they do not exist yet."""
OUTSIDE = ("clients", "loadtests", "spark")
ALL = (*SERVER, *OUTSIDE, "scripts", "tests")
DOCUMENTS = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
_LEFT_OUT = {"__pycache__", "node_modules", "vendor", "build"}


@cache
def files(suffix: str, *folders: str) -> list[Path]:
    """Return files with this suffix below these folders, relative to the root, sorted."""
    return sorted(
        path.relative_to(ROOT)
        for folder in folders
        for path in (ROOT / folder).rglob(f"*{suffix}")
        if path.is_file()
        and not _LEFT_OUT.intersection(path.parts)
        and not any(part.endswith(".egg-info") for part in path.parts)
    )


def each(paths: Sequence[Path]) -> Callable[[Callable[[Path], None]], Callable[[], None]]:
    """Make one test that checks every one of these files and reports all that fail. Thousands of
    separate tests of a millisecond each would take a minute in overhead."""
    assert paths

    def of(check: Callable[[Path], None]) -> Callable[[], None]:
        def all_of_them() -> None:
            wrong: list[str] = []
            for path in paths:
                try:
                    check(path)
                except AssertionError as error:
                    wrong.append(f"{path}: {error}")
            assert not wrong, "\n".join(wrong)

        all_of_them.__name__, all_of_them.__doc__ = check.__name__, check.__doc__
        all_of_them.__module__ = check.__module__
        return all_of_them

    return of


@cache
def text(path: Path) -> str:
    """Return a file's text, by its path from the root."""
    return (ROOT / path).read_text(encoding="utf-8")


@cache
def parsed(path: Path) -> ast.Module:
    """Return a Python file's syntax tree."""
    return ast.parse(text(path), filename=str(path))


def imports(path: Path) -> set[str]:
    """Return the modules that a file imports, anywhere in it, with their dots."""
    found: set[str] = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
    return found


def section(document: str, heading: str) -> str:
    """Return the text of one `## heading` of a document, to the next heading of that level."""
    pattern = rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)"
    found = re.search(pattern, text(Path(document)), re.MULTILINE | re.DOTALL)
    assert found is not None, f"{document} has no section {heading!r}"
    return found[1]


def table_rows(markdown: str) -> list[list[str]]:
    """Return the cells of every table row that is neither a head nor a ruler."""
    rows = [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]]
        for line in markdown.splitlines()
        if line.startswith("|")
    ]
    rulers = {i for i, cells in enumerate(rows) if all(set(c) <= set("-: ") for c in cells)}
    return [cells for i, cells in enumerate(rows) if i not in rulers and i + 1 not in rulers]
