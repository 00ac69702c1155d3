"""An independent reading of a delivery log, message by message, line by line and without Spark: a
check of its audit, and the places at which a fault can be planted.

All lines of a history are by one clock, so they can be put in order. Events up to `SHARED_US` apart
may share one time in the log; that is the log's own inexactness. No span goes over the begin or the
end of an epoch, so what belongs to an epoch is exact.
"""

import base64
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from gateway.deliverylog.deliveries import SETTLED_US
from gateway.deliverylog.lines import (
    CertifiedLine,
    DispatchedLine,
    EndLine,
    Line,
    PositionLine,
    SettledLine,
    UnloggedLine,
    runs_of,
)

FINAL: Final = frozenset({"acked", "dead_lettered", "gone"})
BACK: Final = frozenset({"nacked", "expired", "returned"})
SHARED_US: Final = SETTLED_US
DECODE: Final = msgspec.json.Decoder(Line).decode
Partition = tuple[str, int]
"""(queue id, number)."""
Place = tuple[str, str, int]
"""(queue id, group, partition)."""


class Read(NamedTuple):
    """A line, with its file and number."""

    path: Path
    number: int
    line: Any


def read_log(folders: Iterable[Path]) -> list[Read]:
    """Return all lines of the finished files of these folders. Each file must be whole."""
    found: list[Read] = []
    for folder in folders:
        for path in sorted(folder.iterdir()):
            assert path.suffix == ".jsonl", path
            *body, last = path.read_bytes().splitlines(keepends=True)
            end = DECODE(last)
            assert isinstance(end, EndLine)
            assert (end.lines, end.crc32) == (len(body), zlib.crc32(b"".join(body))), path
            found += [Read(path, number, DECODE(raw)) for number, raw in enumerate(body)]
    return found


def offsets_of(runs: Sequence[tuple[int, int, int]]) -> Iterator[tuple[int, int]]:
    """Yield (partition, offset) of each message of these runs."""
    for number, first, count in runs:
        for offset in range(first, first + count):
            yield number, offset


@dataclass(slots=True)
class Given:
    """A delivery of one message. Its ends are the times at which it returned or was finished."""

    at_us: int
    gateway: str
    read: Read
    ends: list[tuple[int, str, Read]] = field(default_factory=list)


@dataclass(slots=True)
class Epoch:
    """The time of one owner at a place."""

    gateway: str
    group_id: str
    number: int
    owned: PositionLine
    released: PositionLine | None = None
    positions: list[PositionLine] = field(default_factory=list)

    def has(self, gateway: str, at_us: int) -> bool:
        """Whether an act of this gateway at this time was within it."""
        until = self.released.at_unix_us if self.released is not None else None
        since = self.owned.at_unix_us
        return gateway == self.gateway and since <= at_us and (until is None or at_us <= until)

    @property
    def is_clean(self) -> bool:
        """Whether everything that it settled is durable."""
        return self.released is not None and self.released.is_clean


class Log:
    """The lines of a log, by place."""

    def __init__(self, reads: Sequence[Read]) -> None:
        self.reads = reads
        self.keys: dict[tuple[Partition, int], bytes] = {}
        """(partition, offset) → the hash of the certified message's key; empty for no key."""
        self.certified: dict[tuple[Partition, int], list[Read]] = defaultdict(list)
        self.given: dict[tuple[Place, int], list[Given]] = defaultdict(list)
        self.ended: dict[tuple[Place, int], list[tuple[int, str, Read]]] = defaultdict(list)
        """(place, offset) → (time, outcome, line) of each settled line."""
        self.epochs: dict[Place, list[Epoch]] = defaultdict(list)
        self.names: dict[str, str] = {}
        self.lossy: set[str] = set()
        """Gateways with lost lines."""
        for read in reads:
            line = read.line
            if isinstance(line, UnloggedLine):
                self.lossy.add(line.gateway)
            elif isinstance(line, CertifiedLine):
                self._certified(read, line)
            elif isinstance(line, DispatchedLine) and line.group is not None:
                for number, offset in offsets_of(line.runs):
                    place = (line.queue_id, line.group, number)
                    one = Given(line.dispatched_unix_us, line.gateway, read)
                    self.given[place, offset].append(one)
            elif isinstance(line, SettledLine):
                for number, offset in offsets_of(line.runs):
                    place = (line.queue_id, line.group, number)
                    self.ended[place, offset].append((line.settled_unix_us, line.outcome, read))
            elif isinstance(line, PositionLine):
                self._position(line)
        for epochs in self.epochs.values():
            epochs.sort(key=lambda one: (one.owned.at_unix_us, one.number))

    def _certified(self, read: Read, line: CertifiedLine) -> None:
        self.names[line.queue_id] = line.queue
        keys = base64.b64decode(line.keys) if isinstance(line.keys, str) else line.keys or b""
        for place, (number, offset) in enumerate(offsets_of(line.runs)):
            at = (line.queue_id, number), offset
            self.certified[at].append(read)
            self.keys[at] = keys[8 * place : 8 * place + 8].strip(b"\0")

    def _position(self, line: PositionLine) -> None:
        epochs = self.epochs[line.queue_id, line.group, line.partition]
        for epoch in epochs:
            same = (line.group_id, line.epoch, line.gateway)
            if (epoch.group_id, epoch.number, epoch.gateway) == same:
                epoch.positions.append(line)
                if line.event == "released":
                    epoch.released = line
                return
        epochs.append(Epoch(line.gateway, line.group_id, line.epoch, line, positions=[line]))

    def segments(self, place: Place) -> list[list[Epoch]]:
        """Return the consecutive epochs of a place, as segments without a gap."""
        rows: list[list[Epoch]] = []
        for epoch in sorted(self.epochs[place], key=lambda one: (one.group_id, one.number)):
            before = rows[-1][-1] if rows else None
            follows = (
                before is not None
                and (before.group_id, before.number + 1) == (epoch.group_id, epoch.number)
            )  # fmt: skip
            if follows:
                rows[-1].append(epoch)
            else:
                rows.append([epoch])
        return rows

    def faults(self) -> list[tuple[object, ...]]:
        """Return everything wrong in the log, where no lines were lost."""
        return [*self._positions(), *self._deliveries()]

    def _positions(self) -> Iterator[tuple[object, ...]]:
        """Yield each position below which more messages are unsettled than it says; or fewer, if
        its epoch began with nothing passed above its frontier and ended clean."""
        for place in self.epochs:
            for segment in self.segments(place):
                first = segment[0].owned
                is_whole = not self.lossy & {epoch.gateway for epoch in segment}
                if is_whole and first.ahead is None and not first.open:
                    for epoch in segment:
                        yield from self._wrong_in(place, epoch, segment)

    def _wrong_in(
        self, place: Place, epoch: Epoch, segment: Sequence[Epoch]
    ) -> Iterator[tuple[object, ...]]:
        """Yield the wrong positions in one epoch of a segment.

        The last acks of an epoch that did not end clean may be lost, and their messages be open in
        the next one. So they prove neither that a message is open nor that it is settled.
        """
        first = segment[0].owned
        sure = [one for one in segment if one is epoch or one.is_clean]
        for position in epoch.positions:
            if position.event == "owned":
                continue
            times = first.at_unix_us, position.at_unix_us
            below = range(first.frontier, position.frontier)
            open_ = self._open(place, below, *times)
            is_exact = epoch.owned.ahead is None and position.is_clean
            most = len(self._open(place, below, *times, by=sure)) if is_exact else position.open
            if position.open > most:
                kept = self._kept(place, position.frontier, first, epoch.owned)
                most += len(self._open(place, kept, *times, by=sure))
            if not len(open_) <= position.open <= most:
                yield "position", position.queue, position, open_

    def _open(
        self, place: Place, offsets: Iterable[int], since_us: int, until_us: int,
        by: Sequence[Epoch] | None = None,
    ) -> list[int]:  # fmt: skip
        """Return those of these offsets that no line settles within this time. Only lines of the
        epochs `by` count; None: all."""
        return [
            offset
            for offset in offsets
            if not any(
                outcome in FINAL
                and since_us <= at <= until_us
                and (by is None or any(epoch.has(read.line.gateway, at) for epoch in by))
                for at, outcome, read in self.ended.get((place, offset), ())
            )
        ]

    def _kept(
        self, place: Place, frontier: int, first: PositionLine, owned: PositionLine
    ) -> list[int]:
        """Return what was given in the segment before an epoch began, at its frontier or above. A
        client may have kept it and come back with it (R22). It counts as open, too."""
        return [
            offset
            for (at, offset), gave in self.given.items()
            if at == place
            and offset >= frontier
            and any(first.at_unix_us <= one.at_us < owned.at_unix_us for one in gave)
        ]

    def _deliveries(self) -> Iterator[tuple[object, ...]]:
        """Yield each settled line of a delivery without a line, or of a delivery already ended."""
        for (place, offset), ends in self.ended.items():
            gave = self.given.get((place, offset), [])
            for at, outcome, read in ends:
                given_us = given_us_of(read.line, place[2], offset)
                if given_us is None or read.line.gateway in self.lossy:
                    continue
                meant = [
                    one for one in gave
                    if (one.gateway, one.at_us) == (read.line.gateway, given_us)
                ]  # fmt: skip
                if len(meant) != 1:
                    yield "ungiven", self.names.get(place[0]), place, offset, outcome, len(meant)
                for one in meant:
                    one.ends.append((at, outcome, read))
                    if at + SHARED_US < given_us:
                        yield "settled_early", self.names.get(place[0]), place, offset, outcome
        for (place, offset), gave in self.given.items():
            for one in gave:
                if len(one.ends) > 1 and not _is_acked_late(one, gave):
                    told = [outcome for _, outcome, _ in one.ends]
                    yield "settled_twice", self.names.get(place[0]), place, offset, told


def _is_acked_late(one: Given, gave: Iterable[Given]) -> bool:
    """Whether a delivery came back, and was acked before its gateway gave the message again
    (R21)."""
    (back_us, back, _), *acks = one.ends
    return (
        back in BACK
        and [outcome for _, outcome, _ in acks] == ["acked"]
        and not any(
            other.gateway == one.gateway and back_us <= other.at_us <= acks[0][0] for other in gave
        )
    )


def given_us_of(line: SettledLine, number: int, offset: int) -> int | None:
    """Return the time of the delivery that this line settles; None if it is unknown."""
    for push in line.pushes:
        if (number, offset) in offsets_of(runs_of([push])):
            assert push[1] is None or isinstance(push[1], int)
            return push[1]
    raise AssertionError


def passed_over(log: Log) -> list[tuple[Place, int]]:
    """Return messages that were never given, below some that were; most of them wait."""
    found: list[tuple[Place, int]] = []
    for place in log.epochs:
        given = {offset for at, offset in log.given if at == place}
        done = given | {offset for at, offset in log.ended if at == place}
        for partition, offset in log.certified:
            if partition == (place[0], place[2]) and offset not in done and offset < max(given):
                found.append((place, offset))
    return found
