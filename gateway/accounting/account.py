"""What one session does, written down: its usage under its principal, its acts in the audit trail.

A session keeps the counters of the queues it works with, so that counting is an addition. What
names a queue that is not there is counted for none: names that clients make up are no keys.
"""

from collections.abc import Callable, Iterable

from gateway.accounting.audit import Who, why_of
from gateway.accounting.books import Books
from gateway.accounting.usage import Counter
from gateway.admission import Admission
from gateway.facts_values import Transport
from gateway.wire import frames
from metadata.catalog import Principal
from push import limits
from push.errors import TocsinError

Exists = Callable[[Principal, str], bool]
"""Whether there is a queue of this name, to this principal."""


class Account:
    """See the module. `address`: the client's, where it is known."""

    __slots__ = (
        "_address", "_books", "_connected", "_exists", "_is_closed", "_queues", "own", "who",
    )  # fmt: skip

    def __init__(
        self,
        books: Books,
        exists: Exists,
        address: str | None = None,
        admission: Admission | None = None,
    ) -> None:
        self._books = books
        self._exists = exists
        self._address = address
        self._queues: dict[str, Counter] | None = None
        self._connected: tuple[Counter, Transport] | None = None
        self._is_closed = False
        self.who = Who(address=address)
        self.own = self._held(None)
        """What names no queue."""
        if admission is not None:
            self.admitted(admission)

    def admitted(self, admission: Admission) -> None:
        """It is clear who it is. Saying it again with another credential counts from there on."""
        who = Who.of(admission, self._address)
        if who == self.who:
            return
        self.who = who
        self._books.audit.access.granted(who)
        self._release()
        self.own = self._held(None)

    def moved_to(self, other: "Account") -> None:
        """The client has come back to another session, which goes on over this transport."""
        other._address, other.who = self._address, self.who
        self.closed()

    def not_admitted(self, error: TocsinError) -> None:
        """A credential was not good."""
        self._books.audit.not_let_in(self.who, error.code.name, *why_of(error))
        self.own.refused(error.code.name)

    # --- Counting -------------------------------------------------------------------------------

    def of(self, queue: str) -> Counter:
        """The counter of a queue."""
        queues = self._queues
        found = queues.get(queue) if queues is not None else None
        return found if found is not None else self._find(queue)

    def _find(self, queue: str) -> Counter:
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

    def _counter(self, queue: str | None) -> Counter:
        who = self.who.principal
        tenant, name = (who.tenant, who.name) if who is not None else (None, None)
        return self._books.usage.counter(tenant, name, queue)

    def _held(self, queue: str | None) -> Counter:
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
        held: Iterable[Counter] = (self._queues or {}).values()
        for counter in (self.own, *held):
            counter.holders -= 1
        self._queues = None

    # --- Acts -----------------------------------------------------------------------------------

    def note(self, action: str, *, queue: str, group: str | None = None) -> None:
        """An act of its principal is done."""
        self._books.audit.note(action, self.who, queue=queue, group=group)
