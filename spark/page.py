"""The report as one HTML page: figures in, text out. Pure.

Nothing is loaded and no script runs, so the page can be mailed, archived, and read in ten years.
However large the lake is, the page stays small. A table has its first rows and the number of the
others, and a plot has a bounded number of columns.
"""

import datetime
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any, Final, NamedTuple

from spark.axis import period, written
from spark.drawing import Line, axis_of, bars, duration, heat_map, named, over_time, visible

STAGES: Final = ("arriving", "late", "gathering", "storing", "waiting", "writing", "handling")
EXAMPLES_MAX: Final = 20
LOSSES_MAX: Final = 20
Row = Mapping[str, Any]

_STYLE: Final = """
:root{--paper:#fff;--ink:#1c2330;--soft:#5b6576;--rule:#d9dee6;--heat:#8a1c3c;
--good:#23795a;--doubt:#8f5d00;--bad:#b02a43;--c0:#2f6db5;--c1:#3b9c75;--c2:#c98a1b;--c3:#b5364d;
--c4:#7a5bb0;--c5:#8a929e;color-scheme:light dark}
@media(prefers-color-scheme:dark){:root{--paper:#14181f;--ink:#e6e9ee;--soft:#9aa4b2;--rule:#2c3440;
--heat:#f2789a;--good:#66c79f;--doubt:#e5b454;--bad:#ef7d90;--c0:#6ea8ea;--c1:#66c79f;--c2:#e5b454;
--c3:#ef7d90;--c4:#b096e4;--c5:#99a1ad}}
*{box-sizing:border-box}body{margin:0 auto;max-width:1040px;padding:24px 20px 60px;
background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
h1{font-size:26px;margin:0;overflow-wrap:anywhere}h2{font-size:18px;margin:36px 0 6px}
h3{font-size:15px;margin:18px 0 4px}p{margin:4px 0 10px}a{color:inherit}
.soft{color:var(--soft)}svg{display:block;width:100%;min-width:640px;height:auto}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
.wide{overflow-x:auto}th,td{padding:4px 16px 4px 0;border-bottom:1px solid var(--rule);
text-align:left;vertical-align:top}th{color:var(--soft);font-weight:500;vertical-align:bottom}
td{white-space:nowrap}td.w{white-space:normal;min-width:64px;max-width:340px}
th:last-child,td:last-child{padding-right:0}td.n,th.n{text-align:right}
.name{overflow-wrap:anywhere}.whole{white-space:nowrap}
td bdi,.row bdi{display:block;overflow:clip}
.grid{stroke:var(--rule);fill:none}.tick,.stroke{stroke:var(--soft);fill:none}
.axis{fill:var(--soft);color:var(--soft);font-size:11px}.date{font-weight:600}
.gap{fill:var(--rule);opacity:.3}.cut{fill:var(--rule);opacity:.75}
.line{fill:none;stroke-width:2;stroke-linejoin:round}.heat{fill:var(--heat)}
.legend{color:var(--soft);font-size:13px}.legend span{margin-right:16px;white-space:nowrap}
.mark{display:inline-block;width:11px;height:11px;border-radius:2px;margin-right:5px}
.row{display:grid;grid-template-columns:minmax(90px,250px) 1fr;gap:12px;align-items:center;
margin:6px 0;font-size:13px;line-height:1.4}.track{display:flex;align-items:center;height:22px;
padding-right:70px}.bar{flex:none;height:100%}.track .axis{margin-left:7px;white-space:nowrap}
.bars{margin:0 0 14px}.good{color:var(--good)}.doubt{color:var(--doubt)}.bad{color:var(--bad)}
.box{border:1px solid var(--rule);border-left:5px solid var(--soft);border-radius:4px;
padding:10px 16px;margin:16px 0}.box p{margin:2px 0}.box b{font-size:17px;font-weight:600}
.box.good,.box.doubt,.box.bad{border-left-color:currentColor}.box p{color:var(--ink)}
.figures{display:flex;flex-wrap:wrap;gap:8px 36px}
.figures div{min-width:110px}.figures b{display:block;font-size:22px;font-weight:600}
""" + "".join(
    f".line.c{n}{{stroke:var(--c{n})}}.dot.c{n}{{fill:var(--c{n})}}"
    f".bar.c{n},.mark.c{n}{{background:var(--c{n})}}"
    for n in range(6)
)


class Top(NamedTuple):
    """The first rows of a table, and the number of all rows."""

    rows: Sequence[Row] = ()
    total: int = 0


def _all(rows: Sequence[Row]) -> Top:
    """Return a table that has no other rows."""
    return Top(rows, len(rows))


NONE: Final = Top()


@dataclass(kw_only=True)
class Usage:
    """Rows of both logs side by side; `days` and `tenants` are sums of `pairs`."""

    total: Row = field(default_factory=dict)
    """The sum of everything; empty if nothing was counted."""
    pairs: Top = NONE
    """Rows of a date and a tenant, those that differ first."""
    days: Top = NONE
    tenants: Top = NONE


@dataclass(kw_only=True)
class Figures:
    """All figures of a page. Times are Unix seconds unless their name says otherwise."""

    step: int = 60
    """The width in time of a column of the plots, in seconds."""
    stretches: Sequence[Row] = ()
    """The times with events, cut at very long times without: `first`, `end`, `certified`,
    `dispatched`, `settled`, and the same of each of its `gateways`."""
    bounds_us: Sequence[int] = ()
    over_time: Sequence[Row] = ()
    """Deliveries by column of the plots: start, messages, percentiles, and `cells`, the number of
    messages between each two of `bounds_us`."""
    queues: Top = NONE
    """Deliveries of each queue and group, the slowest p99 first."""
    stages: Top = NONE
    """The mean microseconds of a message of each queue in each stage, the busiest queue first."""
    causes: Top = NONE
    keys: Top = NONE
    totals: Mapping[str, int] = field(default_factory=dict)
    """The number of messages by what happened: certified, dispatched, settled, acked, nacked,
    dead_lettered."""
    usage: Usage = field(default_factory=Usage)
    audit: Mapping[str, Any] = field(default_factory=dict)
    judged: int = 0
    """The number of messages that the lines of the whole lake are about, whatever days are
    shown."""
    quarantined: Mapping[str, int] = field(default_factory=dict)
    files: int = 0
    gateways: Top = NONE
    """Gateways, the latest first: `gateway`, the number of its `files`, how many of these are
    `damaged`, and the times of their lines (`since_unix_us`, `until_unix_us`; None if they have
    none)."""


def page(figures: Figures, *, title: str, made: datetime.datetime) -> str:
    """Return the whole page."""
    axis = axis_of([row["start"] for row in figures.over_time], figures.step)
    lines = [
        Line(name, [row[column] for row in figures.over_time])
        for column, name in _PERCENTILES.items()
    ]
    cells = [row["cells"] for row in figures.over_time]
    parts = [
        _head(figures, title, made),
        _section("Latency over time", _LATENCY, over_time("Latency percentiles", axis, lines)),
        _section(
            "How many took how long",
            _HEAT,
            heat_map("Deliveries by duration over time", axis, figures.bounds_us, cells),
        ),
        _section("Where the time went", _TIME, _time(figures) + _causes(figures)),
        _section("The slowest queues", _SLOWEST, _queues(figures)),
        _section("The keys that waited longest", _KEYS_TEXT, _keys(figures)),
        _section("Were the promises kept?", _PROMISES, _audit(figures), anchor="promises"),
        _section("What the log lost", _LOST, _lost(figures), anchor="lost"),
        _section("Usage", _USAGE, _usage(figures.usage)),
        _section("What this page rests on", _RESTS, _gateways(figures)),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{_text(title)}</title><style>{_STYLE}</style></head>"
        f"<body>{''.join(parts)}</body></html>\n"
    )


_PERCENTILES: Final = {"p50_us": "p50", "p90_us": "p90", "p99_us": "p99", "p999_us": "p99.9"}
_LATENCY: Final = (
    "From accepted by a gateway to written to the consumer's socket; first deliveries. "
    "Where nothing was delivered, there is no line."
)
_HEAT: Final = "The same deliveries: the stronger the colour, the more messages."
_TIME: Final = "Of a message of each queue, on average, from its producer to its ack."
_SLOWEST: Final = "By their p99. Missed: deliveries that took longer than the target."
_KEYS_TEXT: Final = "Between certified and given out, all messages of the key together."
_PROMISES: Final = "All of the log, every message of it, also outside the days shown here."
_LOST: Final = "What is not in the log cannot be judged, and is in no figure of this page."
_RESTS: Final = "The starts of gateways whose finished files are in the lake."
_USAGE: Final = "By the delivery log and, beside it, by the usage log. They have to agree."


def _section(title: str, text: str, body: str, *, anchor: str = "") -> str:
    mark = f' id="{anchor}"' if anchor else ""
    return f'<h2{mark}>{_text(title)}</h2><p class="soft">{_text(text)}</p>{body}'


def _text(words: str) -> str:
    """Return words that may come from elsewhere, as HTML."""
    return escape(visible(words))


def counted(count: int, one: str, many: str = "") -> str:
    """Return a count with its noun: `1 message`, `2,000 messages`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


# --- Tables -------------------------------------------------------------------------------------


class _Column(NamedTuple):
    title: str
    field: str
    html: Callable[[Any], str]
    kind: str
    """The class of its cells: `n` for numbers, `w` for text that is broken into lines."""


def _number(title: str, name: str) -> _Column:
    return _Column(title, name, lambda value: f"{value:,.0f}", "n")


def _time_of(title: str, name: str) -> _Column:
    return _Column(title, name, duration, "n")


def _name(title: str, name: str) -> _Column:
    return _Column(title, name, named, "w")


def _words(title: str, name: str, write: Callable[[Any], str] = str) -> _Column:
    return _Column(title, name, lambda value: _text(write(value)), "w")


def _at(title: str, name: str) -> _Column:
    """Return a column of times that are given in microseconds."""
    return _Column(title, name, lambda value: written(value / 1e6), "")


def _table(columns: Sequence[_Column], top: Top, of: str = "rows") -> str:
    """Return the rows, and the number of the others; a word if there are none."""
    if not top.rows:
        return "<p>None.</p>"
    head = "".join(f'<th class="{one.kind}">{one.title}</th>' for one in columns)
    lines = []
    for row in top.rows:
        cells = []
        for one in columns:
            value = row.get(one.field)
            text = "–" if value is None else one.html(value)
            cells.append(f'<td class="{one.kind}">{text}</td>' if one.kind else f"<td>{text}</td>")
        lines.append(f"<tr>{''.join(cells)}</tr>")
    more = top.total - len(top.rows)
    rest = f'<p class="soft">And {more:,} more {of}.</p>' if more > 0 else ""
    return f'<div class="wide"><table><tr>{head}</tr>{"".join(lines)}</table></div>{rest}'


def _tenants(top: Top) -> list[_Column]:
    """Return the column of the tenant if there are several tenants."""
    several = len({row.get("tenant") for row in top.rows}) > 1
    return [_name("tenant", "tenant")] if several else []


# --- The head -----------------------------------------------------------------------------------


def _head(figures: Figures, title: str, made: datetime.datetime) -> str:
    shown = {
        "certified": "certified", "dispatched": "given out", "acked": "acked", "nacked": "nacked",
        "dead_lettered": "dead-lettered",
    }  # fmt: skip
    boxes = "".join(
        f"<div><b>{figures.totals.get(of, 0):,}</b>{name}</div>" for of, name in shown.items()
    )
    return (
        f'<h1>{_text(title)}</h1><p class="soft">{_when(figures)} · '
        f"{counted(figures.files, 'file')} of the log · made {made:%-d %b %Y %H:%M} · "
        f'all times are UTC</p><div class="figures">{boxes}</div>'
        f"{_elsewhere(figures, made)}{_verdict(figures)}"
    )


def _main(stretches: Sequence[Row]) -> Row:
    """Return the stretch with the most events."""
    return max(stretches, key=lambda one: sum(one[name] for name in _DONE))


_DONE: Final = ("certified", "dispatched", "settled")


def _when(figures: Figures) -> str:
    if not figures.stretches:
        return "nothing yet"
    main = _main(figures.stretches)
    others = len(figures.stretches) - 1
    besides = f", and {counted(others, 'other time', 'other times')}" if others else ""
    return period(main["first"], main["end"]) + besides


def _elsewhere(figures: Figures, made: datetime.datetime) -> str:
    """Return a note about times far from the rest, and about times in the future. A clock may have
    been wrong."""
    if not figures.stretches:
        return ""
    main = _main(figures.stretches)
    now = made.timestamp()
    said = []
    for one in figures.stretches:
        late = [gateway for gateway in one["gateways"] if gateway["end"] - 2 * 3600 > now]
        if one is main and not late:
            continue
        parts = late or one["gateways"]
        counts = {name: sum(part[name] for part in parts) for name in _DONE}
        whole = period(min(part["first"] for part in parts), max(part["end"] for part in parts))
        names = _listed([named(part["gateway"]) for part in parts])
        of = "gateway" if len(parts) == 1 else "gateways"
        text = (
            f"{counts['certified']:,} certified, {counts['dispatched']:,} given and "
            f"{counts['settled']:,} settled messages are dated {whole}, by {of} {names}"
        )
        reason = "after this page was made: that clock was ahead" if late else "far from the rest"
        said.append(f"<p>{text}: {reason}.</p>")
    return (
        f'<div class="box"><b>Some messages have another date</b>{"".join(said)}</div>'
        if said
        else ""
    )


def _listed(parts: Sequence[str], most: int = 3, comma: str = ", ") -> str:
    """Return a list such as `a, b, c and 4 more`."""
    more = len(parts) - most
    return comma.join(parts[:most]) + (f" and {more:,} more" if more > 0 else "")


# --- Where the time went ------------------------------------------------------------------------


def _time(figures: Figures) -> str:
    is_several = len({row.get("tenant") for row in figures.stages.rows}) > 1
    rows = [
        (
            f"{row['tenant']} / {row['queue']}" if is_several else row["queue"],
            [row.get(name) or 0.0 for name in STAGES],
        )
        for row in figures.stages.rows
    ]
    more = figures.stages.total - len(rows)
    rest = f'<p class="soft">The {len(rows)} busiest queues, of {figures.stages.total:,}.</p>'
    return bars("Mean time in each stage by queue", rows, STAGES) + (rest if more > 0 else "")


_CAUSES: Final = {
    "none": ("nothing", "given out when it was certified"),
    "backlog": ("backlog", "read from the storage: its consumer came later, or was behind"),
    "credit": ("credit", "its consumer had asked for no more"),
    "in_flight": ("in flight", "as much was in flight as may be"),
    "socket": ("socket", "its consumer's socket was full"),
    "paused": ("paused", "the queue was"),
    "moving": ("moving", "the partition changed its owner"),
    "key_held": ("key held", "an earlier message of its key was on its way, or awaited retry"),
    "key_backoff": ("key backoff", "it came back, and its backoff had to pass"),
    "key_parked": ("key parked", "its key was parked, and was released"),
    "lease": ("lease", "an earlier delivery of it ended by its lease, or with its consumer"),
    "replay": ("replay", "a reader started in the past, or had fallen behind"),
}
"""Cause of waiting, as docs/operations/delivery-log.md names it → (words, meaning)."""


def _causes(figures: Figures) -> str:
    rows = []
    for row in figures.causes.rows:
        words, meaning = _CAUSES.get(row["cause"], (row["cause"], None))
        rows.append({**row, "cause": words, "meaning": meaning})
    columns = (
        _words("waited for", "cause"), _words("which means", "meaning"),
        _number("messages", "messages"),
        _time_of("p50", "p50_us"), _time_of("p99", "p99_us"), _time_of("longest", "max_us"),
        _time_of("all together", "total_us"),
    )  # fmt: skip
    return _table(columns, Top(rows, figures.causes.total), "causes") if rows else ""


def _queues(figures: Figures) -> str:
    top = figures.queues
    columns = [
        *_tenants(top), _name("queue", "queue"), _name("group", "group"),
        _number("messages", "messages"), _time_of("p50", "p50_us"), _time_of("p90", "p90_us"),
        _time_of("p99", "p99_us"), _time_of("p99.9", "p999_us"), _time_of("longest", "max_us"),
    ]  # fmt: skip
    if any(row["target_us"] is not None for row in top.rows):
        columns += [_time_of("target", "target_us"), _number("missed", "missed")]
    return _table(columns, top, "groups of queues")


def _keys(figures: Figures) -> str:
    top = figures.keys
    columns = [
        *_tenants(top), _name("queue", "queue"), _name("hash of the key", "key"),
        _number("messages", "messages"), _time_of("waited, all together", "waited_us"),
        _time_of("longest", "max_us"),
    ]  # fmt: skip
    return _table(columns, top, "keys")


# --- The promises -------------------------------------------------------------------------------

_MEANING: Final = {
    "gap": "passed by the group, and never given to it",
    "unsettled": "given and passed by the group, but settled in no line",
    "ungiven": "settled, but given in no line",
    "settled_twice": "settled twice",
    "settled_early": "settled before it was given",
    "repetition": "given again, without having come back",
    "inversion": "given out of the order of its key",
    "overtaken": "an earlier message of its key was back and waited",
    "certified_twice": "one offset certified twice",
    "disorder": "certified against the order of its partition",
}
_REASONS: Final = {
    "lost_lines": "lines of this gateway's log are lost, and one of them may explain it",
    "not_yet": "the log ends there; a later report tells",
    "closed": "lines of days that are closed are gone, and one of them may explain it",
    "unowned": "no line says which gateway owned the partition, or since when",
    "": "two clocks, a seek or lost lines may explain it",
}
_UNSURE: Final = {
    "lost_lines": "not judged: lines lost",
    "not_yet": "not judged yet",
    "closed": "not judged: day closed",
    "unowned": "not judged: no position",
}
_LOSSES: Final = {
    "killed": "the gateway was killed",
    "full": "the log had no room: it was written more slowly than messages came",
    "failed": "the log could not be written",
    "missing_file": "a file of the log is missing",
    "damaged_file": "a file of the log is damaged",
    "unlogged": "the log says so itself",
}


def _name_of(code: str) -> str:
    return code.replace("_", " ")


def _unjudged(audit: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return messages that could not be judged, by what and why. An audit of an older version gives
    no reason."""
    rows = [dict(row) for row in audit.get("unjudged", ())]
    for what, count in audit.get("uncertain", {}).items():
        rest = count - sum(row["messages"] for row in rows if row["what"] == what)
        if rest > 0:
            rows.append({"what": what, "reason": "", "gateway": None, "messages": rest})
    rows.sort(key=lambda row: -row["messages"])
    return rows


def _losses(audit: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the losses of the log. An audit of an older version has only sums."""
    if "losses" in audit:
        return [dict(row) for row in audit["losses"]]
    sums = audit.get("unlogged", {})
    rows: list[dict[str, Any]] = []
    if any(sums.get(name) for name in _DONE):
        rows.append({"reason": "unlogged", **sums})
    for gateway, numbers in audit.get("missing_files", {}).items():
        for number in numbers:
            rows.append({"gateway": gateway, "reason": "missing_file", "number": number})
    return rows


def _verdict(figures: Figures) -> str:
    """Return one box about the promises: kept, at fault, not judged, nothing to judge, or not
    checked. Only the box for kept is green; it needs everything judged, and no fault."""
    audit = figures.audit
    kind, title = "", "The promises were not checked."
    said: list[str] = []
    if audit:
        faults = sum(audit["faults"].values())
        doubts = sum(row["messages"] for row in _unjudged(audit))
        holes = audit.get("holes", 0)
        losses = _losses(audit)
        lines = sum(figures.quarantined.values())
        if faults:
            kind, title = "bad", f"{counted(faults, 'message')} at fault."
            listed = [f"{what}: {n:,}" for what, n in audit["faults"].items() if n]
            said.append(_text(", ".join(listed)))
        elif doubts or holes:
            kind = "doubt"
            title = f"{counted(doubts + holes, 'message')} could not be judged."
        elif losses or lines:
            kind, title = "doubt", "Not all lines of the log are there to be judged."
        elif not figures.judged:
            title = "There is nothing to judge yet."
        else:
            kind, title = "good", "Every promise was kept."
            said.append("All of the log was judged: nothing was lost, repeated or out of order")
        if doubts and faults:
            said.append(f"Also, {counted(doubts, 'message')} could not be judged")
        if kind == "doubt":
            said.append("Nothing that could be judged is at fault")
        said += _why_not(audit, holes, losses)
        if lines:
            said.append(f"{counted(lines, 'line')} of the log could not be taken in")
        said += _waiting_sentence(audit)
    where = '<p><a href="#promises">More about it</a></p>' if kind in ("bad", "doubt") else ""
    text = "".join(f"<p>{one}.</p>" for one in said)
    return f'<div class="box {kind}" role="note"><b>{title}</b>{text}{where}</div>'


def _why_not(audit: Mapping[str, Any], holes: int, losses: list[dict[str, Any]]) -> list[str]:
    """Return sentences with the reasons why something was not judged."""
    said = []
    if holes:
        said.append(f"{counted(holes, 'certified message')} are in no line of the log")
    by_reason: dict[tuple[str, str | None], int] = {}
    for row in _unjudged(audit):
        place = row["reason"], row.get("gateway")
        by_reason[place] = by_reason.get(place, 0) + row["messages"]
    for (reason, gateway), count in list(by_reason.items())[:4]:
        of = f" of gateway {named(gateway)}" if gateway else ""
        why = _text(_REASONS.get(reason, reason))
        said.append(f"{counted(count, 'message')}{of}: {why}")
    if losses:
        known = {name: sum(row.get(name) or 0 for row in losses) for name in _DONE}
        open_ = sum(all(row.get(name) is None for name in _DONE) for row in losses)
        sums = (
            f"{known['certified']:,} certified, {known['dispatched']:,} given and "
            f"{known['settled']:,} settled messages were never logged"
        )
        parts = [sums] if any(known.values()) else []
        if open_:
            parts.append(f"{counted(open_, 'loss', 'losses')} of unknown size")
        said.append(f'What <a href="#lost">the log lost</a>: {"; ".join(parts) or "nothing"}')
    return said


def _waiting_sentence(audit: Mapping[str, Any]) -> list[str]:
    """Return a sentence about waiting messages, which are no fault; it has no color."""
    waiting = audit.get("waiting") or {}
    if not waiting.get("messages"):
        return []
    since = ""
    if waiting.get("oldest_unix_us") is not None:
        since = f", the oldest since {written(waiting['oldest_unix_us'] / 1e6)}"
    count = waiting["messages"]
    wait = "waits for its group" if count == 1 else "wait for their groups"
    return [f"{counted(count, 'message')} {wait}, which is no fault{since}"]


def _audit(figures: Figures) -> str:
    audit = figures.audit
    if not audit:
        return "<p>They were not checked.</p>"
    parts = []
    rows = [
        {"what": _name_of(what), "messages": count, "meaning": _MEANING.get(what, "")}
        for what, count in audit["faults"].items()
        if count
    ]
    if rows:
        means = _words("which means", "meaning")
        table = _table([_words("what", "what"), _number("messages", "messages"), means], _all(rows))
        parts.append(f'<h3 class="bad">At fault</h3>{table}')
    parts.append(_doubts(audit))
    parts.append(_waiting(audit))
    parts.append(_examples(audit))
    nothing = (
        "<p>There is no finding.</p>" if figures.judged else "<p>There is nothing to judge.</p>"
    )
    return "".join(parts) or nothing


def _waiting(audit: Mapping[str, Any]) -> str:
    waiting = (audit.get("waiting") or {}).get("groups") or []
    if not waiting:
        return ""
    columns = (
        _name("queue", "queue"), _name("group", "group"), _number("messages", "messages"),
        _at("the oldest since", "oldest_unix_us"),
    )  # fmt: skip
    rest = audit["waiting"]["messages"] - sum(row["messages"] for row in waiting)
    more = f'<p class="soft">And {counted(rest, "message")} of other groups.</p>'
    return f"<h3>Waiting</h3>{_table(columns, _all(waiting))}{more if rest > 0 else ''}"


def _doubts(audit: Mapping[str, Any]) -> str:
    """Return a table of messages that could not be judged: how many of what, why, whose log and
    when."""
    times: dict[str, list[str]] = {}
    for loss in _losses(audit):
        when = _span_of(loss)
        if loss.get("gateway") and when is not None:
            times.setdefault(loss["gateway"], []).append(when)
    rows = [
        {
            "what": f"perhaps {_name_of(row['what'])}: {_MEANING.get(row['what'], '')}",
            "messages": row["messages"],
            "reason": _REASONS.get(row["reason"], row["reason"]),
            "gateway": row.get("gateway"),
            "when": _listed(times.get(row.get("gateway") or "", []), 2, "; ")
            if row["reason"] == "lost_lines"
            else None,
        }
        for row in _unjudged(audit)
    ]
    if audit.get("holes"):
        meaning = "certified by the count of the offsets, but in no line"
        rows.append({"what": meaning, "messages": audit["holes"], "reason": _HOLES})
    if not rows:
        return ""
    columns = [_words("what", "what"), _number("messages", "messages"), _words("why", "reason")]
    columns += [
        column
        for column in (_name("gateway", "gateway"), _words("lines lost", "when"))
        if any(row.get(column.field) for row in rows)
    ]
    table = _table(columns, Top(rows[:EXAMPLES_MAX], len(rows)))
    return f'<h3 class="doubt">Could not be judged</h3>{table}'


_HOLES: Final = "their lines are lost, or their publish was never answered"


def _span_of(loss: Row) -> str | None:
    """Return when the lost lines were written, as far as it is known; None if it is not."""
    since, until = (
        None if loss.get(name) is None else loss[name] / 1e6
        for name in ("since_unix_us", "until_unix_us")
    )
    if since is not None and until is not None:
        return period(since, until, seconds=True)
    if since is not None:
        return f"since {written(since, seconds=True)}"
    return None if until is None else f"until {written(until, seconds=True)}"


def spread(rows: Iterable[Row], most: int) -> list[Row]:
    """Return at most `most` of these rows, each kind as often as any other while it has rows.
    Certain ones come first, and each kind together."""
    kinds: dict[tuple[bool, str], list[Row]] = {}
    for row in rows:
        kinds.setdefault((not row["certain"], row["what"]), []).append(row)
    turns = itertools.zip_longest(*(kinds[kind] for kind in sorted(kinds)))
    taken = [row for turn in turns for row in turn if row is not None][:most]
    return sorted(taken, key=lambda row: (not row["certain"], row["what"]))


def _examples(audit: Mapping[str, Any]) -> str:
    found = audit.get("examples") or []
    if not found:
        return ""
    rows = [
        {
            **row,
            "what": _name_of(row["what"]),
            "is": "at fault"
            if row["certain"]
            else _UNSURE.get(row.get("unsure") or "", "not judged"),
            "queue": row.get("queue") or row.get("queue_id"),
            "offsets": _offsets(row),
        }
        for row in spread(found, EXAMPLES_MAX)
    ]
    columns = [
        _words("what", "what"), _words("", "is"), _name("queue", "queue"), _name("group", "group"),
        _number("partition", "partition"), _words("offsets", "offsets"),
        _name("hash of the key", "key"), _name("gateway", "gateway"), _at("when", "at_unix_us"),
    ]  # fmt: skip
    columns = [one for one in columns if any(row.get(one.field) is not None for row in rows)]
    text = '<p class="soft">Some of each kind. All of them are in the folder audit of the lake.</p>'
    return f"<h3>Examples</h3>{text}{_table(columns, _all(rows))}"


def _offsets(row: Row) -> str:
    last = row["first"] + row["count"] - 1
    return str(row["first"]) if last == row["first"] else f"{row['first']} to {last}"


def _file(loss: Row) -> str | None:
    return None if loss.get("number") is None else f"number {loss['number']}"


def _lost(figures: Figures) -> str:
    rows = [
        {
            **loss,
            "why": _LOSSES.get(loss["reason"], loss["reason"]),
            "when": _span_of(loss),
            "file": loss.get("file") or _file(loss),
        }
        for loss in _losses(figures.audit)
    ]
    parts = []
    if rows:
        columns = [
            _name("gateway", "gateway"), _words("why", "why"), _words("when", "when"),
            _number("certified", "certified"), _number("given", "dispatched"),
            _number("settled", "settled"), _name("file", "file"),
        ]  # fmt: skip
        columns = [one for one in columns if any(row.get(one.field) is not None for row in rows)]
        parts.append(_table(columns, Top(rows[:LOSSES_MAX], len(rows)), "losses"))
        if any(row.get(name) is None for row in rows for name in _DONE):
            parts.append('<p class="soft">–: how many is not known.</p>')
    if figures.quarantined:
        bad = [{"why": why, "lines": n} for why, n in sorted(figures.quarantined.items())]
        columns = [_name("reason", "why"), _number("lines", "lines")]
        text = '<p class="soft">They are in the folder quarantine of the lake, word for word.</p>'
        parts.append(f"<h3>Lines that could not be taken in</h3>{text}")
        parts.append(_table(columns, Top(bad[:LOSSES_MAX], len(bad)), "reasons"))
    if not parts:
        return "<p>Nothing.</p>" if figures.files else "<p>There is no log yet.</p>"
    return "".join(parts)


def _gateways(figures: Figures) -> str:
    columns = [
        _name("gateway", "gateway"), _number("files", "files"), _number("damaged", "damaged"),
        _at("first line", "since_unix_us"), _at("last line", "until_unix_us"),
    ]  # fmt: skip
    if not any(row.get("damaged") for row in figures.gateways.rows):
        del columns[2]
    return _table(columns, figures.gateways, "starts of gateways")


# --- Usage --------------------------------------------------------------------------------------

_WHY: Final = {
    "killed": "a gateway was killed: the usage log is written by the minute, and the last minute "
    "of that process is not in it",
    "unlogged": "the delivery log itself says that it lost them",
    "unfinished": "the last minute of one log is not finished yet; a later report has both",
    "before": "one log begins earlier than the other",
    "midnight": "counted on two sides of midnight: a day beside it has the rest",
}


def _usage(usage: Usage) -> str:
    if not usage.total:
        return "<p>Nothing was counted.</p>"
    both = [
        _number("in", "messages_in"), _number("in, usage log", "used_messages_in"),
        _number("bytes in", "bytes_in"), _number("bytes, usage log", "used_bytes_in"),
        _number("out", "messages_out"), _number("out, usage log", "used_messages_out"),
        _number("refused", "refusals"),
    ]  # fmt: skip
    if usage.total.get("left_in") is not None:
        both += [_words("difference", "difference")]
    said = _agreement(usage.total)
    if usage.pairs.total == len(usage.pairs.rows):
        rows = sorted(usage.pairs.rows, key=lambda row: (str(row["date"]), row["tenant"] or ""))
        return said + _table(
            [_words("date", "date"), _name("tenant", "tenant"), *both],
            Top([_with_difference(row) for row in rows], len(rows)),
        )
    parts = [said]
    wrong = [row for row in usage.pairs.rows if row.get("left_in") or row.get("left_out")]
    if wrong:
        columns = [_words("date", "date"), _name("tenant", "tenant"), *both]
        shown = [_with_difference(row) for row in wrong[:EXAMPLES_MAX]]
        parts.append(f'<h3 class="bad">Unexplained</h3>{_table(columns, _all(shown))}')
    for title, top, first in (
        ("By tenant", usage.tenants, _name("tenant", "tenant")),
        ("By day", usage.days, _words("date", "date")),
    ):
        shown = [_with_difference(row) for row in top.rows]
        table = _table([first, *both], Top(shown, top.total), title.removeprefix("By ") + "s")
        parts.append(f"<h3>{title}</h3>{table}")
    return "".join(parts)


def _with_difference(row: Row) -> dict[str, Any]:
    """Return the row with the reason, in words, why its two logs differ."""
    left = abs(row.get("left_in") or 0) + abs(row.get("left_out") or 0)
    reasons = [_SHORT.get(code, code) for code in _codes(row)]
    if left:
        reasons.insert(0, f"{left:,} unexplained")
    return {**row, "difference": ", ".join(reasons) or "–"}


_SHORT: Final = {
    "killed": "a kill", "unlogged": "lost lines", "unfinished": "not finished yet",
    "before": "one log begins earlier", "midnight": "midnight",
}  # fmt: skip


def _codes(row: Row) -> list[str]:
    """Return the reasons of a row, or of several, each once and in the order of _WHY."""
    found = {code for code in (row.get("why") or "").split(",") if code}
    return [code for code in _WHY if code in found] + sorted(found - set(_WHY))


def _agreement(total: Row) -> str:
    """Return whether the two logs agree, and if not, by how much and why."""
    if total.get("used_messages_in") is None and total.get("used_messages_out") is None:
        return "<p>There is no usage log to compare with.</p>"
    said = []
    for way in ("in", "out"):
        differs = total[f"messages_{way}"] - (total.get(f"used_messages_{way}") or 0)
        if differs:
            less = "usage log" if differs > 0 else "delivery log"
            said.append(f"The {less} has {counted(abs(differs), 'message')} {way} less.")
    if total.get("left_in") is None:
        text = " ".join(said) or "The two logs agree."
        return f"<p>{text}</p>"
    left = total["left_in"] + total["left_out"]
    reasons = [_WHY.get(code, code) for code in _codes(total)]
    text = " ".join(said)
    if reasons:
        text += f" Known reasons: {'; '.join(reasons)}."
    if left:
        text += f" {counted(left, 'message')} unexplained: one of the two logs is wrong."
        return f'<div class="box bad"><b>The two logs do not agree.</b><p>{_text(text)}</p></div>'
    if reasons or said:
        title = "The two logs differ, and it is known why."
        return f'<div class="box"><b>{title}</b><p>{_text(text)}</p></div>'
    return '<div class="box good"><b>The two logs agree.</b></div>'
