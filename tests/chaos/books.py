"""What the rounds since the last change have come to: seeds, counts, violations, summed up.

One line of JSON a round, which names the content of push/, storage/, metadata/ and gateway/:
when one of those changes, counting begins anew. The lines are under version control, so that
another machine goes on where this one stopped; histories and logs are too large for that.
"""

import hashlib
import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.chaos.nemesis import METADATA, SHAPES
from tests.chaos.rounds import Report
from tests.layout.tree import ROOT
from tests.servers.layouts import Layout

JUDGED: Final = ("push", "storage", "metadata", "runtime", "services", "gateway")
SUFFIXES: Final = frozenset({".py", ".lua", ".sql"})
ROUNDS: Final = Path(__file__).with_name("rounds.jsonl")
STORES: Final[dict[Layout, str]] = {
    "sentinel": "a primary with replicas and Sentinels",
    "cluster": "a Cluster",
}
ROWS: Final = (
    "failover", "partition", "kill", "freeze", "power-loss", "stale-restart", "away", "metadata",
)  # fmt: skip


def digest() -> str:
    """Of what is judged: the names and contents of its sources."""
    found = hashlib.sha256()
    for folder in JUDGED:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in SUFFIXES:
                found.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes() + b"\0")
    return found.hexdigest()[:12]


def row_of(kind: str) -> str:
    """Of which row a fault counts: its kind, or for each shape, partition."""
    if kind in ("stale-failover", "stale-away"):
        return kind.removeprefix("stale-")
    if kind in METADATA:
        return "metadata"
    return "partition" if kind in SHAPES else kind


@dataclass
class Row:
    """A kind of fault, summed up."""

    faults: int = 0
    acknowledged: list[int] = field(default_factory=list)
    """Per fault."""


class Book:
    """The rounds that judged what is here now, to which more are added: by several processes, if
    they run side by side."""

    def __init__(self, path: Path = ROUNDS) -> None:
        self._path = path
        self.judged = digest()
        self.rounds: list[dict[str, Any]] = []
        self.read()

    def read(self) -> None:
        """What others have added, too."""
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        rounds = [json.loads(line) for line in lines]
        self.rounds = [one for one in rounds if one["judged"] == self.judged]

    def add(self, report: Report) -> None:
        """Write a round down. Those that judged something else go."""
        fields = json.loads(json.dumps({"judged": self.judged} | report.fields()))
        self.read()
        if not self.rounds:
            self._path.write_text("")
        with self._path.open("a") as file:
            file.write(json.dumps(fields) + "\n")
        self.rounds.append(fields)

    def done(self, kind: str, layout: Layout) -> int:
        """Faults of this kind, or shape, in rounds over such a store that came to their end."""
        rounds = [one for one in self._over(layout) if not one["failure"]]
        return sum(one["done"].count(kind) for one in rounds)

    def bad(self) -> list[int]:
        """The seeds of rounds in which something was found, or that did not come to their end."""
        return [one["seed"] for one in self.rounds if not one["ok"]]

    def _over(self, layout: Layout) -> list[dict[str, Any]]:
        return [one for one in self.rounds if one["plan"].get("layout", "sentinel") == layout]

    def table(self) -> str:
        """For people: a table for each layout of a store that has rounds."""
        tables = [
            f"over {STORES[layout]}: {len(rounds)} rounds\n{_table(rounds)}"
            for layout in STORES
            if (rounds := self._over(layout))
        ]
        if not tables:
            return "no rounds yet"
        if self.bad():
            tables.append(f"seeds to look at: {', '.join(map(str, self.bad()))}")
        return "\n\n".join(tables)


def _table(rounds: list[dict[str, Any]]) -> str:
    rows = {name: Row() for name in ROWS}
    shapes: Counter[str] = Counter()
    totals: Counter[str] = Counter()
    violations: Counter[str] = Counter()
    causes: Counter[str] = Counter()
    comeback_s, pauses_s = 0.0, list[float]()
    for one in rounds:
        verdict = one["verdict"] or {}
        per_fault = verdict.get("acknowledged_per_fault", [])
        for kind, acknowledged in zip(one["done"], per_fault, strict=False):
            row = rows[row_of(kind)]
            row.faults += 1
            row.acknowledged.append(acknowledged)
            shapes[kind] += kind in SHAPES
        totals.update(verdict.get("counts", {}))
        violations.update(verdict.get("violations", {}))
        causes.update(verdict.get("causes", {}))
        comeback_s = max(comeback_s, verdict.get("comeback_s", 0.0))
        pauses_s += verdict.get("pauses_s", [])
    lines = ["fault          faults   acknowledged per fault (least, mean)"]
    for name, row in rows.items():
        told = row.acknowledged or [0]
        mean = sum(told) / len(told)
        lines.append(f"{name:<14} {row.faults:>6}   {min(told):>10,} {mean:>10,.0f}")
    if shapes:
        named = ", ".join(f"{count} {name}" for name, count in sorted(shapes.items()) if count)
        lines.append(f"shapes of partitions: {named}")
    wanted = (
        "acknowledged", "delivered", "acks confirmed", "redelivered", "acks stale",
        "acks of an owner of before refused", "answers unknown",
    )  # fmt: skip
    lines.append(", ".join(f"{totals[name]:,} {name}" for name in wanted))
    lines.append(f"given again: {_listed(causes) or 'nothing'}")
    lines.append(f"publishing went on within {comeback_s:.1f} s of each fault's end, at most")
    if pauses_s:
        most = f"{max(pauses_s):.1f} s at most, {sum(pauses_s) / len(pauses_s):.1f} s in the mean"
        lines.append(f"publishing paused for {most}, when one of {len(pauses_s)} replicas had gone")
    lines.append(f"violations: {_listed(violations) or 'none'}")
    return "\n".join(lines)


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in sorted(counts.items()))
