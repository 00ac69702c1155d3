"""The transport that carries a session, as the session sees it."""

from typing import Any, Protocol

from gateway.models import Transport
from gateway.wire.frames import Close
from runtime.addresses import ClientAddress


class SessionTransport(Protocol):
    """A transport, as the session sees it."""

    @property
    def address(self) -> ClientAddress:
        """Where the client is that it was opened by; UNKNOWN: it only stands in for one."""

    @property
    def transport(self) -> Transport | None:
        """Which kind it is; None: it only stands in for one."""

    @property
    def until_unix_ms(self) -> int | None:
        """When the session ends unless its client comes back; None: it has its client."""

    @property
    def unsent_bytes(self) -> int:
        """What it has for the client and has not handed to the network, or not seen arrive."""

    @property
    def has_room(self) -> bool:
        """Whether its gateway has room for the session that has just said `hello` (P9)."""

    def send(self, frame: bytes) -> None:
        """As SessionPort.send."""

    def writable(self) -> bool:
        """As SessionPort.writable; `Session.on_writable` says when it has become True again."""

    def ping(self) -> None:
        """Ask for a sign of life."""

    def taken_bytes(self) -> int | None:
        """How much the client's side has taken so far, while something is on its way to it; None:
        nothing is, or nobody can know."""

    def arrived(self, given_at: float) -> float | None:
        """As SessionPort.arrived."""

    @property
    def is_in_transit(self) -> bool:
        """As SessionPort.is_in_transit."""

    def named(self, given_at: float) -> None:
        """As SessionPort.named."""

    def pause_reading(self) -> None:
        """Deliver nothing more that the client sends, until resume_reading."""

    def resume_reading(self) -> None:
        """Go on."""

    def close(self, close: Close) -> None:
        """Send what is queued, then close. `Session.end` is called before it returns."""

    def adopt(self, session: Any) -> None:
        """From now on this is the transport of another session, whose client came back."""

    def let_go(self, close: Close) -> None:
        """Close; the session lives on over another transport and is told nothing more."""
