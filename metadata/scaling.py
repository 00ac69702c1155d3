"""When storage clusters are too few or too many, and that it is said once. Pure.

    enough ── all that answer are hot, for HOLD_S ──▶ add
    enough ── all are idle, two at least, one of them empty, for HOLD_S ──▶ remove
    add, remove ── it is not so any more, for HOLD_S ──▶ enough

Each wish has a number, and is kept in the catalog before anybody is told: a manager that takes over
knows what was said, and says again, under the same number, what may not have been.
"""

from collections.abc import Collection, Sequence
from typing import Final, Literal

import msgspec

from metadata.clusters import IDLE_SHARE, ClusterFacts

Kind = Literal["enough", "add", "remove"]
HOLD_S: Final = 60.0
"""It is so for so long: what comes and goes is not told."""
MARK: Final = "storage scaling"


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What a manager would do. `clusters`: those that it would remove; of what it would add it only
    says that it is one."""

    number: int = 0
    kind: Kind = "enough"
    clusters: tuple[str, ...] = ()
    since_unix_ms: int = 0
    is_told: bool = True
    """The hook has heard of it, and has answered that it is well."""
    has_hook: bool = False
    """There is one, which may do what is wished. Without it it is a line in the log."""


class Scaling:
    """What is wished for, as one manager knows it."""

    def __init__(self, wish: Wish | None = None) -> None:
        self.wish = wish or Wish()
        self._other: tuple[Kind, tuple[str, ...]] | None = None
        self._other_since = 0.0

    def looked(
        self, facts: Sequence[ClusterFacts], in_use: Collection[str], *, now: float,
        wall_unix_ms: int,
    ) -> Wish | None:  # fmt: skip
        """All clusters were looked at; `in_use`: those that have partitions of some queue, or the
        catalog. The wish that is to be kept and told now; None: it is as before."""
        found = wanted(facts, in_use)
        if found == (self.wish.kind, self.wish.clusters):
            self._other = None
            return None
        if found != self._other:
            self._other, self._other_since = found, now
        if now - self._other_since < HOLD_S:
            return None
        kind, clusters = found
        return Wish(
            number=self.wish.number + 1, kind=kind, clusters=clusters,
            since_unix_ms=wall_unix_ms, is_told=False,
        )  # fmt: skip

    def kept(self, wish: Wish) -> None:
        """The catalog has it."""
        assert wish.number >= self.wish.number
        self.wish = wish
        self._other = None

    def next_deadline(self) -> float:
        """When what is found may have held for long enough; infinity: nothing else is found."""
        return float("inf") if self._other is None else self._other_since + HOLD_S


def wanted(facts: Sequence[ClusterFacts], in_use: Collection[str]) -> tuple[Kind, tuple[str, ...]]:
    """What these facts alone speak for."""
    answering = [one for one in facts if one.state != "away"]
    if answering and all(one.state == "hot" for one in answering):
        return "add", ()
    # Of clusters that are away nobody knows how idle they are.
    is_idle = len(answering) == len(facts) > 1 and all(
        one.bound_bytes and one.used_share < IDLE_SHARE for one in facts
    )
    empty = tuple(sorted(one.name for one in facts if one.name not in in_use))
    return ("remove", empty[:1]) if is_idle and empty else ("enough", ())


def read_wish(text: str | None) -> Wish | None:
    """Of the mark; None: there is none that can be read."""
    try:
        return msgspec.json.decode(text, type=Wish) if text else None
    except msgspec.MsgspecError:
        return None


def going(text: str | None) -> tuple[str, ...]:
    """Of the mark: the clusters that a hook was told to remove, by name. Nothing new belongs there.
    Where there is no hook they stay."""
    wish = read_wish(text)
    return wish.clusters if wish is not None and wish.kind == "remove" and wish.has_hook else ()


def encoded(wish: Wish) -> str:
    """As the mark has it."""
    return msgspec.json.encode(wish).decode()
