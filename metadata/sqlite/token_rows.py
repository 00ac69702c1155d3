"""The rows of API tokens in the catalog's file (tokens.sql)."""

import logging
import sqlite3
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import msgspec

from metadata.rights import RightsError
from metadata.tokens import TokenRecord, rights_of

Run = Callable[..., sqlite3.Cursor]
Columns = tuple[object, object, object]
"""token_id, value, checksum."""
_LOG: Final = logging.getLogger("metadata.token_rows")


def put_token(run: Run, record: TokenRecord) -> None:
    """Write it, in place of the one of its id."""
    value = msgspec.json.encode(record)
    row = (record.token_id, value, zlib.crc32(value))
    run("INSERT OR REPLACE INTO tokens VALUES (?, ?, ?)", row)


def drop_token(run: Run, token_id: str) -> None:
    """Take it out."""
    run("DELETE FROM tokens WHERE token_id = ?", (token_id,))


def read_token(columns: Columns) -> TokenRecord | None:
    """The record of a row; None: it is damaged."""
    token_id, value, checksum = columns
    if not isinstance(value, bytes) or zlib.crc32(value) != checksum:
        return None
    try:
        record = msgspec.json.decode(value, type=TokenRecord)
        rights_of(record.rights)
    except (msgspec.DecodeError, RightsError):
        return None
    return record if record.token_id == token_id else None


def sound_tokens(path: Path, rows: Iterable[Columns]) -> list[TokenRecord]:
    """All but the damaged ones, which admit nobody: they are said."""
    found = [(row, read_token(row)) for row in rows]
    damaged = [row[0] for row, record in found if record is None]
    if damaged:
        _LOG.error("%s: damaged tokens, which admit nobody: %s", path, damaged)
    return [record for _, record in found if record is not None]
