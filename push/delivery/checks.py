"""Invariants of a delivery between any two calls, asserted under the ids of the rules.

For tests, and for inspecting a process that behaves oddly. The checks walk everything that is in
memory.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from push.delivery.delivery import Delivery
from push.delivery.key_lines import loose
from push.delivery.leases import ADOPTED, offsets_of
from push.ranges import Dead, RangeSet


@dataclass(frozen=True, slots=True)
class Outside:
    """The state that a delivery does not keep in memory, for callers that know it."""

    settled: RangeSet
    """Offsets that this owner or one before has settled, durably or not."""
    aside: RangeSet
    """Offsets that are in side lines, or are to be set aside."""


def check(delivery: Delivery, outside: Outside | None = None) -> None:
    """Assert every invariant. With `outside`, also that each offset below the frontier is in
    exactly one place. Raises AssertionError, which names the rule."""
    in_flight = _check_leases(delivery)
    _check_lines(delivery, in_flight)
    _check_order(delivery, in_flight)
    _check_schedules(delivery)
    _check_writes(delivery)
    if outside is not None:
        _check_places(delivery, in_flight, outside)


def _check_leases(delivery: Delivery) -> dict[int, int]:
    """Return offset → key of all that is in flight."""
    leases = delivery.leases
    in_flight: dict[int, int] = {}
    for number, push in leases.pushes.items():
        assert push.open, f"push {number} is settled and still there"
        assert -ADOPTED < number < 0 or 0 < number <= leases.number, f"R16: {push}"
        assert not push.open & ~push.given, f"P2: {push} has what it skips in flight"
        assert push.given & 1, f"{push} begins with what it skips"
        assert push.first + push.given.bit_length() - 1 == push.last, f"{push} ends with a skip"
        left = push.open
        for _, mask in push.parts:
            left &= ~mask
        assert not left, f"P6: {left:b} of push {number} has no deadline"
        assert push.due_at <= min(at for at, mask in push.parts if mask & push.open)
        assert not push.of_line or push.first == push.last
        for offset in range(push.first, push.last + 1):
            if push.open >> (offset - push.first) & 1:
                assert offset not in in_flight, f"P7: {offset} is in flight twice"
                assert leases.given_again(offset) == push.of_line
                in_flight[offset] = push.hashes[offset - push.first] or loose(offset)
    assert leases.open_count == len(in_flight)
    assert delivery.frontier <= delivery.end, "R10"
    assert all(delivery.scan.has_passed(offset) for offset in in_flight), "R10"
    assert not in_flight or max(in_flight) < delivery.end, "R10"
    return in_flight


def _check_lines(delivery: Delivery, in_flight: dict[int, int]) -> None:
    waiting = delivery.waiting
    lines = waiting.lines.by_key
    for key, line in lines.items():
        assert line.key == key
        assert not line.empty, f"R18: {line} waits for nothing"
        here = [*line.leaving, *line.waiting]
        assert here == sorted(set(here)), f"P3: {line} is not in order: {here}"
        assert not (line.parked and here), f"R18: {line} is parked and in memory"
        assert line.parked or not line.decision, f"R18: {line} is decided and not parked"
        assert line.dues.keys() <= set(line.waiting), f"{line} {line.dues}"
        assert all(in_flight.get(offset) == key for offset in line.in_flight)
        assert line.aside >= 0, f"{line}"
        assert line.aside_unwritten >= line.opens_after >= 0, f"{line}"
        assert not (line.inherited or line.opens_after) or not line.leaving, f"{line} is shut"
        marks = list(line.leaving.values())
        assert marks == sorted(marks, reverse=True), f"R16: {line} {line.leaving}"
        assert not {*line.dying} & {*here}
    for push in delivery.pushes.values():
        for offset in offsets_of(push.watched & push.open, push.first):
            key = push.hashes[offset - push.first]
            assert key in lines, f"P8: {offset} is in flight, and no line waits for it"
            assert offset in lines[key].in_flight, f"P8: {lines[key]} does not wait for {offset}"
        if push.of_line:
            key = push.hashes[0] or loose(push.first)
            assert push.first in lines[key].in_flight, f"{push} is unknown to its line"
    assert waiting.lines.held == sum(len(line.waiting) for line in lines.values()), "P9"
    dying = {offset: key for key, line in lines.items() for offset in line.dying}
    assert waiting.dying == dying
    decided = {*_offsets(waiting.pending.going_to_die())}
    runs = {o for first, last in waiting.dying_runs for o in range(first, last + 1)}
    assert {*dying, *runs} <= decided, "P1: it dies and nobody writes that down"


def _offsets(dead: Iterable[Dead]) -> Iterable[int]:
    return (offset for one in dead for offset in range(one.first, one.last + 1))


def _check_order(delivery: Delivery, in_flight: dict[int, int]) -> None:
    """Assert that no message in flight is above one of its key that waits or dies (P3, R17)."""
    highest: dict[int, int] = {}
    for offset, key in in_flight.items():
        highest[key] = max(highest.get(key, -1), offset)
    for key, line in delivery.lines.items():
        for offset in (*line.leaving, *line.waiting, *line.dying):
            assert highest.get(key, -1) < offset, (
                f"R17: {highest[key]} is in flight and {offset} of its key waits"
            )


def _check_schedules(delivery: Delivery) -> None:
    """Assert that whatever may go on has an entry that lets it go on. A line is ready, or becomes
    due, or wants its side line read. A lease ends when its deadline is checked."""
    lines = delivery.waiting.lines
    due = set(lines._due)
    for key, line in lines.by_key.items():
        if line.waiting and line.room():
            known = key in lines._ready or (line.scheduled == line.due and (line.due, key) in due)
            assert known, f"P8: nobody looks at {line}"
        wants = not line.waiting and line.aside and line.room() and not line.is_trying
        if wants and line.loading is None:
            assert key in lines._hungry, f"P8: nobody reads the side line of {line}"
        unread = line.waiting or line.aside
        if line.aside_unwritten and (line.opens_after or (line.room() and not unread)):
            assert key in lines.starving, f"P8: nobody writes the side line of {line}"
    assert lines._ready.keys() <= lines.by_key.keys()
    assert lines._hungry.keys() <= lines.by_key.keys()
    assert len(lines._due) <= 2 * len(lines.by_key) + 65 or not lines._due, "P9"
    heap = set(delivery.leases._deadlines)
    for number, push in delivery.pushes.items():
        assert (push.due_at, number) in heap, f"P6: nobody looks at push {number}"


def _check_writes(delivery: Delivery) -> None:
    waiting = delivery.waiting
    unwritten = sum(line.aside_unwritten for line in delivery.lines.values())
    assert waiting.pending.aside_count == unwritten, "R18: set aside and not waited for"
    recording = [
        offset
        for line in delivery.lines.values()
        for offset, sendable in line.leaving.items()
        if not sendable
    ]
    assert waiting.pending.recording_count == len(recording), "R16"


def _check_places(delivery: Delivery, in_flight: dict[int, int], outside: Outside) -> None:
    """Assert that below the frontier nothing is forgotten, and nothing is in two places (P1, P5,
    R18)."""
    places: dict[int, list[str]] = {}

    def at(place: str, offsets: Iterable[int]) -> None:
        for offset in offsets:
            places.setdefault(offset, []).append(place)

    at("in flight", in_flight)
    pending = delivery.waiting.pending
    at("dying", _offsets(pending.going_to_die()))
    at("dead", _offsets(delivery.waiting.dead))
    for line in delivery.lines.values():
        at("waiting", line.waiting)
        at("leaving", line.leaving)
    for name, ranges in (("settled", outside.settled), ("aside", outside.aside)):
        for first, last in ranges:
            at(name, range(first, last + 1))
    for offset in range(delivery.frontier):
        assert len(places.get(offset, [])) == 1, f"R18: {offset} is {places.get(offset)}"
    beyond = [o for o, place in places.items() if o >= delivery.frontier]
    passed = delivery.scan._passed  # by the previous owner; an operator may have it skipped
    known = [o for o in beyond if any(o in x for x in (outside.settled, outside.aside, passed))]
    assert beyond == known, f"R18: {beyond} beyond the frontier {delivery.frontier}"
