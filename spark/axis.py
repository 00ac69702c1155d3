"""A time axis with one scale, round times with their dates, and visible cuts. Pure.

Times are Unix seconds, and labels are in UTC. A clock that was ten years ahead for a minute would
squeeze a month into one pixel. So a long time without events is cut out, and both sides of the cut
carry their own dates.
"""

import datetime
import itertools
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

MINUTE: Final = 60
HOUR: Final = 3_600
DAY: Final = 86_400
STEPS: Final = (
    *(n * MINUTE for n in (1, 2, 5, 10)),
    *(n * HOUR for n in (1, 2, 3, 4, 6, 8, 12)),
    *(n * DAY for n in (1, 2, 7, 14, 28, 91, 364)),
)
"""The widths that a column of a plot may have, in seconds. None is between 10 minutes and an hour,
because minutes have many figures. From an hour on the figures of hours are used."""
CUTS_MAX: Final = 5
CUT_FACTOR: Final = 3
"""The factor by which a gap must be longer than the rest of the axis to be cut out."""
STRETCH_PX: Final = 104
"""The least width of a stretch, in pixels; a date fits below it."""
TICK_PX: Final = 72
"""The least distance of two ticks, in pixels, and the room for the label of one."""
CUT_PX: Final = TICK_PX // 2
"""The width of a cut (a long time without events, which the axis leaves out), in pixels. The label
at the beginning of a stretch reaches over it."""
CHAR_PX: Final = 6.6
"""The width of a character of 11 px, generously."""
_LAST: Final = 253_402_300_799
_MONDAY: Final = 4 * DAY
"""The Unix time of 1970-01-05, a Monday."""


def moment(at: float) -> datetime.datetime:
    """Return the time in UTC. A time outside the calendar becomes the calendar's nearest end."""
    return datetime.datetime.fromtimestamp(min(max(at, 0), _LAST), datetime.UTC)


def written(at: float, *, seconds: bool = False) -> str:
    """Return a time such as `26 Nov 2026 19:12`."""
    return f"{moment(at):%-d %b %Y {_CLOCK[seconds]}}"


def period(first: float, end: float, *, seconds: bool = False) -> str:
    """Return a period such as `26 Nov 2026 19:12 to 19:19`. The date of the end is left out if it
    is the same."""
    if moment(first).date() == moment(end).date():
        return f"{written(first, seconds=seconds)} to {moment(end):{_CLOCK[seconds]}}"
    return f"{written(first, seconds=seconds)} to {written(end, seconds=seconds)}"


_CLOCK: Final = {False: "%H:%M", True: "%H:%M:%S"}


class Stretch(NamedTuple):
    """A part of the axis that is drawn to one scale; `end` is excluded."""

    first: int
    end: int


def stretches(starts: Sequence[int], step: int) -> list[Stretch]:
    """Cut the time of these columns, each `step` long, at very long times without events."""
    ordered = sorted(set(starts))
    if not ordered:
        return []
    gaps = sorted(
        ((right - left - step, right) for left, right in itertools.pairwise(ordered)), reverse=True
    )
    left_over = ordered[-1] + step - ordered[0]
    cut: set[int] = set()
    for count in range(1, min(CUTS_MAX, len(gaps)) + 1):
        gap, _ = gaps[count - 1]
        left_over -= gap
        if gap > CUT_FACTOR * left_over:
            cut = {right for _, right in gaps[:count]}
    found = [[ordered[0], ordered[0] + step]]
    for start in ordered[1:]:
        if start in cut:
            found.append([start, start + step])
        found[-1][1] = start + step
    return [Stretch(first, end) for first, end in found]


def step_for(starts: Sequence[int], shortest: int, columns_max: int) -> int:
    """Return the least width of columns with which at most `columns_max` cover all stretches, or
    the greatest width if none suffices. The starts are those of columns of the width `shortest`."""
    parts = stretches(starts, shortest)
    for step in STEPS:
        if step >= shortest and sum(-(-(b - a) // step) for a, b in parts) <= columns_max:
            return step
    return STEPS[-1]


class Tick(NamedTuple):
    """A tick of the axis: its place, the label of its time, and the date below it. The date is ""
    if the tick before has the same one, or if there is no room for it."""

    x: float
    text: str
    date: str


class Break(NamedTuple):
    """A cut or a gap: its left and right end on the page, and the time without columns, from
    `first` to `end`, in Unix seconds."""

    left: float
    right: float
    first: int
    end: int


class Axis:
    """Columns of one width in time, between `left` and `right` on the page.

    The axis knows the place of each column, the gaps, the cuts, and the ticks.
    """

    def __init__(self, starts: Sequence[int], step: int, left: float, right: float) -> None:
        self.starts = list(starts)
        self.step = step
        self.left, self.right = left, right
        self.stretches = stretches(starts, step)
        self._edges = _edges(self.stretches, left, right)
        self.columns = [self._column(start) for start in self.starts]
        """The left and right end of each column."""

    def _column(self, start: int) -> tuple[float, float]:
        for stretch, (a, b) in zip(self.stretches, self._edges, strict=True):
            if stretch.first <= start < stretch.end:
                scale = (b - a) / (stretch.end - stretch.first)
                x = a + (start - stretch.first) * scale
                return x, x + self.step * scale
        raise ValueError(f"{start} is not on the axis")

    def breaks(self) -> list[Break]:
        """Return the cuts, in their order."""
        sides = zip(
            itertools.pairwise(self._edges), itertools.pairwise(self.stretches), strict=True
        )
        return [Break(a[1], b[0], one.end, other.first) for (a, b), (one, other) in sides]

    def gaps(self) -> list[Break]:
        """Return the gaps: the places between two columns of one stretch that have no column."""
        found = []
        ordered = sorted(zip(self.starts, self.columns, strict=True))
        firsts = {stretch.first for stretch in self.stretches}
        for (start, (_, left)), (after, (right, _)) in itertools.pairwise(ordered):
            if after > start + self.step and after not in firsts:
                found.append(Break(left, right, start + self.step, after))
        return found

    def is_joined(self, index: int) -> bool:
        """Whether this column follows the one before it without a gap."""
        return index > 0 and self.starts[index] == self.starts[index - 1] + self.step

    def ticks(self) -> list[Tick]:
        """Return the ticks of every stretch: round times with room for their labels, or, if none
        has room, the stretch's beginning."""
        found: list[Tick] = []
        for stretch, (left, right) in zip(self.stretches, self._edges, strict=True):
            found += _ticks(stretch, left, right)
        return found

    def name(self, index: int) -> str:
        """Return the time of a column, for a reader who points at it."""
        return period(self.starts[index], self.starts[index] + self.step)


def _edges(parts: Sequence[Stretch], left: float, right: float) -> list[tuple[float, float]]:
    """Share the room by time, with at least STRETCH_PX for each stretch."""
    room = right - left - CUT_PX * max(0, len(parts) - 1)
    widths = dict.fromkeys(range(len(parts)), 0.0)
    short: set[int] = set()
    while True:
        long = [n for n in widths if n not in short]
        time = sum(parts[n].end - parts[n].first for n in long)
        share = room - STRETCH_PX * len(short)
        for n in widths:
            part = parts[n].end - parts[n].first
            widths[n] = STRETCH_PX if n in short else share * part / time
        more = {n for n in long if widths[n] < STRETCH_PX}
        if not more or len(parts) == 1:
            break
        short |= more
    edges, x = [], left
    for n in widths:
        edges.append((x, x + widths[n]))
        x += widths[n] + CUT_PX
    return edges


class _Kind(NamedTuple):
    """Ticks of one distance.

    `seconds` is the shortest distance, `after` returns the next tick at or after a time. `text` and
    `date` are the formats of the label and of the date below it.
    """

    seconds: int
    after: Callable[[int], int]
    text: str
    date: str


def _every(seconds: int, origin: int = 0) -> Callable[[int], int]:
    return lambda at: origin - (origin - at) // seconds * seconds


def _months(count: int) -> Callable[[int], int]:
    def after(at: int) -> int:
        day = moment(at)
        months = day.year * 12 + day.month - 1
        if at > moment_of(months):
            months += 1
        return moment_of(-(-months // count) * count)

    def moment_of(months: int) -> int:
        year = min(months // 12, 9999)
        return int(datetime.datetime(year, months % 12 + 1, 1, tzinfo=datetime.UTC).timestamp())

    return after


_KINDS: Final = (
    *(
        _Kind(n * MINUTE, _every(n * MINUTE), "%H:%M", "%-d %b %Y")
        for n in (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720)
    ),
    *(_Kind(n * DAY, _every(n * DAY, _MONDAY), "%-d %b", "%Y") for n in (1, 2, 7, 14)),
    *(_Kind(n * 28 * DAY, _months(n), "%b", "%Y") for n in (1, 2, 3, 6)),
    *(_Kind(n * 365 * DAY, _months(12 * n), "%Y", "") for n in (1, 2, 5, 10, 50, 100, 500)),
)


def _ticks(stretch: Stretch, left: float, right: float) -> list[Tick]:
    scale = (right - left) / (stretch.end - stretch.first)
    kind = next((k for k in _KINDS if k.seconds * scale >= TICK_PX), _KINDS[-1])
    times = []
    at = kind.after(stretch.first)
    while (at - stretch.first) * scale <= right - left - TICK_PX / 2:
        times.append(at)
        at = kind.after(at + 1)
    if not times:  # no label would fit before the right neighbor
        times = [stretch.first]
        kind = next(k for k in _KINDS if k.date)
    found: list[Tick] = []
    shown, free = "", float("-inf")
    for at in times:
        x = left + (at - stretch.first) * scale
        date = f"{moment(at):{kind.date}}" if kind.date else ""
        half = len(date) * CHAR_PX / 2
        if date == shown or (found and (x - half < free or x + half > right)):
            date = ""
        elif date:
            shown, free = date, x + half + CHAR_PX
        found.append(Tick(x, f"{moment(at):{kind.text}}", date))
    return found
