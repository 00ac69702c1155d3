"""What a storage shows of itself: for looking at, changes nothing (P9).

Part of the port, see push.ports. Each call answers from one moment; two calls may be of two.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from push.ports import (
        Cursor,
        CursorState,
        GroupPartition,
        ParkedLine,
        Partition,
        PartitionState,
        Standing,
    )


class Looking(Protocol):
    """The looking half of `push.ports.Storage`."""

    async def partitions(self, queue_id: str) -> "list[PartitionState]":
        """Every partition of a queue; empty when it is unknown."""

    async def cursors(self, queue_id: str, group_id: str) -> "list[CursorState]":
        """Every cursor of a group; empty when it is unknown."""

    async def cursor(self, place: "GroupPartition") -> "Cursor | None":
        """A cursor as its next owner would find it, without becoming one; None: unknown."""

    async def standings(self, place: "GroupPartition", first: int, last: int) -> "list[Standing]":
        """Where each of the offsets first..last stands for a group; none when it is unknown."""

    async def parked(self, place: "GroupPartition") -> "list[ParkedLine]":
        """The parked keys of a (group, partition), by hash; empty when it is unknown."""

    async def trimmable(
        self, partition: "Partition", *, retention_s: float, keep_all: bool, after: int = 0
    ) -> tuple[int, int | None]:
        """How many messages `Storage.trim` would delete with this retention: in a slice of the
        partition, from the offset `after` on. The offset to go on from comes second; None: that
        was the last slice."""

    async def published(self, places: "Sequence[tuple[Partition, int]]") -> list[int | None]:
        """For each (partition, offset), when the record was published that holds the offset or
        is the first one behind it, in unix milliseconds; None: nothing is retained from there on,
        or the partition is unknown."""
