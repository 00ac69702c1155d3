"""A producer's lane into one queue: sequences, retries, and their order. Pure.

A `Lane` numbers the messages, keeps each one until its final answer, and decides what to send when:

* Frames hold consecutive sequences. `resolved` states that everything below has been answered (R6).
* When a message is refused for the moment, or its outcome is unknown, nothing new is sent until all
  frames in flight have been answered. Then all refused messages are sent again in sequence order,
  and new messages follow. So no message of a key ever overtakes another (R7), even if the broker
  would let it.
* After a limit was reached, one frame at a time is sent, at the time that the broker names, until
  no message is left to be sent again. A frame that is refused although it came in time, because
  other clients sent too, is halved.
* After a lost connection all unanswered messages are sent again, in order, under their old
  sequences. Those that were stored meanwhile are answered as duplicates, with the original's place
  (P4).

    add -> waiting -- take --> in flight -- final answer --> its ticket
                       ^           |
                       └── again <─┘  refused, unknown, connection lost
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from random import Random
from typing import Final, Protocol

import msgspec

from tocsin.errors import BrokerError, PublishTimeout, TocsinError
from tocsin.proto import wire

LIMITED: Final = "rate_limited"
BACKOFF_S: Final = 0.05
"""The average pause before refused messages are sent again for the first time, in seconds. Each
further refusal doubles it, up to BACKOFF_S_MAX."""
BACKOFF_S_MAX: Final = 5.0
LIMITED_S_MAX: Final = 60.0
"""The longest time for which a lane follows the broker's advice to wait after `rate_limited`, in
seconds. After repeated refusals the usual backoff is added."""
FRAME_BYTES_AIM: Final = 256 * 1024
"""The number of bytes of messages beyond which a publish frame gets no further message; a single
message may be larger."""
LANE_BYTES_MAX: Final = 16 * 1_048_576
"""The number of bytes of a lane's unanswered messages from which on further publishes wait."""


class Receipt(msgspec.Struct, gc=False, omit_defaults=True):
    """The place at which the broker has stored a message, and in `durability` how safely.

    `duplicate` means that the message was stored before, under the same id or sequence. `id` is the
    publisher's, or the name that the broker made; None if the broker gave none.

    A message that is scheduled has no `offset` before it is due. It has a `ticket`, which names it
    in `cancel_scheduled` and `change_scheduled`.
    """

    id: str | None
    partition: int
    offset: int | None
    """The offset in the partition; None if the message is scheduled, and only then."""
    duplicate: bool
    durability: wire.Durability
    ticket: str | None = None
    due_unix_ms: int | None = None
    """The time at which a scheduled message is due, in Unix milliseconds; None for any other one,
    and for a duplicate."""

    @property
    def is_scheduled(self) -> bool:
        """Whether the message waits until it is due."""
        return self.ticket is not None

    @property
    def due(self) -> datetime | None:
        """The time at which a scheduled message is due, in UTC; None where `due_unix_ms` is
        None."""
        return wire.time_at(self.due_unix_ms)


Outcome = Receipt | TocsinError


class OutcomeListener(Protocol):
    """A ticket, which receives the outcome of each message that its caller published."""

    def settle(self, index: int, outcome: Outcome) -> None:
        """Note the final outcome of message `index`. Called once for each."""


class BatchTicket:
    """The ticket of a caller that published many messages: one outcome each, in order."""

    __slots__ = ("done", "left", "outcomes")

    def __init__(self, count: int, done: "Callable[[BatchTicket], None]") -> None:
        self.outcomes: list[Outcome | None] = [None] * count
        self.left = count
        self.done = done

    def settle(self, index: int, outcome: Outcome) -> None:
        """Note the final outcome of message `index`; the last one calls `done`."""
        self.outcomes[index] = outcome
        self.left -= 1
        if not self.left:
            self.done(self)


class _Entry(msgspec.Struct):
    """A message until its final answer."""

    sequence: int
    data: bytes
    ticket: OutcomeListener
    index: int
    deadline: float
    id: str | None = None
    last: BrokerError | None = None
    is_deferred: bool = False
    produced_unix_us: int | None = None


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds that the broker's welcome names: on the messages in one publish frame, and on the
    sequences from a lane's first unanswered message to its last message."""

    messages_per_publish_max: int = 1000
    in_flight_max: int = 10_000


class Lane:
    """A producer's lane into a queue. `now` is in seconds, of any monotonic clock."""

    def __init__(
        self,
        queue: str,
        *,
        rng: Random,
        bounds: Bounds | None = None,
        first_sequence: int = 0,
    ) -> None:
        """Make a lane whose first message gets the number `first_sequence`. It must be above all
        numbers that the producer has ever used for this queue."""
        self.queue = queue
        self.bounds = bounds or Bounds()
        self.sends_time = False
        """Whether each publish frame states when its first message was produced."""
        self.deferred: dict[str, int] = {}
        """The number of messages that the broker has ever refused for the moment, by error code.
        Each message counts once, at its first refusal; one that was refused as `out_of_sequence`
        counts under the code of the latest other refusal."""
        self._reason: str | None = None
        """The code of the last refusal other than `out_of_sequence`; None if there was none."""
        self._unexplained = 0
        """The number of messages that were refused as `out_of_sequence` before any other refusal.
        The next other refusal counts them under its code."""
        self._rng = rng
        self._entries: dict[int, _Entry] = {}  # every unanswered message
        self._waiting: deque[_Entry] = deque()  # of these, never sent
        self._again: list[_Entry] = []  # of these, to be sent again
        self._in_flight: dict[int, list[_Entry]] = {}  # ref -> messages of the frame
        self._next = self._resolved = first_sequence
        self._bytes = 0
        self._refusals = 0
        self._pace: int | None = None
        """The largest number of messages in the next frame while only one frame may be in flight,
        because a limit was reached; None at other times."""
        self._limited = 0
        """The number of refusals in a row because of a limit, since the last frame that was
        admitted at least in part."""
        self._not_before = 0.0
        self._earliest = float("inf")  # no entry's deadline is before this

    @property
    def unanswered(self) -> int:
        """The number of messages without a final answer."""
        return len(self._entries)

    # enforces: R6
    @property
    def resolved(self) -> int:
        """The sequence below which every message has its final answer."""
        return self._resolved

    def room(self) -> int:
        """Return the number of messages that may be added now; 0 means to wait for answers."""
        if self._bytes >= LANE_BYTES_MAX:
            return 0
        return max(0, self.bounds.in_flight_max - (self._next - self._resolved))

    def add(
        self,
        data: bytes,
        ticket: OutcomeListener,
        index: int,
        deadline: float,
        id: str | None = None,
        *,
        produced_unix_us: int | None = None,
    ) -> int:
        """Queue an encoded message; returns its sequence. The caller has checked `room`."""
        sequence = self._next
        self._next = sequence + 1
        entry = _Entry(
            sequence, data, ticket, index, deadline, id, produced_unix_us=produced_unix_us
        )
        self._entries[sequence] = entry
        self._waiting.append(entry)
        self._bytes += len(data)
        self._earliest = min(self._earliest, deadline)
        return sequence

    # enforces: R7
    def take(
        self, refs: Iterator[int], *, now: float, clock_offset_us: int | None = None
    ) -> list[tuple[int, bytes]]:
        """Return the (ref, frame) pairs to send now, in this order, with refs from `refs`.

        The first frame carries `clock_offset_us`, unless that is None.
        """
        is_slow = self._pace is not None
        if self._again or is_slow:
            if self._in_flight or now < self._not_before:
                return []
            entries = sorted(self._again, key=_sequence)
            self._again = []
            entries += self._waiting
        else:
            entries = list(self._waiting)
        if not entries:
            return []
        self._waiting.clear()
        frames: list[tuple[int, bytes]] = []
        for run in self._runs(entries):
            if is_slow and frames:
                self._again += run
                continue
            ref = next(refs)
            self._in_flight[ref] = run
            data = [entry.data for entry in run]
            frame = wire.publish_frame(
                ref,
                self.queue,
                run[0].sequence,
                self._resolved,
                data,
                produced_unix_us=run[0].produced_unix_us if self.sends_time else None,
                clock_offset_us=None if frames else clock_offset_us,
            )
            frames.append((ref, frame))
        return frames

    def _runs(self, entries: list[_Entry]) -> Iterator[list[_Entry]]:
        """Split entries into runs of consecutive sequences, each small enough for a frame."""
        run: list[_Entry] = []
        size, count_max = 0, self._pace or self.bounds.messages_per_publish_max
        for entry in entries:
            if run and (
                entry.sequence != run[-1].sequence + 1
                or size + len(entry.data) > FRAME_BYTES_AIM
                or len(run) >= count_max
            ):
                yield run
                run, size = [], 0
            run.append(entry)
            size += len(entry.data)
        if run:
            yield run

    def on_answer(self, answer: wire.Ok, *, now: float) -> None:
        """Handle the broker's answer to a frame. A ref of an earlier connection is ignored."""
        run = self._in_flight.pop(answer.ref, None)
        if run is None:
            return
        refused = False
        durability, prefix = answer.durability, answer.id_prefix
        for entry, outcome in zip(run, answer.receipts, strict=False):
            if isinstance(outcome, list) and len(outcome) > 1:
                partition, offset = outcome[0], outcome[1]
                name = entry.id
                if name is None and prefix is not None:
                    name = f"{prefix}{partition}-{offset}"
                receipt = Receipt(name, partition, offset, len(outcome) > 2, durability)
                self._settle(entry, receipt)
            elif isinstance(outcome, wire.AnswerBody) and outcome.ticket is not None:
                self._settle(entry, _ticket(entry, outcome, durability))
            else:
                error = _refusal(outcome)
                if error.code == LIMITED and now >= self._not_before:
                    # The messages before this one passed at once, so send no more than their
                    # number.
                    self._limited = 0
                    passed = entry.sequence - run[0].sequence
                    self._on_rate_limit(max(1, passed), error.retry_after_s or 0.0, now)
                refused |= self._refuse(entry, error, now)
        for entry in run[len(answer.receipts) :]:  # a broken answer: nothing is known of these
            refused |= self._refuse(entry, _missing(), now)
        if not refused:
            self._on_success()
        self._advance()

    def on_refusal(self, ref: int, error: BrokerError, *, now: float) -> None:
        """Handle the refusal of a whole frame."""
        run = self._in_flight.pop(ref, [])
        if error.code == LIMITED and now >= self._not_before and run:
            self._on_rate_limit(len(run), error.retry_after_s or 0.0, now)
        for entry in run:
            self._refuse(entry, error, now)
        self._advance()

    def _on_rate_limit(self, count: int, after_s: float, now: float) -> None:
        """Send the next frame not before about `after_s` seconds from now, with at most `count`
        messages, because a frame with this number of messages was over a limit. After repeated
        refusals, halve the number."""
        pause_s = min(LIMITED_S_MAX, after_s * self._rng.uniform(1.0, 1.1))
        self._pace = count if not self._limited else max(1, count // 2)
        if self._limited:  # others are faster, so make room for them, too
            pause_s += self._backoff_s(self._limited)
        self._limited += 1
        self._not_before = now + max(pause_s, BACKOFF_S / 10)

    def _on_success(self) -> None:
        self._limited = 0
        if self._pace is not None:
            self._pace = min(2 * self._pace, self.bounds.messages_per_publish_max)
        if not self._again:
            self._refusals = 0
            self._pace = None

    def _backoff_s(self, refusals: int) -> float:
        pause_s = min(BACKOFF_S_MAX, BACKOFF_S * 2.0 ** min(refusals - 1, 16))
        return pause_s * self._rng.uniform(0.5, 1.5)

    def _refuse(self, entry: _Entry, error: BrokerError, now: float) -> bool:
        """Settle a refused message, or keep it to be sent again. Returns whether it is kept, which
        is False, too, if the message has ended before, for example by its deadline."""
        if not error.retry:
            self._settle(entry, error)
            return False
        if entry.sequence not in self._entries:
            return False  # its caller has given up
        self._again.append(entry)
        self._defer(entry, error.code)
        if error.code == "out_of_sequence" and entry.sequence != self._resolved:
            return True  # it only waits for earlier ones, whose backoff is enough
        entry.last = error
        if now >= self._not_before:
            self._refusals += 1
            pause_s = self._backoff_s(self._refusals)
            self._not_before = now + max(pause_s, error.retry_after_s or 0.0)
        return True

    def _defer(self, entry: _Entry, code: str) -> None:
        """Count a message in `deferred`, once."""
        fresh = int(not entry.is_deferred)
        entry.is_deferred = True
        if code != "out_of_sequence":
            self._reason = code
            fresh += self._unexplained
            self._unexplained = 0
        if self._reason is None:
            self._unexplained += fresh
        elif fresh:
            self.deferred[self._reason] = self.deferred.get(self._reason, 0) + fresh

    def _settle(self, entry: _Entry, outcome: Outcome) -> None:
        if self._entries.pop(entry.sequence, None) is not None:
            self._bytes -= len(entry.data)
            entry.ticket.settle(entry.index, outcome)

    def _advance(self) -> None:
        while self._resolved < self._next and self._resolved not in self._entries:
            self._resolved += 1

    # enforces: P4
    def on_disconnect(self) -> None:
        """Queue the messages in flight to be sent again over the next connection, without a pause,
        because the connection is lost."""
        for run in self._in_flight.values():
            self._again += [entry for entry in run if entry.sequence in self._entries]
        self._in_flight.clear()
        self._not_before = 0.0

    def next_deadline(self) -> float | None:
        """Return when to call `take` and `expire` again, if nothing else happens before; None if no
        message is unanswered."""
        if not self._entries:
            return None
        if self._again and not self._in_flight:
            return min(self._not_before, self._earliest)
        return self._earliest

    def expire(self, *, now: float) -> None:
        """End messages without a final answer by their deadline, with PublishTimeout."""
        if now < self._earliest:
            return
        late = [entry for entry in self._entries.values() if entry.deadline <= now]
        for entry in late:
            self._settle(entry, PublishTimeout(entry.last))
        if late:
            self._again = [e for e in self._again if e.sequence in self._entries]
            self._waiting = deque(e for e in self._waiting if e.sequence in self._entries)
            self._advance()
        self._earliest = min((e.deadline for e in self._entries.values()), default=float("inf"))

    def fail(self, error: TocsinError) -> None:
        """End all unanswered messages with this error, because nothing more will be sent."""
        self._in_flight.clear()
        self._again.clear()
        self._waiting.clear()
        for entry in list(self._entries.values()):
            self._settle(entry, error)
        self._advance()

    def check(self) -> None:
        """Assert the invariants: every unanswered message is in exactly one place (P1)."""
        flying = [e.sequence for run in self._in_flight.values() for e in run]
        flying = [sequence for sequence in flying if sequence in self._entries]
        places = sorted(
            [e.sequence for e in self._waiting] + [e.sequence for e in self._again] + flying
        )
        assert places == sorted(self._entries), "P1: an unanswered message is lost or doubled"
        assert self._bytes == sum(len(e.data) for e in self._entries.values())
        assert self._resolved == min(self._entries, default=self._next), "R6: resolved"
        for run in self._in_flight.values():
            first = run[0].sequence
            assert [e.sequence for e in run] == list(range(first, first + len(run)))


def _sequence(entry: _Entry) -> int:
    return entry.sequence


def _ticket(entry: _Entry, answer: wire.AnswerBody, durability: wire.Durability) -> Receipt:
    """Return the receipt of a message that is scheduled."""
    name = answer.ticket if entry.id is None else entry.id
    return Receipt(
        name,
        answer.partition,
        None,
        answer.duplicate,
        durability,
        answer.ticket,
        answer.due_unix_ms,
    )


def _refusal(answer: wire.PublishAnswer) -> BrokerError:
    """Return the error of an answer that is neither a place nor a ticket."""
    if isinstance(answer, list) or not answer.code:
        return _missing()
    return answer.exception()


def _missing() -> BrokerError:
    return wire.AnswerBody(
        "unknown", "the broker did not answer for this message", True
    ).exception()
