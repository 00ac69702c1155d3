"""The catalog's rows as databases keep them: kinds, ids, and values with a checksum.

A value is a CRC-32 of its place and content as 8 hexadecimal digits, then the content (R30): a row
that is found in another one's place is damaged, too. The checksum is written by the gateway that
makes the row and looked at by the one that reads it: nothing on the way changes a bit unnoticed.
"""

import secrets
import zlib
from typing import Final, TypeVar

import msgspec

from metadata.catalog import Group, Membership, Queue
from metadata.data_keys import DataKey
from metadata.databases import Raw
from metadata.rights import RightsError
from metadata.stores import Contents
from metadata.tokens import TokenRecord, rights_of

FOLLOWED: Final = ("queues", "groups", "tokens", "data_keys", "marks", "dropped")
"""Kinds of rows that every gateway has in memory."""
KINDS: Final = (*FOLLOWED, "ids", "memberships")
ID_ALPHABET: Final = "abcdefghijklmnopqrstuvwxyz234567"
ID_LETTERS: Final = 10
_CRC_BYTES: Final = 8
_ENCODE: Final = msgspec.json.Encoder().encode
StructT = TypeVar("StructT", Queue, Group, TokenRecord, DataKey, Membership)


class Damaged(Exception):
    """A row is not what was written; says which."""


def random_id() -> str:
    """50 random bits as ten letters and digits: short in a log, unlike any name."""
    return "".join(secrets.choice(ID_ALPHABET) for _ in range(ID_LETTERS))


def columns_of(row: Queue | Group) -> tuple[str, str, str]:
    """(id, what the name is unique in, name)."""
    if isinstance(row, Queue):
        return row.queue_id, row.tenant, row.name
    return row.group_id, row.queue_id, row.name


def pack(kind: str, row_id: str, content: bytes) -> bytes:
    """The value of a row."""
    return b"%08x" % zlib.crc32(f"{kind}:{row_id}:".encode() + content) + content


def unpack(kind: str, row_id: str, value: bytes) -> bytes:
    """The content of a row. Raises Damaged."""
    content = value[_CRC_BYTES:]
    if pack(kind, row_id, content) != value:
        raise Damaged(f"the row {row_id!r} of {kind} is damaged")
    return content


def pack_struct(kind: str, row_id: str, row: msgspec.Struct) -> bytes:
    """The value of a row that is a struct."""
    return pack(kind, row_id, _ENCODE(row))


def read_struct(kind: str, row_id: str, value: bytes, form: type[StructT]) -> StructT:
    """The struct of a row. Raises Damaged."""
    try:
        return msgspec.json.decode(unpack(kind, row_id, value), type=form)
    except msgspec.DecodeError as error:
        raise Damaged(f"the row {row_id!r} of {kind} cannot be read: {error}") from None


def read_token(row_id: str, value: bytes) -> TokenRecord | None:
    """None: it is damaged, and admits nobody."""
    try:
        record = read_struct("tokens", row_id, value, TokenRecord)
        rights_of(record.rights)
    except (Damaged, RightsError):
        return None
    return record


def read_rows(raw: Raw) -> Contents:
    """All rows that are there; damaged tokens are left out.

    Raises:
        Damaged: any other row is damaged. A queue that were left out would be made anew under its
            name, and its messages orphaned.
    """
    there = {
        kind: [(row_id, value) for row_id, value in raw.get(kind, {}).items() if value is not None]
        for kind in FOLLOWED
    }
    dropped = [(row_id, unpack("dropped", row_id, value)) for row_id, value in there["dropped"]]
    return Contents(
        queues=[read_struct("queues", *row, Queue) for row in there["queues"]],
        groups=[read_struct("groups", *row, Group) for row in there["groups"]],
        dropped=[
            (queue_id.decode(), None if queue_id.decode() == row_id else row_id)
            for row_id, queue_id in dropped
        ],
        marks={name: unpack("marks", name, value).decode() for name, value in there["marks"]},
        memberships=[],
        data_keys=[read_struct("data_keys", *row, DataKey) for row in there["data_keys"]],
        tokens=[one for one in (read_token(*row) for row in there["tokens"]) if one is not None],
    )
