"""The frames that one turn of the event loop has for one session. Pure.

Many answers travel in one WebSocket message: what is small is joined to a JSON array, so that a
thousand receipts are one write, one header, and one wake-up of the client.
"""

from typing import Final

JOINED_BYTES_MAX: Final = 64 * 1024
"""An array of frames is no longer than this: the client handles it in one turn of its own."""
ALONE_BYTES: Final = 16 * 1024
"""A frame from this size on travels alone: joining would copy it once more and save little."""


class Outbox:
    """Collects encoded frames; `byte_count` is the size of what waits."""

    __slots__ = ("_frames", "byte_count")

    def __init__(self) -> None:
        self._frames: list[bytes] = []
        self.byte_count = 0

    def add(self, frame: bytes) -> None:
        """Put one encoded frame, a JSON object, behind the others."""
        self._frames.append(frame)
        self.byte_count += len(frame)

    def take(self) -> list[bytes]:
        """The payloads of WebSocket messages that carry what waits, in order; then it is empty.
        A single frame is the very object that was added, so that a fan-out can tell."""
        frames = self._frames
        if not frames:
            return []
        self._frames = []
        self.byte_count = 0
        return frames if len(frames) == 1 else _join(frames)


def _join(frames: list[bytes]) -> list[bytes]:
    messages: list[bytes] = []
    group: list[bytes] = []
    size = 1  # "[", then each frame with the "," or "]" behind it
    for frame in frames:
        alone = len(frame) >= ALONE_BYTES
        if group and (alone or size + len(frame) + 1 > JOINED_BYTES_MAX):
            messages.append(_array(group))
            group, size = [], 1
        if alone:
            messages.append(frame)
        else:
            group.append(frame)
            size += len(frame) + 1
    if group:
        messages.append(_array(group))
    return messages


def _array(frames: list[bytes]) -> bytes:
    return frames[0] if len(frames) == 1 else b"[" + b",".join(frames) + b"]"
