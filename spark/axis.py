"""A time axis that tells the truth: one scale, round times with their dates, cuts that show. Pure.

Times are Unix seconds, and what is written is UTC. A clock that was ten years ahead for a minute
would squeeze a month into one pixel. So a long time in which nothing happened is cut out, and both
sides of the cut carry their own dates.
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
"""The widths that a column may have. None lies between 10 minutes and an hour: the figures of
minutes are many, and those of hours serve from there on."""
CUTS_MAX: Final = 5
CUT_FACTOR: Final = 3
"""A gap is cut out when it is this many times as long as all that is left on the axis."""
STRETCH_PX: Final = 104
"""The least width of a stretch: a date fits below it."""
TICK_PX: Final = 72
"""The least distance of two ticks, and the room for what is written at one."""
CUT_PX: Final = TICK_PX // 2
"""The width of a cut: the label at the beginning of a stretch reaches over it."""
CHAR_PX: Final = 6.6
"""The width of a character of 11 px, generously."""
_LAST: Final = 253_402_300_799
_MONDAY: Final = 4 * DAY
"""1970-01-05."""


def moment(at: float) -> datetime.datetime:
    """The time in UTC; what lies outside the calendar is its nearest end."""
    return datetime.datetime.fromtimestamp(min(max(at, 0), _LAST), datetime.UTC)


def written(at: float, *, seconds: bool = False) -> str:
    """`26 Nov 2026 19:12`."""
    return f"{moment(at):%-d %b %Y {_CLOCK[seconds]}}"


def period(first: float, end: float, *, seconds: bool = False) -> str:
    """`26 Nov 2026 19:12 to 19:19`; the date of the end is left out where it is the same."""
    if moment(first).date() == moment(end).date():
        return f"{written(first, seconds=seconds)} to {moment(end):{_CLOCK[seconds]}}"
    return f"{written(first, seconds=seconds)} to {written(end, seconds=seconds)}"


_CLOCK: Final = {False: "%H:%M", True: "%H:%M:%S"}


class Stretch(NamedTuple):
    """A part of the axis that is drawn to one scale: `end` is excluded."""

    first: int
    end: int


def stretches(starts: Sequence[int], step: int) -> list[Stretch]:
    """Cut the time of these columns, each `step` long, where nothing happened for very long."""
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
    """The least width of columns with which at most `columns_max` cover all stretches of these
    starts, whose own width is `shortest`."""
    parts = stretches(starts, shortest)
    for step in STEPS:
        if step >= shortest and sum(-(-(b - a) // step) for a, b in parts) <= columns_max:
            return step
    return STEPS[-1]


class Tick(NamedTuple):
    """A round time: where it is, its label, and the date below it; "" where that is known."""

    x: float
    text: str
    date: str


class Break(NamedTuple):
    """What was cut out: where the mark is drawn, and the time that is left out."""

    left: float
    right: float
    first: int
    end: int


class Axis:
    """Columns of one width in time, between `left` and `right` on the page.

    The whole of an axis: where each column is, where nothing is, what was cut out, and the ticks.
    """

    def __init__(self, starts: Sequence[int], step: int, left: float, right: float) -> None:
        self.starts = list(starts)
        self.step = step
        self.left, self.right = left, right
        self.stretches = stretches(starts, step)
        self._edges = _edges(self.stretches, left, right)
        self.columns = [self._column(start) for start in self.starts]
        """From where to where each column reaches."""

    def _column(self, start: int) -> tuple[float, float]:
        for stretch, (a, b) in zip(self.stretches, self._edges, strict=True):
            if stretch.first <= start < stretch.end:
                scale = (b - a) / (stretch.end - stretch.first)
                x = a + (start - stretch.first) * scale
                return x, x + self.step * scale
        raise ValueError(f"{start} is not on the axis")

    def breaks(self) -> list[Break]:
        """The cuts, in their order."""
        sides = zip(
            itertools.pairwise(self._edges), itertools.pairwise(self.stretches), strict=True
        )
        return [Break(a[1], b[0], one.end, other.first) for (a, b), (one, other) in sides]

    def gaps(self) -> list[Break]:
        """Where no column is between two of one stretch."""
        found = []
        ordered = sorted(zip(self.starts, self.columns, strict=True))
        firsts = {stretch.first for stretch in self.stretches}
        for (start, (_, left)), (after, (right, _)) in itertools.pairwise(ordered):
            if after > start + self.step and after not in firsts:
                found.append(Break(left, right, start + self.step, after))
        return found

    def is_joined(self, index: int) -> bool:
        """Whether this column follows on the one before it without a gap."""
        return index > 0 and self.starts[index] == self.starts[index - 1] + self.step

    def ticks(self) -> list[Tick]:
        """Round times of every stretch, at least one each, with room for what is written."""
        found: list[Tick] = []
        for stretch, (left, right) in zip(self.stretches, self._edges, strict=True):
            found += _ticks(stretch, left, right)
        return found

    def name(self, index: int) -> str:
        """The time of a column, for a reader who points at it."""
        return period(self.starts[index], self.starts[index] + self.step)


def _edges(parts: Sequence[Stretch], left: float, right: float) -> list[tuple[float, float]]:
    """Share the room out: by time, but nobody gets less than STRETCH_PX."""
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
    """Ticks of one distance: the shortest of them, the next tick at or after a time, and how it
    and the date below it are written."""

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
    if not times:  # none whose label would not reach into what stands to the right
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
