"""Plots as SVG, from numbers alone: no script, no font, no external resource. Pure.

`lines` draws lines over an axis, as a figure of an HTML page. `bars` and `ranges` draw panels of
rows below each other. They make a picture with a white background of its own, which is readable on
pages of any color.
"""

import math
import sys
from collections.abc import Mapping, Sequence
from html import escape
from typing import Final, NamedTuple

Points = Sequence[tuple[float, float]]
_TICKS: Final = 5
"""Approximate number of ticks of a linear axis."""


class Axis:
    """A mapping from numbers to pixels, linear or logarithmic."""

    def __init__(self, low: float, high: float, first: float, last: float, *, log: bool) -> None:
        self.log = log
        if log:
            low, high = max(low, 1e-3), max(high, 1e-3)
            low, high = 10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(high))
        if high <= low or (high - low) / _TICKS < sys.float_info.min:  # they have no logarithm
            high = low * 10 if log else low + 1
        self.low, self.high = low, high
        self._first, self._last = first, last

    def at(self, number: float) -> float:
        """Return a number's pixel. A number outside the axis is put on its edge."""
        number = min(max(number, self.low), self.high)
        if self.log:
            share = math.log10(number / self.low) / math.log10(self.high / self.low)
        else:
            share = (number - self.low) / (self.high - self.low)
        return self._first + share * (self._last - self._first)

    def ticks(self) -> list[float]:
        """Return the numbers at which the axis has ticks: all powers of ten if it is logarithmic,
        otherwise at most six round numbers."""
        if self.log:
            powers = round(math.log10(self.high / self.low))
            return [self.low * 10**power for power in range(powers + 1)]
        rough = (self.high - self.low) / _TICKS
        step = 10 ** math.floor(math.log10(rough))
        step *= next(times for times in (1, 2, 5, 10) if step * times >= rough)
        first = math.ceil(self.low / step)
        return [tick * step for tick in range(first, math.floor(self.high / step + 1e-9) + 1)]


def number(value: float) -> str:
    """Return the shortest readable form: 0.25, 12, 1,200."""
    if value and abs(value) < 10:
        return f"{value:.2g}"
    return f"{value:,.0f}"


# --- lines

WIDTH: Final = 720
HEIGHT: Final = 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 12, 40
HUES: Final = (
    "#2f6fbb", "#c2571a", "#3c8a4f", "#8a4fa8", "#a8862a", "#5a6b7a", "#b03a5b", "#1f8f96",
    "#7a5230", "#4a4ad0", "#6f8f1f",
)  # fmt: skip
"""Colors of the lines, in this order. Each line also has its dashes, so that color is not
needed."""
_DASHES: Final = ("", "7 3", "2 3", "9 3 2 3", "12 4", "4 4", "1 4")
"""Fewer than the hues, so two lines with the same dashes have different hues."""


def lines(
    title: str, series: Mapping[str, Points], *, across: str, up: str, log: bool = False,
    bands: Points = (),
) -> str:  # fmt: skip
    """Return a plot of one line for each of `series`, or a sentence if there is nothing to draw.

    `across` and `up` name the axes, with their units. `log` makes the vertical axis logarithmic.
    `bands` are (from, to) on the horizontal axis, drawn in grey below the lines.
    """
    drawn = {name: points for name, points in series.items() if points}
    if not drawn:
        return f'<p class="nothing">{escape(title)}: nothing was measured.</p>'
    xs = [x for points in drawn.values() for x, _ in points]
    ys = [y for points in drawn.values() for _, y in points]
    x_axis = Axis(min(0.0, *xs), max(xs), _LEFT, WIDTH - _RIGHT, log=False)
    low = min((y for y in ys if y > 0), default=1.0) if log else 0.0
    y_axis = Axis(low, max(ys), HEIGHT - _BOTTOM, _TOP, log=log)
    parts = [_frame(title, x_axis, y_axis, across, up)]
    for first, last in bands:
        x = x_axis.at(first)
        parts.append(
            f'<rect class="band" x="{x:.1f}" y="{_TOP}" width="{x_axis.at(last) - x:.1f}" '
            f'height="{HEIGHT - _BOTTOM - _TOP}"/>'
        )
    for index, points in enumerate(drawn.values()):
        path = " ".join(f"{x_axis.at(x):.1f},{y_axis.at(y):.1f}" for x, y in points)
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{HUES[index % len(HUES)]}" '
            f'stroke-width="2" stroke-dasharray="{_DASHES[index % len(_DASHES)]}"/>'
        )
    return f"<figure>{''.join(parts)}</svg>{_legend(title, list(drawn))}</figure>"


def _frame(title: str, x_axis: Axis, y_axis: Axis, across: str, up: str) -> str:
    """Return the SVG's beginning: grid, ticks and names of the axes."""
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title, quote=True)}">'
    ]
    for tick in y_axis.ticks():
        y = y_axis.at(tick)
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{number(tick)}</text>'
        )
    for tick in x_axis.ticks():
        x = x_axis.at(tick)
        parts.append(
            f'<text x="{x:.1f}" y="{HEIGHT - _BOTTOM + 16}" text-anchor="middle">'
            f"{number(tick)}</text>"
        )
    middle = (HEIGHT - _BOTTOM + _TOP) / 2
    parts.append(
        f'<text x="{(WIDTH + _LEFT) / 2}" y="{HEIGHT - 6}" text-anchor="middle">'
        f"{escape(across)}</text>"
        f'<text x="14" y="{middle}" text-anchor="middle" transform="rotate(-90 14 {middle})">'
        f"{escape(up)}</text>"
    )
    return "".join(parts)


def _legend(title: str, names: list[str]) -> str:
    marks = []
    for index, name in enumerate(names):
        hue, dash = HUES[index % len(HUES)], _DASHES[index % len(_DASHES)]
        marks.append(
            f'<span><svg class="mark" viewBox="0 0 28 8"><line x1="0" x2="28" y1="4" y2="4" '
            f'stroke="{hue}" stroke-width="2" stroke-dasharray="{dash}"/></svg>'
            f"{escape(name)}</span>"
        )
    return f"<figcaption><b>{escape(title)}</b> {' '.join(marks)}</figcaption>"


# --- rows

PICTURE_WIDTH: Final = 900
_LABEL_WIDTH: Final = 240
_VALUE_WIDTH: Final = 130
_ROW: Final = 36
_BAR: Final = 16
_TITLE: Final = 44
_GAP: Final = 18
_MARGIN: Final = 16
_FIRST: Final = _MARGIN + _LABEL_WIDTH
"""The horizontal pixel at which bars and ranges begin; `_ROOM` is their largest length."""
_ROOM: Final = PICTURE_WIDTH - 2 * _MARGIN - _LABEL_WIDTH - _VALUE_WIDTH


class Row(NamedTuple):
    """A bar of one value, or a range of several."""

    label: str
    note: str
    """Small text below the label."""
    colour: str
    values: Sequence[float]
    """Values of a bar: the value, alone or followed by the lowest and the highest measured one.
    Values of a range: beginning, mark, end. Empty: nothing is drawn, and `said` is written
    instead."""
    said: str


class Panel(NamedTuple):
    """The rows of one figure, below its title and note."""

    title: str
    note: str
    """Small text below the title: the direction that is better, and the unit."""
    rows: Sequence[Row]


def bars(*panels: Panel) -> str:
    """Draw panels of bars below each other, leaving out panels without values. Returns the SVG, or
    an empty text if no panel is left."""
    shown = [panel for panel in panels if any(row.values for row in panel.rows)]
    if not shown:
        return ""
    parts, top = [], _MARGIN
    for panel in shown:
        parts += _titles(top, panel)
        top += _TITLE
        highest = max(max(row.values) for row in panel.rows if row.values) or 1.0
        for row in panel.rows:
            parts += _bar(row, top, _ROOM / highest)
            top += _ROW
        top += _GAP
    return _picture(top, parts)


def ranges(*panels: Panel) -> str:
    """Draw panels of ranges below each other, over the same logarithmic axis. Returns the SVG, or
    an empty text if no value is above 0."""
    values = [v for panel in panels for row in panel.rows for v in row.values if v > 0]
    if not values:
        return ""
    axis = Axis(min(values), max(values), _FIRST, _FIRST + _ROOM, log=True)
    parts, top = [], _MARGIN
    for panel in panels:
        parts += _titles(top, panel)
        top += _TITLE
        parts += _grid(top, top + _ROW * len(panel.rows), axis)
        for row in panel.rows:
            parts += _range(row, top, axis)
            top += _ROW
        top += _GAP + 14
    return _picture(top, parts)


def _titles(top: float, panel: Panel) -> list[str]:
    return [
        _text(_MARGIN, top + 16, panel.title, 'font-weight="600" font-size="15"'),
        _text(_MARGIN, top + 33, panel.note, 'fill="#64748b" font-size="12"'),
    ]


def _label(row: Row, middle: float) -> list[str]:
    right = _FIRST - 8
    return [
        _text(right, middle - 1, row.label, 'text-anchor="end" font-size="13"'),
        _text(right, middle + 12, row.note, 'text-anchor="end" fill="#64748b" font-size="10.5"'),
    ]


def _instead(row: Row, middle: float) -> str:
    return _text(_FIRST, middle + 4, row.said, 'fill="#64748b" font-size="12"')


def _bar(row: Row, top: float, scale: float) -> list[str]:
    middle = top + _ROW / 2
    parts = _label(row, middle)
    if not row.values:
        return [*parts, _instead(row, middle)]
    length, *edges = (value * scale for value in row.values)
    parts.append(
        f'<rect x="{_FIRST}" y="{middle - _BAR / 2:.1f}" width="{max(length, 1):.1f}" '
        f'height="{_BAR}" rx="2" fill="{row.colour}"/>'
    )
    if edges:
        low, high = edges
        parts.append(
            f'<path d="M{_FIRST + low:.1f} {middle:.1f}H{_FIRST + high:.1f}" stroke="#0f172a" '
            'stroke-width="1.5"/>'
        )
    end = _FIRST + max(length, *edges) + 8 if edges else _FIRST + length + 8
    parts.append(_text(end, middle + 4, row.said, 'font-size="12"'))
    return parts


def _range(row: Row, top: float, axis: Axis) -> list[str]:
    middle = top + _ROW / 2
    parts = _label(row, middle)
    if not row.values:
        return [*parts, _instead(row, middle)]
    first, mark, last = (axis.at(value) for value in row.values)
    return [
        *parts,
        f'<path d="M{first:.1f} {middle:.1f}H{last:.1f}" stroke="{row.colour}" stroke-width="3"/>',
        f'<path d="M{mark:.1f} {middle - 6:.1f}v12" stroke="{row.colour}" stroke-width="3"/>',
        *(
            f'<circle cx="{x:.1f}" cy="{middle:.1f}" r="4" fill="{row.colour}"/>'
            for x in (first, last)
        ),
        _text(PICTURE_WIDTH - _MARGIN, middle + 4, row.said, 'text-anchor="end" font-size="12"'),
    ]


def _grid(top: float, bottom: float, axis: Axis) -> list[str]:
    parts = []
    for tick in axis.ticks():
        x = axis.at(tick)
        parts.append(f'<path d="M{x:.1f} {top:.1f}V{bottom:.1f}" stroke="#e2e8f0"/>')
        style = 'text-anchor="middle" fill="#64748b" font-size="11"'
        parts.append(_text(x, bottom + 13, number(tick), style))
    return parts


def _text(x: float, y: float, text: str, style: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(text)}</text>'


def _picture(height: float, parts: Sequence[str]) -> str:
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{PICTURE_WIDTH}" '
            f'height="{height:.0f}" viewBox="0 0 {PICTURE_WIDTH} {height:.0f}" '
            'font-family="system-ui, sans-serif" fill="#0f172a">',
            f'<rect width="{PICTURE_WIDTH}" height="{height:.0f}" fill="#ffffff"/>',
            *parts,
            "</svg>",
            "",
        ]
    )
