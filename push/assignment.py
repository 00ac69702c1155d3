"""Assignment of a group's partitions to owners: consistent hashing with bounded loads, made sticky.

Every consumer owns its share, balanced to within one, and a join or leave moves no partition that
it need not. The hash (rendezvous weights of member and partition) only chooses where balance and
stickiness leave a choice. So every gateway that computes an assignment from the same membership row
computes the same one (R14).
"""

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from typing import Final

_MASK: Final = (1 << 64) - 1


def assign_around(
    partitions: Sequence[int],
    members: Sequence[str],
    previous: Mapping[int, str],
    staying: Collection[str],
) -> dict[int, str]:
    """Assign like `assign`, but leave with a consumer in `staying` each partition that it had,
    whether or not it is a member. Another consumer would be given the partition before this one
    could say which of its messages it holds (R22). The other partitions go in equal shares to the
    members that keep none in this way, or to all members if each keeps one. Without members they
    have no owner."""
    fixed = {number: previous[number] for number in partitions if previous.get(number) in staying}
    free = [number for number in partitions if number not in fixed]
    holders = set(fixed.values())
    others = [name for name in members if name not in holders]
    return dict(sorted({**fixed, **assign(free, others or members, previous)}.items()))


def assign(
    partitions: Sequence[int], members: Sequence[str], previous: Mapping[int, str]
) -> dict[int, str]:
    """Return the owner of every partition, in the order of the partitions' numbers.

    `previous` is the last assignment; it may still hold members and partitions that no longer
    exist. Without members nothing is owned, and the result is empty. Costs O(partitions + members)
    and, for each partition that moves, the members that have room.
    """
    wanted, names = sorted(set(partitions)), sorted(set(members))
    if not names:
        return {}
    seeds = {name: _seed(name) for name in names}
    kept: dict[str, list[int]] = {name: [] for name in names}
    free: list[int] = []
    for partition in wanted:
        owner = previous.get(partition)
        (free if owner is None else kept.get(owner, free)).append(partition)

    # Each member has a share of `low`, and `extra` members one more. These go first to members that
    # hold more than `low` already, because each saves a move.
    low, extra = divmod(len(wanted), len(names))
    by_claim = sorted(names, key=lambda name: (len(kept[name]) <= low, seeds[name], name))
    room: dict[str, int] = {}
    for place, name in enumerate(by_claim):
        share = low + (place < extra)
        if len(kept[name]) > share:
            kept[name].sort(key=partial(_weight, seeds[name]), reverse=True)
            free.extend(kept[name][share:])  # gives up what suits it least
            del kept[name][share:]
        elif len(kept[name]) < share:
            room[name] = share - len(kept[name])

    owners = {partition: name for name, held in kept.items() for partition in held}
    for partition in sorted(free):
        _, name = max((_weight(seeds[name], partition), name) for name in room)
        owners[partition] = name
        room[name] -= 1
        if not room[name]:
            del room[name]
    return {partition: owners[partition] for partition in wanted}


def _seed(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")


def _weight(seed: int, partition: int) -> int:
    """Return a hash of (member, partition), by the finisher of splitmix64. Cheap, because a first
    assignment weighs each member against each partition."""
    value = (seed ^ (partition * 0x9E3779B97F4A7C15)) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
