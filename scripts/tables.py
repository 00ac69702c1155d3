"""Fill in what the documents say and the code knows better.

    .venv/bin/python scripts/tables.py

docs/protocol.md: error codes, close codes, values of bounds. docs/http.md: what a right shows.
docs/operations/observability.md: metrics. docs/guarantees.md: for each promise and rule the files
that carry its mark, `# enforces: R7`.
tests/layout/test_docs.py checks that what they say is true; this only saves the typing.
"""

import re
import sys
import textwrap
from functools import cache
from pathlib import Path
from typing import Final

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from gateway.rest.views import TABLE  # noqa: E402
from gateway.wire import frames  # noqa: E402
from metadata.rights import VERBS  # noqa: E402
from push import limits  # noqa: E402
from push.errors import CODES  # noqa: E402
from runtime.metrics.registry import METRICS, Metric  # noqa: E402

CODE: Final = ("push", "storage", "metadata", "runtime", "services", "gateway", "clients")
MARK: Final = re.compile(r"(?:#|--|//) enforces: ((?:[PR]\d+(?:, )?)+)$", re.MULTILINE)


def fill(document: str, head: str, rows: list[str]) -> str:
    """The document with these rows below the table head that begins with `head`."""
    pattern = rf"({re.escape(head)}\n\|[-|]+\|\n)(?:\|.*\n)*"
    filled, count = re.subn(pattern, lambda found: found[1] + "\n".join(rows) + "\n", document)
    assert count == 1, head
    return filled


@cache
def marks() -> dict[str, list[str]]:
    """Promise or rule → the files with its mark, sorted."""
    found: dict[str, list[str]] = {}
    for folder in CODE:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix not in (".py", ".sql", ".lua", ".js") or "node_modules" in path.parts:
                continue
            numbers = {one for line in MARK.findall(path.read_text()) for one in line.split(", ")}
            for number in numbers:
                found.setdefault(number, []).append(str(path.relative_to(ROOT)))
    return found


def enforced(number: str) -> str:
    """Return the text of a promise or rule about the places that enforce it."""
    paths = ", ".join(f"`{path}`" for path in marks().get(number, ()))
    return "\n".join(textwrap.wrap(f"Enforced: {paths}.", 100, break_on_hyphens=False))


def shown() -> list[str]:
    """The rows that say which figures a right shows."""
    return [
        f"| `{name}` | {', '.join(f'`{verb}`' for verb in VERBS if verb in verbs)} |"
        for name, verbs in TABLE.items()
    ]


def metric(one: Metric) -> str:
    """The row of a metric."""
    labels = ", ".join(f"`{label}`" for label in one.labels)
    of = ", ".join((*one.of, *(["*holders*"] if one.is_for_holders else [])))
    return f"| `{one.name}` | {one.kind} | {labels} | {of} | {one.help} |"


def bound(row: re.Match[str]) -> str:
    """The beginning of a bound's row, with its value."""
    return f"| `{row[1]}` | {getattr(limits, row[1]):.0f} |"


def main() -> None:
    """Rewrite the documents."""
    path = ROOT / "docs/protocol.md"
    errors = [
        f"| `{code.name}` | {code.http_status} | {'yes' if code.retry else 'no'} | {code.meaning} |"
        for code in CODES.values()
    ]
    closes = [f"| {close.code} | `{close.reason}` |" for close in frames.CLOSES]
    text = fill(path.read_text(), "| code | HTTP | retry | meaning |", errors)
    text = fill(text, "| code | reason |", closes)
    path.write_text(re.sub(r"^\| `([A-Z_]+)` \| \d+ \|", bound, text, flags=re.MULTILINE))

    path = ROOT / "docs/http.md"
    path.write_text(fill(path.read_text(), "| shown | with |", shown()))

    path = ROOT / "docs/operations/observability.md"
    head = "| metric | kind | labels | of | meaning |"
    path.write_text(fill(path.read_text(), head, [metric(one) for one in METRICS.values()]))

    path = ROOT / "docs/guarantees.md"
    entry = re.compile(r"(^### ([PR]\d+)\. .*?^)Enforced: .*?\.$", re.MULTILINE | re.DOTALL)
    path.write_text(
        entry.sub(
            lambda found: found[1] + enforced(found[2]) if found[2] in marks() else found[0],
            path.read_text(),
        )
    )


if __name__ == "__main__":
    main()
