"""Publishes that arrive in one read are published as one. Pure.

A client that sends each message in a frame of its own sends many of them while the broker works on
earlier ones. The work for each publish (rights, queue, limits, the delivery log's origin, an answer
in each record) costs several times the work for a message. So publishes of one read that follow
each other, and could as well have been one publish, become one. Each frame keeps its own answer
(R5).
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from gateway.wire.frames import Publish
from gateway.wire.protocol import Effect
from push import limits

_MESSAGES_MAX: Final = limits.MESSAGES_PER_PUBLISH_MAX


class CoalescedPublish(NamedTuple):
    """Frames of one session that follow each other, and the one publish that they become."""

    whole: Publish
    frames: Sequence[Publish]


Input = Effect | CoalescedPublish
"""An input that a session has to carry out."""


def coalesce(effects: Sequence[Effect]) -> Sequence[Input]:
    """Return the same effects, in order, with each run of publishes joined that may be one.

    The publishes of a run go to one queue, have no times of production and no trace, and their
    sequences follow each other. All of them are published with the `resolved` of the last one. It
    is true of the earlier ones too, because it reaches none of their sequences (R6).
    """
    if len(effects) < 2:
        return effects
    joined: list[Input] = []
    run: list[Publish] = []
    messages = 0
    for effect in effects:
        if effect.__class__ is not Publish:
            _finish_run(run, joined)
            run = []
            joined.append(effect)
        elif not run or not _can_join(run, messages, effect):
            _finish_run(run, joined)
            run, messages = [effect], len(effect.messages)
        else:
            run.append(effect)
            messages += len(effect.messages)
    _finish_run(run, joined)
    return joined


def _can_join(run: list[Publish], messages: int, frame: Publish) -> bool:
    """Whether a publish may join those of the run, which have this many messages."""
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


def _finish_run(run: list[Publish], joined: list[Input]) -> None:
    if len(run) < 2:
        joined += run
        return
    first, last = run[0], run[-1]
    messages = [message for frame in run for message in frame.messages]
    whole = Publish(first.ref, first.queue, messages, first.sequence, last.resolved)
    joined.append(CoalescedPublish(whole, run))
