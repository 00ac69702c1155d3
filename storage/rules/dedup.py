"""Idempotent publishing: producer lines (R6, R7) and the windows of client ids (R8). Pure.

A **producer line** is what a partition knows of one producer: `resolved`, below which every
sequence has had its last answer, and above it the exact set sequence -> offset of what is stored.
"""

from array import array
from bisect import bisect_left
from typing import Final

from push import limits
from push.producer_order import SendingOrder
from push.storage_port import NotStored, Stored

SEQUENCE_TOO_OLD: Final = NotStored("sequence_too_old")
OUT_OF_SEQUENCE: Final = NotStored("out_of_sequence")
TOO_MANY_IN_FLIGHT: Final = NotStored("too_many_in_flight")

# A line's age is counted in buckets of wall time, so that "seen" changes a row rarely.
_BUCKETS_PER_IDLE: Final = 4
LINE_BUCKET_MS: Final = limits.PRODUCER_IDLE_S * 1000 // _BUCKETS_PER_IDLE
IDLE_BUCKETS: Final = _BUCKETS_PER_IDLE
"""After so many buckets without a message a line expires: the set goes, the highest sequence
stays, and what is not above it is refused as `sequence_too_old` (R6)."""
FORGOTTEN_BUCKETS: Final = 10 * _BUCKETS_PER_IDLE
"""After so many, ten times PRODUCER_IDLE_S, the watermark goes too: nothing can be remembered for
ever, and a retry that is half a day late is taken for a new message."""


def line_bucket(wall_unix_ms: int) -> int:
    """The bucket of time in which a line is seen now."""
    return wall_unix_ms // LINE_BUCKET_MS


class ProducerLine:
    """What one partition knows of one producer."""

    __slots__ = ("bucket", "offsets", "order", "resolved", "row_id", "sequences", "top")

    def __init__(self, bucket: int, *, resolved: int = 0, top: int = -1, row_id: int = 0) -> None:
        self.bucket = bucket
        self.resolved = resolved
        self.top = max(top, resolved - 1)
        """The highest sequence that is stored or resolved; -1: none."""
        self.sequences = array("Q")
        """Stored sequences >= resolved, ascending; `offsets` has each one's offset."""
        self.offsets = array("Q")
        self.order = SendingOrder()
        """In memory only: it is about what is in flight, and nothing is after a restart."""
        self.row_id = row_id
        """The storage's own number for this line; 0: it has none yet."""

    def wake(self, bucket: int) -> None:
        """The line is used at this time: apply what passed meanwhile."""
        age = bucket - self.bucket
        if age > FORGOTTEN_BUCKETS:
            self.resolved, self.top = 0, -1
            self._empty()
        elif age > IDLE_BUCKETS:
            self.resolved = self.top + 1
            self._empty()
        if age > 0:
            self.bucket = bucket

    def _empty(self) -> None:
        self.sequences, self.offsets, self.order = array("Q"), array("Q"), SendingOrder()

    def resolve(self, resolved: int) -> None:
        """Everything below was answered for good: forget it. Only ever grows."""
        if resolved > self.resolved:
            self.resolved = resolved
            gone = bisect_left(self.sequences, resolved)
            if gone:
                del self.sequences[:gone], self.offsets[:gone]
            self.top = max(self.top, resolved - 1)

    def judge(self, sequence: int, resolved: int) -> Stored | NotStored | None:
        """What is known of this message; None: it is new, and may be stored now."""
        self.resolve(resolved)
        if sequence < self.resolved:
            return SEQUENCE_TOO_OLD
        place = bisect_left(self.sequences, sequence)
        if place < len(self.sequences) and self.sequences[place] == sequence:
            return Stored(self.offsets[place], duplicate=True)
        if not self.order.admits(sequence, self.resolved):
            return OUT_OF_SEQUENCE
        if len(self.sequences) >= limits.IN_FLIGHT_PER_PRODUCER_MAX:
            self.order.refuse(sequence)
            return TOO_MANY_IN_FLIGHT
        return None

    def add(self, sequence: int, offset: int) -> None:
        """Remember one new message: its own offset, or that of the message with the same id."""
        place = bisect_left(self.sequences, sequence)
        self.sequences.insert(place, sequence)
        self.offsets.insert(place, offset)
        self.top = max(self.top, sequence)
        self.order.accept(sequence)

    def takes_run(self, first: int, count: int, resolved: int, top: int) -> bool:
        """Whether `count` ascending sequences from `first` on are all new, given that `top` will
        be the highest one by then. False says nothing: they are judged one by one."""
        return (
            first > top
            and first >= resolved
            and not self.order
            and len(self.sequences) + count <= limits.IN_FLIGHT_PER_PRODUCER_MAX
        )

    def add_run(self, sequences: "array[int]", first_offset: int, resolved: int) -> None:
        """Remember a run that `takes_run` allowed, at consecutive offsets, without a loop."""
        self.resolve(resolved)
        self.sequences.extend(sequences)
        self.offsets.extend(array("Q", range(first_offset, first_offset + len(sequences))))
        self.top = sequences[-1]


def id_bucket(wall_unix_ms: int, window_s: float) -> int:
    """The time (unix ms) until which ids stored now are remembered: at least `window_s`, at most
    one bucket longer. Ids with the same value are forgotten together."""
    window_ms = max(limits.DEDUP_BUCKETS, int(window_s * 1000))
    width = window_ms // limits.DEDUP_BUCKETS
    return (wall_unix_ms // width + 1) * width + window_ms
