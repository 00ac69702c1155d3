"""What gateways and their store say to each other of the rates that they share. Pure.

`push.rates.shared_bucket` says what is decided from it on a gateway;
`storage/redis/lua/limits.lua`, in the store.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from push.rates.bucket import Rate

PARTS: Final = 16
"""A standing share is one part of so many."""
SEATS: Final = 8
"""So many gateways have one: together half of the bucket. Others ask for everything."""
SLICES: Final = 4
"""A gateway that uses a bucket alone holds one part of so many; two of them half as much each."""
GAP_S: Final = 0.02
"""Between two calls of a gateway at least, unless many buckets wait."""
BEAT_S: Final = 0.25
"""Between two calls at most: how long the others take to hear that they are to give back."""
IDLE_S: Final = 10.0
"""What was not used for so long is given back, and the standing share is enough again."""
LAPSE_S: Final = 5.0
"""So long after the last call that was answered was sent, nothing that was handed out is used."""
LEASE_S: Final = 10.0
"""So long after a gateway's last call the store gives it up: LAPSE_S, and a jump of its clock."""
STEP_S: Final = 1.0
"""The store's clock goes on by so much at most between two calls: what a jump may forgive."""
LOOK_S: Final = 60.0
"""The store looks so often at a bucket that is held, whether it is to be forgotten."""
RECALLED_MAX: Final = 500
"""Buckets that a gateway is told of in one answer."""


class Ask(NamedTuple):
    """What a gateway says of one bucket. Totals of this life of it, in units."""

    name: str
    rate: Rate
    life: int
    """Grows with each one that a gateway begins. What a life of before held counts as used."""
    confirmed: int
    """Of `used`, what the store is known to have counted."""
    known: int
    """Handed out, as far as it has heard."""
    used: int
    back: int
    want: int
    """It would like to hold so much."""
    need: int
    """One request that was refused needs so much at once. 0: none."""
    leaving: bool
    """It holds nothing, and would take up its standing share again."""


class Grant(NamedTuple):
    """What the store says of it."""

    life: int
    granted: int
    counted: int
    ahead: int
    """So much goes to others first."""
    unmet: int
    """So much is still to come."""
    released: bool
    """This life is over, the standing share holds again."""


class Reply(NamedTuple):
    """To one call. `recalled`: buckets of which it is to give back what it can."""

    recalled: Sequence[tuple[str, Rate]]
    grants: Sequence[Grant]


class Pool(Protocol):
    """The store's side. Every method raises Refused (it did not happen) or Unknown."""

    async def join(self, gateway: str) -> tuple[bool, Sequence[str]]:
        """A gateway is there, under a name that was never used. Whether it has standing shares,
        and the buckets of which it has none."""

    async def ask(self, gateway: str, call: int, asks: Sequence[Ask]) -> Reply | None:
        """One act for all of these. `call`: a number that grows; an act that comes about behind one
        with a larger number does nothing. None: it was given up, and is to join under another
        name."""

    async def leave(self, gateway: str) -> None:
        """It ends, and has given everything back."""
