"""What is counted and said of a look at a shard, with Sentinels or in a Cluster. Pure."""

from collections.abc import Collection, Iterable

from push.copies import (
    Act,
    Count,
    Elect,
    Follow,
    Forget,
    LetIn,
    LockOut,
    Meet,
    Prepare,
    Reset,
    View,
)


def with_more(view: View, members: Collection[str], count: int) -> int:
    """R when so many more are counted than these. One that is more already, because somebody has
    said so ahead, is not raised: it would wait for nobody."""
    return view.replicas + min(count, max(0, len(members) + count - view.replicas))


def attached_to(view: View) -> set[str]:
    """Who follows the primary, in whatever state."""
    primary = view.servers.get(view.primary)
    return {one.place for one in primary.followers} if primary is not None else set()


def named(view: View) -> str:
    """Who is said to be primary, and who does not answer: for people."""
    said = [f"{place} names {one.primary}" for place, one in sorted(view.sentinels.items())]
    silent = [f"{place}: {why}" for place, why in sorted(view.silent.items())]
    return "; ".join([*said, *silent]) or "nobody answers"


def listed(places: Iterable[str]) -> str:
    """For people."""
    return ", ".join(sorted(places))


def told(act: Act) -> str:
    """For people."""
    match act:
        case LockOut():
            return f"{act.at} lets {act.user} in no more"
        case LetIn():
            return f"{act.at} lets {act.user} in"
        case Prepare():
            return f"{act.at} is not to be elected"
        case Elect():
            return f"{act.at} has everything, and may be elected"
        case Follow():
            return f"{act.at} is to follow {act.primary}"
        case Reset():
            return f"the Sentinel {act.sentinel} is to forget who is not there"
        case Forget():
            return f"{act.at} is to forget {act.node_id}"
        case Meet():
            return f"{act.at} is to know {act.place}"
        case Count():
            out = f"; not counted: {listed(act.out)}" if act.out else ""
            return f"R becomes {act.replicas}, and was {act.replicas_before}{out}"
