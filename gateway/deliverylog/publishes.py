"""What was published, until the commit that it went with has ended: the certified spans. Pure.

An `Origin` goes with the messages of a publish to their record and back. When their commit has
ended it holds where they are, in runs, and the log writes one line of it: for a publish of a
hundred messages as for a hundred publishes of one that came within RUN_US.
"""

from array import array
from collections.abc import Sequence
from typing import Final, Protocol

from gateway.deliverylog.clock import Clock
from gateway.deliverylog.lines import Carrier
from gateway.deliverylog.spans import Stages
from metadata.catalog import Queue
from push.ports import Appended, NotStored
from push.record import Header

RUN_US: Final = 100
"""What came within so many microseconds may share its time, and a line."""
LINE_MESSAGES_MAX: Final = 2000
"""Of an origin; what comes then is another one."""


class Answered(Protocol):
    """A publish."""

    @property
    def origin(self) -> "Origin | None":
        """Where it came from; None: nothing is logged of it."""


Owned = tuple[Answered, Sequence[int], int]
"""A publish, which of its messages stand in a record, and their bytes as JSON."""


class OriginLog(Protocol):
    """The delivery log, as an origin writes to it. The log holds origins, so they cannot import
    it."""

    @property
    def clock(self) -> Clock: ...

    @property
    def is_on(self) -> bool: ...

    def now_us(self) -> int:
        """Monotonic microseconds."""

    def unknown(self, origin: "Origin", count: int) -> None:
        """Note that for this number of its messages nobody knows whether they are stored."""


class Origin:
    """Where messages of one queue come from, and when they were accepted; then, where they are.

    Times are monotonic microseconds.
    """

    __slots__ = (
        "_log",
        "accepted_us",
        "bytes",
        "clock_offset_us",
        "duplicates",
        "keys",
        "messages",
        "produced_us",
        "producer",
        "queue",
        "runs",
        "session",
        "stages",
        "trace",
        "transport",
    )  # fmt: skip

    def __init__(
        self, log: OriginLog, queue: Queue, accepted_us: int, messages: int, *,
        transport: Carrier, producer: str | None = None, session: str | None = None,
        produced_us: int | None = None, clock_offset_us: int | None = None,
        trace: str | None = None,
    ) -> None:  # fmt: skip
        """`messages`: how many of them come. `produced_us`: monotonic, where there is a
        `clock_offset_us`, else as the client said it."""
        self._log = log
        self.queue = queue
        self.accepted_us = accepted_us
        self.messages = messages
        self.transport = transport
        self.producer = producer
        self.session = session
        self.produced_us = produced_us
        self.clock_offset_us = clock_offset_us
        self.trace = trace
        self.stages: Stages | None = None
        """Of the commit that the runs are of; None: it has none."""
        self.clear()

    def clear(self) -> None:
        """The next commit begins with nothing."""
        self.runs: list[tuple[int, int, int]] = []
        self.keys: list[array[int]] = []
        self.duplicates: list[tuple[int, int, int]] = []
        self.bytes = 0

    def takes(self, count: int, *, now_us: int, queue: Queue) -> bool:
        """Whether so many more messages, of the same session, came at this time, too; then they
        belong to it."""
        if (
            now_us - self.accepted_us > RUN_US
            or queue.queue_id != self.queue.queue_id
            or self.produced_us is not None
            or self.trace is not None
            or self.messages + count > LINE_MESSAGES_MAX
        ):
            return False
        self.messages += count
        return True

    def unknown(self, count: int) -> None:
        """Of so many of its messages nobody knows whether they are stored."""
        self._log.unknown(self, count)


class Placed:
    """The origins of one commit. `is_late`: their publishers were answered `unknown` before."""

    __slots__ = ("is_late", "origins", "stages")

    def __init__(self, stages: Stages, *, is_late: bool) -> None:
        self.stages = stages
        self.is_late = is_late
        self.origins: list[Origin] = []

    def add(self, runs: Sequence[Owned], number: int, result: Appended, header: Header) -> None:
        """A record of the commit stands in partition `number`; `runs` says whose its messages are,
        in order. A few additions for each publish, none for each message, unless the storage knew
        some of them."""
        if result.outcomes is not None:
            self._add_singly(runs, number, result, header)
            return
        stages, hashes, offset = self.stages, header.key_hashes, result.first
        if len(runs) == 1:  # nothing is to be cut
            origin = runs[0][0].origin
            if origin is not None:
                if origin.stages is not stages:
                    self._begin(origin)
                origin.runs.append((number, offset, len(runs[0][1])))
                origin.keys.append(hashes)
                origin.bytes += runs[0][2]
            return
        begin = place = held = 0
        before: Origin | None = None  # whose are those from `begin` on: publishes may share one
        for answer, indexes, size in (*runs, _END):
            if answer.origin is not before:
                if before is not None:
                    if before.stages is not stages:
                        self._begin(before)
                    before.runs.append((number, offset + begin, place - begin))
                    before.keys.append(hashes[begin:place])
                    before.bytes += held
                before, begin, held = answer.origin, place, 0
            place += len(indexes)
            held += size

    def _add_singly(
        self,
        runs: Sequence[Owned],
        number: int,
        result: Appended,
        header: Header,
    ) -> None:
        assert result.outcomes is not None
        place = 0
        for answer, indexes, _ in runs:
            origin = answer.origin
            for at in range(place, place + len(indexes)):
                outcome = result.outcomes[at]
                if origin is None or isinstance(outcome, NotStored):
                    continue
                if origin.stages is not self.stages:
                    self._begin(origin)
                if outcome.duplicate:
                    _extend(origin.duplicates, number, outcome.offset, 1)
                else:
                    _extend(origin.runs, number, outcome.offset, 1)
                    origin.keys.append(header.key_hashes[at : at + 1])
                    origin.bytes += header.sizes[at]
            place += len(indexes)

    def _begin(self, origin: Origin) -> None:
        origin.stages = self.stages
        self.origins.append(origin)


class _Nobody:
    """Behind the last publish of a record."""

    origin: Origin | None = None


_END: Final[Owned] = (_Nobody(), (), 0)


def _extend(runs: list[tuple[int, int, int]], number: int, first: int, count: int) -> None:
    """One run more, or a longer last one."""
    if runs:
        last, begin, length = runs[-1]
        if last == number and begin + length == first:
            runs[-1] = (number, begin, length + count)
            return
    runs.append((number, first, count))
