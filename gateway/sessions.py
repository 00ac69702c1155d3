"""Sessions by their id, and those that are between two transports.

A session outlives its socket: who lost it comes back, over either transport, with the session's id
in `hello`, and finds its subscriptions, its place in its groups and what it holds. Until then a
`Lingering` stands where the transport was. It takes nothing, and after `linger_s` the session ends.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from gateway.frames import Close
from gateway.link import Outlet
from metadata.catalog import Principal


class Resumable(Protocol):
    """A session, as this module sees it."""

    @property
    def session_id(self) -> str: ...

    @property
    def principal(self) -> Principal: ...

    def closed(self) -> None:
        """End it."""

    def come_back(self, outlet: Outlet, linger_s: float, producer: bytes | None) -> None:
        """Go on over this transport."""


class Sessions:
    """The welcomed sessions of one gateway. `len` counts those without a transport."""

    def __init__(self) -> None:
        self._by_id: dict[str, Resumable] = {}
        self._lingering: dict[str, Lingering] = {}
        self.has_room: Callable[[], bool] = lambda: True
        """Whether one more fits; set by the registry, which knows the transports."""

    def __len__(self) -> int:
        return len(self._lingering)

    def add(self, session: Resumable) -> bool:
        """It is to be welcomed. False: there is no room for it."""
        if not self.has_room():
            return False
        self._by_id[session.session_id] = session
        return True

    def discard(self, session: Resumable) -> None:
        """It has ended. Not there: nothing happens."""
        if self._by_id.get(session.session_id) is session:
            del self._by_id[session.session_id]

    def find(self, session_id: str, principal: Principal) -> Resumable | None:
        """The session of this id, where it belongs to the one who asks (P11)."""
        session = self._by_id.get(session_id)
        return session if session is not None and session.principal == principal else None

    def linger(self, session: Resumable, linger_s: float) -> "Lingering":
        """Its transport is gone: what stands in for one, for so many seconds."""
        lingering = Lingering(self, session, linger_s)
        self._lingering[session.session_id] = lingering
        return lingering

    def left(self, session: Resumable) -> None:
        """It lingers no longer."""
        self._lingering.pop(session.session_id, None)

    def end_lingering(self) -> None:
        """The gateway goes down: who has no transport cannot be told to come back (P14)."""
        for lingering in list(self._lingering.values()):
            lingering.end()


class Lingering:
    """The Outlet of a session that has no transport."""

    def __init__(self, sessions: Sessions, session: Resumable, linger_s: float) -> None:
        self._sessions = sessions
        self._session = session
        self._timer = asyncio.get_running_loop().call_later(linger_s, self.end)

    def end(self) -> None:
        """Nobody came back, or nobody can."""
        self._leave()
        self._session.closed()

    def _leave(self) -> None:
        self._timer.cancel()
        self._sessions.left(self._session)

    # --- Outlet ---------------------------------------------------------------------------------

    def send(self, frame: bytes) -> None:
        """Nobody hears it: what it said, the client finds out when it comes back."""

    def writable(self) -> bool:
        """Nothing may be pushed."""
        return False

    def ping(self) -> None:
        """Nobody is there."""

    def pause_reading(self) -> None:
        """Nothing is read."""

    def resume_reading(self) -> None:
        """Nothing is read."""

    def close(self, close: Close) -> None:
        """The session ends, and nobody hears of it."""
        self.end()

    def adopt(self, conversation: object) -> None:
        """No session ever moves here by itself."""
        raise AssertionError("a session cannot resume without a transport")

    def let_go(self, close: Close) -> None:
        """The client came back."""
        self._leave()
