"""A dashboard as a page of plots, drawn from what a Prometheus has answered. Pure: no script, and
nothing to load. It shows what is in it, as far as one sees without a Grafana."""

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Final

from scripts.monitoring.asking import Series
from scripts.monitoring.dashboards import WIDTH, Dashboard, Panel

LINES_MAX: Final = 12
"""Of a plot; how many more there are is said."""
_COLUMN: Final = 55
_HEIGHT: Final = 170
_LEFT: Final = 66
_BOTTOM: Final = 20
_TOP: Final = 8
_COLOURS: Final = (
    "#2f6db5", "#3b9c75", "#c98a1b", "#b5364d", "#7a5bb0", "#4aa3b8", "#8a929e", "#a0522d",
    "#6b8e23", "#d2699e", "#44527a", "#b0a030",
)  # fmt: skip
_STYLE: Final = """
body{margin:0;padding:18px 22px;background:#f4f5f7;color:#1c2330;font:14px/1.4 system-ui,sans-serif}
h1{font-size:20px;margin:0 0 2px}h2{font-size:15px;margin:18px 0 8px}p{margin:0;color:#5b6576}
.row{display:grid;grid-template-columns:repeat(24,1fr);gap:10px}
.panel{background:#fff;border:1px solid #d9dee6;border-radius:4px;padding:8px 10px}
h3{font-size:13px;font-weight:600;margin:0 0 4px}svg{display:block;width:100%;height:auto}
text{fill:#5b6576;font-size:11px}line{stroke:#e3e7ed}polyline{fill:none;stroke-width:1.6}
ul{list-style:none;margin:4px 0 0;padding:0;font-size:12px;color:#5b6576}
li{display:inline-block;margin-right:12px}b{display:inline-block;width:10px;height:3px;
margin-right:5px;vertical-align:middle}
"""
Named = tuple[str, Series]


def page(
    dashboard: Dashboard, answers: Mapping[str, Sequence[Series]], began: float, ended: float
) -> str:
    """`answers` by expression, as it stands in the dashboard. Times are unix seconds."""
    rows = []
    for title, panels in dashboard.rows.items():
        drawn = "".join(_panel(panel, answers, began, ended) for panel in panels)
        rows.append(f'<h2>{escape(title)}</h2><div class="row">{drawn}</div>')
    since, until = (time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(at)) for at in (began, ended))
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(dashboard.title)}'
        f"</title><style>{_STYLE}</style><h1>{escape(dashboard.title)}</h1>"
        f"<p>{since} to {until} UTC</p>{''.join(rows)}</html>\n"
    )


def _panel(
    panel: Panel, answers: Mapping[str, Sequence[Series]], began: float, ended: float
) -> str:
    named = [
        (_name(legend, one.labels), one)
        for expr, legend in panel.lines
        for one in answers[expr]
        if one.points
    ]
    more = f"<li>and {len(named) - LINES_MAX} more</li>" if len(named) > LINES_MAX else ""
    shown, write = named[:LINES_MAX], _UNITS.get(panel.unit, _short)
    items = "".join(
        f'<li><b style="background:{_COLOURS[place]}"></b>{escape(name)} '
        f"{escape(write(one.points[-1][1]))}</li>"
        for place, (name, one) in enumerate(shown)
    )
    body = _plot(panel, shown, began, ended, write) if shown else "<p>No data</p>"
    return (
        f'<div class="panel" style="grid-column:span {panel.width}">'
        f"<h3>{escape(panel.title)}</h3>{body}<ul>{items}{more}</ul></div>"
    )


def _name(legend: str, labels: Mapping[str, str]) -> str:
    return re.sub(r"\{\{([a-z_]+)\}\}", lambda match: labels.get(match[1], ""), legend).strip()


def _plot(
    panel: Panel, lines: Sequence[Named], began: float, ended: float, write: Callable[[float], str]
) -> str:
    width = panel.width * _COLUMN
    across, up = width - _LEFT - 6, _HEIGHT - _TOP - _BOTTOM
    most = _ceiling(max(value for _, one in lines for _, value in one.points))
    parts = []
    for part in range(5):
        y = _TOP + up * (1 - part / 4)
        parts.append(
            f'<line x1="{_LEFT}" x2="{width - 6}" y1="{y:.1f}" y2="{y:.1f}"/><text '
            f'x="{_LEFT - 5}" y="{y + 4:.1f}" text-anchor="end">{write(most * part / 4)}</text>'
        )
    for part in range(4):
        at = began + (ended - began) * (part + 0.5) / 4
        parts.append(
            f'<text x="{_LEFT + across * (part + 0.5) / 4:.1f}" y="{_HEIGHT - 5}" '
            f'text-anchor="middle">{time.strftime("%H:%M:%S", time.gmtime(at))}</text>'
        )
    for place, (_, one) in enumerate(lines):
        points = " ".join(
            f"{_LEFT + across * (at - began) / (ended - began):.1f},"
            f"{_TOP + up * (1 - max(0.0, value) / most):.1f}"
            for at, value in one.points
        )
        parts.append(f'<polyline stroke="{_COLOURS[place]}" points="{points}"/>')
    return (
        f'<svg viewBox="0 0 {width} {_HEIGHT}" role="img" '
        f'aria-label="{escape(panel.title, quote=True)}">{"".join(parts)}</svg>'
    )


def _ceiling(most: float) -> float:
    """The next one of 1, 2, 4, 8 and 10 times a power of ten; of nothing 1."""
    if most <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(most))
    return next(step * power for step in (1, 2, 4, 8, 10) if step * power >= most * 0.999)


def _short(value: float) -> str:
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def _seconds(value: float) -> str:
    for size, unit, factor in ((3600, "h", 3600), (60, "min", 60), (1, "s", 1), (1e-3, "ms", 1e-3)):
        if value >= size:
            return f"{value / factor:.3g} {unit}"
    return f"{value * 1e6:.3g} µs" if value else "0"


def _bytes(value: float) -> str:
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if value >= 1024**power:
            return f"{value / 1024**power:.3g} {unit}"
    return f"{value:.3g} B"


_UNITS: Final[dict[str, Callable[[float], str]]] = {
    "s": _seconds,
    "bytes": _bytes,
    "Bps": lambda value: f"{_bytes(value)}/s",
    "ops": lambda value: f"{_short(value)}/s",
    "percentunit": lambda value: f"{value * 100:.3g} %",
}
"""By Grafana's names of units."""
assert WIDTH == 24
