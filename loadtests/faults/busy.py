"""`python -m loadtests.faults.busy SECONDS SHARE NICE`: a process that only keeps a core busy.

Two effects slow down other work: what a broker under load takes from it, and what a machine with
few cores takes from everybody when that many processes want to run. A trial that has measured the
first measures the second in the same run. The broker is idle then, and processes like this one take
the place of the broker and of its clients.
"""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Final

IDLE: Final = 99
"""A value for NICE: SCHED_IDLE, which runs only when no other process wants to."""
_SLICE_S: Final = 0.001


@contextmanager
def apart(broker: int) -> Iterator[str]:
    """Give the process `broker` half of the usable cores, and this process, with all that it
    starts, the other half. So the clients do not share cores with the broker, as on separate
    machines. Yield a sentence about it. With one core, nothing changes."""
    ours = sorted(os.sched_getaffinity(0))
    if len(ours) < 2:
        yield "all on one core"
        return
    half = len(ours) // 2
    _keep(broker, ours[:half])
    _keep(os.getpid(), ours[half:])
    try:
        yield f"the broker on cores {ours[:half]}, all clients on {ours[half:]}"
    finally:
        _keep(os.getpid(), ours)
        with suppress(ProcessLookupError):
            _keep(broker, ours)


def _keep(pid: int, cores: list[int]) -> None:
    """Restrict all threads of a process to these cores."""
    with suppress(FileNotFoundError):  # it has ended
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(ProcessLookupError):  # that thread has ended
                os.sched_setaffinity(int(task.name), cores)


@asynccontextmanager
async def beside(seconds: float, *busy: tuple[float, int], broker: int = 0) -> AsyncIterator[None]:
    """Run busy processes during the block, one for each (share of a core, 0 to 1; nice, or IDLE).
    They end with the block, and after `seconds` in any case. The first one takes the place of the
    process `broker` and runs on its cores; 0: on those of this process."""
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-m", "loadtests.faults.busy", str(seconds), str(share), str(nice)
        )
        for share, nice in busy
    ]
    os.sched_setaffinity(processes[0].pid, os.sched_getaffinity(broker))
    try:
        yield
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
            await process.wait()


def give_way(nice: int) -> None:
    """Lower the priority of this process by `nice`, or to SCHED_IDLE (IDLE); 0 changes nothing."""
    if nice == IDLE:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    elif nice:
        os.nice(nice)


def main(seconds: float, share: float, nice: int) -> None:
    """Keep a core busy for `share` of each millisecond."""
    give_way(nice)
    end = time.monotonic() + seconds
    while (began := time.monotonic()) < end:
        while time.monotonic() - began < _SLICE_S * share:
            pass
        if share < 1:
            time.sleep(_SLICE_S * (1 - share))


if __name__ == "__main__":
    main(float(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
