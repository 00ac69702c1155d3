"""A catalog in a folder of a test."""

from collections.abc import Callable
from pathlib import Path

from metadata.inprocess import InProcessMetadata
from metadata.sqlite.store import FILE
from metadata.sqlite.threaded_store import ThreadedStore


async def open_catalog(
    folder: Path, *, on_fatal: Callable[[str], None] | None = None
) -> InProcessMetadata:
    """The catalog of the file in this folder, which is made when it is not there."""
    return InProcessMetadata(*await ThreadedStore.open(folder / FILE, on_fatal=on_fatal))
