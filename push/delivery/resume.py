"""A holder that was away comes back: what it holds stays its own (R22). Pure.

Over a lost transport the ledger is still there, and `hold` compares. Over a new owner's start it is
not: `adopt` takes deliveries of the epoch before into the new ledger, which knows them by negative
numbers (see push.delivery.leases.ADOPTED); on the wire they keep their names.
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
"""So many unsettled offsets an owner may have left behind, side lines aside; what is claimed beyond
them it was never given."""


# --- Over a lost transport ----------------------------------------------------------------------


# enforces: R22
def hold(
    delivery: Delivery, pushes: Pushes, *, now: float
) -> tuple[list[Taken], dict[int, list[Range]]]:
    """The holder says which of its deliveries have reached it, by push. What else is in flight it
    never saw: that returns, uncounted, before anything of its key that comes later (R17).

    Returns (what returned, what of `pushes` is not the holder's any more because it has returned
    meanwhile, or was not adopted). Of what is settled nothing is said: whoever acks it again hears
    so.
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
    """What of `ranges` has returned from push `number`, or was not adopted with it. Costs the
    push once, however often its messages are named."""
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
    if number < 0:  # nobody knows any more what it had besides; its acks are stale
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
    """Whether deliveries of `epoch` may be adopted: it is the one before, of the same owner, and
    nothing was given or adopted since."""
    leases = delivery.leases
    return epoch == delivery.before.epoch and not leases.number and not leases.known


def keys_wanted(delivery: Delivery, pushes: Pushes) -> list[Range]:
    """The offsets whose keys `adopt` has to know: all that may stand before what is claimed."""
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
    """The holder of the epoch before says what it holds of it, by push; `can_adopt` is true.
    `keys`: offset → key hash of all that `keys_wanted` names and the log still has.

    What is unsettled and was not returned goes on in flight, under a fresh lease. Nothing is
    adopted of which an earlier message of its key is to be given first (R17), nor of a key with a
    side line, and no more than `room` messages (P9). Costs the offsets in `keys` and in `pushes`,
    which the caller has bounded.

    Returns what is not the holder's any more, by push. Of what is settled nothing is said.
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
    """Offset → the newest push that names it. No push ever spans more than PUSH_MESSAGES_MAX: what
    lies beyond that is lost, and so is what an older push names."""
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
    """Whether an unsettled message may have been in flight when the owner before ended: it neither
    awaits its retry, nor has its end come, nor stands its key in a line."""
    waiting = delivery.waiting
    if waiting.is_exhausted(offset) or waiting.not_before.get(offset, 0.0) > now:
        return False
    return (key or loose(offset)) not in waiting.lines.by_key


def extent(ranges: Iterable[Range]) -> int:
    """How many offsets they name."""
    return sum(last - first + 1 for first, last in ranges)
