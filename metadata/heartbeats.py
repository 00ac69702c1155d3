"""Heartbeats of gateways, and what they mean for the members of a group (R14). Pure.

    heartbeats   each gateway raises a number of its own, in one place for all groups. The gateway
                 counts, and not the store. A store that lost some beats in a failover would count
                 from its last one, and come to a number that others had seen before. If one
                 process keeps the numbers, they are in memory, and only grow
    gone         a gateway whose number has not changed for GONE_S by the observer's clock. No
                 two machines' clocks are compared, and a number that falls has changed, too
    a group      its row has each gateway's members; a gateway that joins adds its own, and takes
                 out those of gateways that are gone, by compare-and-set

Nothing here decides which consumer may settle what, because epochs do (R15). If a living gateway is
taken for gone, its partitions go to others, and nothing else happens.
"""

from collections.abc import Collection, Mapping
from typing import Final

import msgspec

from metadata.catalog import Membership

BEAT_S: Final = 1.0
"""Seconds between two beats of a gateway."""
GONE_S: Final = 5.0
"""Seconds without a beat after which a gateway is gone. They are several beats, so that a lost one,
or a failover of the store, makes no gateway gone."""
FORGOTTEN_S: Final = 3600.0
"""Seconds without a change after which a gateway's number is forgotten."""

_NEVER: Final = 0
"""A number that no gateway has."""


class Heartbeats:
    """A gateway's view of all gateways. Times are seconds of its own clock, which never goes
    back."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, float]] = {}
        """Gateway → its number, and the time at which that number was seen first, or at which the
        gateway has acted last (`heard`)."""
        self._looked_at: float | None = None

    # enforces: R3, R14
    def saw(self, beats: Mapping[str, int], *, now: float, asked_at: float | None = None) -> None:
        """Note all gateways' numbers, which were answered at `now`. `asked_at`: the time of the
        request, if that was another moment. The answer knows nothing of what came after it."""
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
        """Note that a gateway has acted, whatever its number says. Its silence begins anew now."""
        number, _ = self._seen.get(gateway, (_NEVER, now))
        self._seen[gateway] = (number, now)

    def number_of(self, gateway: str) -> int:
        """Return the number of this gateway as received last; 0 if none was."""
        return self._seen.get(gateway, (_NEVER, 0.0))[0]

    def there(self) -> list[str]:
        """Return the gateways that have a number and are not gone, sorted."""
        gone = self.gone()
        return sorted(
            one for one, (number, _) in self._seen.items() if number != _NEVER and one not in gone
        )

    def gone(self, for_s: float = GONE_S) -> dict[str, int]:
        """Return gateway → its number, for those that have neither changed their number nor acted
        (`heard`) for `for_s`. They are judged at the time of the last look (`saw`), because a
        process that was frozen, or got no answer, knows nothing about others."""
        looked_at = self._looked_at
        if looked_at is None:
            return {}
        return {
            gateway: number
            for gateway, (number, since) in self._seen.items()
            if looked_at - since >= for_s
        }

    def is_gone(self, gateway: str, *, now: float) -> bool:
        """Whether a gateway that a row names no longer exists. One without a number may have come
        since the last look, so it has GONE_S to get a number, from the first such call."""
        self._seen.setdefault(gateway, (_NEVER, now))
        return gateway in self.gone()

    def is_alone(self, *, now: float) -> bool:
        """Whether others may take this gateway for gone by now, because it got no answer for
        GONE_S, or none yet. Other gateways may then have taken over its members."""
        return self._looked_at is None or now - self._looked_at >= GONE_S


def with_members(
    row: Membership, gateway: str, members: Collection[str], gone: Collection[str] = ()
) -> Membership:
    """Return the row, of the next generation, in which these are the gateway's members, and
    gateways that are `gone` have none. A member of another gateway among them has moved to this one
    (R22). The assignment stays, because another rule makes it. The same row if nothing would
    change.
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
    """Numbers of gateways or nodes in one process's memory, with the texts that they send."""

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
