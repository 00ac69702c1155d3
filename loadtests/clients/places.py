"""Delivery lists, as acks name deliveries."""

Place = tuple[int, int, int, int]
"""(partition, epoch, push, offset): one delivery."""


def places(deliveries: list[list[int]]) -> list[Place]:
    """The deliveries that a delivery list names."""
    return [
        (partition, epoch, push, offset)
        for partition, epoch, push, *ranges in deliveries
        for first, last in zip(ranges[::2], ranges[1::2], strict=True)
        for offset in range(first, last + 1)
    ]


def delivery_list(named: list[Place]) -> list[list[int]]:
    """The delivery list that names these."""
    lists: dict[tuple[int, int, int], list[int]] = {}
    for partition, epoch, push, offset in sorted(named):
        ranges = lists.setdefault((partition, epoch, push), [])
        if ranges and ranges[-1] == offset - 1:
            ranges[-1] = offset
        else:
            ranges += [offset, offset]
    return [[*place, *ranges] for place, ranges in lists.items()]
