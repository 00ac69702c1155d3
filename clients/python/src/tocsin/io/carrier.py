"""The port of a session to what carries its frames: a WebSocket, or long poll."""

from collections.abc import Callable, Sequence
from typing import Final, Literal, Protocol

from tocsin.proto.connect_policy import Transport

ABNORMAL: Final = 1006
"""The close code of a transport that ended without a word (RFC 6455, 7.1.5)."""
WRITE_BUFFER_BYTES: Final = 1_048_576
"""The bytes unsent above which nothing is published until the broker has taken some."""
SLOWEST_BYTES_PER_S: Final = 8 * 1024
"""The rate of a connection that is slow, and not dead: what is large has more time, by its size."""

Trace = Callable[[Literal["sent", "received"], Transport, bytes], None]
"""Called with every message as it goes over the wire: a frame, or an array of frames, as JSON."""


class Listener(Protocol):
    """The receiver of what a carrier brings. Nothing is called after `on_closed`."""

    def on_message(self, data: bytes) -> None:
        """Take a whole message: a frame, or an array of frames."""

    def on_writable(self) -> None:
        """Go on writing: `writable` has become True again."""

    def on_closed(self, close_code: int, reason: str) -> None:
        """Note the end of the carrier; ABNORMAL: it came without a close code."""


class Carrier(Protocol):
    """A carrier of one session's frames, in order, in both directions, until it ends."""

    transport: Transport
    writable: bool
    """Whether there is room to write; False: too much waits to be sent."""
    received_at: float
    """The time when something was received last, in the loop's seconds."""
    is_receiving: bool
    """Whether a message has arrived in part."""
    patient_until: float
    """The time until which silence is no bad sign, in the loop's seconds; 0: none.

    Something large is being sent, and nothing else can be received meanwhile.
    """
    refusal: Exception | None
    """The reason why there was no session, where more is known than a close code says."""

    def listen(self, listener: Listener | None) -> None:
        """Hand what arrives to `listener` from now on; None: to nobody."""

    def limit(self, message_bytes_max: int) -> None:
        """End when a larger message arrives."""

    def present(self, token: str) -> None:
        """Send this token from now on, where each request carries one."""

    def send(self, frames: Sequence[bytes]) -> None:
        """Send frames; the first one is the hello. After the end nothing happens."""

    def close(self, code: int = 1000, reason: str = "") -> None:
        """End in an orderly way: what was sent still arrives. `wait_closed` waits for it."""

    async def wait_closed(self) -> None:
        """Wait until it has ended."""

    def abort(self) -> None:
        """End at once."""
