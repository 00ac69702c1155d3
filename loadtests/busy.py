"""`python -m loadtests.busy SECONDS SHARE NICE`: a process that is busy, and nothing else.

What a broker under load takes from others is one thing, what a machine with few cores takes from
everybody where that many processes want to run is another. A trial that has measured the first asks
for the second in the same run: the broker has nothing to do, and processes like this one stand for
itself and for its clients.
"""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

IDLE: Final = 99
"""As NICE: SCHED_IDLE, only what all others leave."""
_SLICE_S: Final = 0.001


@asynccontextmanager
async def beside(seconds: float, *busy: tuple[float, int]) -> AsyncIterator[None]:
    """While processes run, one for each (share of a core, 0 to 1; nice, or IDLE). They end with
    the block, and after `seconds` in any case."""
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-m", "loadtests.busy", str(seconds), str(share), str(nice)
        )
        for share, nice in busy
    ]
    try:
        yield
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
            await process.wait()


def main(seconds: float, share: float, nice: int) -> None:
    """Busy for `share` of each millisecond."""
    if nice == IDLE:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    elif nice:
        os.nice(nice)
    end = time.monotonic() + seconds
    while (began := time.monotonic()) < end:
        while time.monotonic() - began < _SLICE_S * share:
            pass
        if share < 1:
            time.sleep(_SLICE_S * (1 - share))


if __name__ == "__main__":
    main(float(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
