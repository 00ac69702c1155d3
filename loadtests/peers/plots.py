"""Results as SVG: bars with their range over the rounds, and latencies on a logarithmic axis. Pure.

A picture stands on a white ground of its own, so that it can be read on pages of any colour.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Final, NamedTuple

from loadtests.peers.medians import OFFERED, Middle, Results, middles
from loadtests.peers.report import kept_up, number, short

WIDTH: Final = 900
LABEL_WIDTH: Final = 240
VALUE_WIDTH: Final = 130
ROW: Final = 36
BAR: Final = 16
TITLE: Final = 44
GAP: Final = 18
MARGIN: Final = 16
COLOURS: Final = {
    "tocsin": "#c2410c", "tocsin-redis": "#fb923c", "nats": "#1d4ed8", "nats-sync": "#60a5fa",
    "nats-core": "#94a3b8", "rabbitmq": "#15803d", "redis-streams": "#7e22ce",
}  # fmt: skip
"""Of entrants; kin have kindred colours."""
OTHERS: Final = "#334155"

_Middles = Mapping[tuple[str, str], Mapping[str, Middle]]


class Bar(NamedTuple):
    """A row of a panel."""

    entrant: str
    label: str
    durability: str
    """What a confirmation means, beside each figure."""
    found: Middle | None
    """None: not measured, or not kept up; `instead` says it."""
    instead: str = ""


class Panel(NamedTuple):
    """Bars of one figure."""

    title: str
    note: str
    """Which way is better, and the unit."""
    bars: Sequence[Bar]


def pictures(results: Results) -> dict[str, str]:
    """Name → SVG of all that was measured."""
    found = middles(results.runs)
    drawn = {
        "throughput": bars(
            _panel(
                results,
                found,
                "single",
                "messages_per_s",
                "Messages a second, one at a time",
                more_is_better=True,
            ),
            _panel(
                results,
                found,
                "batch",
                "messages_per_s",
                "Messages a second, by the hundred",
                more_is_better=True,
            ),
        ),
        "cost": bars(
            _panel(results, found, "single", "server_cpu_us", "Server CPU, one at a time"),
            _panel(results, found, "batch", "server_cpu_us", "Server CPU, by the hundred"),
            _panel(results, found, "fanout", "server_cpu_us", "Server CPU a recipient"),
            _panel(results, found, "idle", "kib_per_connection", "An idle connection"),
        ),
        "latency": latencies(results, found),
    }
    return {name: svg for name, svg in drawn.items() if svg}


def bars(*panels: Panel) -> str:
    """Panels below each other; those without a figure are left out, and nothing at all is ""."""
    shown = [panel for panel in panels if any(bar.found for bar in panel.bars)]
    if not shown:
        return ""
    parts, top = [], MARGIN
    for panel in shown:
        parts += _titles(top, panel.title, panel.note)
        top += TITLE
        highest = max(bar.found.high for bar in panel.bars if bar.found) or 1.0
        room = WIDTH - 2 * MARGIN - LABEL_WIDTH - VALUE_WIDTH
        for bar in panel.bars:
            parts += _bar(bar, top, room / highest)
            top += ROW
        top += GAP
    return _svg(top, parts)


def latencies(results: Results, found: _Middles) -> str:
    """For each rate and entrant a line from the median to p99.9, with a mark at p99; "": none."""
    shown = [s for s in OFFERED if any((name, s) in found for name in results.entrants)]
    values = [
        figures[name].value
        for (_, scenario), figures in found.items()
        for name in ("p50_ms", "p999_ms")
        if scenario in shown and name in figures and figures[name].value > 0
    ]
    if not values:
        return ""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    high = max(high, low + 1)
    room = WIDTH - 2 * MARGIN - LABEL_WIDTH - VALUE_WIDTH

    def place(value_ms: float) -> float:
        share = (math.log10(max(value_ms, 10.0**low)) - low) / (high - low)
        return MARGIN + LABEL_WIDTH + share * room

    parts, top = [], MARGIN
    for scenario in shown:
        title = f"Latency at {OFFERED[scenario]:,} messages a second"
        parts += _titles(top, title, "p50 to p99.9, a bar at p99; ms, logarithmic; left is better")
        top += TITLE
        names = [name for name in results.entrants if (name, scenario) in found]
        parts += _grid(top, top + ROW * len(names), range(low, high + 1), place)
        for name in names:
            figures = found[name, scenario]
            entrant = results.entrants[name]
            label, durability = entrant.title, short(entrant.durability)
            if kept_up(found, name, scenario) and "p999_ms" in figures:
                three = [figures[p].value for p in ("p50_ms", "p99_ms", "p999_ms")]
                parts += _label(label, durability, top + ROW / 2)
                parts += _line(name, top + ROW / 2, three, [place(value) for value in three])
            else:
                parts += _bar(Bar(name, label, durability, None, "not kept up"), top, 0.0)
            top += ROW
        top += GAP + 14
    return _svg(top, parts)


def _panel(
    results: Results,
    found: _Middles,
    scenario: str,
    figure: str,
    title: str,
    *,
    more_is_better: bool = False,
) -> Panel:
    units = {
        "messages_per_s": "messages/s", "server_cpu_us": "CPU seconds a million",
        "kib_per_connection": "KiB of resident memory",
    }  # fmt: skip
    better = "longer is better" if more_is_better else "shorter is better"
    rows = [
        Bar(
            name,
            entrant.title,
            short(entrant.durability),
            found[name, scenario].get(figure),
            "failed",
        )
        for name, entrant in results.entrants.items()
        if (name, scenario) in found
    ]
    return Panel(title, f"{units[figure]}, {better}; a thin line is the range of rounds", rows)


def _titles(top: float, title: str, note: str) -> list[str]:
    return [
        _text(MARGIN, top + 16, title, 'font-weight="600" font-size="15"'),
        _text(MARGIN, top + 33, note, 'fill="#64748b" font-size="12"'),
    ]


def _label(label: str, durability: str, middle: float) -> list[str]:
    right = MARGIN + LABEL_WIDTH - 8
    return [
        _text(right, middle - 1, label, 'text-anchor="end" font-size="13"'),
        _text(right, middle + 12, durability, 'text-anchor="end" fill="#64748b" font-size="10.5"'),
    ]


def _bar(bar: Bar, top: float, scale: float) -> list[str]:
    left, middle = MARGIN + LABEL_WIDTH, top + ROW / 2
    parts = _label(bar.label, bar.durability, middle)
    if bar.found is None:
        return [*parts, _text(left, middle + 4, bar.instead, 'fill="#64748b" font-size="12"')]
    length, low, high = (edge * scale for edge in bar.found[:3])
    colour = COLOURS.get(bar.entrant, OTHERS)
    parts.append(
        f'<rect x="{left}" y="{middle - BAR / 2:.1f}" width="{max(length, 1):.1f}" '
        f'height="{BAR}" rx="2" fill="{colour}"/>'
    )
    if bar.found.rounds > 1:
        parts.append(
            f'<path d="M{left + low:.1f} {middle:.1f}H{left + high:.1f}" stroke="#0f172a" '
            'stroke-width="1.5"/>'
        )
    end = left + max(length, high) + 8
    parts.append(_text(end, middle + 4, number(bar.found.value), 'font-size="12"'))
    return parts


def _line(name: str, middle: float, values: Sequence[float], places: Sequence[float]) -> list[str]:
    colour = COLOURS.get(name, OTHERS)
    said = " / ".join(number(value) for value in values)
    return [
        f'<path d="M{places[0]:.1f} {middle:.1f}H{places[2]:.1f}" stroke="{colour}" '
        'stroke-width="3"/>',
        f'<path d="M{places[1]:.1f} {middle - 6:.1f}v12" stroke="{colour}" stroke-width="3"/>',
        *(
            f'<circle cx="{x:.1f}" cy="{middle:.1f}" r="4" fill="{colour}"/>'
            for x in (places[0], places[2])
        ),
        _text(WIDTH - MARGIN, middle + 4, said, 'text-anchor="end" font-size="12"'),
    ]


def _grid(top: float, bottom: float, powers: range, place: Callable[[float], float]) -> list[str]:
    parts = []
    for power in powers:
        x = place(10.0**power)
        parts.append(f'<path d="M{x:.1f} {top:.1f}V{bottom:.1f}" stroke="#e2e8f0"/>')
        label = number(10.0**power)
        style = 'text-anchor="middle" fill="#64748b" font-size="11"'
        parts.append(_text(x, bottom + 13, label, style))
    return parts


def _text(x: float, y: float, text: str, style: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(text)}</text>'


def _svg(height: float, parts: Sequence[str]) -> str:
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height:.0f}" '
            f'viewBox="0 0 {WIDTH} {height:.0f}" font-family="system-ui, sans-serif" '
            'fill="#0f172a">',
            f'<rect width="{WIDTH}" height="{height:.0f}" fill="#ffffff"/>',
            *parts,
            "</svg>",
            "",
        ]
    )
