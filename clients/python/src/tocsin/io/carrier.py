"""The port of a session to the carrier of its frames, a WebSocket or a long poll."""

from collections.abc import Callable, Sequence
from typing import Final, Literal, Protocol

from tocsin.proto.connect_policy import Transport

ABNORMAL: Final = 1006
"""The close code of a transport that ended without a close frame (RFC 6455, 7.1.5)."""
WRITE_BUFFER_BYTES: Final = 1_048_576
"""The number of unsent bytes of a carrier above which publishing waits until the broker has taken
some."""
SLOWEST_BYTES_PER_S: Final = 8 * 1024
"""The rate, in bytes per second, of the slowest connection that does not count as dead. Large
requests and answers have more time, by their size at this rate."""

Trace = Callable[[Literal["sent", "received"], Transport, bytes], None]
"""A function of the program, called with every message that a session sends or receives: the
direction, the transport, and a frame or an array of frames, as JSON. Tokens in sent frames are left
out."""


class Listener(Protocol):
    """The receiver of a carrier's messages. Nothing is called after `on_closed`."""

    def on_message(self, data: bytes) -> None:
        """Handle a whole message: a frame, or an array of frames."""

    def on_writable(self) -> None:
        """Continue writing, because the carrier's `writable` has become True again."""

    def on_closed(self, close_code: int, reason: str) -> None:
        """Note the end of the carrier. The close code ABNORMAL means that the carrier ended without
        one."""


class Carrier(Protocol):
    """A carrier of one session's frames, in order, in both directions, until it ends."""

    transport: Transport
    writable: bool
    """Whether to send more; False while too many bytes wait to be sent."""
    received_at: float
    """The time at which bytes were received last, in the loop's seconds."""
    is_receiving: bool
    """Whether the beginning of a message has arrived, and its end has not."""
    patient_until: float
    """The time until which silence does not mean that the connection is lost, in the loop's
    seconds; 0 while silence means that.

    Until that time a large post is being sent by long poll, and nothing else can be received.
    """
    refusal: Exception | None
    """The error that ended the carrier, if more is known than a close code says; None otherwise. A
    handshake raises it."""

    def listen(self, listener: Listener | None) -> None:
        """Give messages to `listener` from now on; None discards them."""

    def limit(self, message_bytes_max: int) -> None:
        """End the carrier when a message of more than `message_bytes_max` bytes arrives."""

    def present(self, token: str) -> None:
        """Send this token from now on, if the transport sends one with each request."""

    def send(self, frames: Sequence[bytes]) -> None:
        """Send frames; the first one is the hello. After the end, does nothing."""

    def close(self, code: int = 1000, reason: str = "") -> None:
        """End the carrier in an orderly way: frames sent before still arrive. `wait_closed` waits
        for the end."""

    async def wait_closed(self) -> None:
        """Wait until the carrier has ended."""

    def abort(self) -> None:
        """End the carrier at once."""
