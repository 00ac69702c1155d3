"""What carries frames: a WebSocket, or requests. The session does not care which."""

from collections.abc import Callable, Sequence
from typing import Final, Literal, Protocol

from tocsin.proto.connect_policy import Transport

ABNORMAL: Final = 1006
"""The close code of a transport that ended without a word (RFC 6455, 7.1.5)."""
WRITE_BUFFER_BYTES: Final = 1_048_576
"""Above this nothing is published until the broker has taken what waits."""
SLOWEST_BYTES_PER_S: Final = 8 * 1024
"""A line that carries so much is slow, and not dead: what is large has more time, by its size."""

Trace = Callable[[Literal["sent", "received"], Transport, bytes], None]
"""Called with every message as it goes over the wire: a frame, or an array of frames, as JSON."""


class Listener(Protocol):
    """Who is told. Nothing is called after `on_closed`."""

    def on_message(self, data: bytes) -> None:
        """A whole message: a frame, or an array of frames."""

    def on_writable(self) -> None:
        """`writable` has become True again."""

    def on_closed(self, close_code: int, reason: str) -> None:
        """It has ended; ABNORMAL: without a word."""


class Carrier(Protocol):
    """Carries one session's frames, in order, in both directions, until it ends."""

    transport: Transport
    writable: bool
    """False: too much waits to be sent."""
    received_at: float
    """When something was received last, in the loop's seconds."""
    is_receiving: bool
    """In the middle of a message that is not complete."""
    patient_until: float
    """Until then silence is no bad sign: something large is on its way, and nothing else can be
    heard meanwhile. In the loop's seconds; 0: nothing is."""
    refusal: Exception | None
    """Why there was no session, where more is known than a close code says."""

    def listen(self, listener: Listener | None) -> None:
        """From now on `listener` is told; None: nobody."""

    def limit(self, message_bytes_max: int) -> None:
        """End when a larger message comes."""

    def present(self, token: str) -> None:
        """What is asked from now on comes with this token, where each request brings one."""

    def send(self, frames: Sequence[bytes]) -> None:
        """Send frames; the first one is the hello. After the end nothing happens."""

    def close(self, code: int = 1000, reason: str = "") -> None:
        """End in an orderly way: what was sent still arrives. `wait_closed` says when."""

    async def wait_closed(self) -> None:
        """Until it has ended."""

    def abort(self) -> None:
        """End at once."""
