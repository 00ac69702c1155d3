"""Commands and answers of Redis Streams, without a socket. hiredis frames the answers, as in
redis-py: https://redis.io/docs/latest/develop/reference/protocol-spec/"""

from collections.abc import Sequence
from typing import Final, NamedTuple
from zlib import crc32

KEY, BODY = b"k", b"b"
"""The fields of a message."""
_FIELDS: Final = 4


class Broken(ValueError):
    """An answer of another form than the command has."""


class Entry(NamedTuple):
    """A message of a stream."""

    stream: bytes
    identity: bytes
    body: bytes


def packed(*words: bytes | str | int) -> bytes:
    """Encode a command."""
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        data = word if isinstance(word, bytes) else str(word).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition of a key. Redis has no partitions of a stream, so clients must agree on
    it."""
    return crc32(key) % partitions


def entries(answer: object) -> list[Entry]:
    """Return the messages of an answer to XREAD or XREADGROUP, stream by stream, in order; empty if
    none came in time.

    Raises:
        Broken: it is an error, or has another form than `[[stream, [[id, [k, …, b, …]], …]], …]`.
    """
    if answer is None:
        return []
    if not isinstance(answer, list):
        raise Broken(f"a read was answered {answer!r:.200}")
    found: list[Entry] = []
    for one in answer:
        stream, messages = _pair(one)
        if not isinstance(stream, bytes) or not isinstance(messages, list):
            raise Broken(f"a stream as {one!r:.200}")
        for message in messages:
            identity, fields = _pair(message)
            body = _body(fields)
            if not isinstance(identity, bytes) or body is None:
                raise Broken(f"a message as {message!r:.200}")
            found.append(Entry(stream, identity, body))
    return found


def _pair(value: object) -> Sequence[object]:
    if not isinstance(value, list) or len(value) != 2:
        raise Broken(f"a pair as {value!r:.200}")
    return value


def _body(fields: object) -> bytes | None:
    """Return the body; None if the message is none of ours."""
    if not isinstance(fields, list) or len(fields) != _FIELDS:
        return None
    body = fields[3]
    is_ours = fields[0] == KEY and fields[2] == BODY and isinstance(body, bytes)
    return body if is_ours else None
