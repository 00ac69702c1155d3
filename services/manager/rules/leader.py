"""The rule that decides which manager leads: a lease in the database, fenced by its term. Pure.

    the row    holder, term, beat: one for all managers, changed by compare-and-set on all of it
    a beat     the leader raises the last number every BEAT_S. It leads for LEASE_S less MARGIN_S
               from when it *requested* the write, by its own clock
    taking     a manager that has seen the row unchanged for LEASE_S, by its own clock from when it
               *received* it, takes it under a higher term. No two machines' clocks are compared
    failover   of the database, may take the last writes of the row back: then no manager believes
               that it leads by a row that no longer exists, and the next term is above all that
               were seen. Two managers may have one term then, so a fence names the holder, too

    giving way a leader that is held up, because others do not answer it, lets go for two leases:
               another manager may reach them (Patience)

For a moment two may believe that they lead, if one was frozen between looking at the clock and
acting. A leader's acts must be harmless then, or be refused by the term where they are done.
"""

from typing import Final, NamedTuple

BEAT_S: Final = 1.0
"""Seconds between two beats of the leader, and between two looks of the others."""
LEASE_S: Final = 5.0
"""Seconds for which the row must be unchanged until another manager may take it: several beats, so
that a lost one ends no lead."""
MARGIN_S: Final = 1.0
"""Seconds by which a leader's own lease ends before others may take over, because clocks run at
slightly different rates."""

PATIENCE_S: Final = (15.0, 480.0)
"""Seconds for which a leader is held up before it gives way: the first time, and at most, after
they have doubled each time."""


class LeaderRow(NamedTuple):
    """The shared row. `holder` is "" if nobody has it."""

    holder: str
    term: int
    beat: int


NOBODY: Final = LeaderRow("", 0, 0)
"""The row as it is read before any manager has written it."""


class Leading:
    """A manager's view. `name` is its own, another one at each start. Times are seconds of its
    own clock, which never goes back."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._row: LeaderRow | None = None
        self._since = 0.0
        self._until = float("-inf")
        self._quiet_until = float("-inf")
        self._top = 0
        """The lowest term that the next beat may have: the highest that was seen, or a higher one
        after `on_superseded`."""
        self.stood_still_s = 0.0
        """Seconds for which nobody had written the row, at least, when this manager took it
        over."""
        self._said = 0
        """Number above which the next beat is proposed, whether or not the last one was answered.
        No beat is proposed twice: one that was written long ago would be taken for the last one."""

    def proposal(self, *, now: float) -> tuple[LeaderRow, LeaderRow] | None:
        """Return (the row as it must be, the row to write): the next beat, a takeover or, after
        `give_way`, the release. None if the row is only to be read. The caller reports the result
        to `saw`."""
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
        """Note the row as it was answered at `now` to a request at `asked_at`. `wrote`: the row
        that this request was to write; None if it only read. If the answer is another row, another
        manager was faster, or an earlier answer was lost."""
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
        """Note that an act was refused because another manager has acted under `term`; the next
        beat has a higher one."""
        self._top = max(self._top, term + 1)
        if self._row is not None and self._row.term <= term:
            self._until = float("-inf")

    def leads(self, *, now: float) -> bool:
        """Whether this manager may act. No other one believes that it leads, unless one of the two
        is frozen between its look at the clock and its act."""
        return self._quiet_until <= now < self._until

    @property
    def term(self) -> int:
        """Term of the row as seen last; this manager's if it leads."""
        return self._row.term if self._row is not None else 0

    @property
    def holder(self) -> str:
        """Holder of the row as seen last; "" if it has none."""
        return self._row.holder if self._row is not None else ""

    def give_way(self, *, now: float) -> None:
        """Lead no more, and do not take the row again within two leases (2 * LEASE_S)."""
        self._quiet_until = now + 2 * LEASE_S

    def release(self) -> tuple[LeaderRow, LeaderRow] | None:
        """Return (the row as it must be, the row to write) so that another manager takes over at
        once; None if the row is not this manager's. This one leads no more from now on, whether or
        not the row is written."""
        self._until = float("-inf")
        row = self._row
        if row is None or row.holder != self.name:
            return None
        return row, LeaderRow("", row.term, row.beat + 1)


class Patience:
    """Time that a leader goes on while it is held up, longer each time. Otherwise the lead would go
    round because of a server that no manager can reach, at the cost of all other work."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._most_s = PATIENCE_S[0]

    def begin(self) -> None:
        """Note that this manager begins to lead, and was not held up so far."""
        self._since = None

    def is_over(self, *, is_held_up: bool, now: float) -> bool:
        """Whether the leader is to give way now. If so, it is to wait twice as long the next time;
        as soon as it is not held up, as long as at first."""
        first, most = PATIENCE_S
        if not is_held_up:
            self._since, self._most_s = None, first
            return False
        self._since = now if self._since is None else self._since
        if now - self._since < self._most_s:
            return False
        self._since, self._most_s = None, min(2 * self._most_s, most)
        return True
