"""Durations as people write and read them: `1h 30m`, `250ms`, `90`."""

import re
from typing import Final

import click

_UNITS: Final = {
    "ms": 0.001,
    "s": 1.0,
    "m": 60.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86_400.0,
    "w": 604_800.0,
    "y": 31_536_000.0,
}
_TERM: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)")


def parse_duration(text: str) -> float:
    """Return a duration in seconds. A number without a unit is seconds; terms add up: `1h 30m`.

    Raises:
        ValueError: the text is no duration.
    """
    rest = text.strip().lower()
    total = 0.0
    if not rest:
        raise ValueError(text)
    while rest:
        term = _TERM.match(rest)
        if term is None or (term[2] or "s") not in _UNITS:
            raise ValueError(text)
        total += float(term[1]) * _UNITS[term[2] or "s"]
        rest = rest[term.end() :].strip()
    return total


def format_duration(seconds: float) -> str:
    """Return the two largest units that matter: `1h 30m`, `250ms`."""
    if 0 < seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 60:
        return f"{seconds:.3g}s"
    rest, parts = round(seconds), []
    for unit in ("d", "h", "m", "s"):
        count, rest = divmod(rest, round(_UNITS[unit]))
        if count:
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2])


def duration(value: str | float) -> float:
    """Convert the value of a click option to seconds."""
    if not isinstance(value, str):
        return value
    try:
        return parse_duration(value)
    except ValueError:
        raise click.BadParameter(
            f"{value!r} is not a duration; write 90s, 250ms, 1h or 1h 30m"
        ) from None
