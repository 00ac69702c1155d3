"""Port of the session for groups and readers; `gateway.session.session.Session` implements it."""

from typing import Literal, Protocol

from gateway.accounting.usage import SessionAccounting
from gateway.models import Transport
from metadata.catalog import Principal

DeliveryList = list[list[int]]
"""Deliveries as frames name them, an entry for each push: [[partition, epoch, push, first, last,
first, last, …], …], in which first..last are offsets."""
StartFrom = Literal["earliest", "latest"] | int
"""Place where a reader, or a group that is created, begins: the oldest message, the end of the log,
or the first message from a time (in unix milliseconds) on."""


class SessionPort(Protocol):
    """A session, as groups and readers see it."""

    @property
    def session_id(self) -> str: ...

    @property
    def principal(self) -> Principal: ...

    @property
    def account(self) -> SessionAccounting:
        """The accounting of the session's usage and acts."""

    @property
    def linger_s(self) -> float:
        """Longest time in seconds for which the session, if it has consumers, outlives a lost
        transport; 0: it ends then."""

    @property
    def client(self) -> str | None:
        """The client's name, as `hello` gave it; None: `hello` gave none."""

    @property
    def transport(self) -> Transport | None:
        """The kind of transport that carries the session now; None: it has none at the moment."""

    def send(self, frame: bytes) -> None:
        """Queue one encoded frame (a JSON object) for the client. Never blocks, never raises; after
        the session closed nothing happens. Sending the same object to many sessions in one turn of
        the loop is cheap, because it is framed once."""

    def writable(self) -> bool:
        """Whether pushes may be sent to the client now. `pump` is called on every consumer and
        reader of the session when this has become True again."""

    def lease_start(self, given_at: float) -> float | None:
        """Return from when the lease of a message that was pushed at `given_at` counts, by the
        loop's clock: from `given_at`, or from its arrival if that took long (push.transit). None:
        it is in transit, and its lease does not run."""

    @property
    def is_in_transit(self) -> bool:
        """Whether pushes are in transit to a client that has answered no mark so far. Only
        deliveries that the client names (`on_named`) show then what has arrived."""

    def on_named(self, given_at: float) -> None:
        """Note that the client has named a delivery that was pushed at `given_at`, and which has
        therefore arrived."""

    def on_empty(self) -> None:
        """Note that a consumer of the session has no delivery in flight any more."""

    def on_moved(self) -> None:
        """End the session at this gateway, because its client goes on with it at another one."""
