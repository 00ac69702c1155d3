"""Usage: what each tenant, principal and queue used, minute by minute. Pure.

A `UsageCounter` belongs to one (tenant, principal, queue). Its users hold it and add to it, once
per frame, push or request; a `SessionAccounting` holds those of the queues that its session works
with. When a minute is over, `Usage.lines` says what was counted in it, and counting begins anew. A
counter that nobody holds, and that counted nothing in a whole minute, is forgotten.

There are `keys_max` counters at most (P9): what belongs to further ones is summed in one that is
marked as `overflow`. Requests that name no queue, or one that does not exist, are counted for no
queue: names that clients make up are no keys. What comes before a principal is known is counted for
no principal.

`now` is monotonic and measures connections; `wall` (unix seconds) says which minute it is.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

import msgspec

from gateway.accounting.audit import Actor, Audit, why_of
from gateway.models import Admission, Transport
from gateway.wire import frames
from metadata.catalog import Principal
from push import limits
from push.errors import TocsinError

SCHEMA: Final = 1
MINUTE_S: Final = 60
Key = tuple[str | None, str | None, str | None]
"""(tenant, principal, queue)."""


class UsageLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a usage file. Counts are of this minute alone; lines of the same minute and key,
    which a restart makes, are to be added."""

    schema: int = SCHEMA
    minute_unix_ms: int
    """When the minute began."""
    span_s: float
    """How long was counted: 60, but for a broker's first and last minute."""
    tenant: str | None
    principal: str | None
    queue: str | None
    overflow: bool
    """Whether this is the sum of what had no line of its own."""
    requests: int
    """HTTP requests, and frames of clients that were heeded or refused."""
    messages_in: int
    bytes_in: int
    duplicates: int
    messages_out: int
    bytes_out: int
    redeliveries: int
    refusals: int
    """Number of refused requests, frames and single messages."""
    refusals_by_code: dict[str, int]
    websocket_s: float
    long_poll_s: float


class _OpenConnections:
    """The connections of one kind: how many, and the seconds of all since the minute began."""

    __slots__ = ("count", "seconds", "since")

    def __init__(self, now: float) -> None:
        self.count = 0
        self.seconds = 0.0
        self.since = now

    def change(self, by: int, now: float) -> None:
        self.seconds += self.count * (now - self.since)
        self.since = now
        self.count += by


class UsageCounter:
    """Counts of one key in this minute. Plain numbers to add to."""

    __slots__ = (
        "bytes_in",
        "bytes_out",
        "connections",
        "duplicates",
        "holders",
        "is_overflow",
        "key",
        "messages_in",
        "messages_out",
        "redeliveries",
        "refusals",
        "requests",
    )

    def __init__(self, key: Key, *, is_overflow: bool = False) -> None:
        self.key = key
        self.is_overflow = is_overflow
        self.holders = 0
        """Number of holders that may add to it without asking for it again."""
        self.connections: dict[str, _OpenConnections] = {}
        self._clear()

    def _clear(self) -> None:
        self.requests = self.messages_in = self.bytes_in = self.duplicates = 0
        self.messages_out = self.bytes_out = self.redeliveries = 0
        self.refusals: dict[str, int] = {}

    def count_stored(self, messages: int, size: int) -> None:
        """Count new messages, of `size` bytes of JSON as they are stored."""
        self.messages_in += messages
        self.bytes_in += size

    def count_delivered(self, messages: int, size: int) -> None:
        """Count messages that went out, of `size` bytes of JSON."""
        self.messages_out += messages
        self.bytes_out += size

    def count_refusal(self, code: str) -> None:
        """Count a request, frame or message that was refused."""
        self.refusals[code] = self.refusals.get(code, 0) + 1

    def connect(self, carrier: str, *, now: float) -> None:
        """Begin a connection: a "websocket", or one by "long-poll". The same counter is to end
        it."""
        if carrier not in self.connections:
            self.connections[carrier] = _OpenConnections(now)
        self.connections[carrier].change(1, now)

    def disconnect(self, carrier: str, *, now: float) -> None:
        """End a connection."""
        self.connections[carrier].change(-1, now)

    @property
    def is_idle(self) -> bool:
        """Whether it has counted nothing and nobody can add to it without asking for it."""
        return not (self.holders or self.connections or self._has_counted)

    @property
    def _has_counted(self) -> bool:
        return bool(
            self.requests
            or self.messages_in
            or self.messages_out
            or self.duplicates
            or self.refusals
            or self.connections
        )

    def take(self, minute_unix_ms: int, span_s: float, *, now: float) -> UsageLine | None:
        """Return what was counted, and begin anew. None: nothing was."""
        if not self._has_counted:
            return None
        tenant, principal, queue = self.key
        line = UsageLine(
            minute_unix_ms=minute_unix_ms,
            span_s=round(span_s, 3),
            tenant=tenant,
            principal=principal,
            queue=queue,
            overflow=self.is_overflow,
            requests=self.requests,
            messages_in=self.messages_in,
            bytes_in=self.bytes_in,
            duplicates=self.duplicates,
            messages_out=self.messages_out,
            bytes_out=self.bytes_out,
            redeliveries=self.redeliveries,
            refusals=sum(self.refusals.values()),
            refusals_by_code=self.refusals,
            websocket_s=self._seconds("websocket", now),
            long_poll_s=self._seconds("long-poll", now),
        )
        self._clear()
        return line

    def _seconds(self, carrier: str, now: float) -> float:
        opened = self.connections.get(carrier)
        if opened is None:
            return 0.0
        opened.change(0, now)
        seconds, opened.seconds = opened.seconds, 0.0
        if not opened.count:
            del self.connections[carrier]
        return round(seconds, 3)


class Usage:
    """All counters of a gateway. `is_on` False: what is added goes nowhere."""

    def __init__(
        self,
        *,
        now: float,
        wall: float,
        keys_max: int = limits.USAGE_KEYS_MAX,
        is_on: bool = True,
    ) -> None:
        self._keys_max = keys_max
        self.is_on = is_on
        self._counters: dict[Key, UsageCounter] = {}
        self._overflow = UsageCounter((None, None, None), is_overflow=True)
        self._refused: dict[str, int] = {}
        """Refusals by code, in the minutes that are over."""
        self._minute, self._begun = _minute_of(wall), now

    def __len__(self) -> int:
        return len(self._counters)

    def counter(self, tenant: str | None, principal: str | None, queue: str | None) -> UsageCounter:
        """Return the counter of a key. Add to it at once, or `hold` it."""
        key = (tenant, principal, queue)
        found = self._counters.get(key)
        if found is None:
            if not self.is_on or len(self._counters) >= self._keys_max:
                return self._overflow
            found = self._counters[key] = UsageCounter(key)
        return found

    def due_s(self, *, wall: float) -> float:
        """In how many seconds this minute is over."""
        return MINUTE_S - wall % MINUTE_S

    def lines(self, *, now: float, wall: float) -> list[UsageLine]:
        """Return what was counted in the minute that is over; nothing, where it is not."""
        return self.end(now=now, wall=wall) if _minute_of(wall) != self._minute else []

    def end(self, *, now: float, wall: float) -> list[UsageLine]:
        """Return what was counted since the last call; the minute ends here, whatever the time
        is."""
        minute_unix_ms, span_s = self._minute * MINUTE_S * 1000, now - self._begun
        self._minute, self._begun = _minute_of(wall), now
        lines = list(self._take_all(minute_unix_ms, span_s, now))
        return lines if self.is_on else []

    def refusals(self) -> dict[str, int]:
        """Return the number of refusals since the beginning, by code; whether or not usage is
        on."""
        found = dict(self._refused)
        for counter in (*self._counters.values(), self._overflow):
            _add(found, counter.refusals)
        return found

    def _take_all(self, minute_unix_ms: int, span_s: float, now: float) -> Iterator[UsageLine]:
        for counter in (*self._counters.values(), self._overflow):
            _add(self._refused, counter.refusals)
        for key, counter in list(self._counters.items()):
            line = counter.take(minute_unix_ms, span_s, now=now)
            if line is not None:
                yield line
            elif counter.is_idle:
                del self._counters[key]
        line = self._overflow.take(minute_unix_ms, span_s, now=now)
        if line is not None:
            yield line

    def check(self) -> None:
        """Assert what always holds (P9)."""
        assert len(self._counters) <= self._keys_max, "P9"


Exists = Callable[[Principal, str], bool]
"""Whether a queue of this name exists, for this principal."""


class SessionAccounting:
    """The accounting of one session: its usage under its principal, its acts in the audit trail.
    `AccountingWriter.session` makes it. `address`: the client's, where it is known."""

    __slots__ = (
        "_address",
        "_audit",
        "_connection",
        "_exists",
        "_is_closed",
        "_now",
        "_own",
        "_queues",
        "_usage",
        "actor",
    )

    def __init__(
        self,
        usage: "Usage",
        audit: Audit,
        exists: Exists,
        address: str | None = None,
        admission: Admission | None = None,
        *,
        now: Callable[[], float],
    ) -> None:
        self._usage = usage
        self._audit = audit
        self._now = now
        self._exists = exists
        self._address = address
        self._queues: dict[str, UsageCounter] | None = None
        self._connection: tuple[UsageCounter, Transport] | None = None
        self._is_closed = False
        self.actor = Actor(address=address)
        self._own = self._hold(None)
        """Counter of what names no queue."""
        if admission is not None:
            self.admit(admission)

    def admit(self, admission: Admission) -> None:
        """Count under this admission from now on; called again with another credential."""
        actor = Actor.of(admission, self._address)
        if actor == self.actor:
            return
        self.actor = actor
        self._audit.count_access(actor)
        self._release()
        self._own = self._hold(None)

    def move_to(self, other: "SessionAccounting") -> None:
        """Let another session go on over this transport: the client has come back to it."""
        other._address, other.actor = self._address, self.actor
        self.close()

    def reject(self, error: TocsinError) -> None:
        """Count a credential that was not good."""
        self._audit.note_rejection(self.actor, error.code.name, *why_of(error))
        self._own.count_refusal(error.code.name)

    # --- Counting -------------------------------------------------------------------------------

    def counter(self, queue: str) -> UsageCounter:
        """Return the counter of a queue."""
        queues = self._queues
        found = queues.get(queue) if queues is not None else None
        return found if found is not None else self._find(queue)

    def _find(self, queue: str) -> UsageCounter:
        principal = self.actor.principal
        if principal is None or not self._exists(principal, queue):
            return self._own
        if self._queues is None:
            self._queues = {}
        if self._is_closed or len(self._queues) >= limits.USAGE_QUEUES_PER_SESSION_MAX:
            return self._look_up(queue)
        counter = self._hold(queue)
        if not counter.is_overflow or not self._usage.is_on:
            self._queues[queue] = counter
        return counter

    def _look_up(self, queue: str | None) -> UsageCounter:
        principal = self.actor.principal
        if principal is None:
            return self._usage.counter(None, None, queue)
        return self._usage.counter(principal.tenant, principal.name, queue)

    def _hold(self, queue: str | None) -> UsageCounter:
        counter = self._look_up(queue)
        counter.holders += 1
        return counter

    def count_requests(self, effects: Iterable[object]) -> None:
        """Count a client's messages: each frame of them is a request."""
        for effect in effects:
            # Not isinstance: that asks the metaclass of what it is not, ten times as long.
            if type(effect) is frames.Publish or type(effect) is frames.Subscribe:
                self.counter(effect.queue).requests += 1
            elif type(effect) is not frames.Close:
                self._own.requests += 1

    def count_refusal(self, code: str, queue: str | None = None) -> None:
        """Count a frame of the client that was refused."""
        (self._own if queue is None else self.counter(queue)).count_refusal(code)

    # --- Connections ----------------------------------------------------------------------------

    def connect(self, carrier: Transport | None) -> None:
        """Begin its connection over a transport. None, or it has one: nothing happens."""
        if carrier is not None and self._connection is None:
            self._own.connect(carrier, now=self._now())
            self._connection = (self._own, carrier)

    def disconnect(self) -> None:
        """End its connection. Again: nothing happens."""
        if self._connection is not None:
            counter, carrier = self._connection
            counter.disconnect(carrier, now=self._now())
            self._connection = None

    def close(self) -> None:
        """End the accounting of a session that is over. What is still answered is counted all the
        same."""
        self.disconnect()
        if not self._is_closed:
            self._is_closed = True
            self._release()

    def _release(self) -> None:
        queues = self._queues or {}
        for counter in (self._own, *queues.values()):
            counter.holders -= 1
        self._queues = None

    # --- Acts -----------------------------------------------------------------------------------

    def note(self, action: str, *, queue: str, group: str | None = None) -> None:
        """Note an act of its principal in the trail."""
        self._audit.note(action, self.actor, queue=queue, group=group)


def _add(sums: dict[str, int], more: dict[str, int]) -> None:
    for name, count in more.items():
        sums[name] = sums.get(name, 0) + count


def _minute_of(wall: float) -> int:
    return int(wall // MINUTE_S)
