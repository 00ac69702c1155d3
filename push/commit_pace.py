"""The pace of the commits of one lane, which decides when the next one may begin. Pure.

A commit costs about as much with one message as with twenty. So a commit for which messages waited
begins no sooner than PACE_S after the one before began, unless much waits. A message that comes
when nothing waits and no commit is under way is not delayed.

Changes of cursors go with the next commit, if one is expected soon. If it does not come, none is
expected for a second, because a client may publish only when its ack is confirmed.
"""

from typing import Final

PACE_S: Final = 0.002
"""Shortest time from the begin of a commit to that of the next one, if messages waited for it.
measured: docs/benchmarks/tuning.md"""
ENOUGH_MESSAGES: Final = 32
"""Number of waiting messages from which the next commit begins at once."""
ENOUGH_BYTES: Final = 64 * 1024
"""Bytes from which it does so: a flood has to be judged when it comes (`push.commit_sharing`)."""
EXPECTED_S: Final = 0.01
"""Longest time between two commits after which a third is expected within the same time."""
DISTRUST_S: Final = 1.0
"""Seconds for which no commit is expected, after one was that did not come."""
_TICK_S: Final = 0.000_5
"""Shortest wait. The timers of the loop count whole milliseconds."""
_NEVER: Final = float("-inf")


class CommitPace:
    """The begins of one lane's commits. `now`: seconds, monotonic."""

    __slots__ = ("_began_at", "_distrusted_until", "_gap_s", "_is_behind")

    def __init__(self) -> None:
        self._began_at = _NEVER
        self._gap_s = float("inf")
        """Time between the begins of the last two commits."""
        self._is_behind = False
        """Whether messages waited when the last commit ended."""
        self._distrusted_until = _NEVER

    def begin(self, *, now: float) -> None:
        """Note that a commit begins."""
        self._gap_s, self._began_at = now - self._began_at, now

    def end(self, waiting: int) -> None:
        """Note that a commit has ended, while this number of messages waits for the next one."""
        self._is_behind = waiting > 0

    def wait_s(self, waiting: int, size: int, *, now: float) -> float:
        """Return for how many seconds the next commit may not begin, if this number of messages, of
        `size` bytes in all, waits for it; 0: it may begin now."""
        if not self._is_behind or waiting >= ENOUGH_MESSAGES or size >= ENOUGH_BYTES:
            return 0.0
        wait_s = self._began_at + PACE_S - now
        return wait_s if wait_s >= _TICK_S else 0.0

    def expected_for_s(self, *, now: float) -> float:
        """Return for how many seconds another commit is still expected, judging by the time between
        the last two; 0: none is."""
        if self._gap_s > EXPECTED_S or now < self._distrusted_until:
            return 0.0
        return max(0.0, self._began_at + EXPECTED_S - now)

    def missed(self, *, now: float) -> None:
        """Note that an expected commit did not come in time."""
        self._distrusted_until = now + DISTRUST_S
