"""The verdict on the ledgers of all processes: was anything lost, invented, repeated? Pure."""

from collections import Counter
from collections.abc import Iterable, Iterator

from loadtests.checker.verdict import EXAMPLES_MAX, Violations
from loadtests.histogram import Histogram
from loadtests.mix.ledger import KINDS, Ledger, Sent, Series, Spans, Subscriber, Taken, key_of


class Outcome(Violations):
    """The merged ledgers of a run, and their violations."""

    def __init__(self) -> None:
        super().__init__(KINDS)
        self.is_drained = False
        """Whether all groups had settled everything before the users left. Only then is a missing
        message lost."""
        self.sent: dict[str, dict[str, Sent]] = {}
        self.subscribers: dict[str, Subscriber] = {}
        self.counts: Counter[str] = Counter()
        self.latencies: dict[str, Histogram] = {}
        self.series: dict[str, Series] = {}

    @property
    def ok(self) -> bool:
        """Whether nothing is violated, and nothing was left undrained that could hide a
        violation."""
        return self.is_drained and not self.violations

    @property
    def unknown(self) -> int:
        """Number of messages that were sent, and neither certified nor refused."""
        return sum(
            row.offered - len(row.certified) - len(row.refused)
            for lines in self.sent.values()
            for row in lines.values()
        )

    def latency(self, prefix: str) -> Histogram:
        """Return the merged latencies whose names begin with `prefix`."""
        together = Histogram()
        for name, histogram in self.latencies.items():
            if name.startswith(prefix):
                together.add(histogram)
        return together


def judge(ledgers: Iterable[Ledger], *, drained: bool) -> Outcome:
    """Judge a run. `drained`: the groups left nothing unsettled. If false, no message counts as
    lost."""
    outcome = Outcome()
    outcome.is_drained = drained
    for ledger in ledgers:
        _add(outcome, ledger)
    for name, subscriber in outcome.subscribers.items():
        sent = outcome.sent.get(subscriber.queue, {})
        _given(outcome, name, subscriber, sent)
        if drained and subscriber.is_whole:
            _missing(outcome, name, subscriber, sent)
    return outcome


def _add(outcome: Outcome, ledger: Ledger) -> None:
    for queue, lines in ledger.sent.items():
        for line, row in lines.items():
            _add_sent(outcome.sent.setdefault(queue, {}), line, row)
    for name, one in ledger.subscribers.items():
        known = outcome.subscribers.setdefault(name, Subscriber(one.queue, one.keys, one.is_whole))
        for line, taken in one.lines.items():
            row_taken = known.lines.setdefault(line, Taken())
            for number in row_taken.settled.both(taken.settled):
                outcome.flag("settled_twice", f"{name}: {line} {number}, by two processes")
            row_taken.given = row_taken.given.either(taken.given)
            row_taken.settled = row_taken.settled.either(taken.settled)
    outcome.counts.update(ledger.counts)
    outcome.violations.update(ledger.violations)
    for kind, examples in ledger.examples.items():
        known_examples = outcome.examples.setdefault(kind, [])
        known_examples += examples[: EXAMPLES_MAX - len(known_examples)]
    for what, histogram in ledger.latencies.items():
        outcome.latencies.setdefault(what, Histogram()).add(histogram)
    for what, series in ledger.series.items():
        outcome.series.setdefault(what, Series()).add(series)


def _add_sent(lines: dict[str, Sent], line: str, row: Sent) -> None:
    """Merge one line. A line has one publisher, and so one process; two processes with the same
    line would be two runs."""
    known = lines.setdefault(line, Sent())
    known.offered = max(known.offered, row.offered)
    known.certified = known.certified.either(row.certified)
    known.refused = known.refused.either(row.refused)


def _given(outcome: Outcome, name: str, subscriber: Subscriber, sent: dict[str, Sent]) -> None:
    """Check that each message given was sent, and was not refused."""
    for line, taken in subscriber.lines.items():
        row = sent.get(line, Sent())
        offered = Spans([(1, row.offered)] if row.offered else [])
        for number in taken.given.without(offered):
            outcome.flag("invented", f"{name}: {line} {number}")
        for number in taken.given.both(row.refused.without(row.certified)):
            outcome.flag("refused_given", f"{name}: {line} {number}")


def _missing(outcome: Outcome, name: str, subscriber: Subscriber, sent: dict[str, Sent]) -> None:
    for line, row in _wanted(subscriber, sent):
        taken = subscriber.lines.get(line, Taken())
        for number in row.certified.without(taken.given):
            outcome.flag("lost", f"{name}: {line} {number}")


def _wanted(subscriber: Subscriber, sent: dict[str, Sent]) -> Iterator[tuple[str, Sent]]:
    keys = None if subscriber.keys is None else set(subscriber.keys)
    for line, row in sent.items():
        if keys is None or key_of(line) in keys:
            yield line, row
