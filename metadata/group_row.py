"""The next row of a group that several gateways may serve (R14, R20, R22). Pure.

    part of a gateway   its members, which of them have still to say what they hold, and of which
                        partitions it has a slot
    assignment          over everybody's members, from the row alone: so all compute the same one
    draining            a partition that moves to another gateway's member, and the gateway that
                        still has it. Nobody begins before it says, by taking its entry out, that it
                        has let go, or is gone, or has had its time

Every gateway that looks at a row computes the next one with what it alone knows, and writes it by
compare-and-set where it differs. With one gateway, which has no name, there is nothing of all this
but members and their assignment.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from metadata.catalog import Drain, Membership
from metadata.heartbeats import with_members
from push.assignment import assign_around


@dataclass(frozen=True, slots=True)
class GatewayPart:
    """What one gateway knows of a group."""

    gateway: str
    """"": the only one there is."""
    members: Collection[str]
    staying: Collection[str] = ()
    """Of the members: have still to say what they hold, and keep what they have until then."""
    unresponsive: Collection[str] = ()
    """Of the members: are given nothing as long as others are not so."""
    lingers: Mapping[str, float] = field(default_factory=dict)
    """As in Membership: of the members, and of those who are absent."""
    absent: Collection[str] = ()
    """Are with no gateway, and are waited for."""
    has: Collection[int] = ()
    """Partitions that it owns, or is about to."""
    gone: Collection[str] = ()
    """Gateways that are not there any more."""
    overdue: Collection[int] = ()
    """Partitions whose drain elsewhere has had its time."""


def gateway_of(row: Membership, member: str | None) -> str | None:
    """Whose member that is; None: nobody's."""
    return next((one for one, names in row.gateways.items() if member in names), None)


def gateways_of(row: Membership) -> dict[str, str]:
    """Member → its gateway, of all that are with one."""
    return {name: gateway for gateway, names in row.gateways.items() for name in names}


def drains(row: Membership, partition: int) -> str | None:
    """The gateway that has still to let go of a partition; None: none has."""
    drain = row.draining.get(partition)
    return drain.gateway if drain is not None else None


def gateways_in(row: Membership) -> set[str]:
    """All that it names."""
    return {*row.gateways, *(drain.gateway for drain in row.draining.values())}


def others(row: Membership, gateway: str, gone: Collection[str]) -> dict[str, str]:
    """Consumer → its gateway, of those that are connected to other gateways than this one."""
    return {
        name: other
        for other, names in row.gateways.items()
        if other != gateway and other not in gone
        for name in names
    }


def elsewhere(row: Membership, gateway: str, gone: Collection[str]) -> dict[int, str]:
    """Partition → the other gateway whose consumer has it, or is to have it."""
    theirs = others(row, gateway, gone)
    return {number: theirs[name] for number, name in row.assignment.items() if name in theirs} | {
        number: drain.gateway
        for number, drain in row.draining.items()
        if drain.gateway != gateway and drain.gateway not in gone
    }


def missing(row: Membership, gone: Collection[str]) -> dict[str, float]:
    """Who lingers and is with no gateway that is there: name → for how many seconds."""
    there = {
        name for gateway, names in row.gateways.items() if gateway not in gone for name in names
    }
    return {name: linger_s for name, linger_s in row.lingers.items() if name not in there}


def next_row(row: Membership, part: GatewayPart, partitions: Sequence[int]) -> Membership:
    """The row behind this one, as the gateway of `part` sees the group. Nothing would change: the
    same row."""
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
    # Who has still to say what it holds keeps also what it was to let go of (R22).
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


def _draining(row: Membership, new: Membership, part: GatewayPart) -> dict[int, Drain]:
    """Who has a partition that is to be another gateway's. Who drains it already still has it,
    whoever was to have it next."""
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
