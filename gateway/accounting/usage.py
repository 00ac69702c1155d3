"""Usage of each tenant, principal and queue, minute by minute. Pure.

A `UsageCounter` belongs to one (tenant, principal, queue). Its users hold it and add to it, once
per frame, push or request. A `SessionAccounting` holds those of the queues that its session uses.
When a minute is over, `Usage.lines` returns what was counted in it, and counting begins anew. A
counter that has no holder, and that counted nothing in a whole minute, is forgotten.

There are at most `keys_max` counters (P9). The usage of further keys is summed in one counter,
which is marked as `overflow`. Requests that name no queue, or one that does not exist, are counted
for no queue, so that names that clients make up are no keys. Usage before a principal is known is
counted for no principal.

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
    """A line of a usage file. Counts are of this minute alone. After a restart there may be several
    lines of the same minute and key; readers add them."""

    schema: int = SCHEMA
    minute_unix_ms: int
    """Beginning of the minute, in unix milliseconds."""
    span_s: float
    """Seconds for which was counted: about 60, but less in a broker's first and last minute."""
    tenant: str | None
    principal: str | None
    queue: str | None
    overflow: bool
    """Whether this line is the sum of all keys that had no counter of their own."""
    requests: int
    """Number of HTTP requests, and of frames of clients that were accepted or refused."""
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
    """The number of connections of one kind, and the seconds of all since the minute began."""

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
    """Counts of one key in this minute, as plain numbers to add to."""

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
        """Number of sessions that keep this counter, and add to it without looking it up again."""
        self.connections: dict[str, _OpenConnections] = {}
        self._clear()

    def _clear(self) -> None:
        self.requests = self.messages_in = self.bytes_in = self.duplicates = 0
        self.messages_out = self.bytes_out = self.redeliveries = 0
        self.refusals: dict[str, int] = {}

    def count_stored(self, messages: int, size: int) -> None:
        """Count new messages, of `size` bytes of JSON together as they are stored."""
        self.messages_in += messages
        self.bytes_in += size

    def count_delivered(self, messages: int, size: int) -> None:
        """Count messages that were given to clients, of `size` bytes of JSON together."""
        self.messages_out += messages
        self.bytes_out += size

    def count_refusal(self, code: str) -> None:
        """Count a request, frame or message that was refused."""
        self.refusals[code] = self.refusals.get(code, 0) + 1

    def connect(self, carrier: str, *, now: float) -> None:
        """Count one more open connection; `carrier`: "websocket" or "long-poll". `disconnect` must
        be called on the same counter."""
        if carrier not in self.connections:
            self.connections[carrier] = _OpenConnections(now)
        self.connections[carrier].change(1, now)

    def disconnect(self, carrier: str, *, now: float) -> None:
        """Count one open connection of this carrier less."""
        self.connections[carrier].change(-1, now)

    @property
    def is_idle(self) -> bool:
        """Whether nothing was counted since the last `take`, no connection is open, and no holder
        can still add to this counter."""
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
        """Return what was counted since the last `take`, and begin to count anew. None: nothing was
        counted."""
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
    """All counters of a gateway. If not `is_on`, no usage is reported, only refusals."""

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
        """Code → number of refusals, in the minutes that are over."""
        self._minute, self._begun = _minute_of(wall), now

    def __len__(self) -> int:
        return len(self._counters)

    def counter(self, tenant: str | None, principal: str | None, queue: str | None) -> UsageCounter:
        """Return the counter of a key; the one of all further keys if there are `keys_max` already,
        or usage is off. Add to it at once, or raise its `holders`, or it may be forgotten."""
        key = (tenant, principal, queue)
        found = self._counters.get(key)
        if found is None:
            if not self.is_on or len(self._counters) >= self._keys_max:
                return self._overflow
            found = self._counters[key] = UsageCounter(key)
        return found

    def due_s(self, *, wall: float) -> float:
        """Return the number of seconds until this minute is over."""
        return MINUTE_S - wall % MINUTE_S

    def lines(self, *, now: float, wall: float) -> list[UsageLine]:
        """End the minute if it is over, and return what was counted in it; [] if it is not over, or
        usage is off."""
        return self.end(now=now, wall=wall) if _minute_of(wall) != self._minute else []

    def end(self, *, now: float, wall: float) -> list[UsageLine]:
        """End the minute now, whatever the time is, and return what was counted in it; [] if usage
        is off."""
        minute_unix_ms, span_s = self._minute * MINUTE_S * 1000, now - self._begun
        self._minute, self._begun = _minute_of(wall), now
        lines = list(self._take_all(minute_unix_ms, span_s, now))
        return lines if self.is_on else []

    def refusals(self) -> dict[str, int]:
        """Return code → number of refusals since this gateway began. They are counted whether or
        not usage is on."""
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
        """Assert that there are at most `keys_max` counters (P9)."""
        assert len(self._counters) <= self._keys_max, "P9"


Exists = Callable[[Principal, str], bool]
"""Function that says whether a queue of this name exists for this principal."""


class SessionAccounting:
    """The accounting of one session: its usage under its principal, its acts in the audit trail.
    `AccountingWriter.session` makes it. `address`: the client's, if it is known."""

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
        """Counter of requests that name no queue."""
        if admission is not None:
            self.admit(admission)

    def admit(self, admission: Admission) -> None:
        """Count under the principal of this admission from now on. Called again when the client
        presents another credential."""
        actor = Actor.of(admission, self._address)
        if actor == self.actor:
            return
        self.actor = actor
        self._audit.count_access(actor)
        self._release()
        self._own = self._hold(None)

    def move_to(self, other: "SessionAccounting") -> None:
        """End this accounting, because its transport goes on with another session, to which the
        client has come back. `other`, the accounting of that session, gets address and actor."""
        other._address, other.actor = self._address, self.actor
        self.close()

    def reject(self, error: TocsinError) -> None:
        """Count a credential of the client that was refused with this error, in the usage and for
        the audit trail."""
        self._audit.note_rejection(self.actor, error.code.name, *why_of(error))
        self._own.count_refusal(error.code.name)

    # --- Counting -------------------------------------------------------------------------------

    def counter(self, queue: str) -> UsageCounter:
        """Return the counter of a queue for the session's principal; that of requests without a
        queue, if no such queue exists."""
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
        """Count each frame of the client, by its effect, as a request; a `Close` is none."""
        for effect in effects:
            # isinstance would ask the metaclass about each mismatch, which takes ten times as long.
            if type(effect) is frames.Publish or type(effect) is frames.Subscribe:
                self.counter(effect.queue).requests += 1
            elif type(effect) is not frames.Close:
                self._own.requests += 1

    def count_refusal(self, code: str, queue: str | None = None) -> None:
        """Count a frame of the client that was refused."""
        (self._own if queue is None else self.counter(queue)).count_refusal(code)

    # --- Connections ----------------------------------------------------------------------------

    def connect(self, carrier: Transport | None) -> None:
        """Count the session's connection over this transport from now on. Without a transport, or
        if a connection is counted already, nothing happens."""
        if carrier is not None and self._connection is None:
            self._own.connect(carrier, now=self._now())
            self._connection = (self._own, carrier)

    def disconnect(self) -> None:
        """Count the session's connection no longer. A second call does nothing."""
        if self._connection is not None:
            counter, carrier = self._connection
            counter.disconnect(carrier, now=self._now())
            self._connection = None

    def close(self) -> None:
        """End the accounting of a session that is over. Requests that are still answered are
        counted nevertheless."""
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
        """Note an act of the session's principal in the audit trail."""
        self._audit.note(action, self.actor, queue=queue, group=group)


def _add(sums: dict[str, int], more: dict[str, int]) -> None:
    for name, count in more.items():
        sums[name] = sums.get(name, 0) + count


def _minute_of(wall: float) -> int:
    return int(wall // MINUTE_S)
