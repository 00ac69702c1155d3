"""One commit: the records that go to the storage together, and what the storage says of them."""

import asyncio
import time
from collections.abc import Awaitable, Coroutine
from typing import Final

from gateway.publish.routing import OpenRecord
from push.places import Partition
from push.ports import Append, Appended, Lane, Storage
from push.record import Header
from runtime.drawn import drawn

RECORD_ID_BYTES: Final = 16
Batch = list[tuple[Partition, OpenRecord]]


class Commit:
    """Its records are closed when it is made. Handed over, it is under way."""

    __slots__ = (
        "appends", "asked_us", "batch", "began", "has_others", "headers", "is_answered",
        "is_share", "lane", "size", "stored", "ticket",
    )  # fmt: skip

    def __init__(
        self, batch: Batch, size: int, began: float, *, is_share: bool, lane: Lane
    ) -> None:
        self.batch = batch
        self.size = size
        self.began = began
        self.ticket: int | None = None
        """The breaker's."""
        self.is_share = is_share
        """Of all who publish; else it has what goes beside one that is."""
        self.lane = lane
        """As it was when it began (R7)."""
        self.stored: Awaitable[list[Appended]]
        """What comes of it; to be awaited once."""
        now_ms, self.asked_us = time.time() * 1000, time.monotonic_ns() // 1000
        self.appends: list[Append] = []
        self.headers: list[Header] = []
        record_ids = drawn(len(batch), RECORD_ID_BYTES)
        for (partition, record), record_id in zip(batch, record_ids, strict=True):
            append, header = _append(partition, record, record_id, now_ms)
            self.appends.append(append)
            self.headers.append(header)
        self.is_answered = False
        self.has_others = True
        """Than those that flood."""

    def hand_over(self, storage: Storage) -> None:
        """The storage has it now. Whatever it raises, `stored` does."""
        try:
            self.stored = storage.append(self.appends, lane=self.lane)
        except Exception as error:
            failed: asyncio.Future[list[Appended]] = asyncio.get_running_loop().create_future()
            failed.set_exception(error)
            self.stored = failed

    def dismiss(self) -> None:
        """Nobody awaits it any more: where nobody ever did, it has not even begun, perhaps."""
        if isinstance(self.stored, Coroutine):
            self.stored.close()


def _append(
    partition: Partition, record: OpenRecord, record_id: bytes, now_ms: float
) -> tuple[Append, Header]:
    """The record, closed, as the storage is handed it."""
    settings = record.route.queue.settings
    encoded, payload, header = record.builder.close(
        record_id=record_id,
        published_unix_ms=int(now_ms),
        ring_epoch=record.route.queue.ring_epoch,
        tenant=0,
    )
    is_bounded = settings.overflow == "reject"
    append = Append(
        partition,
        encoded,
        payload,
        parsed=header,
        durability=settings.durability,
        dedup_window_s=settings.dedup_window_s,
        messages_max=settings.messages_max if is_bounded else 0,
        bytes_max=settings.bytes_max if is_bounded else 0,
        message_bytes_max=settings.bytes_max,
    )
    return append, header
