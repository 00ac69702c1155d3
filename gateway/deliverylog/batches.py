"""What the log hands to its writer: lines, and how much of each kind is in them. Pure."""

from dataclasses import dataclass, field
from typing import Final, Literal, Protocol, TypedDict

SPANS: Final = 0
CERTIFIED: Final = 1
DISPATCHED: Final = 2
SETTLED: Final = 3
KINDS: Final = 4
"""Places in counts: lines, and messages of each kind."""

Reason = Literal["full", "failed", "killed"]


class Counts(Protocol):
    """KINDS numbers: a list, or what is shared with the next start."""

    def __getitem__(self, kind: int, /) -> int: ...

    def __setitem__(self, kind: int, count: int, /) -> None: ...


class Shortfall(TypedDict):
    """How much is not in the log, since the process began: lines, and messages of each kind."""

    spans: int
    certified: int
    dispatched: int
    settled: int


class LogStatus(TypedDict):
    """How the log is, for looking at."""

    written_bytes: int
    waiting_bytes: int
    is_failing: bool
    """Nothing can be written now."""
    unlogged: Shortfall


@dataclass(slots=True)
class Missing:
    """What is not in the log, and is to be told there. Times are unix microseconds."""

    reason: Reason
    since_unix_us: int
    until_unix_us: int
    counts: Counts

    def add(self, since_unix_us: int, until_unix_us: int, counts: Counts) -> None:
        """So much more is missing."""
        self.since_unix_us = min(self.since_unix_us, since_unix_us)
        self.until_unix_us = max(self.until_unix_us, until_unix_us)
        for kind in range(KINDS):
            self.counts[kind] += counts[kind]


@dataclass(slots=True)
class Chunk:
    """Lines without their ends, in order, and what is in them."""

    lines: list[bytes] = field(default_factory=list)
    bytes: int = 0
    """With their ends."""
    counts: Counts = field(default_factory=lambda: [0] * KINDS)
    since_unix_us: int = 0
    until_unix_us: int = 0
    stepped_us: int = 0
    lost: Missing | None = None
    """What came before these and had no room."""
