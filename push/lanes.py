"""Lanes: what of a storage fails together, and says nothing of the rest.

A lane is the acts of one level at one place of the store: one connection to one of its servers.
They take effect in the order of the calls. When a replica is away, the lane of the level `all`
fails and that of `local` goes on; when one primary of a Cluster is, its lanes do, and no others.

Whoever cares for an order (R7) has what belongs together, a partition's appends, under way in one
lane at a time: its lane becomes another one when its queue's level is changed, or when it moves.
"""

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from push.ports import Durability, Partition


class Lane(NamedTuple):
    """One of them, and how often acts there have failed as a whole (Unknown, or no store there).
    Two that are equal: nothing has failed there in between."""

    number: int
    doubts: int


def one_lane(_partition: "Partition", _level: "Durability") -> Lane:
    """As Storage.lane, where all of it is one store, and a failure ends the process."""
    return Lane(0, 0)
