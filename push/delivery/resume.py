"""The return of a holder that was away: its deliveries stay its own (R22). Pure.

After a lost transport the ledger still exists, and `hold` compares. After the start of a new owner
it does not. Then `adopt` takes deliveries of the epoch before into the new ledger, which knows them
by negative numbers (see push.delivery.leases.ADOPTED). On the wire they keep their names.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from push import limits
from push.delivery.delivery import Delivery
from push.delivery.key_lines import loose
from push.delivery.leases import ADOPTED, mask_of, offsets_of, outside, ranges_of
from push.delivery.values import Taken
from push.ranges import Range, RangeSet, coalesce

Pushes = Mapping[int, Sequence[Range]]
"""Push number → ranges of offsets."""
UNSETTLED_MAX: Final = (
    limits.IN_FLIGHT_PER_SUBSCRIPTION_MAX
    + limits.HELD_PER_PARTITION_MAX
    + limits.ASIDE_UNWRITTEN_MAX
    + limits.DYING_PER_PARTITION_MAX
)
"""Most unsettled offsets that an owner may have left, side lines aside. Claims beyond them are of
offsets that were never given."""


# --- Over a lost transport ----------------------------------------------------------------------


# enforces: R22
def hold(
    delivery: Delivery, pushes: Pushes, *, now: float
) -> tuple[list[Taken], dict[int, list[Range]]]:
    """Compare the ledger with the deliveries that the holder says have reached it, by push. It
    never saw the others in flight. They return, uncounted, before anything of their keys that comes
    later (R17).

    Returns the deliveries that returned, and the part of `pushes` that is not the holder's any
    more. That part has returned meanwhile, or was not adopted. Settled offsets are in neither,
    because acking them again gives the answer.
    """
    taken: list[Taken] = []
    for push in [*delivery.pushes.values()]:
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
        if given is not None:
            lost = _lost(delivery, number, given, ranges)
        else:
            lost = [*ranges] if number < 0 else []
        if lost:
            gone[number] = lost
    return taken, gone


def _lost(
    delivery: Delivery, number: int, given: tuple[int, int], ranges: Sequence[Range]
) -> list[Range]:
    """Return the part of `ranges` that has returned from push `number`, or was not adopted with it.
    Costs the push once, however often its messages are named."""
    begin, mask = given
    end = begin + mask.bit_length() - 1
    named = returned = 0
    beyond: list[Range] = []
    for first, last in ranges:
        named |= mask_of(first, min(last, end), begin)
        if number < 0:
            beyond += outside(first, last, begin, end)
    for offset in offsets_of(named & mask, begin):
        if _has_returned(delivery, number, offset):
            returned |= 1 << (offset - begin)
    if number < 0:  # what else it had is no longer known; its acks are stale
        returned |= named & ~mask
    return coalesce(ranges_of(returned, begin) + beyond)


def _has_returned(delivery: Delivery, number: int, offset: int) -> bool:
    push = delivery.push(number)
    if push is not None and push.within(offset, offset) & push.open:
        return False
    waiting = delivery.waiting
    return (
        offset in waiting.returned
        or waiting.is_dead(offset)
        or offset in waiting.ended
        or delivery.leases.given_again(offset)
    )


# --- Over a new owner's start -------------------------------------------------------------------


def can_adopt(delivery: Delivery, epoch: int) -> bool:
    """Whether deliveries of `epoch` may be adopted. That has to be the epoch before this one, of
    the same owner, and nothing may have been given or adopted under this one."""
    leases = delivery.leases
    return epoch == delivery.before.epoch and not leases.number and not leases.known


def keys_wanted(delivery: Delivery, pushes: Pushes) -> list[Range]:
    """Return the offsets, as ranges, whose keys `adopt` has to know: those up to the last claimed
    one that are not passed. They are UNSETTLED_MAX at most."""
    last = max((last for ranges in pushes.values() for _, last in ranges), default=-1)
    return delivery.scan.gaps(last, UNSETTLED_MAX)


# enforces: R22
def adopt(
    delivery: Delivery,
    pushes: Pushes,
    keys: Mapping[int, int],
    *,
    room: int = limits.IN_FLIGHT_PER_SUBSCRIPTION_MAX,
    now: float,
    wall_unix_ms: int,
) -> dict[int, list[Range]]:
    """Adopt the deliveries that the holder of the epoch before says it holds, by push. `can_adopt`
    is true. `keys`: offset → key hash of all that `keys_wanted` names and the log still has.

    Unsettled ones that were not returned go on in flight, under a fresh lease. A message is not
    adopted if an earlier one of its key has to be given first (R17), or if its key has a side line.
    No more than `room` messages are adopted (P9). Costs the offsets in `keys` and in `pushes`,
    which the caller has bounded.

    Returns the offsets that are not the holder's any more, by push. Settled ones are left out.
    """
    delivery.waiting.begin(now, wall_unix_ms)
    lost: dict[int, RangeSet] = {}
    claimed = _claims(pushes, lost)
    before, shut = delivery.before, set[int]()
    adopted: dict[int, dict[int, int]] = {}
    settled: dict[int, list[int]] = {}
    for offset in sorted({*keys, *claimed}):
        number, key = claimed.get(offset), keys.get(offset)
        if delivery.scan.has_passed(offset):
            was_passed = offset < before.floor or offset >= delivery.frontier
            is_ended = offset in delivery.waiting.ended or delivery.waiting.is_dead(offset)
            if number is not None and was_passed and not before.has_sides and not is_ended:
                settled.setdefault(number, []).append(offset)
                continue
        elif key is not None:
            may_go_on = room > 0 and key not in shut and _may_go_on(delivery, key, offset, now)
            if number is not None and may_go_on:
                adopted.setdefault(number, {})[offset] = key
                room -= 1
                continue
            if key:
                shut.add(key)
        if number is not None:
            lost.setdefault(number, RangeSet()).add(offset, offset)
    for number in sorted({*adopted, *settled}):
        delivery.leases.adopt(
            number - ADOPTED,
            adopted.get(number, {}),
            settled.get(number, []),
            now=now,
            lease_s=delivery.settings.lease_s,
        )
    if adopted:
        offsets = sorted(offset for its in adopted.values() for offset in its)
        delivery.scan.adopt(offsets, now)
    return {number: [*ranges] for number, ranges in lost.items()}


def _claims(pushes: Pushes, lost: dict[int, RangeSet]) -> dict[int, int]:
    """Return offset → the newest push that names it. No push ever spans more than
    PUSH_MESSAGES_MAX. Offsets beyond that are added to `lost`, and so are those of an older
    push."""
    claimed: dict[int, int] = {}
    for number in sorted(pushes):
        begin = min((first for first, _ in pushes[number]), default=0)
        end = begin + limits.PUSH_MESSAGES_MAX - 1
        for first, last in pushes[number]:
            if last > end:
                lost.setdefault(number, RangeSet()).add(max(first, end + 1), last)
            for offset in range(first, min(last, end) + 1):
                older = claimed.get(offset, number)
                if older != number:
                    lost.setdefault(older, RangeSet()).add(offset, offset)
                claimed[offset] = number
    return claimed


def _may_go_on(delivery: Delivery, key: int, offset: int, now: float) -> bool:
    """Whether an unsettled message may have been in flight when the owner before ended. If so, it
    does not await its retry, is not exhausted, and its key has no line."""
    waiting = delivery.waiting
    if waiting.is_exhausted(offset) or waiting.not_before.get(offset, 0.0) > now:
        return False
    return (key or loose(offset)) not in waiting.lines.by_key


def extent(ranges: Iterable[Range]) -> int:
    """Return the number of offsets in these ranges."""
    return sum(last - first + 1 for first, last in ranges)
