"""Pull receipts: self-contained, authenticated names of one delivery. Pure.

A receipt says which delivery it means, so that any gateway can act on it without having given it
(R24), and carries a MAC, so that nobody can make one up. It is bound to the ids of queue and
group, which are never reused: after a queue was deleted and made anew under its name, the
receipts of before are invalid (R1).

    version u8, generation u32, partition u32, epoch u64, push u64, offset u64, MAC 16 bytes

The ids are not inside: whoever uses a receipt names queue and group, and the MAC covers them. The
text form is base64url without padding, 66 characters.
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
    """One delivery of one message."""

    generation: int
    """Of the partition's log (R2)."""
    partition: int
    epoch: int
    push: int
    offset: int


class Receipts:
    """Makes and reads receipts; `key` is 32 secret bytes that all gateways of a broker share."""

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise ValueError(f"the key of receipts has {KEY_BYTES} bytes, not {len(key)}")
        self._key = key

    def encode(self, queue_id: str, group_id: str, receipt: Receipt) -> str:
        """The text of a receipt. Numbers outside their width raise struct.error: a bug."""
        body = _BODY.pack(VERSION, *receipt)
        whole = body + self._mac(queue_id, group_id, body)
        return base64.urlsafe_b64encode(whole).rstrip(b"=").decode()

    def decode(self, queue_id: str, group_id: str, text: str) -> Receipt | None:
        """The delivery that a receipt names; None when it was not given by this broker for this
        queue and group: forged, cut off, altered, of another queue or group."""
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
