"""The reasons of nacks as the storage keeps them: sealed like payloads, which they may quote."""

import asyncio
from typing import Final

import msgspec

from push.errors import Refused
from push.places import GroupPartition, Partition
from push.ports import Storage
from push.record import RecordDamaged
from push.sealing import PLAIN, Sealer

_HEADER: Final = b"reason of a nack"
"""What a record's header is to its payload."""


class _Form(msgspec.Struct):
    """A payload begins with "{", or it could not be told from a sealed one."""

    reason: str


_FORM: Final = msgspec.json.Decoder(_Form)


class NackReasons:
    """Seals and opens them."""

    def __init__(self, sealer: Sealer = PLAIN) -> None:
        self._sealer = sealer

    def seal(self, partition: Partition, reason: str) -> bytes | None:
        """As it is stored. None: nothing can be sealed at the moment, and it is not kept."""
        text = msgspec.json.encode(_Form(reason))
        try:
            return self._sealer.seal(partition, _HEADER, text, 1)
        except Refused:
            return None

    async def open(self, partition: Partition, stored: bytes | None) -> str | None:
        """What `seal` was given. None: nothing is stored, or it does not open."""
        if stored is None:
            return None
        if self._sealer is PLAIN:
            return self._open(partition, stored)
        return await asyncio.to_thread(self._open, partition, stored)  # a key may be waited for

    async def at(self, storage: Storage, place: GroupPartition, offset: int) -> str | None:
        """The reason that is stored with a message; None: there is none."""
        found = await storage.standings(place, offset, offset)
        return await self.open(place.partition, found[0].nack) if found else None

    def _open(self, partition: Partition, stored: bytes) -> str | None:
        try:
            return _FORM.decode(self._sealer.unseal(partition, _HEADER, stored)).reason
        except (Refused, RecordDamaged, msgspec.MsgspecError):
            return None
