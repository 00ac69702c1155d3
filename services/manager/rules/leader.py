"""Which of several managers leads (a lease in the catalog's database, fenced by its term). Pure.

    the row    holder, term, beat: one for all managers, changed by compare-and-set on all of it
    a beat     the leader raises the last number every BEAT_S. It leads for LEASE_S less MARGIN_S
               from when it *asked* for the write, by its own clock
    taking     who has seen the row stand still for LEASE_S, by its own clock from when it *heard*
               of it, takes it under a higher term. No two machines' clocks are compared
    failover   of the database, may take the last writes of the row back: then nobody believes that
               it leads by a row that is not there any more, and the next term is above all that
               were seen. Two managers may have one term then: who fences names the holder, too

    giving way who cannot do what is to be done, because others do not answer it, lets go for two
               leases: another manager may reach them (Patience)

For a moment two may believe that they lead: one was frozen between looking at the clock and acting.
What a leader does must be harmless then, or be refused by the term where it is done.
"""

from typing import Final, NamedTuple

BEAT_S: Final = 1.0
"""How often the leader says that it is there, and the others look."""
LEASE_S: Final = 5.0
"""Several beats: one that is lost makes nobody gone."""
MARGIN_S: Final = 1.0
"""A leader stops so long before others may take over: clocks run at slightly different rates."""

PATIENCE_S: Final = (15.0, 480.0)
"""So long a leader is held up before it gives way: the first time, and at most."""


class LeaderRow(NamedTuple):
    """The row. `holder` "": nobody has it."""

    holder: str
    term: int
    beat: int


NOBODY: Final = LeaderRow("", 0, 0)
"""There is no row yet."""


class Leading:
    """One manager's view. `name` is its own, another one at each start. Times are seconds of its
    own clock, which never goes back."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._row: LeaderRow | None = None
        self._since = 0.0
        self._until = float("-inf")
        self._quiet_until = float("-inf")
        self._top = 0
        """The highest term that was seen."""
        self.stood_still_s = 0.0
        """When this one took the row over: for how long nobody had written it, at least."""
        self._said = 0
        """The last beat that was proposed, whether or not it was answered: none is said twice, or
        one that was written long ago would be taken for the one that was asked for last."""

    def proposal(self, *, now: float) -> tuple[LeaderRow, LeaderRow] | None:
        """(the row as it must be, the row to write): the next beat, or taking it over. None: the
        row is to be read only. What comes of it is told by `saw`."""
        row = self._row
        if row is None:
            return None
        if now < self._quiet_until:
            return self.release()
        self._said = max(self._said, row.beat) + 1
        if row.holder == self.name:
            return row, LeaderRow(self.name, max(row.term, self._top), self._said)
        if not row.holder or now - self._since >= LEASE_S:
            return row, LeaderRow(self.name, self._top + 1, self._said)
        return None

    def saw(
        self, row: LeaderRow, *, now: float, asked_at: float, wrote: LeaderRow | None = None
    ) -> None:
        """The row as it was answered at `now`, when it was asked for, and what was to be written.
        A row that is not what was written: somebody was faster, or an earlier answer was lost."""
        before = self._row
        if row != before:
            if before is not None and row.holder == self.name != before.holder:
                self.stood_still_s = now - self._since
            self._row, self._since = row, now
        self._top = max(self._top, row.term)
        if row.holder != self.name:
            self._until = float("-inf")
        elif row == wrote:
            self._until = asked_at + LEASE_S - MARGIN_S

    def on_superseded(self, term: int) -> None:
        """Something was refused because it has seen this term of somebody else: the next beat has a
        higher one."""
        self._top = max(self._top, term + 1)
        if self._row is not None and self._row.term <= term:
            self._until = float("-inf")

    def leads(self, *, now: float) -> bool:
        """Whether this manager may act: no other one believes that it leads, unless one of the two
        stands still between its look at the clock and its act."""
        return self._quiet_until <= now < self._until

    @property
    def term(self) -> int:
        """Of the row as seen last; this manager's where it leads."""
        return self._row.term if self._row is not None else 0

    @property
    def holder(self) -> str:
        """Who has the row as seen last; "": nobody."""
        return self._row.holder if self._row is not None else ""

    def give_way(self, *, now: float) -> None:
        """It leads no more, and for two leases does not take the row again."""
        self._quiet_until = now + 2 * LEASE_S

    def release(self) -> tuple[LeaderRow, LeaderRow] | None:
        """What to write so that another one takes over at once; None: it is not this one's. It
        leads no more, whether or not that is written."""
        self._until = float("-inf")
        row = self._row
        if row is None or row.holder != self.name:
            return None
        return row, LeaderRow("", row.term, row.beat + 1)


class Patience:
    """For how long a leader goes on that is held up: longer each time, or who cannot be reached by
    anybody would have the lead go round, which costs what else there is to do."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._most_s = PATIENCE_S[0]

    def begin(self) -> None:
        """It leads from now on."""
        self._since = None

    def is_over(self, *, is_held_up: bool, now: float) -> bool:
        """Whether it is to give way now."""
        first, most = PATIENCE_S
        if not is_held_up:
            self._since, self._most_s = None, first
            return False
        self._since = now if self._since is None else self._since
        if now - self._since < self._most_s:
            return False
        self._since, self._most_s = None, min(2 * self._most_s, most)
        return True
