"""Port of the session for groups and readers; `gateway.session.session.Session` implements it."""

from typing import Literal, Protocol

from gateway.accounting.usage import SessionAccounting
from gateway.models import Transport
from metadata.catalog import Principal

DeliveryList = list[list[int]]
"""List as in gateway.wire.frames: [[partition, epoch, push, first, last, first, last, …], …]."""
StartFrom = Literal["earliest", "latest"] | int
"""A number is a time in unix milliseconds."""


class SessionPort(Protocol):
    """A session, as groups and readers see it."""

    @property
    def session_id(self) -> str: ...

    @property
    def principal(self) -> Principal: ...

    @property
    def account(self) -> SessionAccounting:
        """The accounting of what it does."""

    @property
    def linger_s(self) -> float:
        """The time for which the session is waited for after its transport is lost; 0: not at
        all."""

    @property
    def client(self) -> str | None:
        """The name that its `hello` gave the client."""

    @property
    def transport(self) -> Transport | None:
        """The kind of transport that reaches it now; None: none does."""

    def send(self, frame: bytes) -> None:
        """Queue one encoded frame (a JSON object). Never blocks, never raises; after the session
        closed nothing happens. Sending the same object to many sessions in one turn of the loop is
        cheap, because it is framed once."""

    def writable(self) -> bool:
        """Whether pushes may come now. `pump` is called on every consumer and reader of the session
        when it has become True again."""

    def lease_start(self, given_at: float) -> float | None:
        """Return from when the lease of a message pushed then counts, by the loop's clock: from
        that moment, or later if the message was long in transit (push.transit). None: it is in
        transit, and its lease does not run."""

    @property
    def is_in_transit(self) -> bool:
        """Whether many pushed messages are not known to have reached the client, and will be when
        the client names them (`on_named`)."""

    def on_named(self, given_at: float) -> None:
        """Note that the client names something that was pushed then, which has arrived."""

    def on_empty(self) -> None:
        """Note that a consumer of the session holds nothing any more, because it has settled or
        returned the last delivery, or time has ended it."""

    def on_moved(self) -> None:
        """Note that its client goes on with it at another gateway. The session ends here."""
