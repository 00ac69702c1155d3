"""What an append sends to Redis, and what comes back: arguments, outcomes, records. Pure."""

import hashlib
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final

from push.errors import Refused, Unknown
from push.places import Partition
from push.ports import Append, Appended, Damage, NotStored, Stored
from push.record import Header, Record, RecordDamaged
from push.sealing import Sealer
from storage.redis.redis_ports import Arg
from storage.rules.appending import nowhere
from storage.rules.dedup import id_bucket, line_bucket

SEQUENCE_MAX: Final = (1 << 53) - 1
"""The functions count in doubles. Clients may use as much (push.sending)."""
_PRODUCER: Final = Struct("<16sQ")


def checksum(partition: Partition, header: bytes, sealed: bytes) -> str:
    """Over what is stored of a record, and whose it is."""
    at = f"{partition.queue_id}:{partition.number}:".encode()
    return str(zlib.crc32(sealed, zlib.crc32(header, zlib.crc32(at))))


def append_args(append: Append, header: Header, sealed: bytes, *, wall_unix_ms: int) -> list[Arg]:
    """The arguments of `append`.

    Raises:
        Refused: invalid_message: a sequence is larger than the functions can count.
    """
    if header.producers and (
        max(header.sequences) > SEQUENCE_MAX
        or max(resolved for _, resolved in header.producers) > SEQUENCE_MAX
    ):
        raise Refused("invalid_message", f"record: a sequence is above {SEQUENCE_MAX}")
    digests = header.digests if append.dedup_window_s > 0 else []
    until = id_bucket(wall_unix_ms, append.dedup_window_s) if digests else ""
    return [
        append.partition.number,
        append.durability,
        wall_unix_ms,
        line_bucket(wall_unix_ms),
        until,
        append.messages_max,
        append.bytes_max,
        "",
        min(header.published_unix_ms, wall_unix_ms),
        checksum(append.partition, append.header, sealed),
        append.header,
        sealed,
        header.sizes.tobytes(),
        b"".join(_PRODUCER.pack(*producer) for producer in header.producers),
        header.producer_indexes.tobytes(),
        header.sequences.tobytes(),
        b"".join(digests),
        append.message_bytes_max,
    ]


@dataclass(frozen=True, slots=True)
class Placed:
    """The answer to an append, before everything in it is certified."""

    appended: Appended
    next_offset: int


def placed(answer: Sequence[Any], count: int) -> Placed:
    """What `append` answered about a record of `count` messages."""
    if not answer:
        return Placed(nowhere(count), 0)
    first, stored, certified, next_offset, generation = answer[:5]
    outcomes = tuple(_outcome(raw) for raw in answer[5:])
    skips = tuple(
        index
        for index, outcome in enumerate(outcomes)
        if isinstance(outcome, NotStored) or outcome.duplicate
    )
    appended = Appended(first, stored, certified, generation, outcomes or None, skips)
    return Placed(appended, next_offset)


def _outcome(raw: bytes) -> Stored | NotStored:
    if raw[:1] in b"+=":
        return Stored(int(raw[1:]), duplicate=raw[:1] == b"=")
    return NotStored(raw.decode())


def all_placed(results: Sequence[Placed | BaseException]) -> list[Placed]:
    """The places of all records of a call.

    Raises:
        Refused: none of them was judged.
        Unknown: some were, or may have been: who called holds up what is behind them all (R7), and
            those that were stored are duplicates when they come again.
    """
    answers = [result for result in results if isinstance(result, Placed)]
    errors = [result for result in results if isinstance(result, BaseException)]
    for error in sorted(errors, key=lambda error: isinstance(error, Refused)):
        if answers and isinstance(error, Refused):
            raise Unknown(f"not every record of the call was judged: {error.detail}") from error
        raise error
    return answers


@dataclass(frozen=True, slots=True)
class Row:
    """A record as the stream has it."""

    first: int
    count: int
    header: bytes
    sealed: bytes
    skips: tuple[int, ...]
    reason: str = ""
    """Why it cannot be believed; empty: its checksums hold."""

    def open(self, partition: Partition, sealer: Sealer) -> Record | Damage:
        """The record; or why it is none.

        Raises:
            Refused: storage_unavailable: its key cannot be had at the moment.
        """
        if self.reason:
            return Damage(partition, self.first, self.count, self.reason)
        try:
            payload = sealer.unseal(partition, self.header, self.sealed)
            return Record.load(self.first, self.header, payload, self.skips)
        except RecordDamaged as damage:
            return Damage(partition, self.first, self.count, str(damage))


def row_of(partition: Partition, raw: Sequence[Any]) -> Row:
    """One entry of a partition's stream, with its checksums looked at (R30)."""
    identifier, flat = raw
    first = int(bytes(identifier).partition(b"-")[0]) - 1
    fields: dict[bytes, bytes] = dict(zip(flat[::2], flat[1::2], strict=True))
    try:
        header, sealed = fields[b"h"], fields[b"p"]
        listed = fields[b"s"].decode()
        facts = [str(first).encode()] + [fields[name] for name in (b"n", b"z", b"m", b"s", b"c")]
        seal = hashlib.sha1(b":".join(facts), usedforsecurity=False).hexdigest()
        known = fields[b"c"].decode() == checksum(partition, header, sealed)
        if not known or fields[b"d"].decode() != seal:
            return Row(first, 1, b"", b"", (), "checksum")
        skips = tuple(int(index) for index in listed.split(",") if index)
        return Row(first, int(fields[b"n"]), header, sealed, skips)
    except (KeyError, ValueError) as error:
        return Row(first, 1, b"", b"", (), f"the row is not whole: {error}")


def damage_of(partition: Partition, flat: Sequence[bytes]) -> list[Damage]:
    """What was put aside of a partition, in order."""
    found = []
    for first, row in zip(flat[::2], flat[1::2], strict=True):
        count, _, reason = row.decode("utf-8", "replace").partition(" ")
        found.append(Damage(partition, int(first), int(count), reason))
    return sorted(found, key=lambda damage: damage.first)
