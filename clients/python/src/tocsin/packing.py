"""Frames into messages."""

from collections.abc import Sequence

from tocsin.wire import FRAMES_PER_MESSAGE_MAX, MESSAGE_BYTES_AIM


def join_frames(frames: Sequence[bytes]) -> list[bytes]:
    """WebSocket messages that carry these frames in order."""
    if len(frames) == 1:
        return [frames[0]]
    joined: list[bytes] = []
    start = size = 0
    for index, frame in enumerate(frames):
        if index > start and (
            size + len(frame) > MESSAGE_BYTES_AIM or index - start >= FRAMES_PER_MESSAGE_MAX
        ):
            joined.append(_array(frames[start:index]))
            start, size = index, 0
        size += len(frame) + 1
    if start < len(frames):
        joined.append(_array(frames[start:]))
    return joined


def _array(frames: Sequence[bytes]) -> bytes:
    return frames[0] if len(frames) == 1 else b"[%b]" % b",".join(frames)
