"""Plots as SVG, from numbers alone: no script, no font, nothing from elsewhere. Pure."""

import math
import sys
from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

Points = Sequence[tuple[float, float]]

WIDTH: Final = 720
HEIGHT: Final = 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 12, 40
HUES: Final = (
    "#2f6fbb", "#c2571a", "#3c8a4f", "#8a4fa8", "#a8862a", "#5a6b7a", "#b03a5b", "#1f8f96",
    "#7a5230", "#4a4ad0", "#6f8f1f",
)  # fmt: skip
"""Of the lines, in this order; each is told by its dashes as well."""
_DASHES: Final = ("", "7 3", "2 3", "9 3 2 3", "12 4", "4 4", "1 4")
"""Fewer: two with the same dashes have other hues."""
_TICKS: Final = 5
"""About so many."""


class _Axis:
    """From numbers to pixels, linear or by powers of ten."""

    def __init__(self, low: float, high: float, first: float, last: float, *, log: bool) -> None:
        self.log = log
        if log:
            low, high = max(low, 1e-3), max(high, 1e-3)
            low, high = 10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(high))
        if high <= low or (high - low) / _TICKS < sys.float_info.min:  # which have no logarithm
            high = low * 10 if log else low + 1
        self.low, self.high = low, high
        self._first, self._last = first, last

    def at(self, number: float) -> float:
        """Its pixel. What lies outside is put on the edge."""
        number = min(max(number, self.low), self.high)
        if self.log:
            share = math.log10(number / self.low) / math.log10(self.high / self.low)
        else:
            share = (number - self.low) / (self.high - self.low)
        return self._first + share * (self._last - self._first)

    def ticks(self) -> list[float]:
        """Round numbers, at most ten or so."""
        if self.log:
            powers = round(math.log10(self.high / self.low))
            return [self.low * 10**power for power in range(powers + 1)]
        rough = (self.high - self.low) / _TICKS
        step = 10 ** math.floor(math.log10(rough))
        step *= next(times for times in (1, 2, 5, 10) if step * times >= rough)
        first = math.ceil(self.low / step)
        return [tick * step for tick in range(first, math.floor(self.high / step + 1e-9) + 1)]


def number(value: float) -> str:
    """As short as it can be read: 0.25, 12, 1,200."""
    if value and abs(value) < 10:
        return f"{value:.2g}"
    return f"{value:,.0f}"


def lines(
    title: str, series: Mapping[str, Points], *, across: str, up: str, log: bool = False,
    bands: Points = (),
) -> str:  # fmt: skip
    """A plot of one line for each of `series`; a sentence where there is nothing to draw.

    `across` and `up` say what the axes are, with their units; `log`: the one that goes up is by
    powers of ten; `bands`: (from, to) of the other one, in grey behind the lines.
    """
    drawn = {name: points for name, points in series.items() if points}
    if not drawn:
        return f'<p class="nothing">{escape(title)}: nothing was measured.</p>'
    xs = [x for points in drawn.values() for x, _ in points]
    ys = [y for points in drawn.values() for _, y in points]
    x_axis = _Axis(min(0.0, *xs), max(xs), _LEFT, WIDTH - _RIGHT, log=False)
    low = min((y for y in ys if y > 0), default=1.0) if log else 0.0
    y_axis = _Axis(low, max(ys), HEIGHT - _BOTTOM, _TOP, log=log)
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


def _frame(title: str, x_axis: _Axis, y_axis: _Axis, across: str, up: str) -> str:
    """The SVG's beginning: grid, ticks, what the axes are."""
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
