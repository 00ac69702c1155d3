"""A holder that lost its transport comes back: what it holds stays its own (R22). Pure."""

from collections.abc import Mapping, Sequence

from push.delivery import Delivery
from push.giving import Taken, append_offset
from push.leases import mask_of, offsets_of
from push.ranges import Range


def hold(
    delivery: Delivery, pushes: Mapping[int, Sequence[Range]], *, now: float
) -> tuple[list[Taken], dict[int, list[Range]]]:
    """The holder says which of its deliveries have reached it, by push. What else is in flight it
    never saw: that returns, uncounted, before anything of its key that comes later (R17).

    Returns (what returned, what of `pushes` is not the holder's any more because it has returned
    meanwhile). Of what is settled nothing is said: whoever acks it again hears so.
    """
    taken: list[Taken] = []
    for push in [*delivery.leases.pushes.values()]:
        held = 0
        for first, last in pushes.get(push.number, ()):
            held |= push.within(first, last)
        for offset in offsets_of(push.open & ~held, push.first):
            if push.open >> (offset - push.first) & 1:  # not returned with an earlier one
                taken.append((push.number, offset))
                taken += delivery.give_back(push.number, offset, now=now)
    gone: dict[int, list[Range]] = {}
    for number, ranges in pushes.items():
        given = delivery.leases.given(number)
        for first, last in ranges if given is not None else ():
            assert given is not None
            begin, mask = given
            named = mask & mask_of(first, min(last, begin + mask.bit_length() - 1), begin)
            for offset in offsets_of(named, begin):
                if _has_returned(delivery, number, offset):
                    append_offset(gone.setdefault(number, []), offset)
    return taken, gone


def _has_returned(delivery: Delivery, number: int, offset: int) -> bool:
    push = delivery.leases.pushes.get(number)
    if push is not None and push.within(offset, offset) & push.open:
        return False
    waiting = delivery.waiting
    return (
        offset in waiting.returned or offset in waiting.dying or delivery.leases.given_again(offset)
    )
