"""Messages by their offsets, for showing what a key's first message is."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import msgspec

from push import limits
from push.message import Message
from push.places import Partition
from push.ports import Storage
from push.record import Record

_MESSAGE: Final = msgspec.json.Decoder(Message)


@dataclass(frozen=True, slots=True)
class Facts:
    """Of one message."""

    id: str | None
    """The client's; None: it gave none."""
    key: str | None
    published_unix_ms: int
    expires_unix_ms: int


@dataclass(slots=True)
class Budget:
    """Bytes that one answer may still read."""

    left: int


class Heads:
    """See the module."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    async def read(
        self, partition: Partition, offsets: Iterable[int], budget: Budget
    ) -> dict[int, Facts | None]:
        """Of each offset, what it is; None: it is no longer retained. Those that are missing in
        the answer, the higher ones, lay beyond the budget."""
        left = sorted(set(offsets))
        found: dict[int, Facts | None] = {}
        while left and budget.left > 0:
            bound = min(budget.left, limits.READ_BYTES_MAX)
            records = await self._storage.read_each(partition, left, bound)
            for offset, record in zip(left, records, strict=False):
                found[offset] = _facts(record, offset) if record is not None else None
            held = {id(record): record.memory_bytes for record in records if record is not None}
            budget.left -= max(sum(held.values()), 1)
            left = left[len(records) :]
        return found


def _facts(record: Record, offset: int) -> Facts:
    message = _MESSAGE.decode(record.slice(offset, offset))
    return Facts(
        message.id, message.key, record.header.published_unix_ms, record.expires_unix_ms(offset)
    )
