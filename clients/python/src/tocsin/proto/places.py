"""Delivery lists: places of messages as columns of integers. Pure.

[[partition, epoch, push, first, last, first, last, ...], ...]
"""

from collections.abc import Iterable, Iterator, Sequence

from tocsin.proto import wire


def ranges(offsets: list[int]) -> list[int]:
    """Offsets as first, last, first, last, ... in order. The list is sorted in place."""
    offsets.sort()
    first, last = offsets[0], offsets[-1]
    if last - first == len(offsets) - 1:
        return [first, last]
    pairs: list[int] = []
    previous = first
    for offset in offsets:
        if offset > previous + 1:
            pairs += (first, previous)
            first = offset
        previous = offset
    pairs += (first, previous)
    return pairs


def offsets_of(row: Sequence[int]) -> Iterator[int]:
    """The offsets that a row of a delivery list names."""
    for first, last in zip(row[3::2], row[4::2], strict=False):
        yield from range(first, last + 1)


def columns(places: Iterable[tuple[tuple[int, int, int], int]]) -> wire.DeliveryList:
    """The delivery list of (place, offset) pairs."""
    offsets: dict[tuple[int, int, int], list[int]] = {}
    for place, offset in places:
        offsets.setdefault(place, []).append(offset)
    return [[*place, *ranges(found)] for place, found in offsets.items()]


def parts(deliveries: Sequence[list[int]]) -> Iterator[wire.DeliveryList]:
    """The list in parts that a frame may carry."""
    part: wire.DeliveryList = []
    count = 0
    for column in deliveries:
        if part and count + len(column) // 2 > wire.RANGES_PER_FRAME_MAX:
            yield part
            part, count = [], 0
        part.append(column)
        count += len(column) // 2
    if part:
        yield part
