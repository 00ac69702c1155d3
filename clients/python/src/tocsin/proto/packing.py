"""Frames into messages."""

import re
from collections.abc import Sequence
from typing import Final

from tocsin.proto.wire import FRAMES_PER_MESSAGE_MAX, MESSAGE_BYTES_AIM

_AUTH: Final = re.compile(rb'("type":"auth","ref":\d+,"token":")(?:[^"\\]|\\.)*')


def without_tokens(message: bytes) -> bytes:
    """As somebody may see it who looks on."""
    return _AUTH.sub(b"\\1\xe2\x80\xa6", message) if b'"type":"auth"' in message else message


def join_frames(frames: Sequence[bytes], bytes_aim: int = MESSAGE_BYTES_AIM) -> list[bytes]:
    """Messages that carry these frames in order, each of about `bytes_aim` at most."""
    if len(frames) == 1:
        return [frames[0]]
    joined: list[bytes] = []
    start = size = 0
    for index, frame in enumerate(frames):
        if index > start and (
            size + len(frame) > bytes_aim or index - start >= FRAMES_PER_MESSAGE_MAX
        ):
            joined.append(_array(frames[start:index]))
            start, size = index, 0
        size += len(frame) + 1
    if start < len(frames):
        joined.append(_array(frames[start:]))
    return joined


def _array(frames: Sequence[bytes]) -> bytes:
    return frames[0] if len(frames) == 1 else b"[%b]" % b",".join(frames)
