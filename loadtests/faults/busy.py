"""`python -m loadtests.faults.busy SECONDS SHARE NICE`: a process that is busy, and nothing else.

What a broker under load takes from others is one thing, what a machine with few cores takes from
everybody where that many processes want to run is another. A trial that has measured the first asks
for the second in the same run: the broker has nothing to do, and processes like this one stand for
itself and for its clients.
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
"""As NICE: SCHED_IDLE, only what all others leave."""
_SLICE_S: Final = 0.001


@contextmanager
def apart(broker: int) -> Iterator[str]:
    """The process `broker` has half of the cores that we may use, and we, with all that is started
    from here meanwhile, have the others: as if its clients were on another machine, as they are
    elsewhere. Gives a sentence about it. Where there is one core, nothing changes."""
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
    """All threads of this process on these cores."""
    with suppress(FileNotFoundError):  # it has ended
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(ProcessLookupError):  # that thread has
                os.sched_setaffinity(int(task.name), cores)


@asynccontextmanager
async def beside(seconds: float, *busy: tuple[float, int], broker: int = 0) -> AsyncIterator[None]:
    """While processes run, one for each (share of a core, 0 to 1; nice, or IDLE). They end with
    the block, and after `seconds` in any case. The first one stands for the process `broker`, and
    runs where that may."""
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
    """This process has from now on what others leave (IDLE), or so much less than they (0: as they
    have)."""
    if nice == IDLE:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    elif nice:
        os.nice(nice)


def main(seconds: float, share: float, nice: int) -> None:
    """Busy for `share` of each millisecond."""
    give_way(nice)
    end = time.monotonic() + seconds
    while (began := time.monotonic()) < end:
        while time.monotonic() - began < _SLICE_S * share:
            pass
        if share < 1:
            time.sleep(_SLICE_S * (1 - share))


if __name__ == "__main__":
    main(float(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
