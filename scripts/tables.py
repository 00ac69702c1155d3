"""Fill in the tables of the documents that the code knows better.

    .venv/bin/python scripts/tables.py

PROTOCOL.md: error codes, close codes, needs, metrics, values of bounds. ARCHITECTURE.md: for each
promise and rule the files that name its id most, code and tests; a cell that says "later: why"
stays.
tests/layout/test_docs.py checks that what stands there is true; this only saves the typing.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from gateway.rest.app import OPERATIONS  # noqa: E402
from gateway.rest.operation import NEEDS  # noqa: E402
from gateway.rest.views import TABLE  # noqa: E402
from gateway.wire import frames  # noqa: E402
from metadata.rights import VERBS  # noqa: E402
from push import limits  # noqa: E402
from push.errors import CODES  # noqa: E402
from runtime.metrics.registry import METRICS, Metric  # noqa: E402

CODE = ("push", "storage", "metadata", "runtime", "services", "gateway", "clients/python/src")
TESTS = ("tests", "loadtests")
ASKS_AND_BOUNDS = {"push/storage_port.py", "push/limits.py"}
"""Files that name many rules and enforce few. They come after the others."""
PLACES_MAX = 3


def fill(document: str, head: str, rows: list[str]) -> str:
    """Return the document with these rows below the table head that begins with `head`."""
    pattern = rf"({re.escape(head)}\n\|[-|]+\|\n)(?:\|.*\n)*"
    filled, count = re.subn(pattern, lambda found: found[1] + "\n".join(rows) + "\n", document)
    assert count == 1, head
    return filled


def mentions(folders: tuple[str, ...]) -> dict[str, str]:
    """Return, by path, the text of everything that may name a rule."""
    return {
        str(path.relative_to(ROOT)): path.read_text()
        for folder in folders
        for suffix in ("*.py", "*.sql", "*.lua")
        for path in sorted((ROOT / folder).rglob(suffix))
        if "layout" not in path.parts
    }


def places(number: str, texts: dict[str, str]) -> str:
    """Return the files that name a rule most, as a cell."""
    counts = {path: len(re.findall(rf"\b{number}\b", text)) for path, text in texts.items()}
    named = [path for path, count in counts.items() if count]
    named.sort(key=lambda path: (path in ASKS_AND_BOUNDS, "/" not in path, -counts[path], path))
    return ", ".join(f"`{path}`" for path in named[:PLACES_MAX])


def needs() -> list[str]:
    """Return the rows with the needs of each operation."""
    rows = []
    for need, meaning in NEEDS.items():
        named = [f"`{one.method} {one.path}`" for one in OPERATIONS if one.needs == need]
        rows.append(f"| {meaning} | {', '.join(named)} |")
    return rows


def shown() -> list[str]:
    """Return the rows with the figures that each right shows."""
    return [
        f"| `{name}` | {', '.join(f'`{verb}`' for verb in VERBS if verb in verbs)} |"
        for name, verbs in TABLE.items()
    ]


def metric(one: Metric) -> str:
    """Return the row of a metric."""
    labels = ", ".join(f"`{label}`" for label in one.labels)
    of = ", ".join((*one.of, *(["*holders*"] if one.is_for_holders else [])))
    return f"| `{one.name}` | {one.kind} | {labels} | {of} | {one.help} |"


def bound(row: re.Match[str]) -> str:
    """Return the beginning of a bound's row, with its value."""
    return f"| `{row[1]}` | {getattr(limits, row[1]):.0f} |"


def main() -> None:
    """Rewrite both documents."""
    path = ROOT / "PROTOCOL.md"
    errors = [
        f"| `{code.name}` | {code.http_status} | {'yes' if code.retry else 'no'} | {code.meaning} |"
        for code in CODES.values()
    ]
    closes = [f"| {close.code} | {close.reason} |" for close in frames.CLOSES]
    text = fill(path.read_text(), "| code | HTTP | retry | meaning |", errors)
    text = fill(text, "| code | meaning |", closes)
    text = fill(text, "| needs | of these operations |", needs())
    text = fill(text, "| shown | with |", shown())
    head = "| metric | kind | labels | of | |"
    text = fill(text, head, [metric(one) for one in METRICS.values()])
    path.write_text(re.sub(r"^\| `([A-Z_]+)` \| \d+ \|", bound, text, flags=re.MULTILINE))

    path = ROOT / "ARCHITECTURE.md"
    code, tests = mentions(CODE), mentions(TESTS)
    lines = path.read_text().splitlines()
    for index, line in enumerate(lines):
        cells = line.split("|")
        if len(cells) == 6 and re.fullmatch(r" [PR]\d+ ", cells[1]):
            for place, texts in ((3, code), (4, tests)):
                if not cells[place].startswith(" later: "):
                    cells[place] = f" {places(cells[1].strip(), texts)} "
            lines[index] = "|".join(cells)
    path.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
