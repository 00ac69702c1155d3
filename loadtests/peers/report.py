"""Results as Markdown: tables, what was skipped, what failed, and where Tocsin is worse. Pure."""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from loadtests.peers.budgets import BUDGETS, OURS, Verdict, judged, ratios
from loadtests.peers.medians import OFFERED, Middle, Middles, Results, failures, kept_up, middles

KIN: Final = "tocsin-redis"
BEHIND: Final = 1.03
"""Another broker's figure counts as better from this ratio on. Smaller differences occur between
rounds."""
BEGIN, END = "<!-- peers: made by `python -m loadtests.peers readme` -->", "<!-- /peers -->"
COLUMNS: Final = 100
"""The width of a document's lines outside tables."""
_NONE: Final = "–"
_HOW_WRITES_COUNT: Final = (
    "Consumers keep pace, and no queue keeps what was acknowledged. By the servers: `write_bytes` "
    "of /proc/PID/io over all their processes, ended children included, divided by the bytes of "
    "the published bodies. The kernel counts a page when it becomes dirty. A page that is "
    "rewritten before it reaches the disk counts once, one that is rewritten after each sync "
    "counts each time, and one of a file that is deleted first counts too. ext4 since Linux 6.16 "
    "may count many pages for a few changed bytes. To the disk: what the disk received in the same "
    "time, from any process, the journal of the file system included. A broker that does not sync "
    "has written only a part by then."
)
_HOW_BUDGETS_READ: Final = (
    "A budget is a bound that Tocsin sets itself for one of its figures: the limit should not be "
    "passed, and the aim is where work goes on to. The last columns are Tocsin's figure divided by "
    "that broker's in this run, so below 1 Tocsin has the smaller one. Compare brokers that "
    "confirm alike."
)

ALTS: Final = {
    "throughput": "Bars: messages a second of each broker, one at a time and by the hundred",
    "cost": "Bars: server CPU a million messages and recipients, memory of an idle connection",
    "latency": "Lines from p50 to p99.9 of each broker, at 1,000, 5,000 and 10,000 messages/s",
}

COMPARED: Final = (
    ("single", "messages_per_s", "single messages a second", True),
    ("single", "server_cpu_us", "server CPU, single messages (µs each)", False),
    ("batch", "messages_per_s", "messages a second, by the hundred", True),
    ("batch", "server_cpu_us", "server CPU, by the hundred (µs each)", False),
    ("open1k", "p50_ms", "p50 at 1,000/s (ms)", False),
    ("open1k", "p99_ms", "p99 at 1,000/s (ms)", False),
    ("open1k", "p999_ms", "p99.9 at 1,000/s (ms)", False),
    ("open5k", "p50_ms", "p50 at 5,000/s (ms)", False),
    ("open5k", "p99_ms", "p99 at 5,000/s (ms)", False),
    ("open5k", "p999_ms", "p99.9 at 5,000/s (ms)", False),
    ("open10k", "p50_ms", "p50 at 10,000/s (ms)", False),
    ("open10k", "p99_ms", "p99 at 10,000/s (ms)", False),
    ("open10k", "p999_ms", "p99.9 at 10,000/s (ms)", False),
    ("fanout", "server_cpu_us", "server CPU a recipient (µs)", False),
    ("fanout", "p50_ms", "p50 to the readers (ms)", False),
    ("fanout", "p99_ms", "p99 to the readers (ms)", False),
    ("idle", "kib_per_connection", "memory of an idle connection (KiB)", False),
    ("idle", "started_mib", "memory at the start (MiB)", False),
)
"""(scenario, figure, its name, whether more is better)."""


def number(value: float) -> str:
    """Return three significant digits: 13412 → 13,400, 5.4321 → 5.43, 0.0123 → 0.0123."""
    if value == 0:
        return "0"
    text = f"{value:.3g}"
    found = float(text)
    if abs(found) >= 100:
        return f"{found:,.0f}"
    return text if "e" not in text else f"{found:f}".rstrip("0")


def spread(found: Middle | None) -> str:
    """Return a median, with its range if there are at least two rounds."""
    if found is None:
        return _NONE
    if found.rounds < 2 or number(found.low) == number(found.high):
        return number(found.value)
    return f"{number(found.value)} ({number(found.low)} to {number(found.high)})"


def markdown(results: Results) -> str:
    """Return the whole report."""
    found = middles(results.runs)
    measured = {run.scenario for run in results.runs}
    parts = [_conditions(results), _setups(results)]
    if {"single", "batch"} & measured:
        parts.append(_throughput(results, found))
    if OFFERED.keys() & measured:
        parts += [_latency(results, found), _costs(results, found)]
    if {"fanout", "idle"} & measured:
        parts.append(_reading(results, found))
    parts += [_budgets(results, found), _behind(results, found), *_left_out(results)]
    return "\n\n".join(parts) + "\n"


def section(results: Results, pictures: Mapping[str, str]) -> str:
    """Return the report for a document, with pictures: name → path."""
    links = [f"![{ALTS[name]}]({place})" for name, place in pictures.items()]
    return "\n\n".join([*links, markdown(results)])


def into(document: str, section: str) -> str:
    """Return the document with this section between its marks. Raises ValueError unless it has
    exactly one pair of them."""
    if document.count(BEGIN) != 1 or document.count(END) != 1:
        raise ValueError(f"the document has not one {BEGIN} and one {END}")
    before, _, rest = document.partition(BEGIN)
    _, _, behind = rest.partition(END)
    return f"{before}{BEGIN}\n{section.rstrip()}\n{END}{behind}"


def _conditions(results: Results) -> str:
    said = results.conditions
    return _wrapped(
        f"`{results.command}`, {results.began[:10]}: medians of {_rounds(results)} rounds, in "
        "parentheses their range; in each round everybody in turn, each time with an empty server. "
        f"{said['cores']} cores ({said['cpu']}, Linux {said['kernel']}, {said['file_system']}, "
        f"where a synced write of 4 KiB takes {said['sync_ms']} ms), {said['body_bytes']}-byte "
        f"bodies, {said['keys']:,} keys, {said['partitions']} partitions, {said['producers']} "
        f"producing and {said['consumers']} consuming connections, every message confirmed to its "
        "producer and acknowledged in random order, the acknowledgements confirmed. The load comes "
        f"from one process on the same machine (Python {said['python']}, uvloop, thin clients of "
        "each protocol), whose CPU is shown: near 1.0 core it is the bound, and not the server."
    )


def _wrapped(text: str) -> str:
    return textwrap.fill(text, COLUMNS, break_long_words=False, break_on_hyphens=False)


def _rounds(results: Results) -> int:
    return max((run.round for run in results.runs), default=0)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _setups(results: Results) -> str:
    return _table(
        ("", "version", "a confirmation means", "spoken over", "a key's order", "a reader is"),
        (
            (f"**{e.title}**", e.version, e.durability, e.transport, e.ordering, e.reader)
            for e in results.entrants.values()
        ),
    )


def _throughput(results: Results, found: Middles) -> str:
    rows = []
    for name, entrant in results.entrants.items():
        single, batch = found.get((name, "single"), {}), found.get((name, "batch"), {})
        if not single and not batch:
            continue
        row = [f"**{entrant.title}**", short(entrant.durability)]
        for figures in (single, batch):
            row += [
                spread(figures.get("messages_per_s")),
                spread(figures.get("server_cpu_us")),
                spread(figures.get("generator_cores")),
            ]
        rows.append([*row, entrant.batch])
    cpu = "server CPU s per million"
    head = (
        "as many as it takes", "confirmed", "single messages/s", cpu, "generator, cores",
        "by the hundred/s", cpu, "generator, cores", "a hundred are",
    )  # fmt: skip
    return (
        _table(head, rows)
        + "\n\n"
        + _wrapped(
            "CPU seconds per million delivered messages are microseconds a message; all servers of "
            "an entrant together."
        )
    )


def short(text: str) -> str:
    """Return the part of a durability before its parenthesis."""
    return text.partition(" (")[0]


def _latency(results: Results, found: Middles) -> str:
    scenarios = [name for name in OFFERED if any(run.scenario == name for run in results.runs)]
    rows = []
    for name, entrant in results.entrants.items():
        if not any((name, scenario) in found for scenario in scenarios):
            continue
        row = [f"**{entrant.title}**", short(entrant.durability)]
        for scenario in scenarios:
            figures = found.get((name, scenario), {})
            rate = figures.get("messages_per_s")
            if rate is None:
                row.append(_NONE)
            elif not kept_up(found, name, scenario):
                row.append(f"not kept up: {number(rate.value)}/s")
            else:
                each = (figures.get(p) for p in ("p50_ms", "p99_ms", "p999_ms"))
                row.append(" / ".join(number(one.value) if one else _NONE for one in each))
        rows.append(row)
    head = ["p50 / p99 / p99.9, ms", "confirmed"]
    head += [f"{OFFERED[scenario]:,} messages/s" for scenario in scenarios]
    return (
        _table(head, rows)
        + "\n\n"
        + _wrapped(
            "From the moment at which a message was due by a fixed schedule to its push, however "
            "late the generator or the broker was: no coordinated omission."
        )
    )


def _costs(results: Results, found: Middles) -> str:
    """Return the tables of server CPU and of written bytes at the fixed rates."""
    scenarios = [name for name in OFFERED if any(run.scenario == name for run in results.runs)]
    rates = [f"{OFFERED[scenario]:,}/s" for scenario in scenarios]

    def rows(*figures: str) -> list[list[str]]:
        found_rows = []
        for name, entrant in results.entrants.items():
            if not any((name, scenario) in found for scenario in scenarios):
                continue
            row = [f"**{entrant.title}**", short(entrant.durability)]
            for figure in figures:
                for scenario in scenarios:
                    here = found.get((name, scenario), {})
                    cell = spread(here.get(figure))
                    if figure in here and not kept_up(found, name, scenario):
                        cell += f", at {number(here['messages_per_s'].value)}/s"
                    row.append(cell)
            found_rows.append(row)
        return found_rows

    parts = [
        _table(("server CPU µs a message", "confirmed", *rates), rows("server_cpu_us")),
        _wrapped(
            "All servers of an entrant together. An entrant that did not keep up has the rate that "
            "it reached beside its figure."
        ),
    ]
    if any("written_per_byte" in found.get(place, {}) for place in found if place[1] in OFFERED):
        head = ["bytes written for a byte published", "confirmed"]
        head += [
            f"{where}, {rate}" for where in ("by the servers", "to the disk") for rate in rates
        ]
        parts.append(_table(head, rows("written_per_byte", "disk_per_byte")))
        parts.append(_wrapped(_HOW_WRITES_COUNT))
    return "\n\n".join(parts)


def _budgets(results: Results, found: Middles) -> str:
    """Return the table of the budgets, beside the ratios to the other brokers of this run."""
    bounded = {budget.scenario for budget in BUDGETS}
    others = [
        name
        for name in results.entrants
        if name not in (OURS, KIN) and any((name, scenario) in found for scenario in bounded)
    ]
    titles = [results.entrants[name] for name in others]
    head = ["budget", "limit", "aim", "measured", "result"]
    head += [f"to {one.title} ({short(one.durability)})" for one in titles]
    rows, missed = [], 0
    for budget in BUDGETS:
        verdict = judged(budget, found)
        missed += verdict.result.startswith("missed")
        bound, unit = "≥ " if budget.at_least else "≤ ", "×" if budget.against else ""
        row = [budget.label, f"{bound}{budget.limit:,g}{unit}", f"{bound}{budget.aim:,g}{unit}"]
        divided = ratios(verdict, found, others).values()
        each = [_NONE if ratio is None else f"{number(ratio)}×" for ratio in divided]
        rows.append([*row, _measured(verdict), verdict.result, *each])
    said = f"{_HOW_BUDGETS_READ} In this run {missed} of {len(BUDGETS)} were missed."
    return "Budgets:\n\n" + _table(head, rows) + "\n\n" + _wrapped(said)


def _measured(verdict: Verdict) -> str:
    """Return what was measured; for a ratio, also the two figures (milliseconds)."""
    if verdict.measured is None:
        return _NONE if verdict.figure is None else f"{number(verdict.figure)} ms"
    if verdict.figure is None or verdict.other is None:
        return number(verdict.measured)
    pair = f"{number(verdict.figure)} / {number(verdict.other)} ms"
    return f"{number(verdict.measured)}× ({pair})"


def _reading(results: Results, found: Middles) -> str:
    rows = []
    for name, entrant in results.entrants.items():
        fan, idle = found.get((name, "fanout"), {}), found.get((name, "idle"), {})
        if not fan and not idle:
            continue
        latency = [fan.get("p50_ms"), fan.get("p99_ms")]
        rows.append(
            [
                f"**{entrant.title}**",
                entrant.reader,
                spread(fan.get("server_cpu_us")),
                " / ".join(number(one.value) if one else _NONE for one in latency),
                spread(fan.get("generator_cores")),
                spread(idle.get("started_mib")),
                spread(idle.get("kib_per_connection")),
            ]
        )
    said = results.conditions
    head = (
        f"to {said['readers']:,} readers", "each is", "server CPU s per million recipients",
        "p50 / p99, ms", "generator, cores",
        "memory at the start, MiB", f"a connection, KiB ({said['connections']:,} idle readers)",
    )  # fmt: skip
    return (
        _table(head, rows)
        + "\n\n"
        + _wrapped(
            "One message at a time, the next one a tenth of a second after the last reader has it: "
            "what counts is how long that takes and what it costs, and not a rate."
        )
    )


def _behind(results: Results, found: Middles) -> str:
    """List every figure in which another broker does better."""
    lines = []
    for scenario, figure, label, more_is_better in COMPARED:
        ours = found.get((OURS, scenario), {}).get(figure)
        if ours is None or not ours.value:
            continue
        if figure.startswith("p") and scenario in OFFERED and not kept_up(found, OURS, scenario):
            lines.append(f"- {label}: it does not keep up")
            continue
        better = []
        for name, entrant in results.entrants.items():
            theirs = found.get((name, scenario), {}).get(figure)
            if name in (OURS, KIN) or theirs is None or not theirs.value:
                continue
            if scenario in OFFERED and not kept_up(found, name, scenario):
                continue
            times = theirs.value / ours.value if more_is_better else ours.value / theirs.value
            if times >= BEHIND:
                better.append(f"{entrant.title} {number(theirs.value)} ({times:.2g} times)")
        if better:
            line = f"- {label}: {number(ours.value)}; better: {', '.join(better)}"
            lines.append(textwrap.fill(line, COLUMNS, subsequent_indent="  "))
    if not any(name == OURS for name, _ in found):
        return "Tocsin did not take part."
    if not lines:
        return f"Where Tocsin is behind somebody by {BEHIND - 1:.0%} or more: nowhere in this run."
    return "\n".join(["Where Tocsin is behind:", "", *lines])


def _left_out(results: Results) -> list[str]:
    lines = [f"- not measured: {name}, because {why}" for name, why in results.skipped.items()]
    for (name, scenario), reasons in failures(results.runs).items():
        lines.append(f"- failed {len(reasons)} times: {name}, {scenario}: {_line(reasons[0])}")
    if results.cut:
        lines.append(f"- cut short: {results.cut}")
    wrapped = [textwrap.fill(line, COLUMNS, subsequent_indent="  ") for line in lines]
    return ["\n".join(["Left out:", "", *wrapped])] if lines else []


def _line(text: str) -> str:
    """Return the first line of an error, and the last line of a server's log after it, which says
    why."""
    first, *more = text.strip().splitlines() or ["no reason"]
    return f"{first} … {more[-1].strip()}"[:300] if more else first[:300]
