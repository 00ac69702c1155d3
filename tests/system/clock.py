"""A wall clock that a test sets while a process runs (`clock.c`, preloaded).

libfaketime would do, if it left waits alone: with the monotonic clock unchanged and the other one
set, `clock_nanosleep` fails in it (0.9.10, EINVAL).
"""

import mmap
import struct
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.system.disk import COMPILER

SOURCE: Final = Path(__file__).with_name("clock.c")
_SECONDS: Final = struct.Struct("=q")


class WallClock:
    """By how much the clock is set, in memory that the process shares. Made by `wall_clock`."""

    def __init__(self, library: Path, seconds: Path, memory: mmap.mmap) -> None:
        self.settings: Mapping[str, str] = {"LD_PRELOAD": str(library), "CLOCK": str(seconds)}
        """Variables of the environment in which the process starts."""
        self._memory = memory

    def set(self, seconds: int) -> None:
        """Set the clock so many seconds ahead of this machine's; below 0: back."""
        _SECONDS.pack_into(self._memory, 0, seconds)


@contextmanager
def wall_clock(folder: Path) -> Iterator[WallClock]:
    """Yield a clock that is this machine's, until a test sets it. `folder`: for its two files."""
    assert COMPILER is not None, "a clock that is set needs a C compiler (Debian: gcc, libc6-dev)"
    folder.mkdir(parents=True, exist_ok=True)
    library, seconds = folder / "clock.so", folder / "clock"
    command = [COMPILER, "-O1", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"]
    subprocess.run(command, check=True, capture_output=True)
    seconds.write_bytes(bytes(_SECONDS.size))
    with seconds.open("r+b") as file, mmap.mmap(file.fileno(), _SECONDS.size) as memory:
        yield WallClock(library, seconds, memory)
