"""Receipts of pulls: authenticated texts that name one delivery of one message. Pure.

A receipt holds numbers and a keyed hash (BLAKE2b) over them and the ids of its queue and group. So
a gateway accepts a receipt only if a gateway of this broker gave it for this queue and group, and
no gateway remembers what it gave (R24). The ids of queue and group are never used again: after a
queue was deleted and made anew under its name, its former receipts are invalid (R1).

    version u8, generation u32, partition u32, epoch u64, push u64, offset u64, MAC 16 bytes

The ids are not inside, because a request names queue and group. The text form is base64url without
padding, 66 characters.
"""

import base64
import binascii
import hmac
import struct
from hashlib import blake2b
from typing import Final, NamedTuple

VERSION: Final = 1
KEY_BYTES: Final = 32
MAC_BYTES: Final = 16
"""128 bits: an attacker who tries a billion receipts a second needs 10^22 years."""
_BODY: Final = struct.Struct(">BIIQQQ")
BYTES: Final = _BODY.size + MAC_BYTES
CHARS: Final = -(-BYTES * 4 // 3)


class Receipt(NamedTuple):
    """Name of a single delivery of a message."""

    generation: int
    """The generation of the partition's log (R2)."""
    partition: int
    epoch: int
    push: int
    offset: int


# enforces: R1, R24
class Receipts:
    """The codec of the receipts that a pull returns, which an ack over HTTP brings back. All
    gateways of a broker share the secret `key` of 32 bytes."""

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise ValueError(f"the key of receipts has {KEY_BYTES} bytes, not {len(key)}")
        self._key = key

    def encode(self, queue_id: str, group_id: str, receipt: Receipt) -> str:
        """Return the text of a receipt. Raises struct.error: a number is outside its width."""
        body = _BODY.pack(VERSION, *receipt)
        whole = body + self._mac(queue_id, group_id, body)
        return base64.urlsafe_b64encode(whole).rstrip(b"=").decode()

    def decode(self, queue_id: str, group_id: str, text: str) -> Receipt | None:
        """Return the delivery that a receipt names, or None if this broker did not give it for this
        queue and group: it is forged, cut off or altered, or of another queue or group."""
        if len(text) != CHARS:
            return None
        try:
            whole = base64.b64decode(text + "=" * (-CHARS % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            return None
        body, mac = whole[: _BODY.size], whole[_BODY.size :]
        if not hmac.compare_digest(mac, self._mac(queue_id, group_id, body)):
            return None
        # Base64 has several texts for the same bytes where the last character has spare bits, and
        # b64decode takes + and / too: only the one text that encode makes is the receipt.
        if base64.urlsafe_b64encode(whole).rstrip(b"=").decode() != text:
            return None
        version, *numbers = _BODY.unpack(body)
        return Receipt(*numbers) if version == VERSION else None

    def _mac(self, queue_id: str, group_id: str, body: bytes) -> bytes:
        queue, group = queue_id.encode(), group_id.encode()
        lengths = struct.pack(">HH", len(queue), len(group))  # "ab","c" is not "a","bc"
        return blake2b(
            lengths + queue + group + body,
            digest_size=MAC_BYTES,
            key=self._key,
            person=b"tocsin-receipt-1",
        ).digest()
