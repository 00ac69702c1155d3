"""What a socket has said at once, in portions: publishes that follow each other are heard together
(`gateway.wire.together`), everything else alone."""

from collections.abc import Iterator
from typing import Final

from gateway.wire.rfc6455 import TEXT, Event

BYTES_MAX: Final = 32 * 1024
"""Of the messages that are heard together: the one with which they are as much is the last. As a
session has worked off in one go while several queues publish:
gateway.net.registry.PART_BYTES_SHARED.
"""
_PUBLISH: Final = b'{"type":"publish"'
"""How they begin, as a rule; those that do not are heard one by one."""


class Heard:
    """Iterates over (opcode, messages): several text messages, or one of any kind."""

    __slots__ = ("_portions", "ahead_bytes")

    def __init__(self, events: Iterator[Event]) -> None:
        self.ahead_bytes = 0
        """Of what was taken from `events` to see where a portion ends, and is yet to come."""
        self._portions = self._cut(events)

    def __iter__(self) -> "Heard":
        return self

    def __next__(self) -> tuple[int, list[bytes]]:
        return next(self._portions)

    def _cut(self, events: Iterator[Event]) -> Iterator[tuple[int, list[bytes]]]:
        publishes: list[bytes] = []
        size = 0
        for opcode, payload in events:
            if opcode == TEXT and payload.startswith(_PUBLISH):
                publishes.append(payload)
                size += len(payload)
                if size < BYTES_MAX:
                    continue
                yield TEXT, publishes
            else:
                if publishes:
                    self.ahead_bytes = len(payload)
                    yield TEXT, publishes
                    self.ahead_bytes = 0
                yield opcode, [payload]
            publishes, size = [], 0
        if publishes:
            yield TEXT, publishes
