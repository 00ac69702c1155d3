"""Heartbeats of gateways, and what they mean for the members of a group (R14). Pure.

    heartbeats   each gateway raises a number of its own, in one place for all groups. It counts by
                 itself: a store that lost some of them in a failover and raised the last that it
                 has would come to the very number at which others saw the gateway before. Where one
                 process keeps them, they are in memory, and only grow
    gone         a gateway whose number has stood still for GONE_S by the clock of whoever looks: no
                 two machines' clocks are compared, and a number that goes back is one that moves
    a group      its row has each gateway's members; a gateway that joins adds its own, and takes
                 out those of gateways that are gone, by compare-and-set

Nothing here decides who may settle what: epochs do (R15). A gateway that is taken for gone and is
not only gives its partitions to others.
"""

from collections.abc import Collection, Mapping
from typing import Final

import msgspec

from metadata.catalog import Membership

BEAT_S: Final = 1.0
"""How often a gateway says that it is there."""
GONE_S: Final = 5.0
"""Several beats: one that is lost, or a failover of the store, makes nobody gone."""
FORGOTTEN_S: Final = 3600.0
"""So long a gateway stands still before its number is forgotten."""

_NEVER: Final = 0
"""No gateway has this number."""


class Heartbeats:
    """What one gateway has seen of all. Times are seconds of its own clock, which never goes
    back."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, float]] = {}
        """Gateway → its number, and when it was seen first."""
        self._looked_at: float | None = None

    def saw(self, beats: Mapping[str, int], *, now: float, asked_at: float | None = None) -> None:
        """All gateways' numbers, as they were answered at `now`. `asked_at`: when they were asked
        for, if that was not the same moment: of what came after it the answer knows nothing."""
        silent = {
            gateway: (number, since)
            for gateway, (number, since) in self._seen.items()
            if number == _NEVER and now - since < FORGOTTEN_S
        }
        self._seen = silent | {
            gateway: before
            if (before := self._seen.get(gateway)) is not None and before[0] == number
            else (number, now)
            for gateway, number in beats.items()
        }
        self._looked_at = now if asked_at is None else asked_at

    def heard(self, gateway: str, *, now: float) -> None:
        """It has done something, whatever its number says: it stands still since now."""
        number, _ = self._seen.get(gateway, (_NEVER, now))
        self._seen[gateway] = (number, now)

    def number_of(self, gateway: str) -> int:
        """The last one that was heard; 0: none was."""
        return self._seen.get(gateway, (_NEVER, 0.0))[0]

    def there(self) -> list[str]:
        """Those that have a number and are not gone, sorted."""
        gone = self.gone()
        return sorted(
            one for one, (number, _) in self._seen.items() if number != _NEVER and one not in gone
        )

    def gone(self, for_s: float = GONE_S) -> dict[str, int]:
        """Those that have stood still for so long, with the number they stand at. Judged by when
        was looked last: who was frozen, or could not ask, knows nothing about the others."""
        looked_at = self._looked_at
        if looked_at is None:
            return {}
        return {
            gateway: number
            for gateway, (number, since) in self._seen.items()
            if looked_at - since >= for_s
        }

    def is_gone(self, gateway: str, *, now: float) -> bool:
        """Whether one that a row names is not there any more. One that has no number may have come
        since the last look: it has GONE_S from now to get one."""
        self._seen.setdefault(gateway, (_NEVER, now))
        return gateway in self.gone()

    def is_alone(self, *, now: float) -> bool:
        """Whether others must take this gateway for gone by now: it has not been answered for
        GONE_S. Its members are others' then, until it has been."""
        return self._looked_at is None or now - self._looked_at >= GONE_S


def with_members(
    row: Membership, gateway: str, members: Collection[str], gone: Collection[str] = ()
) -> Membership:
    """The row, of the next generation, in which these are the gateway's members, and gateways that
    are `gone` have none. Who was another gateway's member is this one's now: it has moved (R22).
    The assignment stays: it is another rule's. Nothing would change: the same row.
    """
    mine = set(members)
    parts = {
        other: left
        for other, theirs in row.gateways.items()
        if other != gateway
        and other not in gone
        and (left := tuple(name for name in theirs if name not in mine))
    }
    if mine:
        parts[gateway] = tuple(sorted(mine))
    everybody = tuple(sorted({name for part in parts.values() for name in part}))
    if parts == row.gateways and everybody == row.members:
        return row
    return msgspec.structs.replace(
        row, generation=row.generation + 1, members=everybody, gateways=parts
    )


class LocalHeartbeats:
    """Who is there, and what they say of themselves."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._says: dict[str, str] = {}

    def beat(
        self, name: str, number: int, forget: Mapping[str, int], says: str = ""
    ) -> dict[str, int]:
        for other, stands_at in forget.items():
            if self._numbers.get(other) == stands_at:
                del self._numbers[other], self._says[other]
        if name and number > self._numbers.get(name, 0):
            self._numbers[name], self._says[name] = number, says
        return dict(self._numbers)

    def said(self) -> dict[str, str]:
        return dict(self._says)
