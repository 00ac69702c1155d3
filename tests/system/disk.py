"""A disk that fails when a test says so, for a broker process (`disk.c`, preloaded).

The test and the broker's process share a file of numbers, so a test can make the disk slow, full or
broken while the broker runs, and count the syncs and writes. Only files whose path has the disk's
`part` in it are concerned: the end of a path, or a folder, with a slash behind it.
"""

import mmap
import shutil
import struct
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).with_name("disk.c")
COMPILER: Final = shutil.which("cc") or shutil.which("gcc")
WAL: Final = "/store.sqlite-wal"
FILE: Final = "/store.sqlite"
BEFORE_WRITE, BEFORE_SYNC, AFTER_SYNC = 1, 2, 3
"""Points at which `signal_at` sends its signal."""
_NUMBER: Final = struct.Struct("=i")
_FIELDS: Final = (
    "syncs", "writes", "failed", "sync_us", "failing_syncs", "writes_left", "point", "countdown",
    "signal",
)  # fmt: skip
_PART_AT, _SIZE = 64, 128


def why_not() -> str | None:
    """Return why no disk can be made to fail here; None if one can."""
    if COMPILER is None:
        return "disks that fail need a C compiler (Debian: gcc, libc6-dev)"
    return None


class Disk:
    """The disk's numbers, in memory that the broker's process shares. Made by `failing_disk`."""

    def __init__(self, library: Path, numbers: Path, memory: mmap.mmap) -> None:
        self.settings: Mapping[str, str] = {"LD_PRELOAD": str(library), "DISK": str(numbers)}
        """Variables of the environment in which the broker starts."""
        self._memory = memory
        self.heal()

    def get(self, name: str) -> int:
        """Return a number of `struct control`."""
        number: int = _NUMBER.unpack_from(self._memory, 4 * _FIELDS.index(name))[0]
        return number

    def set(self, **numbers: int) -> None:
        """Set these numbers, in their order."""
        for name, number in numbers.items():
            _NUMBER.pack_into(self._memory, 4 * _FIELDS.index(name), number)

    def concern(self, part: str) -> None:
        """Count and disturb what happens to files with this part in their path, and to no other."""
        self._memory[_PART_AT:_SIZE] = part.encode().ljust(_SIZE - _PART_AT, b"\0")

    def signal_at(self, point: int, countdown: int, signal: int) -> None:
        """Send the process this signal when it reaches this point for the `countdown`th time."""
        self.set(point=0, countdown=countdown, signal=signal)
        self.set(point=point)

    def heal(self) -> None:
        """Disturb nothing any more."""
        self.set(sync_us=0, failing_syncs=0, writes_left=-1, point=0)


@contextmanager
def failing_disk(folder: Path, part: str = WAL) -> Iterator[Disk]:
    """Yield a disk that works, until a test sets its numbers. `folder`: one for its two files."""
    assert COMPILER is not None
    folder.mkdir(parents=True, exist_ok=True)
    library, numbers = folder / "disk.so", folder / "disk"
    command = [COMPILER, "-O1", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"]
    subprocess.run(command, check=True, capture_output=True)
    numbers.write_bytes(bytes(_SIZE))
    with numbers.open("r+b") as file, mmap.mmap(file.fileno(), _SIZE) as memory:
        disk = Disk(library, numbers, memory)
        disk.concern(part)
        yield disk
