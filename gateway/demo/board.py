"""Display of the demo: its counts, as a table for a terminal or lines for a log, and the machine's
load.

Callers pass times, in monotonic seconds. The load of the machine is one JSON object for each
device, from /proc. Without /proc (not on Linux) there is only the load average.
"""

import os
import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

WINDOW_S: Final = 5.0
"""Window of the rates and latencies that are shown, in seconds."""
_SAMPLES_MAX: Final = 20_000
_BAR: Final = "▏▎▍▌▋▊▉█"
_BAR_CELLS: Final = 10


class Meter:
    """Count of all events, and the rate and latencies of those in the last WINDOW_S."""

    def __init__(self) -> None:
        self.total = 0
        self._recent: deque[tuple[float, float]] = deque(maxlen=_SAMPLES_MAX)

    def count(self, now: float, latency_s: float = 0.0) -> None:
        """Count one more event."""
        self.total += 1
        self._recent.append((now, latency_s))

    def per_s(self, now: float, since: float) -> float:
        """Return the number of events per second in the last WINDOW_S, or since `since` if that is
        later."""
        self._forget(now)
        return len(self._recent) / max(0.1, min(WINDOW_S, now - since))

    def percentile_ms(self, now: float, percent: float) -> float:
        """Return a percentile of the latencies in the window, in milliseconds; 0 without any."""
        self._forget(now)
        latencies = sorted(latency for _, latency in self._recent)
        if not latencies:
            return 0.0
        rank = min(len(latencies) - 1, int(len(latencies) * percent / 100))
        return latencies[rank] * 1000

    def _forget(self, now: float) -> None:
        while self._recent and self._recent[0][0] < now - WINDOW_S:
            self._recent.popleft()


@dataclass
class Device:
    """The last figures of a device, and the worker that received them."""

    figures: dict[str, object]
    partition: int
    worker: str
    at: float


@dataclass
class Board:
    """Everything that the demo shows."""

    url: str
    """Address of the broker."""
    began: float
    watched: str
    """The key that the reader watches."""
    workers: dict[str, Meter]
    receipts: Meter = field(default_factory=Meter)
    """Publishes, with the time from the call to the durable receipt."""
    reader: Meter = field(default_factory=Meter)
    devices: dict[str, Device] = field(default_factory=dict)
    owners: dict[int, tuple[str, float]] = field(default_factory=dict)
    """Partition → (worker that received its last message, time of that)."""
    address: str = ""
    """Address to open in a browser."""
    redelivered: int = 0
    others: int = 0
    """Number of messages that the workers received and this run did not publish."""

    def __post_init__(self) -> None:
        self.address = self.address or f"{self.url}/demo"

    def partitions_of(self, worker: str) -> list[int]:
        """Return the partitions whose last messages this worker received."""
        return sorted(number for number, (owner, _) in self.owners.items() if owner == worker)

    def keys_of(self, worker: str) -> list[str]:
        """Return the devices whose last figures went to this worker."""
        return sorted(key for key, device in self.devices.items() if device.worker == worker)


def first_line(url: str, *, has_token: bool) -> str:
    """Return the first line that is written if the output is no terminal."""
    line = f"Tocsin demo: open {url}/demo in a browser"
    if has_token:
        line += "; `tocsin ticket --page demo` prints an address that lets the browser in"
    return line


def plain_line(board: Board, now: float) -> str:
    """Return a line with the totals of the run, and with rates and latencies of the last WINDOW_S.
    It is written if the output is no terminal."""
    delivered = sum(meter.per_s(now, board.began) for meter in board.workers.values())
    busiest = max(board.workers.values(), key=lambda meter: meter.total)
    parts = [
        f"{now - board.began:6.1f} s",
        f"published {board.receipts.total} ({board.receipts.per_s(now, board.began):.0f}/s)",
        f"delivered {sum(m.total for m in board.workers.values())} ({delivered:.0f}/s)",
        f"end to end p50 {busiest.percentile_ms(now, 50):.1f} ms "
        f"p99 {busiest.percentile_ms(now, 99):.1f} ms",
    ]
    for worker in board.workers:
        parts.append(f"{worker} owns {_numbers(board.partitions_of(worker))}")
    device = board.devices.get(board.watched)
    if device is not None:
        parts.append(f"{board.watched} {_figures(device.figures)}")
    return "  ".join(parts)


def table(board: Board, now: float, width: int, height: int) -> list[str]:
    """Return the lines of the screen, at most `height` of at most `width` columns."""
    lines = [
        f"Tocsin demo   {now - board.began:.0f} s   stop it with Ctrl-C",
        _address(board, width),
        "",
        f"{'':<12}{'messages/s':>11}{'total':>10}{'p50 ms':>9}{'p99 ms':>9}   what",
        _row("published", board.receipts, board, now, "durable, receipt in hand"),
    ]
    for worker, meter in board.workers.items():
        keys = " ".join(board.keys_of(worker))
        what = f"partitions {_numbers(board.partitions_of(worker))}: {keys}"
        lines.append(_row(worker, meter, board, now, what))
    lines.append(_row("reader", board.reader, board, now, f"watches {board.watched}"))
    lines += ["", f"{'device':<14}{'part':>4}  {'given to':<10}last figures"]
    for key in sorted(board.devices, key=_natural):
        device = board.devices[key]
        mark = "*" if key == board.watched else " "
        lines.append(
            f"{key[:13]:<13}{mark}{device.partition:>4}  {device.worker:<10}"
            f"{_bar(device.figures)}{_figures(device.figures)}"
        )
    below = [
        "",
        f"redelivered {board.redelivered}   of other publishers {board.others}",
        "You can use this broker. Try in another terminal:",
        f"  tocsin consume machine --read --keys {board.watched}",
        "  tocsin queue show machine",
    ]
    if not board.url.endswith(":8080"):
        below.insert(3, f"  export TOCSIN_URL={board.url}")
    return [line[:width] for line in [*lines[: max(7, height - len(below) - 1)], *below]][:height]


def _address(board: Board, width: int) -> str:
    """Return the line with the address. If it is too long, it has no ticket, because a ticket that
    is cut off would not work."""
    line = f"Open {board.address}"
    if len(line) <= width or "#" not in line:
        return line
    return f"Open {board.url}/demo (tocsin ticket --page demo lets a browser in)"


def _row(name: str, meter: Meter, board: Board, now: float, what: str) -> str:
    return (
        f"{name:<12}{meter.per_s(now, board.began):>11.0f}{meter.total:>10}"
        f"{meter.percentile_ms(now, 50):>9.1f}{meter.percentile_ms(now, 99):>9.1f}   {what}"
    )


def _natural(key: str) -> tuple[str, int]:
    """Return a sort key by which cpu2 comes before cpu10."""
    word = key.rstrip("0123456789")
    return (word, int(key[len(word) :] or 0))


def _numbers(numbers: list[int]) -> str:
    return ",".join(map(str, numbers)) or "none yet"


def _bar(figures: dict[str, object]) -> str:
    percent = next((value for name, value in figures.items() if name.endswith("_percent")), None)
    if not isinstance(percent, int | float):
        return ""
    eighths = round(min(max(percent, 0), 100) / 100 * _BAR_CELLS * 8)
    full, rest = divmod(eighths, 8)
    bar = "█" * full + (_BAR[rest - 1] if rest else "")
    return f"{bar:<{_BAR_CELLS}} "


def _figures(figures: dict[str, object]) -> str:
    return "  ".join(f"{_figure(name, value)}" for name, value in figures.items())


def _figure(name: str, value: object) -> str:
    if isinstance(value, int | float):
        if name.endswith("_bytes_per_s"):
            return f"{name.removesuffix('_bytes_per_s')} {_bytes(value)}/s"
        if name.endswith("_percent"):
            return f"{value:.1f} % {name.removesuffix('_percent')}"
        return f"{name} {value:g}"
    return f"{name} {str(value)[:30]}"


def _bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


Figures = dict[str, dict[str, float]]
"""Device (the message's key) → figures (its body)."""

_SECTOR_BYTES: Final = 512
"""Size of a sector of /proc/diskstats, whatever the disk's own sectors are."""
_WHOLE_DISK: Final = re.compile(r"sd[a-z]+|[vh]d[a-z]+|xvd[a-z]+|nvme\d+n\d+|mmcblk\d+|md\d+")
_DISKS_MAX, _NETWORKS_MAX, _CPUS_MAX = 4, 4, 64


def read_proc(name: str) -> str:
    """Return the text of a file of /proc; empty if there is none."""
    try:
        return Path("/proc", name).read_text()
    except OSError:
        return ""


class Machine:
    """Read the figures of the machine. Rates are those between two looks."""

    def __init__(self, read: Callable[[str], str] = read_proc) -> None:
        self._read = read
        self._counters: dict[str, tuple[float, ...]] = {}
        self._at = 0.0

    def look(self, now: float) -> Figures:
        """Return the figures of every device; `now` is in monotonic seconds. The first look has no
        rates, and so no CPUs, disks and networks."""
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
    """Return (cpuN, idle ticks, all ticks) of each CPU."""
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
    """Return (disk-name, bytes read, bytes written) of whole disks."""
    found: Counters = []
    for line in diskstats.splitlines():
        fields = line.split()
        if len(fields) > 9 and _WHOLE_DISK.fullmatch(fields[2]) and len(found) < _DISKS_MAX:
            read, written = int(fields[5]) * _SECTOR_BYTES, int(fields[9]) * _SECTOR_BYTES
            found.append((f"disk-{fields[2]}", read, written))
    return found


def _networks(dev: str) -> Counters:
    """Return (net-name, bytes received, bytes sent) of interfaces that have ever carried data."""
    found: Counters = []
    for line in dev.splitlines():
        name, colon, rest = line.partition(":")
        fields = rest.split()
        if colon and len(fields) > 8 and len(found) < _NETWORKS_MAX:
            received, sent = int(fields[0]), int(fields[8])
            if received or sent:
                found.append((f"net-{name.strip()}", received, sent))
    return found
