"""What is written down beside the messages: usage, minute by minute, and the audit trail.

The shell around gateway.accounting.usage and gateway.accounting.audit: a timer that ends the
minutes, and one thread that writes. Nobody waits for usage: a minute that a full disk did not take
is written with the next one, SIGTERM writes the last one, and a kill -9 loses at most the current
one. Without a data folder everything is counted, and nothing is kept.

What one session does, written down: its usage under its principal, its acts in the audit trail.

A session keeps the counters of the queues it works with, so that counting is an addition. What
names a queue that is not there is counted for none: names that clients make up are no keys.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import msgspec

from gateway.accounting.audit import NOT_LET_IN, Actor, Audit, AuditTrail, why_of
from gateway.accounting.journal import Journal
from gateway.accounting.usage import Usage, UsageCounter, UsageLine
from gateway.models import Admission, Transport
from gateway.wire import frames
from metadata.catalog import Principal
from push import limits
from push.errors import TocsinError

logger = logging.getLogger("tocsin.usage")
FOLDER: Final = "usage"
NAME: Final = "usage"
USAGE_BYTES_MAX: Final = 256 * 1_048_576
AUDIT_BYTES_MAX: Final = 1024 * 1_048_576
STOP_S: Final = 5.0
"""What the last lines have to be written in."""


class AccountingWriter:
    """See the module. Made by `open`, or directly where nothing is to be kept."""

    def __init__(
        self,
        *,
        usage: Usage | None = None,
        journal: Journal | None = None,
        trail: AuditTrail | None = None,
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`now`: monotonic seconds."""
        self.now = now
        self._wall = wall
        self._journal = journal
        self._lines: deque[UsageLine] = deque(maxlen=limits.USAGE_LINES_KEPT_MAX)
        """What the disk did not take yet; the writer's."""
        self._is_failing = False
        self._timer: asyncio.TimerHandle | None = None
        is_kept = journal is not None or trail is not None
        self._executor = ThreadPoolExecutor(1, "books") if is_kept else None
        self.usage = usage if usage is not None else Usage(now=now(), wall=wall())
        self.audit = Audit(trail, self._executor, wall=wall)

    @classmethod
    def open(
        cls,
        data_dir: Path,
        *,
        is_usage_on: bool = True,
        usage_bytes_max: int = USAGE_BYTES_MAX,
        audit_bytes_max: int = AUDIT_BYTES_MAX,
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> "AccountingWriter":
        """Those of a data folder, which the caller holds. Blocks.

        Raises:
            OSError: the trail that is there cannot be read.
        """
        return cls(
            usage=Usage(now=now(), wall=wall(), is_on=is_usage_on),
            journal=Journal(data_dir / FOLDER, NAME, bytes_max=usage_bytes_max),
            trail=AuditTrail.open(data_dir, audit_bytes_max),
            now=now,
            wall=wall,
        )

    def handshake_refused(self, error: TocsinError, address: str | None) -> None:
        """A WebSocket was not opened, which is a request of nobody known."""
        code = error.code.name
        counter = self.usage.counter(None, None, None)
        counter.requests += 1
        counter.refused(code)
        if code in NOT_LET_IN:
            self.audit.not_let_in(Actor(address=address), code, *why_of(error))

    def start(self) -> None:
        """From now on minutes end."""
        if self._executor is not None:
            due_s = self.usage.due_s(wall=self._wall())
            self._timer = asyncio.get_running_loop().call_later(due_s, self._turn)

    def _turn(self) -> None:
        self.audit.turn()
        self._put(self.usage.lines(now=self.now(), wall=self._wall()))
        self.start()

    def _put(self, lines: Sequence[UsageLine]) -> None:
        if self._executor is not None and self._journal is not None and lines:
            self._executor.submit(self._write, self._journal, lines)

    def _write(self, journal: Journal, lines: Sequence[UsageLine]) -> None:
        """In the writer's thread, where lines are encoded, too: there may be thousands."""
        lost = len(self._lines) + len(lines) - limits.USAGE_LINES_KEPT_MAX
        self._lines.extend(lines)
        encoded = b"".join(msgspec.json.encode(line) + b"\n" for line in self._lines)
        try:
            journal.append(encoded, wall=self._wall())
        except OSError as error:
            if not self._is_failing:
                logger.error("usage cannot be written: %s; it is tried again", error)
            self._is_failing = True
            if lost > 0:
                logger.error("%d lines of usage are lost", lost)
        else:
            self._lines.clear()
            self._is_failing = False

    async def stop(self) -> None:
        """Write what is left, the minute that is not over yet too."""
        if self._timer is not None:
            self._timer.cancel()
        executor, self._executor = self._executor, None
        if executor is None:
            return
        self.audit.turn()
        lines = self.usage.end(now=self.now(), wall=self._wall())
        if self._journal is not None and lines:
            executor.submit(self._write, self._journal, lines)
        closing = asyncio.wrap_future(executor.submit(self._close))
        await asyncio.wait((closing,), timeout=STOP_S)
        executor.shutdown(wait=False)

    def _close(self) -> None:
        self.audit.close()
        if self._journal is not None:
            self._journal.close()


Exists = Callable[[Principal, str], bool]
"""Whether there is a queue of this name, to this principal."""


class SessionAccounting:
    """See the module. `address`: the client's, where it is known."""

    __slots__ = (
        "_address",
        "_books",
        "_connected",
        "_exists",
        "_is_closed",
        "_queues",
        "own",
        "who",
    )

    def __init__(
        self,
        books: AccountingWriter,
        exists: Exists,
        address: str | None = None,
        admission: Admission | None = None,
    ) -> None:
        self._books = books
        self._exists = exists
        self._address = address
        self._queues: dict[str, UsageCounter] | None = None
        self._connected: tuple[UsageCounter, Transport] | None = None
        self._is_closed = False
        self.who = Actor(address=address)
        self.own = self._held(None)
        """What names no queue."""
        if admission is not None:
            self.admitted(admission)

    def admitted(self, admission: Admission) -> None:
        """It is clear who it is. Saying it again with another credential counts from there on."""
        who = Actor.of(admission, self._address)
        if who == self.who:
            return
        self.who = who
        self._books.audit.access.granted(who)
        self._release()
        self.own = self._held(None)

    def moved_to(self, other: "SessionAccounting") -> None:
        """The client has come back to another session, which goes on over this transport."""
        other._address, other.who = self._address, self.who
        self.closed()

    def not_admitted(self, error: TocsinError) -> None:
        """A credential was not good."""
        self._books.audit.not_let_in(self.who, error.code.name, *why_of(error))
        self.own.refused(error.code.name)

    # --- Counting -------------------------------------------------------------------------------

    def of(self, queue: str) -> UsageCounter:
        """The counter of a queue."""
        queues = self._queues
        found = queues.get(queue) if queues is not None else None
        return found if found is not None else self._find(queue)

    def _find(self, queue: str) -> UsageCounter:
        principal = self.who.principal
        if principal is None or not self._exists(principal, queue):
            return self.own
        if self._queues is None:
            self._queues = {}
        if self._is_closed or len(self._queues) >= limits.USAGE_QUEUES_PER_SESSION_MAX:
            return self._counter(queue)
        counter = self._held(queue)
        if not counter.is_overflow or not self._books.usage.is_on:
            self._queues[queue] = counter
        return counter

    def _counter(self, queue: str | None) -> UsageCounter:
        who = self.who.principal
        tenant, name = (who.tenant, who.name) if who is not None else (None, None)
        return self._books.usage.counter(tenant, name, queue)

    def _held(self, queue: str | None) -> UsageCounter:
        counter = self._counter(queue)
        counter.holders += 1
        return counter

    def heard(self, effects: Iterable[object]) -> None:
        """A client's messages came: each frame of them is a request."""
        for effect in effects:
            # Not isinstance: that asks the metaclass of what it is not, ten times as long.
            if type(effect) is frames.Publish or type(effect) is frames.Subscribe:
                self.of(effect.queue).requests += 1
            elif type(effect) is not frames.Close:
                self.own.requests += 1

    def refused(self, code: str, queue: str | None = None) -> None:
        """A frame of the client was."""
        (self.own if queue is None else self.of(queue)).refused(code)

    # --- Being there ----------------------------------------------------------------------------

    def connected(self, carrier: Transport | None) -> None:
        """A transport carries it."""
        if carrier is not None and self._connected is None:
            self.own.connected(carrier, now=self._books.now())
            self._connected = (self.own, carrier)

    def disconnected(self) -> None:
        """None does any more. Again: nothing happens."""
        if self._connected is not None:
            counter, carrier = self._connected
            counter.disconnected(carrier, now=self._books.now())
            self._connected = None

    def closed(self) -> None:
        """The session is over. What is still answered is counted all the same."""
        self.disconnected()
        if not self._is_closed:
            self._is_closed = True
            self._release()

    def _release(self) -> None:
        held: Iterable[UsageCounter] = (self._queues or {}).values()
        for counter in (self.own, *held):
            counter.holders -= 1
        self._queues = None

    # --- Acts -----------------------------------------------------------------------------------

    def note(self, action: str, *, queue: str, group: str | None = None) -> None:
        """An act of its principal is done."""
        self._books.audit.note(action, self.who, queue=queue, group=group)
