"""The transport that carries a session, as the session sees it."""

from typing import Any, Protocol

from gateway.models import Transport
from gateway.wire.frames import Close
from runtime.addresses import ClientAddress


class SessionTransport(Protocol):
    """A transport, as the session sees it."""

    @property
    def address(self) -> ClientAddress:
        """The address of the client that opened the transport; UNKNOWN if the object only takes the
        place of a transport."""

    @property
    def transport(self) -> Transport | None:
        """The kind of transport; None if the object only takes the place of a transport."""

    @property
    def until_unix_ms(self) -> int | None:
        """Time at which the session ends unless its client comes back; None while the client is
        connected."""

    @property
    def unsent_bytes(self) -> int:
        """Size in bytes of the frames that the transport has not handed to the network, or has not
        seen arrive."""

    @property
    def has_room(self) -> bool:
        """Whether its gateway has room for the session that has just said `hello` (P9)."""

    def send(self, frame: bytes) -> None:
        """Queue one encoded frame (a JSON object) for the client. Never blocks, never raises; after
        the session closed nothing happens."""

    def writable(self) -> bool:
        """Whether pushes may be sent now. After False, `Session.on_writable` is called when they
        may."""

    def ping(self) -> None:
        """Ask the client for a sign of life."""

    def taken_bytes(self) -> int | None:
        """Return how many bytes the client's side has taken so far, while something is on its way.
        None if nothing is on its way, or if nobody can know."""

    def lease_start(self, given_at: float) -> float | None:
        """Return from when the lease of a message that was pushed at `given_at` counts, by the
        loop's clock. None: it is in transit, and its lease does not run."""

    @property
    def is_in_transit(self) -> bool:
        """Whether pushes are in transit to a client that has answered no mark so far. Only
        deliveries that the client names (`on_named`) show then what has arrived."""

    def on_named(self, given_at: float) -> None:
        """Note that the client has named a delivery that was pushed at `given_at`."""

    def pause_reading(self) -> None:
        """Read nothing more from the client until `resume_reading`."""

    def resume_reading(self) -> None:
        """Read from the client again."""

    def close(self, close: Close) -> None:
        """Send the queued frames, then close. Before this returns, `Session.end` is called, or
        `on_transport_lost` if the client may come back."""

    def adopt(self, session: Any) -> None:
        """Carry another session from now on, whose client has come back over this transport."""

    def detach(self, close: Close) -> None:
        """Close without calling the session, which lives on over another transport."""
