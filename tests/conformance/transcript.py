"""Transcripts in the format of clients/conformance/README.md: read, checked, compared."""

import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path(__file__).resolve().parent.parent.parent / "clients/conformance"
WITHIN_S: Final = 1.0
"""Time within which an expected event comes, unless its line has `by`."""
SIDES: Final = ("broker", "client")
DELIVERY_LISTS: Final = {"deliveries", "started", "stale", "revoked"}
_HEAD: Final = {"title", "rules", "about", "sides", "broker", "client", "queues"}
_COMMON: Final = {"at", "by", "who", "only", "order", "note"}
_LINE: Final = {
    "client": {"frame", "frames", "text", "binary", "over", "close", "cut"},
    "broker": {"frame", "frames", "text", "over", "close", "where"},
    "carrier": {"do", "transport", "as", "over", "token", "how"},
    "user": {"do", "told", "as", "of", "gets", "error", "with"},
    "world": {"do", "as", "of", "gets", "with"},
}
_CAPTURE: Final = re.compile(r"([#$][A-Za-z]\w*)(?:([+-]\d+))?")

Place = tuple[int, int, int, int]


class Deviation(AssertionError):
    """The replay differed from the transcript."""


@dataclass(frozen=True)
class Line:
    """A line after the head. `at` and `by` are seconds from the beginning of the replay."""

    number: int
    fields: dict[str, Any]
    at: float
    by: float

    @property
    def who(self) -> str:
        """The party that acts."""
        return str(self.fields["who"])

    @property
    def order(self) -> str | None:
        """The lines with which it may change places: neighbours with the same value, either of its
        party ("free"), or of both ("crossing": sent to each other at the same time). None: no
        lines."""
        return self.fields.get("order")

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]

    def get(self, name: str, default: Any = None) -> Any:
        """Return a field, or the default."""
        return self.fields.get(name, default)

    def __contains__(self, name: str) -> bool:
        return name in self.fields


@dataclass(frozen=True)
class Transcript:
    """A file: its head and its lines."""

    name: str
    head: dict[str, Any]
    lines: list[Line] = field(repr=False)

    @property
    def rules(self) -> list[str]:
        """The ids of the rules that it covers."""
        return list(self.head["rules"])

    @property
    def sides(self) -> list[str]:
        """The sides that it is replayed against."""
        return list(self.head.get("sides", SIDES))

    @property
    def transports(self) -> list[str]:
        """The transports over which it is replayed, each once; a single one if the lines name
        theirs."""
        opens = [line for line in self.lines if line.get("do") == "open"]
        if all(line.get("transport", "any") == "any" for line in opens):
            return ["websocket", "long-poll"]
        return ["websocket"]

    def frames(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield (who, frame) of every frame."""
        for line in self.lines:
            for frame in frames_of(line):
                yield line.who, frame


def frames_of(line: Line) -> list[dict[str, Any]]:
    """Return the frames that a line shows."""
    if "frame" in line:
        return [line["frame"]]
    return list(line.get("frames", []))


def parse(name: str, text: str) -> Transcript:
    """Parse a transcript. Raises ValueError, which names the line, for anything outside the
    format."""
    records = [json.loads(record) for record in text.splitlines()]
    head, *rest = records
    if not {"title", "rules", "about"} <= set(head) <= _HEAD:
        raise ValueError(f"{name}: its head has {sorted(set(head) ^ _HEAD)} too many or too few")
    lines: list[Line] = []
    now = by = 0.0
    for number, fields in enumerate(rest, 2):
        unknown = set(fields) - _COMMON - _LINE.get(fields.get("who"), set())
        if unknown or fields.get("who") not in _LINE:
            raise ValueError(f"{name}:{number}: {sorted(unknown)} of {fields.get('who')}")
        if fields.get("at", now) < now:
            raise ValueError(f"{name}:{number}: time goes back")
        now = fields.get("at", now)
        by = fields.get("by", max(by, now + WITHIN_S))
        lines.append(Line(number, fields, now, by))
    return Transcript(name, head, lines)


def load() -> list[Transcript]:
    """Return all transcripts, by name."""
    return [parse(path.stem, path.read_text()) for path in sorted(FOLDER.glob("*.jsonl"))]


def places_of(deliveries: list[list[int]]) -> set[Place]:
    """Return the deliveries that a list names, one by one."""
    return {
        (partition, epoch, push, offset)
        for partition, epoch, push, *pairs in deliveries
        for first, last in zip(pairs[::2], pairs[1::2], strict=True)
        for offset in range(first, last + 1)
    }


class Captures:
    """The values of `#number` and `$text`: bound at their first place, compared afterwards."""

    def __init__(self) -> None:
        self._bound: dict[str, Any] = {}
        self._fresh = itertools.count(101)

    def fill(self, value: Any) -> Any:
        """Return a value with every capture replaced. A capture that is new here gets a number
        above all others made here, or a text of its own."""
        if isinstance(value, dict):
            return {name: self.fill(part) for name, part in value.items()}
        if isinstance(value, list):
            return [self.fill(part) for part in value]
        found = _CAPTURE.fullmatch(value) if isinstance(value, str) else None
        if found is None:
            return value
        name, plus = found[1], int(found[2] or 0)
        if name not in self._bound:
            fresh = next(self._fresh)
            self._bound[name] = f"{name[1:]}-{fresh}" if name[0] == "$" else fresh
        bound = self._bound[name]
        return bound + plus if plus else bound

    def match(self, shown: Any, value: Any) -> str | None:
        """Compare a shown value with a real one. Return None if it fits, and bind new captures;
        otherwise where it differs."""
        bound = dict(self._bound)
        why = self._compare(shown, value, bound, "")
        if why is None:
            self._bound = bound
        return why

    def number(self, name: str) -> int:
        """Return the value of a number's capture."""
        return int(self._bound[name])

    def _compare(self, shown: Any, value: Any, bound: dict[str, Any], path: str) -> str | None:
        if isinstance(shown, dict):
            return self._compare_fields(shown, value, bound, path)
        if isinstance(shown, list):
            if not isinstance(value, list) or len(value) != len(shown):
                return f"{path}: {value!r} is not {shown!r}"
            for index, (one, other) in enumerate(zip(shown, value, strict=True)):
                why = self._compare(one, other, bound, f"{path}[{index}]")
                if why is not None:
                    return why
            return None
        found = _CAPTURE.fullmatch(shown) if isinstance(shown, str) else None
        if found is not None:
            return _compare_capture(found, value, bound, path)
        if isinstance(shown, bool) is isinstance(value, bool) and shown == value:
            return None
        return f"{path}: {value!r} is not {shown!r}"

    def _compare_fields(
        self, shown: dict[str, Any], value: Any, bound: dict[str, Any], path: str
    ) -> str | None:
        if not isinstance(value, dict):
            return f"{path}: {value!r} is no object"
        later = DELIVERY_LISTS & set(shown)
        for name, part in shown.items():
            if name in later:
                continue
            if name not in value:
                return f"{path}.{name} is missing"
            why = self._compare(part, value[name], bound, f"{path}.{name}")
            if why is not None:
                return why
        for name in later:
            filled = _filled(shown[name], bound)
            if places_of(filled) != places_of(value.get(name, [])):
                return f"{path}.{name}: {value.get(name)!r} does not name what {filled!r} names"
        return None


def _compare_capture(
    found: "re.Match[str]", value: Any, bound: dict[str, Any], path: str
) -> str | None:
    name, plus = found[1], int(found[2] or 0)
    kind = str if name[0] == "$" else int
    if not isinstance(value, kind) or isinstance(value, bool):
        return f"{path}: {value!r} for {name}"
    if plus:
        assert not isinstance(value, str)
        value -= plus
    if bound.setdefault(name, value) != value:
        return f"{path}: {value!r}, when {name} is {bound[name]!r}"
    return None


def _filled(rows: list[list[Any]], bound: dict[str, Any]) -> list[list[int]]:
    """Return a delivery list with its captures replaced; each must have been in a push before."""
    unknown = {cell for row in rows for cell in row if isinstance(cell, str)} - bound.keys()
    if unknown:
        raise Deviation(f"nothing has said what {sorted(unknown)} is")
    return [[bound[cell] if isinstance(cell, str) else cell for cell in row] for row in rows]
