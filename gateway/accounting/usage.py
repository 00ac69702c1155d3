"""What each tenant, principal and queue used, minute by minute. Pure.

Who does something holds a Counter and adds to it, once per frame, push or request; when a minute is
over, `lines` says what was counted in it and begins anew. A counter that nobody holds, and that
counted nothing in a whole minute, is forgotten.

There is one for each (tenant, principal, queue), `keys_max` of them at most (P9): what belongs to
further ones is summed in one that is marked as `overflow`. What names no queue, or one that is not
there, is counted for no queue; what comes before anybody has shown who he is, for no principal.

`now` is monotonic and measures connections; `wall` (unix seconds) says which minute it is.
"""

from collections.abc import Iterator
from typing import Final

import msgspec

from push import limits

SCHEMA: Final = 1
MINUTE_S: Final = 60
Key = tuple[str | None, str | None, str | None]
"""(tenant, principal, queue)."""


class UsageLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a usage file. Counts are of this minute alone; lines of the same minute and key,
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
    """This is the sum of what had no line of its own."""
    requests: int
    """HTTP requests, and frames of clients that were heeded or refused."""
    messages_in: int
    bytes_in: int
    duplicates: int
    messages_out: int
    bytes_out: int
    redeliveries: int
    refusals: int
    """Of requests, frames and single messages."""
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
    """What one key has come to in this minute. Plain numbers to add to."""

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
        """Who may add to it without asking for it again."""
        self.connections: dict[str, _OpenConnections] = {}
        self._clear()

    def _clear(self) -> None:
        self.requests = self.messages_in = self.bytes_in = self.duplicates = 0
        self.messages_out = self.bytes_out = self.redeliveries = 0
        self.refusals: dict[str, int] = {}

    def stored(self, messages: int, size: int) -> None:
        """New messages came in, `size` bytes of JSON as they are stored."""
        self.messages_in += messages
        self.bytes_in += size

    def given(self, messages: int, size: int) -> None:
        """Messages went out, `size` bytes of JSON."""
        self.messages_out += messages
        self.bytes_out += size

    def refused(self, code: str) -> None:
        """A request, frame or message was."""
        self.refusals[code] = self.refusals.get(code, 0) + 1

    def connected(self, carrier: str, *, now: float) -> None:
        """A connection began: a "websocket", or one by "long-poll". Say when it ends to the same
        counter."""
        if carrier not in self.connections:
            self.connections[carrier] = _OpenConnections(now)
        self.connections[carrier].change(1, now)

    def disconnected(self, carrier: str, *, now: float) -> None:
        """It ended."""
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
        """What was counted; then it begins anew. None: nothing was."""
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
        """By code, in the minutes that are over."""
        self._minute, self._begun = _minute_of(wall), now

    def __len__(self) -> int:
        return len(self._counters)

    def counter(self, tenant: str | None, principal: str | None, queue: str | None) -> UsageCounter:
        """That of a key. Add to it at once, or `hold` it."""
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
        """What was counted in the minute that is over; none, where it is not."""
        return self.end(now=now, wall=wall) if _minute_of(wall) != self._minute else []

    def end(self, *, now: float, wall: float) -> list[UsageLine]:
        """What was counted since the last time; the minute ends here, whatever the time is."""
        minute_unix_ms, span_s = self._minute * MINUTE_S * 1000, now - self._begun
        self._minute, self._begun = _minute_of(wall), now
        lines = list(self._taken(minute_unix_ms, span_s, now))
        return lines if self.is_on else []

    def refusals(self) -> dict[str, int]:
        """What was refused since the beginning, by code; whether or not usage is on."""
        found = dict(self._refused)
        for counter in (*self._counters.values(), self._overflow):
            _add(found, counter.refusals)
        return found

    def _taken(self, minute_unix_ms: int, span_s: float, now: float) -> Iterator[UsageLine]:
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


def _add(sums: dict[str, int], more: dict[str, int]) -> None:
    for name, count in more.items():
        sums[name] = sums.get(name, 0) + count


def _minute_of(wall: float) -> int:
    return int(wall // MINUTE_S)
