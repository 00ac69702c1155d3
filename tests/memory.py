"""Folders in memory, for tests whose stores are files and whose subject is not the disk. With
several tests at once and an fsync in each commit, they would mostly wait for the disk.

    from tests.memory import tmp_path  # a fixture, in place of pytest's; in a folder's conftest.py

Tests of storage/, of whole systems and of chaos use the disk.
"""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

_MEMORY: Final = Path("/dev/shm")
_FREE_BYTES_MIN: Final = 2 << 30
"""The least free space in memory. Containers may have 64 MiB there, which brokers would consider a
full disk."""


def memory() -> Path | None:
    """Return the folder for such folders; None if it has no room, and they are on the disk."""
    has_room = _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free >= _FREE_BYTES_MIN
    return _MEMORY if has_room else None


@contextmanager
def in_memory() -> Iterator[Path]:
    """Yield an empty folder, removed in the end."""
    with tempfile.TemporaryDirectory(prefix="tocsin-", dir=memory()) as name:
        yield Path(name)


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder of the test's own."""
    with in_memory() as folder:
        yield folder
