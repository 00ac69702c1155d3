"""Plots as inline SVG, drawn by hand: no library, no script, nothing to load. Pure.

Colours are CSS variables of the page, so that a plot follows its reader's light or dark.
"""

import math
from collections.abc import Sequence
from html import escape
from typing import Final, NamedTuple

WIDTH: Final = 960
_LEFT: Final = 64
_RIGHT: Final = 12
_TOP: Final = 10
_BOTTOM: Final = 26


class Line(NamedTuple):
    """One line of a plot; None: there is no value at this place."""

    name: str
    values: Sequence[float | None]


def duration(us: float) -> str:
    """`850 µs`, `3.2 ms`, `1.5 s`, `12 min`, `3 h`."""
    for unit, size in (("h", 3.6e9), ("min", 6e7), ("s", 1e6), ("ms", 1e3)):
        if us >= size:
            return f"{us / size:.3g} {unit}"
    return f"{us:.0f} µs"


def _decades(low: float, high: float) -> list[float]:
    """The powers of ten from the one below `low` to the one above `high`."""
    first, last = math.floor(math.log10(max(low, 1))), math.ceil(math.log10(max(high, 10)))
    return [10.0**power for power in range(first, max(last, first + 1) + 1)]


def _place(value: float, low: float, high: float, size: float) -> float:
    """How far up a logarithmic axis of this size a value is."""
    whole = math.log(high) - math.log(low)
    return size * (math.log(min(max(value, low), high)) - math.log(low)) / whole


def _svg(height: int, title: str, parts: list[str]) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title, quote=True)}">'
        f"<title>{escape(title)}</title>{''.join(parts)}</svg>"
    )


def _grid(levels: Sequence[float], height: int) -> list[str]:
    size = height - _TOP - _BOTTOM
    parts = []
    for level in levels:
        y = height - _BOTTOM - _place(level, levels[0], levels[-1], size)
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text class="axis" x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">'
            f"{duration(level)}</text>"
        )
    return parts


def _times(labels: Sequence[str], height: int) -> list[str]:
    """A few of the labels below a plot whose columns they name."""
    step = max(1, math.ceil(len(labels) / 8))
    width = (WIDTH - _LEFT - _RIGHT) / max(1, len(labels))
    return [
        f'<text class="axis" x="{_LEFT + (index + 0.5) * width:.1f}" y="{height - 8}" '
        f'text-anchor="middle">{escape(labels[index])}</text>'
        for index in range(0, len(labels), step)
    ]


def over_time(title: str, labels: Sequence[str], lines: Sequence[Line], height: int = 280) -> str:
    """Durations in microseconds over time, on a logarithmic axis. A value with none beside it is a
    dot. Without any value: a sentence."""
    known = [value for line in lines for value in line.values if value is not None]
    if not known:
        return "<p>Nothing was delivered.</p>"
    levels = _decades(min(known), max(known))
    size = height - _TOP - _BOTTOM
    width = (WIDTH - _LEFT - _RIGHT) / len(labels)
    parts = _grid(levels, height) + _times(labels, height)
    for number, line in enumerate(lines):
        stretches: list[list[str]] = [[]]
        for index, value in enumerate(line.values):
            if value is None:
                stretches.append([])
                continue
            y = height - _BOTTOM - _place(value, levels[0], levels[-1], size)
            stretches[-1].append(f"{_LEFT + (index + 0.5) * width:.1f},{y:.1f}")
        for stretch in stretches:
            if len(stretch) == 1:
                x, y_text = stretch[0].split(",")
                parts.append(f'<circle class="dot c{number}" cx="{x}" cy="{y_text}" r="2.5"/>')
            elif stretch:
                parts.append(f'<polyline class="line c{number}" points="{" ".join(stretch)}"/>')
    return legend([line.name for line in lines]) + _svg(height, title, parts)


def heat_map(
    title: str,
    labels: Sequence[str],
    bounds_us: Sequence[float],
    columns: Sequence[Sequence[float]],
    height: int = 280,
) -> str:
    """How many messages took how long, over time: a column for each label, in it a cell for each
    two neighbours among the bounds, lowest first. The darker, the more; on a logarithmic scale,
    because the few slow ones are what one looks for."""
    highest = max((count for column in columns for count in column), default=0)
    if not highest:
        return "<p>Nothing was delivered.</p>"
    size = height - _TOP - _BOTTOM
    low, high = bounds_us[0], bounds_us[-1]
    width = (WIDTH - _LEFT - _RIGHT) / len(labels)
    levels = [level for level in _decades(low, high) if low <= level <= high]
    parts = []
    for index, column in enumerate(columns):
        for row, count in enumerate(column):
            if count < 0.5:
                continue
            bottom = height - _BOTTOM - _place(bounds_us[row], low, high, size)
            top = height - _BOTTOM - _place(bounds_us[row + 1], low, high, size)
            shade = 0.12 + 0.88 * math.log1p(count) / math.log1p(highest)
            said = (
                f"{labels[index]}, {duration(bounds_us[row])} to {duration(bounds_us[row + 1])}: "
                f"{count:,.0f}"
            )
            parts.append(
                f'<rect class="heat" x="{_LEFT + index * width:.1f}" y="{top:.1f}" '
                f'width="{max(width - 0.5, 0.5):.1f}" height="{max(bottom - top - 0.5, 0.5):.1f}" '
                f'opacity="{shade:.2f}"><title>{escape(said)}</title></rect>'
            )
    axis = []
    for level in levels:
        y = height - _BOTTOM - _place(level, low, high, size)
        axis.append(
            f'<text class="axis" x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">'
            f"{duration(level)}</text>"
        )
    return _svg(height, title, [*parts, *axis, *_times(labels, height)])


def bars(title: str, rows: Sequence[tuple[str, Sequence[float]]], names: Sequence[str]) -> str:
    """A bar for each row, of parts that have a colour for each name; lengths are microseconds."""
    longest = max((sum(parts) for _, parts in rows), default=0)
    if not longest:
        return "<p>Nothing was delivered.</p>"
    left, step = 200, 30
    room = WIDTH - left - 90
    drawn = []
    for index, (label, values) in enumerate(rows):
        y = index * step + 4
        drawn.append(
            f'<text class="label" x="{left - 8}" y="{y + 15}" text-anchor="end">'
            f"{escape(label if len(label) <= 26 else label[:25] + '…')}</text>"
        )
        x = float(left)
        for number, value in enumerate(values):
            width = room * value / longest
            said = f"{label}, {names[number]}: {duration(value)}"
            drawn.append(
                f'<rect class="bar c{number}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="22">'
                f"<title>{escape(said)}</title></rect>"
            )
            x += width
        drawn.append(
            f'<text class="axis" x="{x + 6:.1f}" y="{y + 15}">{duration(sum(values))}</text>'
        )
    return legend(names) + _svg(len(rows) * step + 4, title, drawn)


def legend(names: Sequence[str]) -> str:
    """Which colour is what."""
    marks = [
        f'<span><i class="mark c{number}"></i>{escape(name)}</span>'
        for number, name in enumerate(names)
    ]
    return f'<p class="legend">{"".join(marks)}</p>'
