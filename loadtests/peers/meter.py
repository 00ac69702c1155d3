"""The CPU time and memory of one entrant's servers, and the CPU time of the load generator."""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from loadtests.server import ServerFailed

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
SESSION, CPU, RSS = 3, slice(11, 15), 21
"""Fields of /proc/<pid>/stat after the name: the session; user and system time, own and of children
that have ended; resident pages. Source: proc_pid_stat(5)"""


class Mark(NamedTuple):
    """The readings of the clocks at one moment, or their differences."""

    at_s: float
    server_s: float
    generator_s: float


class Meter:
    """Processes that were each started in a session of their own, with all their descendants
    there."""

    def __init__(self, pids: Sequence[int], proc: Path = Path("/proc")) -> None:
        self.pid = pids[0]
        self.marks: list[Mark] = []
        """A mark for each call of `cpu_s`. Scenarios call it at the beginning and at the end of
        what they measure, so the last two marks enclose it."""
        self._pids = set(pids)
        self._proc = proc

    def cpu_s(self) -> float:
        """Return user and system time of all servers' processes so far, in seconds, to 10 ms each,
        and append a mark."""
        ticks = sum(int(text) for fields in self._stats() for text in fields[CPU])
        total = ticks / _TICKS_PER_S
        self.marks.append(Mark(time.monotonic(), total, time.process_time()))
        return total

    def rss_bytes(self) -> int:
        """Return resident memory of all processes; shared memory counts for each."""
        return sum(int(fields[RSS]) for fields in self._stats()) * _PAGE_BYTES

    def measured(self) -> Mark | None:
        """Return seconds, and CPU seconds of servers and generator, between the last two marks.
        None if there are fewer."""
        if len(self.marks) < 2:
            return None
        before, after = self.marks[-2:]
        return Mark(*(late - early for early, late in zip(before, after, strict=True)))

    def _stats(self) -> list[list[str]]:
        """Read the stat fields of all processes. Raises ServerFailed if a started process has
        ended."""
        found, alive = [], set()
        for folder in self._proc.iterdir():
            if not folder.name.isdigit():
                continue
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has ended meanwhile
                continue
            if int(fields[SESSION]) in self._pids:
                found.append(fields)
                alive.add(int(folder.name))
        if gone := self._pids - alive:
            raise ServerFailed(f"a server has ended: {sorted(gone)}")
        return found
