"""The port of a session to the carrier of its frames, a WebSocket or a long poll."""

from collections.abc import Callable, Sequence
from typing import Final, Literal, Protocol

from tocsin.proto.connect_policy import Transport

ABNORMAL: Final = 1006
"""The close code of a transport that ended without a close frame (RFC 6455, 7.1.5)."""
WRITE_BUFFER_BYTES: Final = 1_048_576
"""The number of unsent bytes above which publishing waits until the broker has taken some."""
SLOWEST_BYTES_PER_S: Final = 8 * 1024
"""The rate of a slow connection that is not dead. Large frames have more time, by their size."""

Trace = Callable[[Literal["sent", "received"], Transport, bytes], None]
"""Called with every message as it goes over the wire: a frame, or an array of frames, as JSON."""


class Listener(Protocol):
    """The receiver of a carrier's messages. Nothing is called after `on_closed`."""

    def on_message(self, data: bytes) -> None:
        """Handle a whole message: a frame, or an array of frames."""

    def on_writable(self) -> None:
        """Continue writing, because `writable` has become True again."""

    def on_closed(self, close_code: int, reason: str) -> None:
        """Note the end of the carrier. ABNORMAL means that it came without a close code."""


class Carrier(Protocol):
    """A carrier of one session's frames, in order, in both directions, until it ends."""

    transport: Transport
    writable: bool
    """Whether the carrier has room to write; False if too much waits to be sent."""
    received_at: float
    """The time at which bytes were received last, in the loop's seconds."""
    is_receiving: bool
    """Whether a message has arrived in part."""
    patient_until: float
    """The time until which silence means nothing, in the loop's seconds; 0 if it always does.

    Until then a large post is being sent, and nothing else can be received.
    """
    refusal: Exception | None
    """The reason why no session was opened, if more is known than a close code says."""

    def listen(self, listener: Listener | None) -> None:
        """Give messages to `listener` from now on; None discards them."""

    def limit(self, message_bytes_max: int) -> None:
        """End when a larger message arrives."""

    def present(self, token: str) -> None:
        """Send this token from now on, if each request carries one."""

    def send(self, frames: Sequence[bytes]) -> None:
        """Send frames; the first one is the hello. After the end, does nothing."""

    def close(self, code: int = 1000, reason: str = "") -> None:
        """End in an orderly way: frames sent before still arrive. `wait_closed` waits for it."""

    async def wait_closed(self) -> None:
        """Wait until the carrier has ended."""

    def abort(self) -> None:
        """End at once."""
