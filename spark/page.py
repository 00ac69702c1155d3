"""The report as one HTML page: figures in, text out. Pure.

Nothing is loaded, no script runs: the page can be mailed, archived and read in ten years.
"""

import datetime
from collections.abc import Callable, Sequence
from html import escape
from typing import Any, Final, Protocol

from spark.drawing import Line, bars, duration, heat_map, over_time

STAGES: Final = ("arriving", "gathering", "storing", "waiting", "writing", "handling")
_FORMATS: Final = {"minute": "%H:%M", "hour": "%d %b %H:00", "day": "%d %b"}
_STYLE: Final = """
:root{--paper:#fff;--ink:#1c2330;--soft:#5b6576;--rule:#d9dee6;--heat:#8a1c3c;
--c0:#2f6db5;--c1:#3b9c75;--c2:#c98a1b;--c3:#b5364d;--c4:#7a5bb0;--c5:#8a929e;
color-scheme:light dark}
@media(prefers-color-scheme:dark){:root{--paper:#14181f;--ink:#e6e9ee;--soft:#9aa4b2;--rule:#2c3440;
--heat:#f2789a;--c0:#6ea8ea;--c1:#66c79f;--c2:#e5b454;--c3:#ef7d90;--c4:#b096e4;--c5:#99a1ad}}
*{box-sizing:border-box}body{margin:0 auto;max-width:1040px;padding:24px 20px 60px;
background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
h1{font-size:26px;margin:0}h2{font-size:18px;margin:36px 0 6px}p{margin:4px 0 10px}
.soft{color:var(--soft)}svg{display:block;width:100%;height:auto}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
.wide{overflow-x:auto}th,td{padding:4px 10px 4px 0;border-bottom:1px solid var(--rule);
text-align:left;white-space:nowrap}th{color:var(--soft);font-weight:500}td.n,th.n{text-align:right}
.grid{stroke:var(--rule)}.axis{fill:var(--soft);font-size:11px}
.label{fill:var(--ink);font-size:13px}.line{fill:none;stroke-width:2;stroke-linejoin:round}
.heat{fill:var(--heat)}
.legend{color:var(--soft);font-size:13px}.legend span{margin-right:16px}
.mark{display:inline-block;width:11px;height:11px;border-radius:2px;margin-right:5px}
.good{color:var(--c1)}.bad{color:var(--c3)}.figures{display:flex;flex-wrap:wrap;gap:8px 36px}
.figures div{min-width:110px}.figures b{display:block;font-size:22px;font-weight:600}
""" + "".join(
    f".line.c{n}{{stroke:var(--c{n})}}.dot.c{n},.bar.c{n}{{fill:var(--c{n})}}"
    f".mark.c{n}{{background:var(--c{n})}}"
    for n in range(6)
)


class Figures(Protocol):
    """What the page needs of what `spark.figures` collects."""

    first: datetime.datetime | None
    last: datetime.datetime | None
    unit: str
    bounds_us: list[int]
    over_time: list[dict[str, Any]]
    queues: list[dict[str, Any]]
    stages: dict[str, dict[str, float]]
    causes: list[dict[str, Any]]
    keys: list[dict[str, Any]]
    counts: list[dict[str, Any]]
    usage: list[dict[str, Any]]
    audit: dict[str, Any]
    quarantined: dict[str, int]
    files: int


def page(figures: Figures, *, title: str, made: datetime.datetime) -> str:
    """The whole page."""
    parts = [
        _head(figures, title, made),
        _section("Latency over time", _LATENCY, _latency(figures)),
        _section("How many took how long", _HEAT, _heat(figures)),
        _section("Where the time went", _TIME, _time(figures) + _causes(figures)),
        _section("The slowest queues", _SLOWEST, _queues(figures)),
        _section("The keys that waited longest", _KEYS_TEXT, _keys(figures)),
        _section("Were the promises kept?", _PROMISES, _audit(figures)),
        _section("Usage", _USAGE, _usage(figures)),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>"
        f"<body>{''.join(parts)}</body></html>\n"
    )


_LATENCY: Final = (
    "From accepted by a gateway to written to the consumer's socket; first deliveries."
)
_HEAT: Final = "The same deliveries: the darker, the more messages."
_TIME: Final = "Of a message of each queue, on average, from its producer to its ack."
_SLOWEST: Final = "By their p99. Missed: deliveries that took longer than the target."
_KEYS_TEXT: Final = "Between certified and given out, all messages of the key together."
_PROMISES: Final = "All of the log, every message of it."
_USAGE: Final = "By the delivery log and, beside it, by the usage log. They have to agree."


def _section(title: str, text: str, body: str) -> str:
    return f'<h2>{escape(title)}</h2><p class="soft">{escape(text)}</p>{body}'


def _head(figures: Figures, title: str, made: datetime.datetime) -> str:
    totals = {(row["kind"], row["what"]): row["messages"] for row in figures.counts}

    def total(kind: str) -> int:
        return sum(count for (of, _), count in totals.items() if of == kind)

    period = "nothing yet"
    if figures.first is not None:
        period = f"{figures.first:%Y-%m-%d %H:%M} to {figures.last:%Y-%m-%d %H:%M}, UTC"
    unknown = totals.get(("certified", "unknown"), 0)
    shown = {
        "certified": total("certified") - unknown,
        "given out": total("dispatched"),
        "acked": totals.get(("settled", "acked"), 0),
        "nacked": totals.get(("settled", "nacked"), 0),
        "dead-lettered": totals.get(("settled", "dead_lettered"), 0),
    }
    boxes = "".join(f"<div><b>{count:,}</b>{name}</div>" for name, count in shown.items())
    return (
        f'<h1>{escape(title)}</h1><p class="soft">{period} · {figures.files:,} files of the log · '
        f'made {made:%Y-%m-%d %H:%M}</p><div class="figures">{boxes}</div>{_doubts(figures)}'
    )


def _doubts(figures: Figures) -> str:
    """What the figures do not have, said before they are believed."""
    lost = figures.audit.get("unlogged", {})
    missing = sum(map(len, figures.audit.get("missing_files", {}).values()))
    said = []
    if any(lost.get(name) for name in ("certified", "dispatched", "settled")):
        said.append(
            f"{lost['certified']:,} certified, {lost['dispatched']:,} given and "
            f"{lost['settled']:,} settled messages were never logged"
        )
    if missing:
        said.append(f"{missing:,} files of the log are missing")
    if figures.quarantined:
        reasons = ", ".join(f"{name}: {n:,}" for name, n in sorted(figures.quarantined.items()))
        said.append(f"{sum(figures.quarantined.values()):,} lines are quarantined ({reasons})")
    return f'<p class="bad">{escape("; ".join(said))}.</p>' if said else ""


def _labels(figures: Figures) -> list[str]:
    return [f"{row['start']:{_FORMATS[figures.unit]}}" for row in figures.over_time]


def _latency(figures: Figures) -> str:
    names = {"p50_us": "p50", "p90_us": "p90", "p99_us": "p99", "p999_us": "p99.9"}
    lines = [
        Line(name, [row[column] for row in figures.over_time]) for column, name in names.items()
    ]
    return over_time("Latency percentiles over time", _labels(figures), lines)


def _heat(figures: Figures) -> str:
    columns = [row["cells"] for row in figures.over_time]
    return heat_map(
        "Deliveries by duration over time", _labels(figures), figures.bounds_us, columns
    )


def _time(figures: Figures) -> str:
    rows = [
        (queue, [stages.get(name, 0.0) for name in STAGES])
        for queue, stages in figures.stages.items()
    ]
    return bars("Mean time in each stage by queue", rows, STAGES)


def _table(
    heads: Sequence[tuple[str, str, Callable[[Any], str] | None]], rows: Sequence[Any]
) -> str:
    """`heads`: the column's title, its field, and how it is written; None: as text."""
    if not rows:
        return "<p>None.</p>"
    head = "".join(f'<th class="{"n" if form else ""}">{title}</th>' for title, _, form in heads)
    lines = []
    for row in rows:
        cells = []
        for _, name, form in heads:
            value = row[name]
            text = "–" if value is None else form(value) if form else str(value)
            cells.append(f'<td class="{"n" if form else ""}">{escape(text)}</td>')
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return f'<div class="wide"><table><tr>{head}</tr>{"".join(lines)}</table></div>'


def _number(value: float) -> str:
    return f"{value:,.0f}"


def _causes(figures: Figures) -> str:
    heads = (
        ("waited for", "cause", None), ("messages", "messages", _number),
        ("p50", "p50_us", duration), ("p99", "p99_us", duration), ("longest", "max_us", duration),
        ("all together", "total_us", duration),
    )  # fmt: skip
    return _table(heads, figures.causes)


def _queues(figures: Figures) -> str:
    heads = (
        ("queue", "queue", None), ("group", "group", None), ("messages", "messages", _number),
        ("p50", "p50_us", duration), ("p90", "p90_us", duration), ("p99", "p99_us", duration),
        ("p99.9", "p999_us", duration), ("longest", "max_us", duration),
        ("target", "target_us", duration), ("missed", "missed", _number),
    )  # fmt: skip
    return _table(heads, figures.queues)


def _keys(figures: Figures) -> str:
    heads = (
        ("queue", "queue", None), ("hash of the key", "key", None),
        ("messages", "messages", _number), ("waited, all together", "waited_us", duration),
        ("longest", "max_us", duration),
    )  # fmt: skip
    return _table(heads, figures.keys)


def _audit(figures: Figures) -> str:
    audit = figures.audit
    if not audit:
        return "<p>Not checked.</p>"
    faults = {name: count for name, count in audit["faults"].items() if count}
    verdict = '<p class="good">No gap, no repetition, no inversion: every promise was kept.</p>'
    if faults:
        listed = ", ".join(f"{name}: {count:,} messages" for name, count in faults.items())
        verdict = f'<p class="bad">{escape(listed)}.</p>'
    notes = []
    if audit["uncertain"]:
        listed = ", ".join(f"{name} {count:,}" for name, count in audit["uncertain"].items())
        notes.append(f"Not certain (two clocks, a seek, or lost lines may explain them): {listed}.")
    if audit["holes"]:
        notes.append(f"{audit['holes']:,} certified messages are in no line, and were not judged.")
    said = "".join(f'<p class="soft">{escape(note)}</p>' for note in notes)
    heads = (
        ("what", "what", None), ("queue id", "queue_id", None), ("group", "group", None),
        ("partition", "partition", _number), ("offset", "first", str),
        ("messages", "count", _number), ("hash of the key", "key", None),
    )  # fmt: skip
    examples = audit["examples"][:20]
    return verdict + said + (_table(heads, examples) if examples else "")


def _usage(figures: Figures) -> str:
    heads = (
        ("date", "date", None), ("tenant", "tenant", None), ("in", "messages_in", _number),
        ("in, usage log", "used_messages_in", _number), ("bytes in", "bytes_in", _number),
        ("bytes, usage log", "used_bytes_in", _number), ("out", "messages_out", _number),
        ("out, usage log", "used_messages_out", _number), ("refused", "refusals", _number),
    )  # fmt: skip
    return _table(heads, figures.usage)
