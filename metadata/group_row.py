"""The next row of a group that several gateways may serve (R14, R20, R22). Pure.

    part of a gateway   its members, which of them have still to say what they hold, and of which
                        partitions it has a slot
    assignment          over all members, from the row alone, so that all gateways compute the same
    draining            a partition that moves to another gateway's member, and the gateway that
                        still has it. Nobody begins before that gateway has let go, is gone, or has
                        had its time; it takes its entry out to say that it has let go

Every gateway that looks at a row computes the next one with its own knowledge, and writes it by
compare-and-set if it differs. A single gateway has no name; its rows contain only members and their
assignment.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from metadata.catalog import Drain, Membership
from metadata.heartbeats import with_members
from push.assignment import assign_around


@dataclass(frozen=True, slots=True)
class GatewayPart:
    """A gateway's knowledge of a group."""

    gateway: str
    """The gateway's name; "" for the only gateway."""
    members: Collection[str]
    staying: Collection[str] = ()
    """Members that have still to say what they hold, and keep what they have until then."""
    unresponsive: Collection[str] = ()
    """Members that are given no partitions while other members are responsive."""
    lingers: Mapping[str, float] = field(default_factory=dict)
    """Linger times as in Membership, of the members and of the absent."""
    absent: Collection[str] = ()
    """Consumers that are with no gateway and are waited for."""
    has: Collection[int] = ()
    """Partitions that a consumer of this gateway owns, or is about to own."""
    gone: Collection[str] = ()
    """Gateways that no longer exist."""
    overdue: Collection[int] = ()
    """Partitions for whose drain at another gateway this one does not wait any longer."""


def gateway_of(row: Membership, member: str | None) -> str | None:
    """Return the gateway of this member; None for no member, or one that is with no gateway."""
    return next((one for one, names in row.gateways.items() if member in names), None)


def gateways_of(row: Membership) -> dict[str, str]:
    """Return member → its gateway, for all that are with one."""
    return {name: gateway for gateway, names in row.gateways.items() for name in names}


def drains(row: Membership, partition: int) -> str | None:
    """Return the gateway that has still to let go of a partition; None if none has."""
    drain = row.draining.get(partition)
    return drain.gateway if drain is not None else None


def gateways_in(row: Membership) -> set[str]:
    """Return all gateways that the row names."""
    return {*row.gateways, *(drain.gateway for drain in row.draining.values())}


def others(row: Membership, gateway: str, gone: Collection[str]) -> dict[str, str]:
    """Return consumer → its gateway, for the consumers of other gateways that are not in `gone`."""
    return {
        name: other
        for other, names in row.gateways.items()
        if other != gateway and other not in gone
        for name in names
    }


def elsewhere(row: Membership, gateway: str, gone: Collection[str]) -> dict[int, str]:
    """Return partition → the other gateway, not in `gone`, that has still to let go of the
    partition, or else the one whose consumer the partition is assigned to."""
    theirs = others(row, gateway, gone)
    return {number: theirs[name] for number, name in row.assignment.items() if name in theirs} | {
        number: drain.gateway
        for number, drain in row.draining.items()
        if drain.gateway != gateway and drain.gateway not in gone
    }


def missing(row: Membership, gone: Collection[str]) -> dict[str, float]:
    """Return consumer → its linger time in seconds, for those that are with no living gateway."""
    there = {
        name for gateway, names in row.gateways.items() if gateway not in gone for name in names
    }
    return {name: linger_s for name, linger_s in row.lingers.items() if name not in there}


def next_row(row: Membership, part: GatewayPart, partitions: Sequence[int]) -> Membership:
    """Return the next row, as the gateway of `part` sees the group. The same row if nothing would
    change."""
    if part.gateway:
        joined = with_members(row, part.gateway, part.members, part.gone)
        theirs = {*joined.members}.difference(part.members)
    else:
        joined, theirs = row, set[str]()
    present = sorted(theirs.union(part.members))
    absent = set(part.absent).difference(present)
    staying = theirs.intersection(row.staying).union(part.staying)
    unresponsive = theirs.intersection(row.unresponsive).union(part.unresponsive)
    working = [name for name in present if name not in unresponsive] or present
    lingers = {name: linger_s for name, linger_s in row.lingers.items() if name in theirs}
    # A member that has still to say what it holds also keeps what it was to let go of (R22).
    kept = {n: d.member for n, d in row.draining.items() if d.member in staying | absent}
    new = msgspec.structs.replace(
        joined,
        generation=row.generation,
        members=tuple(sorted(absent.union(present))),
        assignment=assign_around(partitions, working, row.assignment | kept, staying | absent),
        lingers=lingers | {n: s for n, s in part.lingers.items() if n not in theirs},
        staying=tuple(sorted(staying)) if part.gateway else (),
        unresponsive=tuple(sorted(unresponsive)),
    )
    if part.gateway:
        new = msgspec.structs.replace(new, draining=_draining(row, new, part))
    return row if new == row else msgspec.structs.replace(new, generation=row.generation + 1)


# enforces: R20
def _draining(row: Membership, new: Membership, part: GatewayPart) -> dict[int, Drain]:
    """Return the holders of partitions that are to be another gateway's. A holder that drains a
    partition already still has it, also when the next consumer is another one by now."""
    draining: dict[int, Drain] = {}
    before, after = gateways_of(row), gateways_of(new)
    for number in sorted({*row.draining, *row.assignment}):
        holder = row.draining.get(number) or _holder(before, row.assignment.get(number))
        if holder is None or holder.gateway in part.gone or number in part.overdue:
            continue
        if holder.gateway == part.gateway and number not in part.has:
            continue  # it has let go
        if after.get(new.assignment.get(number, "")) != holder.gateway:
            draining[number] = holder
    return draining


def _holder(gateways: Mapping[str, str], member: str | None) -> Drain | None:
    gateway = gateways.get(member) if member is not None else None
    return Drain(gateway, member) if gateway is not None and member is not None else None
