"""What a gateway remembers of the store, outside of it (R30): its incarnation, and how many touches
every copy had once. A store with another one, or with fewer, was exchanged or rolled back.

See `gateway.stores.mark_file`.
"""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from gateway.stores.mark_file import FileKeeper, read_file

FILE: Final = "store.mark"
_WHAT: Final = (
    "it says which store belongs to this gateway; remove it when you know that the store is the "
    "right one"
)
_LOG: Final = logging.getLogger("tocsin.storage")


class ClusterMark(msgspec.Struct, frozen=True, kw_only=True):
    """Of one storage cluster; `touches` by the key of each shard."""

    incarnation: str
    touches: dict[str, int] = {}


class Mark(ClusterMark, frozen=True, kw_only=True):
    """Of the first one, and of the others by their names."""

    others: dict[str, ClusterMark] = {}


def read_mark(data_dir: Path) -> Mark | None:
    """None: this gateway was never at a store. Raises Refused(storage_unavailable): it cannot be
    read, with what to do."""
    return read_file(data_dir / FILE, Mark, _WHAT)


class MarkKeeper:
    """Keeps the mark while touches grow, from `start` on."""

    def __init__(
        self, data_dir: Path, incarnation: str, touches: Callable[[], Mapping[str, int]]
    ) -> None:
        self._incarnation = incarnation
        self._touches = touches
        self._others: dict[str, Callable[[], ClusterMark]] = {}
        self._file = FileKeeper(data_dir / FILE, self._found, _LOG)

    def add(self, cluster: str, mark: Callable[[], ClusterMark]) -> None:
        """Of one more storage cluster, in place of what was said of it before."""
        self._others[cluster] = mark

    async def start(self) -> None:
        """As FileKeeper.start."""
        await self._file.start()

    async def close(self) -> None:
        """As FileKeeper.close."""
        await self._file.close()

    def _found(self) -> Mark:
        return Mark(
            incarnation=self._incarnation,
            touches=dict(self._touches()),
            others={name: other() for name, other in list(self._others.items())},
        )
