"""What was given out and what became of it: the dispatched and the settled spans of one place in a
group, and the dispatched spans of readers. Pure, but for the log's clock.

What a place is given at once is one span for each attempt, cause and time of
certification; what it settles within SETTLED_US is one for each outcome.
"""

from collections.abc import Sequence
from typing import Final, Protocol, cast

from gateway.deliverylog.chunks import SETTLED, Counts
from gateway.deliverylog.clock import Clock
from gateway.deliverylog.lines import Carrier, Cause, Ended, Named, encode
from gateway.facts_values import Transport
from metadata.catalog import Queue

Run = tuple[int, int, int]
"""(partition, first offset, count)."""
SETTLED_US: Final = 500
"""What is settled within so many microseconds may share its time, and a line."""
PUSHES_BYTES_MAX: Final = 32 * 1024
"""Of a line: what comes then is in another one."""
CARRIERS: Final[dict[Transport, Carrier]] = {"websocket": "websocket", "long-poll": "long_poll"}


class Session(Protocol):
    """Whoever is given something over a session."""

    @property
    def session_id(self) -> str: ...

    @property
    def transport(self) -> Transport | None: ...


class Given:
    """A dispatched span; `session` None: that of a pull, or the `sessions` of a fan-out. Times are
    monotonic microseconds."""

    __slots__ = (
        "attempt", "cause", "certified_us", "given_us", "group", "is_counted", "is_open",
        "published_unix_ms", "queue", "runs", "session", "sessions", "taker", "transport",
    )  # fmt: skip

    def __init__(
        self, queue: Queue, given_us: int, published_unix_ms: int, *, attempt: int, cause: Cause,
        certified_us: int | None, transport: Carrier | None, group: str | None = None,
        session: str | None = None, sessions: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.queue = queue
        self.given_us = given_us
        self.published_unix_ms = published_unix_ms
        self.attempt = attempt
        self.cause: Cause = cause
        self.certified_us = certified_us
        self.transport: Carrier | None = transport
        self.group = group
        self.session = session
        self.sessions = sessions
        self.runs: list[tuple[int, int, int]] = []
        self.is_open = True
        """It has not been written to its socket: more may be added."""
        self.is_counted = False
        """Its messages are, before it has a line."""
        self.taker: object = None
        """Of a pull: whose answer takes it."""

    def alone(self, session: str) -> "Given":
        """The same, of one of its `sessions`."""
        one = Given(
            self.queue, self.given_us, self.published_unix_ms, attempt=self.attempt,
            cause=self.cause, certified_us=self.certified_us, transport=self.transport,
            session=session,
        )  # fmt: skip
        one.runs = self.runs
        return one


class Done:
    """A settled span."""

    __slots__ = ("at_us", "bytes", "count", "outcome", "pushes", "reason")

    def __init__(self, outcome: Ended, reason: str | None, at_us: int) -> None:
        self.outcome: Ended = outcome
        self.reason = reason
        self.at_us = at_us
        self.pushes: list[bytes] = []
        """Each as it stands in the line: hundreds of numbers that came with acks are written down
        as they come, and nothing looks at them again, the garbage collector neither."""
        self.bytes = 0
        """Of these."""
        self.count = 0


class PlaceLog(Protocol):
    """The delivery log, as a place writes to it. The log holds places, so they cannot import it."""

    @property
    def clock(self) -> Clock: ...

    @property
    def counts(self) -> Counts:
        """What has happened, by kind; a place adds to it."""

    @property
    def holds(self) -> bool:
        """Whether anything that was given waits for its line."""

    def now_us(self) -> int:
        """Monotonic microseconds."""

    def given(self, span: Given, key: object = None) -> None:
        """Take a span that is on its way: written with the next flush, or with what `key` takes."""

    def ends(self, session: str | None, given_us: int) -> None:
        """Write the line of what this session was given at `given_us`, if it is still held."""

    def settling(self, place: "Place") -> None:
        """Take the span that the place has begun with the next hand-over."""

    def settled(self, place: "Place", span: Done) -> None:
        """Write the line of a settled span that has ended."""


class Place:
    """One place in a group. `session` None: that of the pulls, or with `is_nobody` of the broker
    itself."""

    __slots__ = (
        "_carrier", "_done", "_given", "_log", "group", "is_nobody", "queue", "session", "taker",
    )  # fmt: skip

    def __init__(
        self, log: PlaceLog, queue: Queue, group: str, session: Session | None = None, *,
        is_nobody: bool = False,
    ) -> None:  # fmt: skip
        self._log = log
        self.queue = queue
        self.group = group
        self.session = session
        self.is_nobody = is_nobody
        self.taker: object = None
        """Of pulls: whose answer takes what is given next."""
        self._given: Given | None = None
        self._done: Done | None = None

    @property
    def transport(self) -> Carrier | None:
        """What carries it now."""
        if self.session is None:
            return "internal" if self.is_nobody else "http"
        carrier = self.session.transport
        return CARRIERS[carrier] if carrier is not None else None

    @property
    def session_id(self) -> str | None:
        """Its session's, where it has one."""
        return self.session.session_id if self.session is not None else None

    def given(
        self, runs: Sequence[Run], attempt: int, cause: Cause, certified_us: int | None, *,
        published_unix_ms: int,
    ) -> int:  # fmt: skip
        """It is given these; call it where they are on their way out. Returns when that is. What
        goes out until the sockets are written is one span."""
        span = self._given
        if (
            span is None
            or not span.is_open
            or span.certified_us != certified_us
            or span.cause != cause
            or span.attempt != attempt
            or span.taker is not self.taker
        ):
            span = self._given = self._begin(attempt, cause, certified_us, published_unix_ms)
        span.runs += runs
        return span.given_us

    def _begin(
        self, attempt: int, cause: Cause, certified_us: int | None, published_unix_ms: int
    ) -> Given:
        log, transport = self._log, self.transport
        span = Given(
            self.queue, log.now_us(), published_unix_ms,
            attempt=attempt, cause=cause, certified_us=certified_us, transport=transport,
            group=self.group, session=self.session_id,
        )  # fmt: skip
        if self.session is None:
            span.taker = self.taker
            log.given(span, self.taker)
        elif transport == "long_poll":
            span.is_open = False  # it may wait for a poll, and what comes then is another one
            log.given(span, span.session)
        else:
            log.given(span)
        return span

    def settled(self, outcome: Ended, push: Named, count: int, *, reason: str | None = None) -> int:
        """This became of what `push` names, `count` messages in all: [partition, when they were
        given out (None: that is not known), first, last, first, last, …], or a mask behind the
        first. The list is the log's from now on. Returns when that is."""
        log, span = self._log, self._done
        now_us = log.now_us()
        if (
            span is None
            or now_us - span.at_us > SETTLED_US
            or span.outcome != outcome
            or span.reason != reason
            or span.bytes >= PUSHES_BYTES_MAX
        ):
            if span is not None:
                log.settled(self, span)
            span = self._done = Done(outcome, reason, now_us)
            log.settling(self)
        given_us = cast(int | None, push[1])
        if given_us is not None:
            if log.holds:
                log.ends(self.session_id, given_us)
            # No step of the clock is noticed until the span has its line.
            push[1] = given_us + log.clock.base_us
        span.pushes.append(encoded := encode(push))
        span.bytes += len(encoded)
        span.count += count
        log.counts[SETTLED] += count
        return now_us

    def cut(self) -> None:
        """Let what comes now be in other lines than what was: an epoch begins or has ended."""
        if self._given is not None:
            self._given.is_open = False
        span = self.take_done()
        if span is not None:
            self._log.settled(self, span)

    def take_done(self) -> Done | None:
        """What was settled last, for the log to write; the next span begins anew."""
        done, self._done = self._done, None
        return done
