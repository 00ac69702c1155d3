"""Payloads at rest: sealed with AES-256-GCM under data keys (R9, P13).

A sealed payload is

    version u8 (1), data key's id 8 bytes, nonce 12 bytes, ciphertext and tag (16 bytes)

Its additional data are the version, the data key's id, queue id, partition number, and the whole
header as it is stored, which has the record's id and its tenant. The offset is not among them,
because the storage assigns it (R9). So a payload that was moved to another record, partition or
queue does not open there.

Nonces are 12 random bytes (NIST SP 800-38D, 8.2.2), drawn from the operating system, each for one
record. `push.limits` bounds how many of them a key may use (8.3).

`NackReasons` seals the reasons of nacks like payloads, which they may quote.
"""

import asyncio
import os
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from threading import Lock
from typing import Final

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from push import limits
from push.errors import Refused
from push.places import CursorPlace, Partition
from push.record import RecordDamaged
from push.storage_port import PLAIN, SEALED, Sealer, Storage, is_sealed

DATA_KEY_BYTES: Final = 32
KEY_ID_BYTES: Final = 8
NONCE_BYTES: Final = 12
TAG_BYTES: Final = 16
NONCES_AT_ONCE: Final = 64
_VERSION: Final = bytes([SEALED])
_NONCE: Final = 1 + KEY_ID_BYTES
_SEALED: Final = _NONCE + NONCE_BYTES
_PLACES_MAX: Final = 4096
_PLACE: Final = struct.Struct("<HI")
AHEAD: Final = 7 / 8
"""Part of each bound at which the successor is made, so that it exists when it is needed."""


@lru_cache(_PLACES_MAX)
def _place(partition: Partition) -> bytes:
    queue_id = partition.queue_id.encode()
    return _PLACE.pack(len(queue_id), partition.number) + queue_id


@dataclass(slots=True)
class SealingKey:
    """A data key that seals, and the amounts that it has sealed."""

    key_id: bytes
    cipher: AESGCM
    messages: int = 0
    bytes: int = 0
    until: float = 0.0
    """Time from which the key no longer seals, in seconds of the monotonic clock. It is set when
    the key begins to seal."""
    is_announced: bool = False
    """Whether `on_running_low` was called for it."""

    def has_room(self, messages: int, size: int, now: float) -> bool:
        """Whether the key may now also seal a record with this number of messages and bytes."""
        return (
            self.messages + messages <= limits.DATA_KEY_MESSAGES_MAX
            and self.bytes + size <= limits.DATA_KEY_BYTES_MAX
            and now < self.until
        )

    def is_running_low(self) -> bool:
        """Whether it is time for a successor, by the amounts that it has sealed."""
        return (
            self.messages >= AHEAD * limits.DATA_KEY_MESSAGES_MAX
            or self.bytes >= AHEAD * limits.DATA_KEY_BYTES_MAX
        )


def _fresh_nonces() -> list[bytes]:
    """Return random nonces from the operating system, in one call, because each call gives up the
    interpreter's lock, and has to get it back from another thread."""
    random = os.urandom(NONCES_AT_ONCE * NONCE_BYTES)
    return [random[at : at + NONCE_BYTES] for at in range(0, len(random), NONCE_BYTES)]


class RecordSealer:
    """`push.storage_port.Sealer` with data keys. Until `begin`, encryption is off: payloads are
    stored as they are, and sealed ones are opened.

    `open_key` returns the bytes of a data key by its id, and raises like Sealer.unseal.
    `on_running_low` is called when the current key has sealed most of the messages or bytes that it
    may, and when it has reached a bound without a successor. `on_succession` is called when a
    successor has taken its place. Both are called in the sealing thread.
    """

    def __init__(
        self,
        open_key: Callable[[bytes], bytes],
        *,
        now: Callable[[], float] = time.monotonic,
        on_running_low: Callable[[], None] = lambda: None,
        on_succession: Callable[[], None] = lambda: None,
    ) -> None:
        self._open_key = open_key
        self._now = now
        self._on_running_low = on_running_low
        self._on_succession = on_succession
        self._ciphers: dict[bytes, AESGCM] = {}
        self._lock = Lock()
        """Lock around the state of the keys, because several storage clusters seal at once, each in
        a thread of its own."""
        self._nonces: list[bytes] = []
        """Nonces that are drawn, and not used yet."""
        self.current: SealingKey | None = None
        self.successor: SealingKey | None = None

    def begin(self, key_id: bytes, key: bytes) -> None:
        """Seal under this data key from now on. The caller has stored it durably, wrapped."""
        self.current = self._sealing_key(key_id, key)
        self.current.until = self._now() + limits.DATA_KEY_S_MAX

    def put_successor(self, key_id: bytes, key: bytes) -> None:
        """Seal under this data key when the current one has reached a bound. The caller has stored
        it durably, wrapped."""
        self.successor = self._sealing_key(key_id, key)

    def _sealing_key(self, key_id: bytes, key: bytes) -> SealingKey:
        cipher = self._ciphers[key_id] = AESGCM(key)
        return SealingKey(key_id, cipher)

    # enforces: R9
    def seal(self, partition: Partition, header: bytes, payload: bytes, count: int) -> bytes:
        with self._lock:
            key = self.current
            if key is None:
                return payload
            if not key.has_room(count, len(payload), self._now()):
                key = self._succeed()
            key.messages += count
            key.bytes += len(payload)
            if not key.is_announced and key.is_running_low():
                key.is_announced = True
                self._on_running_low()
            if not self._nonces:
                self._nonces = _fresh_nonces()
            nonce = self._nonces.pop()
        bound = b"".join((_VERSION, key.key_id, _place(partition), header))
        sealed = key.cipher.encrypt(nonce, payload, bound)
        return b"".join((_VERSION, key.key_id, nonce, sealed))

    def _succeed(self) -> SealingKey:
        key, self.successor = self.successor, None
        if key is None:
            self._on_running_low()
            raise Refused(
                "storage_unavailable",
                "the data key has reached its bound, and the catalog has not stored a new one yet: "
                "try again",
            )
        key.until = self._now() + limits.DATA_KEY_S_MAX
        self.current = key
        self._on_succession()
        return key

    def unseal(self, partition: Partition, header: bytes, sealed: bytes) -> bytes:
        if not is_sealed(sealed):
            if sealed[:1] == b"{":
                return sealed
            raise RecordDamaged("its payload is neither plain nor sealed in a known form")
        if len(sealed) < _SEALED + TAG_BYTES:
            raise RecordDamaged("its sealed payload is too short")
        key_id = sealed[1:_NONCE]
        cipher = self._ciphers.get(key_id)
        if cipher is None:
            cipher = self._ciphers[key_id] = AESGCM(self._open_key(key_id))
        bound = b"".join((_VERSION, key_id, _place(partition), header))
        try:
            return cipher.decrypt(sealed[_NONCE:_SEALED], sealed[_SEALED:], bound)
        except InvalidTag:
            raise RecordDamaged(
                "its payload cannot be opened, because it was changed or belongs elsewhere"
            ) from None


_HEADER: Final = b"reason of a nack"
"""Data that is bound to a reason, like a record's header to its payload."""


class _Reason(msgspec.Struct):
    """A reason as a JSON object, because a plain payload must begin with "{" to be distinct from a
    sealed one."""

    reason: str


_REASON: Final = msgspec.json.Decoder(_Reason)


class NackReasons:
    """Seal and open the reasons of nacks."""

    def __init__(self, sealer: Sealer = PLAIN) -> None:
        self._sealer = sealer

    def seal(self, partition: Partition, reason: str) -> bytes | None:
        """Return a reason as it is stored. None: it cannot be sealed at the moment, and is not
        kept."""
        text = msgspec.json.encode(_Reason(reason))
        try:
            return self._sealer.seal(partition, _HEADER, text, 1)
        except Refused:
            return None

    async def open(self, partition: Partition, stored: bytes | None) -> str | None:
        """Return the reason that `seal` has sealed. None: nothing is stored, or it cannot be
        opened."""
        if stored is None:
            return None
        if self._sealer is PLAIN:
            return self._open(partition, stored)
        return await asyncio.to_thread(self._open, partition, stored)  # a key may be waited for

    async def at(self, storage: Storage, place: CursorPlace, offset: int) -> str | None:
        """Return the reason that is stored with a message; None: there is none, or it cannot be
        opened."""
        found = await storage.standings(place, offset, offset)
        return await self.open(place.partition, found[0].nack) if found else None

    def _open(self, partition: Partition, stored: bytes) -> str | None:
        try:
            return _REASON.decode(self._sealer.unseal(partition, _HEADER, stored)).reason
        except (Refused, RecordDamaged, msgspec.MsgspecError):
            return None
