"""Metrics of any process: CPU, memory, files, and the lag of its event loop."""

import asyncio
import os
import resource
import time
from pathlib import Path
from typing import Final

from push.histogram import Histogram
from runtime.metrics.exposition import Samples
from runtime.metrics.registry import Process

PERIOD_S: Final = 0.1
VERSION: Final = "0.1.0"
_BEGAN_UNIX_S: Final = time.time()
_PAGE_BYTES: Final = resource.getpagesize()


class LoopLag:
    """The lag of the event loop, by which a timer fires late; measured ten times a second."""

    def __init__(self) -> None:
        self.seconds = Histogram()
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Measure from now on, until `stop`. Nothing happens if it has started already."""
        if self._timer is None:
            self._later()

    def _later(self) -> None:
        # Not the loop's clock, which has whole milliseconds.
        self._due = time.monotonic() + PERIOD_S
        self._timer = asyncio.get_running_loop().call_later(PERIOD_S, self._fire)

    def _fire(self) -> None:
        self.seconds.add(time.monotonic() - self._due)
        self._later()

    def stop(self) -> None:
        """Measure no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def of_process(samples: Samples, process: Process, gateway: str, lag: LoopLag) -> None:
    """Put the figures of this process into `samples`. `gateway`: the name of this gateway; "" if
    the process is none."""
    samples.put("tocsin_info", 1, process, VERSION, gateway)
    samples.put("process_start_time_seconds", round(_BEGAN_UNIX_S, 3))
    used = resource.getrusage(resource.RUSAGE_SELF)
    samples.put("process_cpu_seconds_total", used.ru_utime + used.ru_stime)
    samples.put("process_resident_memory_bytes", _resident_bytes())
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files != resource.RLIM_INFINITY:
        samples.put("process_max_fds", files)
    count = _open_files()
    if count:
        samples.put("process_open_fds", count)
    samples.spread("tocsin_loop_lag_seconds", lag.seconds)


def _resident_bytes() -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):  # no Linux: the maximum so far, in KiB
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _open_files() -> int:
    """Return the number of open files. Since Linux 6.2 the folder's size is that number; to list
    30,000 would hold up everybody. 0 if it is unknown."""
    try:
        return os.stat("/proc/self/fd").st_size
    except OSError:
        return 0
