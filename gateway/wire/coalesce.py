"""Publishes that were heard together are published together. Pure.

A client that sends each message in a frame of its own sends many of them while the broker works on
those before. What is done once for each publish (rights, queue, limits, the delivery log's origin,
an answer in each record) costs several times what a message costs: so those of one read that could
as well have been one publish become one. Each frame keeps its own answer (R5).

What a socket has said at once, in portions: publishes that follow each other are heard together
(`gateway.wire.coalesce`), everything else alone.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from gateway.wire.frames import Publish
from gateway.wire.protocol import Effect
from gateway.wire.rfc6455 import TEXT, Event
from push import limits

_MESSAGES_MAX: Final = limits.MESSAGES_PER_PUBLISH_MAX
_ENCODE: Final = msgspec.json.Encoder().encode


class Together(NamedTuple):
    """Frames of one session that follow each other, and the publish that they are."""

    whole: Publish
    frames: Sequence[Publish]


Said = Effect | Together


def together(effects: Sequence[Effect]) -> Sequence[Said]:
    """The same, in their order, with runs of publishes that may be one in place of each of them.

    They are to one queue, say nothing of when they were produced or of a trace, and their sequences
    follow each other. All of them are published with the last one's `resolved`: what it says is
    true of those before as well, because it reaches none of them (R6).
    """
    if len(effects) < 2:
        return effects
    joined: list[Said] = []
    run: list[Publish] = []
    messages = 0
    for effect in effects:
        if effect.__class__ is not Publish:
            _close(run, joined)
            run = []
            joined.append(effect)
        elif not run or not _goes_on(run, messages, effect):
            _close(run, joined)
            run, messages = [effect], len(effect.messages)
        else:
            run.append(effect)
            messages += len(effect.messages)
    _close(run, joined)
    return joined


def _goes_on(run: list[Publish], messages: int, frame: Publish) -> bool:
    """Whether this one may be one with those of the run, which have so many messages."""
    first, last = run[0], run[-1]
    if frame.queue != first.queue or messages + len(frame.messages) > _MESSAGES_MAX:
        return False
    if not (_is_plain(frame) and _is_plain(last)):
        return False
    if first.sequence is None or frame.sequence is None:
        return frame.sequence is None and first.sequence is None
    end = first.sequence + messages
    return (
        frame.sequence == end
        and last.resolved <= frame.resolved <= first.sequence
        and end + len(frame.messages) - frame.resolved <= limits.IN_FLIGHT_PER_PRODUCER_MAX
    )


def _is_plain(frame: Publish) -> bool:
    first = frame.messages[0]
    return (
        first.headers is None
        and first.sent_unix_ms is None
        and frame.produced_unix_us is None
        and frame.clock_offset_us is None
    )


def _close(run: list[Publish], joined: list[Said]) -> None:
    if len(run) < 2:
        joined += run
        return
    first, last = run[0], run[-1]
    messages = [message for frame in run for message in frame.messages]
    whole = Publish(first.ref, first.queue, messages, first.sequence, last.resolved)
    joined.append(Together(whole, run))


def receipts_end(id_prefix: str, durability: Mapping[str, object]) -> bytes:
    """What `receipts_of` has behind them: the same for all that were published together."""
    return b',"id_prefix":%b,"durability":%b}' % (_ENCODE(id_prefix), _ENCODE(durability))


def receipts_of(ref: int, outcomes: Sequence[object], end: bytes) -> bytes:
    """The answer to a publish, as `frames.ok` makes it. `end`: of `receipts_end`."""
    return b'{"type":"ok","ref":%d,"receipts":%b%b' % (ref, _ENCODE(outcomes), end)


BYTES_MAX: Final = 32 * 1024
"""Of the messages that are heard together: the one with which they are as much is the last. As a
session has worked off in one go while several queues publish:
gateway.net.connections.PART_BYTES_SHARED.
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
