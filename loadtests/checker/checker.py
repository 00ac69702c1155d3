"""The judge of a run with faults: all promises hold, whatever failed. Pure.

The judge of single brokers (`loadtests.checker.judge`) finds messages that were lost, invented,
altered, stored twice or reordered. This module adds the errors of several gateways over one store:
unexplained duplicates, acks of owners that had a successor, readers that miss messages, and
publishing or draining that does not recover after a fault.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from statistics import median
from typing import Final

from loadtests.checker.causes import NS, Causes
from loadtests.checker.history import (
    Answered,
    Attempt,
    ChaosInterpreter,
    Delivered,
    Drained,
    Event,
    FaultBegins,
    FaultEnds,
    Line,
    Publishing,
    Read,
    ReaderTold,
    ReplicaGone,
    ReplicaIn,
    World,
)
from loadtests.checker.judge import Judge
from loadtests.checker.verdict import KINDS, Verdict, Violations

DRAIN_SHARE: Final = 0.8
"""The share of the healthy rate at which a backlog must drain."""
COMEBACK_S: Final = 10.0
"""Seconds beyond the store's node timeout within which every producer must have a receipt after a
fault's end."""

FAULT_KINDS: Final = {
    "unexplained": "a message was given again, and no cause of the list explains it",
    "given_late": "P5: an owner of before gave it again after its ack was confirmed",
    "zombie_settled": "P7: an ack under an epoch that had a successor was settled",
    "stale_settled": "R21: an ack was settled although a newer delivery had been given",
    "stalled": "no publish was answered in time after a fault's end",
    "paused": "publishing waited for a replica that was away longer than until it is taken out",
    "slow_drain": "a backlog drained at less than 80 % of the healthy rate",
    "read_lost": "P1: acknowledged, and a reader of everything was not given it",
    "read_order": "P3: a reader was given an offset again, or behind a later one",
    "read_gap": "P10: a reader that came back was told of a gap, or of another history",
}
ALL_KINDS: Final = KINDS | FAULT_KINDS


class _Readers:
    """The messages that each reader has received."""

    def __init__(self, found: Violations) -> None:
        self._found = found
        self._next: dict[tuple[str, str, int], int] = {}
        self._given: dict[tuple[str, str], set[tuple[int, int]]] = {}

    def read(self, event: Read) -> None:
        """Note a message that a reader received."""
        line = (event.queue, event.reader, event.partition)
        at_least = self._next.get(line, 0)
        if event.offset < at_least:
            text = f"{event.reader} in {event.partition}: {event.offset} behind {at_least - 1}"
            self._found.flag("read_order", text)
        self._next[line] = max(at_least, event.offset + 1)
        given = self._given.setdefault((event.queue, event.reader), set())
        given.add((event.partition, event.offset))

    def told(self, event: ReaderTold) -> None:
        """Note the verdict that a returning reader got."""
        if event.verdict != "resumed":
            text = f"{event.reader} in {event.partition}: {event.verdict}"
            self._found.flag("read_gap", text)

    def missing(self, acknowledged: Iterable[tuple[str, int, int]]) -> None:
        """Flag each acknowledged message that a reader of its queue has not received."""
        for queue, partition, offset in acknowledged:
            for (theirs, reader), given in self._given.items():
                if theirs == queue and (partition, offset) not in given:
                    self._found.flag("read_lost", f"{reader}: {partition}:{offset}")


class _Comeback:
    """A check that each producer was answered in time after each fault's end."""

    def __init__(self, found: Violations, limit_s: float) -> None:
        self._found = found
        self._limit_ns = int(limit_s * NS)
        self._waiting: dict[str, tuple[int, int, str]] = {}
        """Producer without a receipt since the end of the latest fault → that fault: time of its
        end, number, kind."""
        self._sent: dict[tuple[str, int], int] = {}
        self._producers: set[str] = set()
        """Producers that have ever had a receipt."""
        self._kinds: dict[int, str] = {}
        self._open: set[int] = set()
        self.slowest_s = 0.0

    def see(self, event: Event | World) -> None:
        """Take the next event."""
        match event:
            case Attempt():
                self._sent[event.producer, event.sequence] = event.at
            case Answered():
                sent = self._sent.pop((event.producer, event.sequence), 0)
                waiting = self._waiting.get(event.producer)
                if event.outcome == "ok":
                    self._producers.add(event.producer)
                if event.outcome == "ok" and waiting is not None and sent >= waiting[0]:
                    del self._waiting[event.producer]
                    self._judge(event.producer, waiting, event.at)
            case FaultBegins():
                self.close(event.at)
                self._kinds[event.number] = event.kind
                self._open.add(event.number)
            case FaultEnds():
                self._open.discard(event.number)
                if not self._open:
                    ended = (event.at, event.number, self._kinds[event.number])
                    self._waiting = dict.fromkeys(self._producers, ended)
            case Publishing():
                self.close(event.at)
            case _:
                pass

    def close(self, at: int) -> None:
        """Stop waiting for receipts at `at`. Each producer that has had none since the end of a
        fault is stalled if the fault ended more than the limit ago."""
        for producer, waiting in self._waiting.items():
            self._judge(producer, waiting, at)
        self._waiting = {}

    def _judge(self, producer: str, waiting: tuple[int, int, str], at: int) -> None:
        ended, number, kind = waiting
        took = at - ended
        self.slowest_s = max(self.slowest_s, took / NS)
        if took > self._limit_ns:
            text = f"{producer} after fault {number} ({kind}): {took / NS:.1f} s"
            self._found.flag("stalled", text)


class _Pauses:
    """The longest time without a receipt of each producer while a replica was away, until it is
    counted again."""

    def __init__(self, found: Violations) -> None:
        self._found = found
        self._producers: set[str] = set()
        """Producers that have ever had a receipt."""
        self._heard: dict[str, int] = {}
        """Producer → the time of its last receipt, or of the loss of a replica if that is later;
        empty while no replica is away."""
        self._longest: dict[str, int] = {}
        self.longest_s: list[float] = []
        """The longest pause of any producer, for each replica that was away."""

    def see(self, event: Event | World) -> None:
        """Take the next event."""
        match event:
            case Answered() if event.outcome == "ok":
                self._producers.add(event.producer)
                if event.producer in self._heard:
                    self._had(event.producer, event.at)
            case ReplicaGone():
                self._heard = dict.fromkeys(self._producers, event.at)
                self._longest = dict.fromkeys(self._producers, 0)
            case ReplicaIn():
                for producer in self._heard:
                    self._had(producer, event.at)
                self._judge(event.within_s)
            case _:
                pass

    def _had(self, producer: str, at: int) -> None:
        took = at - self._heard[producer]
        self._longest[producer] = max(self._longest[producer], took)
        self._heard[producer] = at

    def _judge(self, within_s: float) -> None:
        for producer, longest in self._longest.items():
            if longest > within_s * NS:
                self._found.flag("paused", f"{producer}: {longest / NS:.1f} s of {within_s:g} s")
        self.longest_s.append(max(self._longest.values(), default=0) / NS)
        self._heard, self._longest = {}, {}


class ChaosVerdict(Verdict):
    """The result of the checker. `counts` describe the run."""

    def __init__(self, *, drained: bool) -> None:
        super().__init__(drained=drained)
        self._kinds = ALL_KINDS
        self.causes: Counter[str] = Counter()
        self.comeback_s = 0.0
        """The longest wait of any producer for a receipt after a fault's end, in seconds. Waits
        that ended without a receipt count, too."""
        self.pauses_s: list[float] = []
        """For each replica that was away, the longest time that any producer was without a receipt,
        in seconds."""
        self.acknowledged_per_fault: list[int] = []
        """For each fault, the number of messages acknowledged from its beginning to the next
        fault's, or to the end of the run."""

    def fields(self) -> dict[str, object]:
        """Return the verdict for JSON."""
        return super().fields() | {
            "causes": dict(self.causes),
            "comeback_s": round(self.comeback_s, 2),
            "pauses_s": [round(pause_s, 2) for pause_s in self.pauses_s],
            "acknowledged_per_fault": self.acknowledged_per_fault,
        }

    def lines(self) -> list[str]:
        """Return the verdict for people, line by line."""
        causes = ", ".join(f"{count} {name}" for name, count in sorted(self.causes.items()))
        per_fault = self.acknowledged_per_fault
        lines = [f"given again: {causes or 'nothing'}"]
        if per_fault:
            mean = sum(per_fault) / len(per_fault)
            lines.append(
                f"{len(per_fault)} faults; acknowledged per fault: {mean:,.0f}, "
                f"at least {min(per_fault):,}; publishing went on within {self.comeback_s:.1f} s"
            )
        if self.pauses_s:
            told = ", ".join(f"{pause_s:.1f}" for pause_s in self.pauses_s)
            lines.append(f"publishing paused for {told} s while a replica was away")
        return [*lines, *super().lines()]


class Checker:
    """The checker of a run: it takes the events in order of time, then gives its verdict."""

    def __init__(self, groups: Iterable[str], *, lease_s: float, node_timeout_s: float) -> None:
        """`groups`: as for `judge.Judge`; `node_timeout_s`: time after which the store treats a
        silent node as failed."""
        self._found = ChaosVerdict(drained=False)
        self._judge = Judge(groups, store_fails=True)
        self._causes = Causes(lease_s, self._found.flag)
        self._readers = _Readers(self._found)
        self._comeback = _Comeback(self._found, node_timeout_s + COMEBACK_S)
        self._pauses = _Pauses(self._found)
        self._drains: dict[bool, list[float]] = {True: [], False: []}
        """Rates of drains: True → those before the faults, False → those after."""
        self._begins: list[int] = []
        self._answers: list[int] = []
        self._last = 0

    def see(self, event: Event | World) -> None:
        """Take the next event."""
        self._last = event.at
        self._comeback.see(event)
        self._pauses.see(event)
        match event:
            case Delivered() if self._causes.is_late(event):
                if self._judge.late(event):
                    self._found.flag("given_late", event.by)
            case Read():
                self._judge.read(event.queue, event.partition, event.offset, event.key, event.body)
                self._readers.read(event)
            case ReaderTold():
                self._readers.told(event)
            case Drained():
                self._drained(event)
            case FaultBegins():
                self._begins.append(event.at)
            case Answered() if event.outcome == "ok":
                self._answers.append(event.at)
                self._judge.see(event)
            case _ if not isinstance(event, World):
                self._judge.see(event)
        self._causes.see(event)

    def _drained(self, event: Drained) -> None:
        self._drains[event.healthy].append(event.messages / max(event.seconds, 1e-9))

    def _compare_drains(self) -> None:
        """Flag slow drains. Compares medians, because one drain of some thousand messages takes
        only a second or two."""
        healthy, after = self._drains[True], self._drains[False]
        if healthy and after and median(after) < DRAIN_SHARE * median(healthy):
            rates = ["/s, ".join(f"{rate:,.0f}" for rate in some) for some in (after, healthy)]
            self._found.flag("slow_drain", f"{rates[0]}/s of {rates[1]}/s")

    def verdict(self, *, drained: bool) -> ChaosVerdict:
        """Give the verdict. `drained`: the groups and the readers went on until nothing was left.
        Only then does a missing message count as lost."""
        found = self._found
        self._comeback.close(self._last)
        self._compare_drains()
        if drained:
            self._readers.missing(self._judge.acknowledged())
        judged = self._judge.verdict(drained=drained)
        found.drained = drained
        found.counts.update(judged.counts)
        found.violations.update(judged.violations)
        for kind, examples in judged.examples.items():
            found.examples.setdefault(kind, []).extend(examples)
        found.causes = self._causes.causes
        found.counts["acks stale"] = self._causes.stale
        found.counts["acks of an owner of before refused"] = self._causes.fenced
        found.comeback_s = self._comeback.slowest_s
        found.pauses_s = self._pauses.longest_s
        ends = [*self._begins[1:], self._last + 1]
        found.acknowledged_per_fault = [
            bisect_left(self._answers, end) - bisect_left(self._answers, began)
            for began, end in zip(self._begins, ends, strict=False)
        ]
        return found


def check(
    lines: Iterable[Line],
    groups: Iterable[str],
    *,
    lease_s: float,
    node_timeout_s: float,
    drained: bool,
) -> ChaosVerdict:
    """Return the verdict over whole logs, merged by time. Raises history.Unreadable."""
    interpreter, checker = (
        ChaosInterpreter(),
        Checker(groups, lease_s=lease_s, node_timeout_s=node_timeout_s),
    )
    for line in lines:
        for event in interpreter.events(line):
            checker.see(event)
    return checker.verdict(drained=drained)
