"""How a record is cut into the pushes of readers."""

from push import limits
from push.record import Record

Pieces = list[tuple[int, int]]
"""(first, last) offset of each push."""


def fitting(record: Record, offsets: list[int]) -> int:
    """How many of these messages one push holds; one at least."""
    if len(record.payload) <= limits.PUSH_BYTES_MAX:
        return len(offsets)
    size = count = 0
    for offset in offsets:
        size += record.header.sizes[offset - record.first]
        if count and size > limits.PUSH_BYTES_MAX:
            break
        count += 1
    return count


def pieces(record: Record) -> Pieces:
    """A record cut into pushes."""
    cut: Pieces = []
    first = record.first
    while first <= record.last:
        last = min(
            record.bytes_until(first, limits.PUSH_BYTES_MAX), first + limits.PUSH_MESSAGES_MAX - 1
        )
        cut.append((first, last))
        first = last + 1
    return cut
