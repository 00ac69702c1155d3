"""The live figures of this machine for the demo, from /proc: one JSON object per device.

Where there is no /proc (not Linux), the load average is all there is.
"""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

Figures = dict[str, dict[str, float]]
"""Device (the message's key) → figures (its body)."""

_SECTOR_BYTES: Final = 512
"""Of /proc/diskstats, whatever the disk's own sectors are."""
_WHOLE_DISK: Final = re.compile(r"sd[a-z]+|[vh]d[a-z]+|xvd[a-z]+|nvme\d+n\d+|mmcblk\d+|md\d+")
_DISKS_MAX, _NETWORKS_MAX, _CPUS_MAX = 4, 4, 64


def read_proc(name: str) -> str:
    """The text of a file of /proc; empty when there is none."""
    try:
        return Path("/proc", name).read_text()
    except OSError:
        return ""


class Machine:
    """Looks at the machine; rates are between two looks."""

    def __init__(self, read: Callable[[str], str] = read_proc) -> None:
        self._read = read
        self._counters: dict[str, tuple[float, ...]] = {}
        self._at = 0.0

    def look(self, now: float) -> Figures:
        """Every device's figures; `now` in monotonic seconds. The first look has no rates, and so
        no CPUs, disks and networks."""
        elapsed_s = now - self._at
        self._at = now
        figures: Figures = {}
        for name, *counters in _cpus(self._read("stat")):
            idle, total = self._since(name, *counters) or (0.0, 0.0)
            if total:
                figures[name] = {"busy_percent": round(100 * (1 - idle / total), 1)}
        figures.update(_memory(self._read("meminfo")))
        for name, *counters in _disks(self._read("diskstats")):
            if (since := self._since(name, *counters)) and elapsed_s:
                read, written = (round(count / elapsed_s) for count in since)
                figures[name] = {"read_bytes_per_s": read, "written_bytes_per_s": written}
        for name, *counters in _networks(self._read("net/dev")):
            if (since := self._since(name, *counters)) and elapsed_s:
                received, sent = (round(count / elapsed_s) for count in since)
                figures[name] = {"received_bytes_per_s": received, "sent_bytes_per_s": sent}
        figures["load"] = dict(zip(("m1", "m5", "m15"), os.getloadavg(), strict=True))
        return figures

    def _since(self, name: str, *counters: float) -> tuple[float, ...] | None:
        before = self._counters.get(name)
        self._counters[name] = counters
        if before is None:
            return None
        return tuple(after - then for after, then in zip(counters, before, strict=True))


Counters = list[tuple[str, float, float]]


def _cpus(stat: str) -> Counters:
    """(cpuN, idle ticks, all ticks)."""
    found: Counters = []
    for line in stat.splitlines():
        name, *texts = line.split()
        if re.fullmatch(r"cpu\d+", name) and len(found) < _CPUS_MAX:
            ticks = [int(text) for text in texts[:8]]
            found.append((name, ticks[3] + ticks[4], sum(ticks)))
    return found


def _memory(meminfo: str) -> Figures:
    fields = dict(re.findall(r"^(\w+):\s+(\d+)", meminfo, re.MULTILINE))
    if "MemTotal" not in fields or "MemAvailable" not in fields:
        return {}
    total, available = int(fields["MemTotal"]), int(fields["MemAvailable"])
    return {
        "memory": {
            "used_percent": round(100 * (1 - available / total), 1),
            "used_mib": (total - available) // 1024,
            "total_mib": total // 1024,
        }
    }


def _disks(diskstats: str) -> Counters:
    """(disk-name, bytes read, bytes written) of whole disks."""
    found: Counters = []
    for line in diskstats.splitlines():
        fields = line.split()
        if len(fields) > 9 and _WHOLE_DISK.fullmatch(fields[2]) and len(found) < _DISKS_MAX:
            read, written = int(fields[5]) * _SECTOR_BYTES, int(fields[9]) * _SECTOR_BYTES
            found.append((f"disk-{fields[2]}", read, written))
    return found


def _networks(dev: str) -> Counters:
    """(net-name, bytes received, bytes sent) of the interfaces that ever carried something."""
    found: Counters = []
    for line in dev.splitlines():
        name, colon, rest = line.partition(":")
        fields = rest.split()
        if colon and len(fields) > 8 and len(found) < _NETWORKS_MAX:
            received, sent = int(fields[0]), int(fields[8])
            if received or sent:
                found.append((f"net-{name.strip()}", received, sent))
    return found
