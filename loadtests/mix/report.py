"""The report of a run: one self-contained HTML page. Pure."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Final

from loadtests import plots
from loadtests.histogram import Histogram
from loadtests.mix.gates import Judged, percentiles
from loadtests.mix.judge import Outcome
from loadtests.mix.ledger import KINDS
from loadtests.mix.outages import Outage

_CURVE: Final = (1, 5, 10, 25, 50, 75, 90, 95, 98, 99, 99.5, 99.9, 99.95, 99.99, 100)
_COUNTS: Final = {
    "offered": "messages that were sent at least once",
    "certified": "of which the publisher has the receipt",
    "refused": "of which it was told that they are not stored",
    "tries again": "publishes that were sent again under the same sequence or id",
    "given": "messages that came to a user, all deliveries counted",
    "given again": "of which the delivery before had ended: nacked, expired, its session gone",
    "settled": "of which the ack was confirmed as durable",
    "nacked": "that a user returned on purpose",
    "sessions": "sessions that were welcomed",
    "sockets lost": "connections that ended without being asked to",
    "sockets cut": "connections that a storm cut",
    "user errors": "turns of users that ended with what no user expects",
}
_STYLE: Final = """
:root{color-scheme:light dark;--ink:#1c2430;--paper:#fff;--line:#d5dbe3;--good:#1e7a3c;
--bad:#b3261e}
@media(prefers-color-scheme:dark){:root{--ink:#dfe5ec;--paper:#14181f;--line:#39424e;--good:#6fcf8c;
--bad:#ff8a80}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:1000px;
margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem;margin-bottom:.2rem}h2{font-size:1.1rem;margin-top:2rem}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:.25rem .6rem;border-bottom:1px solid var(--line);vertical-align:top}
td.number,th.number{text-align:right;white-space:nowrap}
.verdict{padding:.6rem 1rem;border-left:6px solid;font-size:1.1rem}
.kept{color:var(--good)}.broken{color:var(--bad);font-weight:600}
figure{margin:1rem 0}svg{width:100%;height:auto}svg text{font-size:11px;fill:currentColor}
.grid{stroke:var(--line)}.band{fill:var(--line);opacity:.5}
.mark{width:28px;height:8px;margin-right:.3rem}
figcaption span{margin-right:1rem;white-space:nowrap}code{white-space:pre-wrap}
"""


def page(
    outcome: Outcome,
    gates: Sequence[Judged],
    outages: Sequence[Outage] = (),
    *,
    title: str,
    conditions: Mapping[str, object],
    command: str,
) -> str:
    """Return the whole page. `command` repeats the run."""
    ok = all(one.ok for one in gates)
    failed = sum(not one.ok for one in gates)
    verdict = "All gates are kept" if ok else f"{failed} of {len(gates)} gates are broken"
    body = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="verdict {"kept" if ok else "broken"}">{verdict}: {escape(_summary(outcome))}'
        "</p>",
        "<h2>Gates</h2>",
        _gates(gates),
        "<h2>When a broker could not be reached</h2>",
        _outages(outages),
        "<h2>What was sent, and what came of it</h2>",
        _counts(outcome),
        _violations(outcome),
        "<h2>Latency</h2>",
        "<p>Of a delivery from the moment at which its message was due, however late its publisher "
        "was, until its user had it; of a receipt from the same moment. Buckets are 1.6 % wide, "
        "down to nanoseconds.</p>",
        _latencies(outcome.latencies),
        _plots(outcome, outages),
        "<h2>Conditions</h2>",
        _table(("what", "value"), [(name, _short(value)) for name, value in conditions.items()]),
        f"<h2>Again</h2><p><code>{escape(command)}</code></p>",
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>"
        f"{''.join(body)}</body></html>\n"
    )


def _short(value: object) -> str:
    return plots.number(value) if isinstance(value, float) else str(value)


def _summary(outcome: Outcome) -> str:
    lost, order = outcome.violations["lost"], outcome.violations["order"]
    text = (
        f"{outcome.counts['certified']:,} messages certified, {outcome.counts['given']:,} given, "
        f"{lost:,} lost, {order:,} out of order"
    )
    return text if outcome.is_drained else f"{text}; not drained, so what is missing may be late"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: int = 0) -> str:
    """Return a table. Its last `numbers` columns are numbers."""
    words = len(head) - numbers

    def cells(row: Sequence[str], tag: str) -> str:
        return "".join(
            f"<{tag}{' class=number' if index >= words else ''}>{escape(cell)}</{tag}>"
            for index, cell in enumerate(row)
        )

    shown = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    return f"<table><thead><tr>{cells(head, 'th')}</tr></thead><tbody>{shown}</tbody></table>"


def _gates(gates: Sequence[Judged]) -> str:
    rows = "".join(
        f'<tr><td>{escape(str(one.gate))}</td><td class="number">'
        f"{'no such figure' if one.found is None else f'{one.found:,.6g}'}</td>"
        f'<td class="{"kept" if one.ok else "broken"}">{"kept" if one.ok else "BROKEN"}</td></tr>'
        for one in gates
    )
    head = '<tr><th>gate</th><th class="number">found</th><th></th></tr>'
    return f"<table><thead>{head}</thead><tbody>{rows}</tbody></table>"


def _outages(outages: Sequence[Outage]) -> str:
    if not outages:
        return "<p>Never: all of them answered throughout.</p>"
    rows = []
    for one in outages:
        began, ended = (
            f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S}"
            for at in (one.began_unix_s, one.began_unix_s + one.lasted_s)
        )
        to = ended if one.is_over else f"{ended}, the end of the run"
        rows.append((one.url, began, to, one.why, f"{one.began_s:.1f}", f"{one.lasted_s:.1f}"))
    head = ("broker", "from (UTC)", "to (UTC)", "why", "seconds since the run began", "seconds")
    return _table(head, rows, numbers=2) + (
        "<p>Grey in the plots. What could not be published then was sent again: it is late, or "
        "unknown where no answer ever came, and not lost. What a publisher had a receipt for "
        "before, and what a consumer had settled, had to outlast it.</p>"
    )


def _counts(outcome: Outcome) -> str:
    rows = [(name, what, f"{outcome.counts[name]:,}") for name, what in _COUNTS.items()]
    rows.append(("unknown", "neither certified nor refused at the end", f"{outcome.unknown:,}"))
    rows += [
        (name, "answers that told a user to wait or to come again", f"{count:,}")
        for name, count in sorted(outcome.counts.items())
        if name not in _COUNTS
    ]
    return _table(("count", "what", "messages or times"), rows, numbers=1)


def _violations(outcome: Outcome) -> str:
    rows = [
        (kind, what, f"{outcome.violations[kind]:,}", "; ".join(outcome.examples.get(kind, [])))
        for kind, what in KINDS.items()
    ]
    return _table(
        ("violation", "what", "how many", "the first ones"),
        rows,
    )


def _latencies(latencies: Mapping[str, Histogram]) -> str:
    rows = []
    for what, histogram in sorted(latencies.items()):
        found = percentiles(histogram)
        shown = [f"{found[name]:,.3f}" if found else "-" for name in
                 ("p50_ms", "p90_ms", "p99_ms", "p999_ms", "max_ms")]  # fmt: skip
        rows.append((what, f"{histogram.count:,}", *shown))
    head = ("what", "how many", "p50 ms", "p90 ms", "p99 ms", "p99.9 ms", "max ms")
    return _table(head, rows, numbers=6)


def _plots(outcome: Outcome, outages: Sequence[Outage]) -> str:
    given = dict(sorted(outcome.series.items()))
    bands = [(one.began_s, one.began_s + one.lasted_s) for one in outages]
    return "".join(
        (
            plots.lines(
                "p99 over time", {what: one.points(99) for what, one in given.items()},
                across="seconds since the run began", up="ms", log=True, bands=bands,
            ),
            plots.lines(
                "p50 over time", {what: one.points(50) for what, one in given.items()},
                across="seconds since the run began", up="ms", log=True, bands=bands,
            ),
            plots.lines(
                "Rates", {what: one.rates() for what, one in given.items()},
                across="seconds since the run began", up="per second", bands=bands,
            ),
            plots.lines(
                "How many are as fast",
                {
                    what: [(percent, one.percentile(percent) / 1e6) for percent in _CURVE]
                    for what, one in sorted(outcome.latencies.items())
                    if one.count
                },
                across="per cent of them", up="ms", log=True,
            ),
        )
    )  # fmt: skip
