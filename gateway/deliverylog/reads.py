"""What readers are given, as the delivery log is told it: one line for all that a turn of a fan-out
reaches over WebSockets, one for each of the others. Metrics count the same, with or without it.
Pure.
"""

from collections.abc import Sequence
from typing import Protocol

from gateway.counting import Published
from gateway.deliverylog.deliveries import Session
from gateway.deliverylog.log import DeliveryLog
from gateway.deliverylog.spans import Stages
from metadata.catalog import Queue
from push.delivery.giving import append_offset
from push.ranges import Range
from push.record import Record


class Reader(Protocol):
    """One who is given a record with others."""

    is_socket: bool

    @property
    def link(self) -> Session: ...


class Reads:
    """Of one queue."""

    __slots__ = ("_counted", "_log", "_queue")

    def __init__(self, log: DeliveryLog, queue: Queue, counted: Published) -> None:
        self._log = log
        self._queue = queue
        self._counted = counted

    @property
    def is_on(self) -> bool:
        """Whether anybody wants to know."""
        return self._log.is_on

    def fan_out(self, number: int, record: Record, stages: Stages) -> "FanOut":
        """A turn of one, in partition `number`, begins."""
        return FanOut(self, number, record, stages)

    def alone(
        self, session: Session, number: int, record: Record, offsets: Sequence[int],
        stages: Stages | None = None,
    ) -> None:  # fmt: skip
        """A reader is given these, ascending, by itself. `stages` None: it is behind, and reads the
        log."""
        now_us = self.count(len(offsets), stages)
        if not self._log.is_on:
            return
        runs: list[Range] = []
        if isinstance(offsets, range):
            runs.append((offsets[0], offsets[-1]))
        else:
            for offset in offsets:
                append_offset(runs, offset)
        self._log.read(
            self._queue, number, runs, record.header.published_unix_ms, session=session,
            cause="replay" if stages is None else "none",
            certified_us=stages.certified_us if stages is not None else None, given_us=now_us,
        )  # fmt: skip

    def many(
        self, sessions: Sequence[str], number: int, runs: Sequence[Range], record: Record,
        stages: Stages, *, given_us: int,
    ) -> None:  # fmt: skip
        """Readers are given the same, over WebSockets."""
        self._log.read(
            self._queue, number, runs, record.header.published_unix_ms, sessions=sessions,
            cause="none", certified_us=stages.certified_us, given_us=given_us,
        )  # fmt: skip

    def count(self, messages: int, stages: Stages | None) -> int:
        """Readers are given so many. Returns when that is."""
        now_us, counted = self._log.now_us(), self._counted
        counted.read += messages
        if stages is not None:
            counted.read_s.add((now_us - stages.certified_us) / 1e6, messages)
        return now_us


class FanOut:
    """One turn of a fan-out. Nothing but a list of names is made."""

    __slots__ = ("_given", "_messages", "_number", "_reads", "_record", "_stages")

    def __init__(self, reads: Reads, number: int, record: Record, stages: Stages) -> None:
        self._reads = reads
        self._number = number
        self._record = record
        self._stages = stages
        self._given: dict[Range, list[str]] = {}
        self._messages = 0

    def given(self, reader: Reader, first: int, last: int) -> None:
        """This reader is given first..last."""
        if not reader.is_socket:
            offsets = range(first, last + 1)
            self._reads.alone(reader.link, self._number, self._record, offsets, self._stages)
            return
        self._messages += last - first + 1
        if not self._reads.is_on:
            return
        sessions = self._given.get((first, last))
        if sessions is None:
            sessions = self._given[first, last] = []
        sessions.append(reader.link.session_id)

    def end(self) -> None:
        """That was all."""
        if not self._messages:
            return
        given_us = self._reads.count(self._messages, self._stages)
        by_sessions: dict[tuple[str, ...], list[Range]] = {}
        for given, sessions in self._given.items():
            by_sessions.setdefault(tuple(sessions), []).append(given)
        for names, runs in by_sessions.items():
            self._reads.many(
                names, self._number, runs, self._record, self._stages, given_us=given_us
            )
