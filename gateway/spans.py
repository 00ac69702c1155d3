"""Spans: the times of a run of deliveries that share them, and what each run waited for.

Kept from the start, because a time that was not taken cannot be asked for later. All times are
unix milliseconds with fractions; 0: has not happened.
"""

from collections import deque
from dataclasses import dataclass
from typing import Final

SPANS_MAX: Final = 10_000
"""The most recent spans, for looking at; the delivery log takes them from here."""


@dataclass(slots=True)
class Stages:
    """When a record passed each stage of publishing."""

    received_unix_ms: float
    """When its first message arrived."""
    closed_unix_ms: float
    """When it was closed and handed to storage."""
    certified_unix_ms: float


@dataclass(slots=True)
class Span:
    """The deliveries of one push: `count` messages between first and last."""

    queue_id: str
    group_id: str
    partition: int
    epoch: int
    push: int
    first: int
    last: int
    count: int
    attempt: int
    stages: Stages | None
    """None: the record was read from storage."""
    waited_for: str
    """What held the run up before it was given: "", credit, in_flight, socket, read, held,
    draining."""
    pushed_unix_ms: float
    acked_unix_ms: float = 0.0
    """When the last of it was settled."""


class SpanLog:
    """The most recent spans."""

    __slots__ = ("recent",)

    def __init__(self) -> None:
        self.recent: deque[Span] = deque(maxlen=SPANS_MAX)

    def add(self, span: Span) -> None:
        """Remember it; the oldest is forgotten."""
        self.recent.append(span)
