"""The transport that carries a session, as the session sees it."""

from typing import Any, Protocol

from gateway.models import Transport
from gateway.wire.frames import Close
from runtime.addresses import ClientAddress


class SessionTransport(Protocol):
    """A transport, as the session sees it."""

    @property
    def address(self) -> ClientAddress:
        """The address of the client that opened it; UNKNOWN if it only takes the place of one."""

    @property
    def transport(self) -> Transport | None:
        """The kind of transport; None if it only takes the place of one."""

    @property
    def until_unix_ms(self) -> int | None:
        """Time at which the session ends unless its client comes back; None while it has its
        client."""

    @property
    def unsent_bytes(self) -> int:
        """Size of the frames that it has not handed to the network, or has not seen arrive."""

    @property
    def has_room(self) -> bool:
        """Whether its gateway has room for the session that has just said `hello` (P9)."""

    def send(self, frame: bytes) -> None:
        """Queue one encoded frame (a JSON object). Never blocks, never raises; after the session
        closed nothing happens."""

    def writable(self) -> bool:
        """Whether pushes may come now. When they may again, `Session.on_writable` is called."""

    def ping(self) -> None:
        """Ask for a sign of life."""

    def taken_bytes(self) -> int | None:
        """Return how many bytes the client's side has taken so far, while something is on its way.
        None if nothing is on its way, or if nobody can know."""

    def lease_start(self, given_at: float) -> float | None:
        """Return from when the lease of a message pushed then counts, by the loop's clock. None: it
        is in transit, and its lease does not run."""

    @property
    def is_in_transit(self) -> bool:
        """Whether pushes are on a slow line, and the client has not named their arrival yet."""

    def on_named(self, given_at: float) -> None:
        """Note that the client has named something that was pushed then."""

    def pause_reading(self) -> None:
        """Read nothing more from the client until `resume_reading`."""

    def resume_reading(self) -> None:
        """Read from the client again."""

    def close(self, close: Close) -> None:
        """Send the queued frames, then close. `Session.end` is called before this returns."""

    def adopt(self, session: Any) -> None:
        """Become the transport of another session, whose client came back."""

    def detach(self, close: Close) -> None:
        """Close without calling the session, which lives on over another transport."""
