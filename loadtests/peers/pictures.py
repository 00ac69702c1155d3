"""Results as pictures: throughput, cost and latency of every entrant. Pure."""

from typing import Final

from loadtests.peers.medians import OFFERED, Middle, Middles, Results, kept_up, middles
from loadtests.peers.report import number, short
from loadtests.plots import Panel, Row, bars, ranges

COLOURS: Final = {
    "tocsin": "#c2410c", "tocsin-redis": "#fb923c", "nats": "#1d4ed8", "nats-sync": "#60a5fa",
    "nats-core": "#94a3b8", "rabbitmq": "#15803d", "redis-streams": "#7e22ce",
}  # fmt: skip
"""Colors by entrant; related entrants have related colors."""
OTHERS: Final = "#334155"
_UNITS: Final = {
    "messages_per_s": "messages/s", "server_cpu_us": "CPU seconds a million",
    "kib_per_connection": "KiB of resident memory",
}  # fmt: skip
_PERCENTILES: Final = ("p50_ms", "p99_ms", "p999_ms")


def pictures(results: Results) -> dict[str, str]:
    """Draw all results: name → SVG."""
    found = middles(results.runs)

    def panel(scenario: str, figure: str, title: str) -> Panel:
        rows = [
            _row(results, name, found[name, scenario].get(figure))
            for name in results.entrants
            if (name, scenario) in found
        ]
        better = "longer" if figure == "messages_per_s" else "shorter"
        note = f"{_UNITS[figure]}, {better} is better; a thin line is the range of rounds"
        return Panel(title, note, rows)

    drawn = {
        "throughput": bars(
            panel("single", "messages_per_s", "Messages a second, one at a time"),
            panel("batch", "messages_per_s", "Messages a second, by the hundred"),
        ),
        "cost": bars(
            panel("single", "server_cpu_us", "Server CPU, one at a time"),
            panel("batch", "server_cpu_us", "Server CPU, by the hundred"),
            panel("fanout", "server_cpu_us", "Server CPU a recipient"),
            panel("idle", "kib_per_connection", "An idle connection"),
        ),
        "latency": ranges(*_latencies(results, found)),
    }
    return {name: svg for name, svg in drawn.items() if svg}


def _row(results: Results, name: str, middle: Middle | None) -> Row:
    entrant, colour = results.entrants[name], COLOURS.get(name, OTHERS)
    label, note = entrant.title, short(entrant.durability)
    if middle is None:
        return Row(label, note, colour, (), "failed")
    values = middle[:3] if middle.rounds > 1 else middle[:1]
    return Row(label, note, colour, values, number(middle.value))


def _latencies(results: Results, found: Middles) -> list[Panel]:
    """For each rate and entrant, return a range from the median to p99.9, with a mark at p99."""
    panels = []
    for scenario, rate in OFFERED.items():
        rows = []
        for name, entrant in results.entrants.items():
            if (name, scenario) not in found:
                continue
            figures, values = found[name, scenario], list[float]()
            if kept_up(found, name, scenario) and "p999_ms" in figures:
                values = [figures[percentile].value for percentile in _PERCENTILES]
            said = " / ".join(number(value) for value in values) or "not kept up"
            label, note = entrant.title, short(entrant.durability)
            rows.append(Row(label, note, COLOURS.get(name, OTHERS), values, said))
        if rows:
            title = f"Latency at {rate:,} messages a second"
            note = "p50 to p99.9, a bar at p99; ms, logarithmic; left is better"
            panels.append(Panel(title, note, rows))
    return panels
