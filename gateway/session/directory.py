"""Sessions by their id, and those that are between two transports.

A session outlives its socket. A client that lost the socket comes back, over either transport, with
the session's id in `hello`. It finds its subscriptions, its places in its groups and what it holds.
Until then a `DetachedTransport` takes the place of the transport. It takes nothing, and after
`linger_s` the session ends.

A client may come back to another gateway, or to this one after a restart. There the session keeps
its name, by which its places in its groups wait for it.
"""

import asyncio
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import nsmallest
from typing import Final, Protocol

from gateway.accounting.usage import SessionAccounting
from gateway.accounting.writer import AccountingWriter
from gateway.auth.auth import Authenticator
from gateway.broker import Broker
from gateway.limits.limiter import Limiter
from gateway.models import Admission, SessionDescription, SessionList
from gateway.session.transport import SessionTransport
from gateway.wire.frames import Close
from gateway.wire.protocol import Timing
from metadata.catalog import Principal
from metadata.port import has_queue
from push import limits
from runtime.addresses import UNKNOWN
from runtime.loop.fairness import ArrivalGate

_ID: Final = re.compile(r"[A-Za-z0-9_-]{22}")


def new_session_id() -> str:
    """Return 128 random bits as text. Nobody can guess them."""
    return secrets.token_urlsafe(16)


def is_session_id(text: str) -> bool:
    """Whether the text has the form of a session's id."""
    return _ID.fullmatch(text) is not None


class ResumableSession(Protocol):
    """A session, as this module sees it."""

    @property
    def session_id(self) -> str: ...

    @property
    def principal(self) -> Principal: ...

    @property
    def account(self) -> SessionAccounting: ...

    def describe(self) -> SessionDescription:
        """Describe it for operators."""

    def end(self) -> None:
        """End it."""

    def on_transport_lost(self) -> None:
        """Note that the transport is gone, and that the client did not end the session."""

    def reattach(
        self,
        transport: SessionTransport,
        linger_s: float,
        producer: bytes | None,
        admission: Admission,
    ) -> None:
        """Go on over this transport, with the rights that the client has shown now."""


class SessionDirectory:
    """The welcomed sessions of one gateway. `len` counts those without a transport."""

    def __init__(self) -> None:
        self._by_id: dict[tuple[str, str], ResumableSession] = {}
        """Sessions by tenant and id, so that no tenant learns of another one's ids (P11)."""
        self._lingering: dict[tuple[str, str], DetachedTransport] = {}
        self.is_draining = False
        """Whether the gateway goes down, so that clients come back to another one."""

    def __len__(self) -> int:
        return len(self._lingering)

    def add(self, session: ResumableSession) -> None:
        """Add a session that is to be welcomed."""
        self._by_id[_place(session)] = session

    def discard(self, session: ResumableSession) -> None:
        """Remove a session that has ended. Nothing happens if it is unknown."""
        if self._by_id.get(_place(session)) is session:
            del self._by_id[_place(session)]

    def is_free(self, session_id: str, principal: Principal) -> bool:
        """Whether this is a valid id of a session, and no session of the principal's tenant has it
        here."""
        return is_session_id(session_id) and (principal.tenant, session_id) not in self._by_id

    def find(self, session_id: str, principal: Principal) -> ResumableSession | None:
        """Return the session of this id if it is the principal's own; else None (P11)."""
        session = self._by_id.get((principal.tenant, session_id))
        return session if session is not None and session.principal == principal else None

    def page(
        self, principal: Principal, limit: int, after: str, *, whole_tenant: bool = False
    ) -> SessionList:
        """Return up to `limit` of this principal's sessions, or of its tenant's, sorted by id, with
        ids above `after` (P11). A page with many subscriptions has fewer sessions, because it is
        made in one go (P9)."""
        behind = [
            session_id
            for (tenant, session_id), session in self._by_id.items()
            if session_id > after
            and tenant == principal.tenant
            and (whole_tenant or session.principal == principal)
        ]
        shown: list[SessionDescription] = []
        room = limits.SUBSCRIPTIONS_PER_PAGE_MAX
        for session_id in nsmallest(limit, behind):
            described = self._by_id[principal.tenant, session_id].describe()
            room -= len(described.subscriptions)
            if shown and room < 0:
                break
            shown.append(described)
        more = len(behind) > len(shown)
        return SessionList(sessions=shown, next=shown[-1].session if more else None)

    def linger(self, session: ResumableSession, linger_s: float) -> "DetachedTransport":
        """Return the transport that takes the place of a lost one for `linger_s` seconds."""
        lingering = DetachedTransport(self, session, linger_s)
        self._lingering[_place(session)] = lingering
        return lingering

    def end_linger(self, session: ResumableSession) -> None:
        """Note that a session lingers no longer."""
        self._lingering.pop(_place(session), None)

    def end_lingering(self) -> None:
        """End all lingering sessions here, with their places kept for another gateway, because this
        one goes down and a client without a transport cannot be asked to come back (P14)."""
        self.is_draining = True
        for lingering in list(self._lingering.values()):
            lingering.move()


def _place(session: ResumableSession) -> tuple[str, str]:
    return session.principal.tenant, session.session_id


class DetachedTransport:
    """The SessionTransport of a session that has no transport."""

    transport: Final = None
    address: Final = UNKNOWN
    unsent_bytes: Final = 0
    has_room: Final = False
    is_in_transit: Final = False

    def __init__(
        self, sessions: SessionDirectory, session: ResumableSession, linger_s: float
    ) -> None:
        self._sessions = sessions
        self._session = session
        self.until_unix_ms = int((time.time() + linger_s) * 1000)
        """Time at which the session ends if its client does not come back."""
        self._timer = asyncio.get_running_loop().call_later(linger_s, self.end)

    def end(self) -> None:
        """End the session, because its client has not come back."""
        self._leave()
        self._session.end()

    def move(self) -> None:
        """End the session here, with its places kept for another gateway, because its client cannot
        come back here."""
        self._leave()
        self._session.on_transport_lost()

    def _leave(self) -> None:
        self._timer.cancel()
        self._sessions.end_linger(self._session)

    # --- SessionTransport ------------------------------------------------------------------------

    def send(self, frame: bytes) -> None:
        """Drop a frame. The client learns the state when it comes back."""

    def writable(self) -> bool:
        """Always False, because nothing can be pushed."""
        return False

    def ping(self) -> None:
        """Do nothing, because there is no client."""

    def taken_bytes(self) -> int | None:
        """Return None, because nothing is on its way."""
        return None

    def lease_start(self, given_at: float) -> float | None:
        """Return `given_at`, because nothing is on its way."""
        return given_at

    def on_named(self, given_at: float) -> None:
        """Do nothing, because nothing is on its way."""

    def pause_reading(self) -> None:
        """Do nothing, because nothing is read."""

    def resume_reading(self) -> None:
        """Do nothing, because nothing is read."""

    def close(self, close: Close) -> None:
        """End the session. No client is notified."""
        self.end()

    def adopt(self, session: object) -> None:
        """Fail, because no session can resume without a transport."""
        raise AssertionError("a session cannot resume without a transport")

    def detach(self, close: Close) -> None:
        """End the lingering, because the client came back over another transport."""
        self._leave()


@dataclass(frozen=True, slots=True)
class SessionServices:
    """The parts that all sessions of a gateway share."""

    broker: Broker
    auth: Authenticator
    broker_name: str = "tocsin"
    timing: Timing = field(default_factory=Timing)
    wall: Callable[[], float] = time.time
    """The clock, in unix seconds."""
    sessions: SessionDirectory = field(default_factory=SessionDirectory)
    accounting: AccountingWriter = field(default_factory=AccountingWriter)
    limiter: Limiter = field(default_factory=Limiter)
    arrivals: ArrivalGate = field(default_factory=ArrivalGate)

    def has_queue(self, principal: Principal, name: str) -> bool:
        """Whether this principal has a queue of this name."""
        return has_queue(self.broker.metadata, principal, name)
