"""The transport that carries a session, as the session sees it."""

from typing import Any, Protocol

from gateway.models import Transport
from gateway.wire.frames import Close
from runtime.addresses import ClientAddress


class SessionTransport(Protocol):
    """A transport, as the session sees it."""

    @property
    def address(self) -> ClientAddress:
        """The address of the client that opened it; UNKNOWN: it only takes the place of one."""

    @property
    def transport(self) -> Transport | None:
        """The kind of transport; None: it only takes the place of one."""

    @property
    def until_unix_ms(self) -> int | None:
        """When the session ends unless its client comes back; None: it has its client."""

    @property
    def unsent_bytes(self) -> int:
        """Size of what it has for the client and has not handed to the network, or not seen
        arrive."""

    @property
    def has_room(self) -> bool:
        """Whether its gateway has room for the session that has just said `hello` (P9)."""

    def send(self, frame: bytes) -> None:
        """Queue one encoded frame; see SessionPort.send."""

    def writable(self) -> bool:
        """Whether pushes may come now; `Session.on_writable` is called when they may again."""

    def ping(self) -> None:
        """Ask for a sign of life."""

    def taken_bytes(self) -> int | None:
        """Return how much the client's side has taken so far, while something is on its way to it;
        None: nothing is, or nobody can know."""

    def lease_start(self, given_at: float) -> float | None:
        """Return from when a lease counts; see SessionPort.lease_start."""

    @property
    def is_in_transit(self) -> bool:
        """Whether it waits for the client to name what was pushed."""

    def on_named(self, given_at: float) -> None:
        """Note that the client has named something that was pushed then."""

    def pause_reading(self) -> None:
        """Deliver nothing more that the client sends, until `resume_reading`."""

    def resume_reading(self) -> None:
        """Go on."""

    def close(self, close: Close) -> None:
        """Send what is queued, then close. `Session.end` is called before it returns."""

    def adopt(self, session: Any) -> None:
        """Become the transport of another session, whose client came back."""

    def detach(self, close: Close) -> None:
        """Close without a word to the session, which lives on over another transport."""
