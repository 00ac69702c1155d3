"""The CPU time, memory and writes of one entrant's servers, and the CPU time of the load generator.

Writes are counted twice, because neither count is the whole truth:

`written_bytes` is the sum of `write_bytes` in /proc/<pid>/io over all processes of the servers,
children that have ended included. The kernel counts a page when a process makes it dirty, and not
when it reaches the disk. A page that is rewritten before it is written back therefore counts once.
A page that is rewritten after each sync counts each time. Pages of a file that is deleted first
count too. A file system with large folios (ext4 since Linux 6.16) may count many pages for a few
changed bytes. The file system's journal is not counted.

`disk_bytes` is the number of bytes that the disk with the folder has received, from any process,
the journal included. Bytes that the kernel has not written back yet are missing.
"""

import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from loadtests.server import ServerFailed

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_SECTOR_BYTES: Final = 512
_SECTORS_WRITTEN: Final = 6
"""Field of /sys/dev/block/<major>:<minor>/stat. A sector has 512 bytes there, whatever the disk."""
SESSION, CPU, RSS = 3, slice(11, 15), 21
"""Fields of /proc/<pid>/stat after the name: the session; user and system time, own and of children
that have ended; resident pages. Source: proc_pid_stat(5)"""


class Mark(NamedTuple):
    """The readings of the clocks at one moment, or their differences."""

    at_s: float
    server_s: float
    generator_s: float
    written_bytes: int | None = None
    """Bytes that the servers have made dirty; None where the kernel does not say."""
    disk_bytes: int | None = None
    """Bytes that the disk has received; None where there is no disk below the folder."""

    def since(self, before: "Mark") -> "Mark":
        """Return the differences from an earlier mark to this one."""
        return Mark(
            self.at_s - before.at_s,
            self.server_s - before.server_s,
            self.generator_s - before.generator_s,
            _difference(before.written_bytes, self.written_bytes),
            _difference(before.disk_bytes, self.disk_bytes),
        )


def _difference(early: int | None, late: int | None) -> int | None:
    return None if early is None or late is None else late - early


class Meter:
    """Processes that were each started in a session of their own, with all their descendants
    there."""

    def __init__(
        self,
        pids: Sequence[int],
        proc: Path = Path("/proc"),
        *,
        folder: Path | None = None,
        devices: Path = Path("/sys/dev/block"),
    ) -> None:
        """`folder`: where the servers store; None: the disk is not looked at."""
        self.pid = pids[0]
        self.marks: list[Mark] = []
        """A mark for each call of `cpu_s`. Scenarios call it at the beginning and at the end of
        what they measure, so the last two marks enclose it."""
        self._pids = set(pids)
        self._proc = proc
        self._disk: Path | None = None
        if folder is not None:
            device = folder.stat().st_dev
            self._disk = devices / f"{os.major(device)}:{os.minor(device)}" / "stat"

    def cpu_s(self) -> float:
        """Return user and system time of all servers' processes so far, in seconds, to 10 ms each,
        and append a mark."""
        stats = self._stats()
        total = sum(int(text) for fields in stats.values() for text in fields[CPU]) / _TICKS_PER_S
        mark = Mark(
            time.monotonic(), total, time.process_time(),
            self._written_bytes(stats), self._disk_bytes(),
        )  # fmt: skip
        self.marks.append(mark)
        return total

    def rss_bytes(self) -> int:
        """Return resident memory of all processes; shared memory counts for each."""
        return sum(int(fields[RSS]) for fields in self._stats().values()) * _PAGE_BYTES

    def measured(self) -> Mark | None:
        """Return the differences between the last two marks. None if there are fewer."""
        if len(self.marks) < 2:
            return None
        before, after = self.marks[-2:]
        return after.since(before)

    def _written_bytes(self, pids: Iterable[int]) -> int | None:
        total = 0
        for pid in pids:
            try:
                lines = (self._proc / str(pid) / "io").read_text().splitlines()
            except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
                continue
            except OSError:  # not ours to read
                return None
            total += sum(int(line.split()[1]) for line in lines if line.startswith("write_bytes:"))
        return total

    def _disk_bytes(self) -> int | None:
        try:
            fields = self._disk.read_text().split() if self._disk else []
        except OSError:  # a file system without a disk, such as tmpfs
            return None
        return int(fields[_SECTORS_WRITTEN]) * _SECTOR_BYTES if fields else None

    def _stats(self) -> dict[int, list[str]]:
        """Read the stat fields of all processes, by pid. Raises ServerFailed if a started process
        has ended."""
        found: dict[int, list[str]] = {}
        for folder in self._proc.iterdir():
            if not folder.name.isdigit():
                continue
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has ended meanwhile
                continue
            if int(fields[SESSION]) in self._pids:
                found[int(folder.name)] = fields
        if gone := self._pids - found.keys():
            raise ServerFailed(f"a server has ended: {sorted(gone)}")
        return found
