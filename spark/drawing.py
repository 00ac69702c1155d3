"""Plots as inline SVG and HTML, drawn by hand: no library, no script, nothing to load. Pure.

Colors are CSS variables of the page, so a plot follows its reader's light or dark mode. Names are
set in HTML, where the browser breaks them. SVG has only numbers and times, whose width is known.
"""

import itertools
import math
import unicodedata
from collections.abc import Sequence
from html import escape
from typing import Final, NamedTuple

from spark.axis import Axis, Break, period

WIDTH: Final = 960
_LEFT: Final = 64
_RIGHT: Final = 12
_TOP: Final = 10
_BOTTOM: Final = 46
HEIGHT: Final = 290
NOTHING: Final = "<p>Nothing was delivered.</p>"
_LEVELS: Final = (
    *(10.0**power for power in range(8)), 6e7, 6e8, 3.6e9, 3.6e10, 8.64e11, 8.64e12, 8.64e13,
)  # fmt: skip
"""The lines of a logarithmic axis of durations: powers of ten of seconds, minutes, hours and
days."""


class Line(NamedTuple):
    """A line of a plot. None means that there is no value at this place."""

    name: str
    values: Sequence[float | None]


def duration(us: float) -> str:
    """Return a duration such as `850 µs`, `3.2 ms`, `1.5 s`, `12 min`, `3 h` or `12 d`."""
    if us < 999.5:
        return f"{us:.0f} µs"
    for unit, size, most in (("ms", 1e3, 999.5), ("s", 1e6, 59.95), ("min", 6e7, 59.95),
                             ("h", 3.6e9, 47.95)):  # fmt: skip
        if us / size < most:
            return f"{us / size:.3g} {unit}"
    days = us / 8.64e10
    return f"{days:.3g} d" if days < 999.5 else f"{days:,.0f} d"


_JOINERS: Final = "\u200c\u200d"
"""Characters that join the parts of an emoji, or of a Persian word."""


_WHOLE: Final = 18
"""The number of characters up to which a name is not broken into lines."""


def visible(name: str) -> str:
    """Return the name with invisible characters, and those that turn the direction of text, written
    as `\\u202e`. So no such character makes two different names look the same."""
    return "".join(
        character
        if unicodedata.category(character)[0] not in "CZ" or character in (" ", *_JOINERS)
        else character.encode("unicode_escape", "surrogatepass").decode()
        for character in name
    )


def named(name: str | None, most: int = 64) -> str:
    """Return a name as HTML that cannot change the text around it. A name longer than `most` loses
    its middle, and has the whole as its title."""
    if name is None:
        return "–"
    whole = visible(name)
    if not whole.strip():
        return f'<bdi class="name">“{escape(whole)}”</bdi>'
    if len(whole) <= _WHOLE:
        return f'<bdi class="whole">{escape(whole)}</bdi>'
    if len(whole) <= most:
        return f'<bdi class="name">{escape(whole)}</bdi>'
    end = most // 3
    short = f"{whole[: most - end - 1]}…{whole[-end:]}"
    return f'<bdi class="name" title="{escape(whole)}">{escape(short)}</bdi>'


def axis_of(starts: Sequence[int], step: int) -> Axis:
    """Return the time axis of a plot whose columns begin at these Unix seconds."""
    return Axis(starts, step, _LEFT, WIDTH - _RIGHT)


def _levels(low: float, high: float) -> list[float]:
    """Return the lines from the one below `low` to the one above `high`."""
    first = max((n for n, level in enumerate(_LEVELS) if level <= max(low, 1)), default=0)
    last = next((n for n, level in enumerate(_LEVELS) if level >= high), len(_LEVELS) - 1)
    return list(_LEVELS[first : max(last, first + 1) + 1])


def _place(value: float, low: float, high: float, size: float) -> float:
    """Return the height of a value on a logarithmic axis of this size."""
    whole = math.log(high) - math.log(low)
    return size * (math.log(min(max(value, low), high)) - math.log(low)) / whole


def _short(x: float) -> str:
    """Return a coordinate without superfluous digits."""
    return f"{x:.1f}".removesuffix(".0")


def _svg(title: str, parts: list[str]) -> str:
    return (
        f'<div class="wide"><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(title, quote=True)}">'
        f"<title>{escape(title)}</title>{''.join(parts)}</svg></div>"
    )


def _height(level: float, low: float, high: float) -> float:
    return HEIGHT - _BOTTOM - _place(level, low, high, HEIGHT - _TOP - _BOTTOM)


def _grid(levels: Sequence[float], low: float, high: float) -> list[str]:
    parts = []
    for level in levels:
        y = _short(_height(level, low, high))
        parts.append(
            f'<path class="grid" d="M{_LEFT} {y}H{WIDTH - _RIGHT}"/>'
            f'<text class="axis" x="{_LEFT - 6}" y="{y}" dy="4" text-anchor="end">'
            f"{duration(level)}</text>"
        )
    return parts


def _band(part: Break, kind: str, said: str) -> str:
    return (
        f'<rect class="{kind}" x="{_short(part.left)}" y="{_TOP}" '
        f'width="{_short(part.right - part.left)}" height="{HEIGHT - _TOP - _BOTTOM}">'
        f"<title>{escape(said)}</title></rect>"
    )


def _times(axis: Axis) -> list[str]:
    """Return SVG elements: a band for each gap, in which nothing was delivered; a band and two
    strokes on the axis for each cut, a long gap that was left out; and the ticks with their
    texts below the plot."""
    parts = [
        _band(gap, "gap", f"nothing delivered: {period(gap.first, gap.end)}") for gap in axis.gaps()
    ]
    base = HEIGHT - _BOTTOM
    for cut in axis.breaks():
        said = f"cut out, nothing delivered: {period(cut.first, cut.end)}"
        parts.append(_band(cut, "cut", said))
        for stroke in (cut.left + 11, cut.left + 18):
            parts.append(f'<path class="stroke" d="M{_short(stroke)} {base + 6}l5-12"/>')
    for tick in axis.ticks():
        x = _short(tick.x)
        parts.append(
            f'<path class="tick" d="M{x} {base}v5"/>'
            f'<text class="axis" x="{x}" y="{base + 21}" text-anchor="middle">{tick.text}</text>'
        )
        if tick.date:
            parts.append(
                f'<text class="axis date" x="{x}" y="{base + 36}" text-anchor="middle">'
                f"{tick.date}</text>"
            )
    return parts


def over_time(title: str, axis: Axis, lines: Sequence[Line]) -> str:
    """Return a plot of durations in microseconds over time, on a logarithmic axis. A value without
    neighbors is a dot. Without any value, returns a sentence."""
    known = [value for line in lines for value in line.values if value is not None]
    if not known:
        return NOTHING
    levels = _levels(min(known), max(known))
    low, high = levels[0], levels[-1]
    parts = _times(axis) + _grid(levels, low, high)
    middles = [_short((left + right) / 2) for left, right in axis.columns]
    for number, line in enumerate(lines):
        stretches: list[list[str]] = []
        for index, value in enumerate(line.values):
            if value is None:
                continue
            if not (stretches and axis.is_joined(index) and line.values[index - 1] is not None):
                stretches.append([])
            stretches[-1].append(f"{middles[index]},{_short(_height(value, low, high))}")
        for stretch in stretches:
            if len(stretch) == 1:
                x, y = stretch[0].split(",")
                parts.append(f'<circle class="dot c{number}" cx="{x}" cy="{y}" r="2.5"/>')
            else:
                parts.append(f'<polyline class="line c{number}" points="{" ".join(stretch)}"/>')
    return legend([line.name for line in lines]) + _svg(title, parts)


def heat_map(
    title: str, axis: Axis, bounds_us: Sequence[float], columns: Sequence[Sequence[float]]
) -> str:
    """Return a heat map of durations over time.

    Each column of the axis has a cell for each two neighbors among the bounds, lowest first. A cell
    is darker the more messages it has. The scale is logarithmic, because readers look for the few
    slow messages.
    """
    highest = max((count for column in columns for count in column), default=0)
    if not highest:
        return NOTHING
    low, high = bounds_us[0], bounds_us[-1]
    edges = [_height(bound, low, high) for bound in bounds_us]
    ranges = [
        f"{duration(below)} to {duration(above)}" for below, above in itertools.pairwise(bounds_us)
    ]
    parts = []
    for index, (column, (left, right)) in enumerate(zip(columns, axis.columns, strict=True)):
        x, width = _short(left), _short(max(right - left - 0.5, 0.5))
        when = axis.name(index)
        for row, count in enumerate(column):
            if count < 0.5:
                continue
            shade = 0.12 + 0.88 * math.log1p(count) / math.log1p(highest)
            top, bottom = edges[row + 1], edges[row]
            parts.append(
                f'<rect x="{x}" y="{_short(top)}" width="{width}" '
                f'height="{_short(max(bottom - top - 0.5, 0.5))}" opacity="{shade:.2f}">'
                f"<title>{when}, {ranges[row]}: {count:,.0f}</title></rect>"
            )
    levels = [level for level in _LEVELS if low <= level <= high]
    cells = f'<g class="heat">{"".join(parts)}</g>'
    return _svg(title, [*_times(axis), *_grid(levels, low, high), cells])


def bars(title: str, rows: Sequence[tuple[str, Sequence[float]]], names: Sequence[str]) -> str:
    """Return a bar for each row, with a part in its own color for each name. Lengths are
    microseconds."""
    longest = max((sum(parts) for _, parts in rows), default=0)
    if not longest:
        return NOTHING
    drawn = []
    for label, values in rows:
        parts = []
        for number, value in enumerate(values):
            width = 100 * value / longest
            if width < 0.01:
                continue
            said = f"{visible(label)}, {names[number]}: {duration(value)}"
            parts.append(
                f'<i class="bar c{number}" style="width:{width:.2f}%" title="{escape(said)}"></i>'
            )
        drawn.append(
            f'<div class="row">{named(label, 48)}<span class="track">{"".join(parts)}'
            f'<span class="axis">{duration(sum(values))}</span></span></div>'
        )
    return (
        f'{legend(names)}<div class="bars" role="group" aria-label="{escape(title)}">'
        f"{''.join(drawn)}</div>"
    )


def legend(names: Sequence[str]) -> str:
    """Return the meaning of the colors."""
    marks = [
        f'<span><i class="mark c{number}"></i>{escape(name)}</span>'
        for number, name in enumerate(names)
    ]
    return f'<p class="legend">{"".join(marks)}</p>'
