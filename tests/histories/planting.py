"""Faults planted in the logs of healthy histories: a line lost, doubled or moved in time, a file
lost or damaged. Each is planted where the log can prove it, at random among all such places, and
the file's last line is made right again."""

import json
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, Final

from gateway.deliverylog.lines import (
    CertifiedLine,
    DispatchedLine,
    PositionLine,
    SettledLine,
    runs_of,
)
from tests.histories.log_oracle import (
    BACK,
    FINAL,
    Epoch,
    Log,
    Place,
    Read,
    given_us_of,
    offsets_of,
    read_log,
)

Where = tuple[int, int]
"""(partition, offset)."""


@dataclass(frozen=True, slots=True)
class Planted:
    """A fault, and its expected findings."""

    kind: str
    what: str | None
    """The finding. None: nothing certain may be found, only missing lines."""
    queue: str
    group: str | None
    offsets: frozenset[Where]
    """The messages that must all be found."""
    touched: frozenset[Where]
    """The only messages of this queue that other certain findings may concern."""
    file: Path | None = None
    """The file that is missing, or damaged."""


def rewrite(path: Path, changes: dict[int, list[dict[str, Any]]]) -> None:
    """Replace lines of a file by others; by none if they are lost."""
    *body, last = path.read_bytes().splitlines(keepends=True)
    lines: list[bytes] = []
    for number, raw in enumerate(body):
        if number in changes:
            lines += [
                json.dumps(one, separators=(",", ":")).encode() + b"\n" for one in changes[number]
            ]
        else:
            lines.append(raw)
    end = json.loads(last) | {"lines": len(lines), "crc32": zlib.crc32(b"".join(lines))}
    lines.append(json.dumps(end, separators=(",", ":")).encode() + b"\n")
    path.write_bytes(b"".join(lines))


def raw(read: Read) -> dict[str, Any]:
    """Return a line as it is in its file."""
    found: dict[str, Any] = json.loads(read.path.read_bytes().splitlines()[read.number])
    return found


class Planter:
    """A planter of one fault in the log of one history. `only`: the gateway whose lines it
    changes."""

    def __init__(self, folders: Iterable[Path], random: Random, only: str | None = None) -> None:
        self.log = Log(read_log(folders))
        self.random = random
        self._only = only

    # --- Places ----------------------------------------------------------------------------------

    def _reads(self, kind: type[Any]) -> list[Read]:
        """Return lines of this kind, of gateways without lost lines, in random order."""
        found = [
            read for read in self.log.reads
            if isinstance(read.line, kind) and read.line.gateway not in self.log.lossy
            and self._only in (None, read.line.gateway)
        ]  # fmt: skip
        self.random.shuffle(found)
        return found

    def _segment(self, place: Place, gateway: str, at_us: int) -> tuple[list[Epoch], int] | None:
        """Return consecutive epochs, and which of them contains an act. None if this is uncertain,
        or some of their lines are lost."""
        for segment in self.log.segments(place):
            for index, epoch in enumerate(segment):
                if epoch.has(gateway, at_us):
                    if self.log.lossy:  # only findings within an epoch are certain then
                        return [epoch], 0
                    return segment, index
        return None

    def _is_closed(self, place: Place, offset: int, gateway: str, at_us: int) -> bool:
        """Whether a later position says that everything up to this is settled."""
        found = self._segment(place, gateway, at_us)
        if found is None:
            return False
        segment, index = found
        return self._is_fresh(place, offset, gateway, at_us) and any(
            position.frontier > offset and not position.open and position.at_unix_us > at_us
            for epoch in segment[index:]
            for position in epoch.positions
        )

    def _ends(self, place: Place, offset: int) -> list[tuple[int, str, Read]]:
        return self.log.ended.get((place, offset), [])

    def _finals(self, place: Place, offset: int) -> list[tuple[int, str, Read]]:
        return [end for end in self._ends(place, offset) if end[1] in FINAL]

    def _planted(
        self, kind: str, what: str | None, line: Any, offsets: Iterable[Where], *,
        touched: Iterable[Where] = (),
    ) -> Planted:  # fmt: skip
        at = frozenset(offsets)
        group = getattr(line, "group", None)
        return Planted(kind, what, line.queue, group, at, at | frozenset(touched))

    # --- Lost ------------------------------------------------------------------------------------

    def lost_dispatched(self) -> Planted | None:
        """Remove a line of deliveries that were settled as given then."""
        for read in self._reads(DispatchedLine):
            line, at = read.line, list(offsets_of(read.line.runs))
            if line.group is None:
                continue
            if all(self._is_named(line, where) for where in at):
                rewrite(read.path, {read.number: []})
                return self._planted("lost_dispatched", "ungiven", line, at)
        return None

    def _is_named(self, line: DispatchedLine, where: Where) -> bool:
        """Whether a settled line says when this was given."""
        place = (line.queue_id, str(line.group), where[0])
        return any(
            given_us_of(read.line, *where) == line.dispatched_unix_us
            and read.line.gateway == line.gateway
            for _, _, read in self._ends(place, where[1])
        )

    def lost_settled(self) -> Planted | None:
        """Remove a line of acked deliveries, before a later position that says that nothing is
        open."""
        for read in self._reads(SettledLine):
            line, at = read.line, list(offsets_of(read.line.runs))
            if line.outcome != "acked":
                continue
            places = [((line.queue_id, line.group, number), offset) for number, offset in at]
            if all(
                len(self._finals(place, offset)) == 1
                and self._is_closed(place, offset, line.gateway, line.settled_unix_us)
                and self._given_in_epoch(place, offset, read)
                for place, offset in places
            ):
                rewrite(read.path, {read.number: []})
                return self._planted("lost_settled", "unsettled", line, at)
        return None

    def _given_in_epoch(self, place: Place, offset: int, read: Read) -> bool:
        """Whether the deliveries that a line ends were given in the same epoch, as it says."""
        given_us = given_us_of(read.line, place[2], offset)
        if given_us is None:
            return False
        given = self._segment(place, read.line.gateway, given_us)
        ended = self._segment(place, read.line.gateway, read.line.settled_unix_us)
        return given is not None and ended is not None and given == ended

    def lost_message(self) -> Planted | None:
        """Remove every line of one message that was given once and acked: it looks passed over by
        its group."""
        for read in self._reads(SettledLine):
            line = read.line
            if line.outcome != "acked":
                continue
            for number, offset in offsets_of(line.runs):
                place = (line.queue_id, line.group, number)
                gave = self.log.given.get((place, offset), [])
                if (
                    len(gave) == len(self._ends(place, offset)) == 1
                    and self._is_closed(place, offset, line.gateway, line.settled_unix_us)
                    and self._given_in_epoch(place, offset, read)
                ):
                    self._drop([gave[0].read, read], number, offset)
                    return self._planted("lost_message", "gap", line, [(number, offset)])
        return None

    def _drop(self, reads: Iterable[Read], number: int, offset: int) -> None:
        """Remove one message from these lines."""
        changes: dict[Path, dict[int, list[dict[str, Any]]]] = defaultdict(dict)
        for read in reads:
            one = raw(read)
            if isinstance(read.line, DispatchedLine):
                rest = [where for where in offsets_of(read.line.runs) if where != (number, offset)]
                one["runs"] = left = [[*where, 1] for where in rest]
            else:
                one["pushes"] = left = [
                    [where[0], push[1], where[1], where[1]]
                    for push in read.line.pushes
                    for where in offsets_of(runs_of([push]))
                    if where != (number, offset)
                ]
            changes[read.path][read.number] = [one] if left else []
        for path, lines in changes.items():
            rewrite(path, lines)

    def lost_certified(self) -> Planted | None:
        """Remove a line of stored messages that has others before it and after it."""
        stored: dict[tuple[str, int], set[int]] = defaultdict(set)
        for partition, offset in self.log.certified:
            stored[partition].add(offset)
        for read in self._reads(CertifiedLine):
            line, at = read.line, list(offsets_of(read.line.runs))
            if (
                at
                and all(
                    min(stored[line.queue_id, number]) < offset < max(stored[line.queue_id, number])
                    for number, offset in at
                )
                and all(len(self.log.certified[(line.queue_id, n), o]) == 1 for n, o in at)
                and not any((line.queue_id, where) in self._duplicates() for where in at)
            ):
                rewrite(read.path, {read.number: []})
                return self._planted("lost_certified", "hole", line, at)
        return None

    def _duplicates(self) -> set[tuple[str, Where]]:
        """Return the places of originals that were sent again."""
        return {
            (read.line.queue_id, where)
            for read in self.log.reads
            if isinstance(read.line, CertifiedLine)
            for where in offsets_of(read.line.duplicate_runs)
        }

    def lost_position(self) -> Planted | None:
        """Remove a line of a group's position; no message is wrong then."""
        for read in self._reads(PositionLine):
            rewrite(read.path, {read.number: []})
            return self._planted("lost_position", None, read.line, [])
        return None

    def lost_beginning(self) -> Planted | None:
        """Remove the first line of an epoch that has others. Its gateway's acts then seem to belong
        to another epoch, or to none."""
        for read in self._reads(PositionLine):
            line = read.line
            epochs = self.log.epochs[line.queue_id, line.group, line.partition]
            mine = [epoch for epoch in epochs if epoch.owned is line]
            if line.event == "owned" and len(mine[0].positions) > 1:
                rewrite(read.path, {read.number: []})
                return self._planted("lost_beginning", None, line, [])
        return None

    # --- Doubled ---------------------------------------------------------------------------------

    def doubled_certified(self) -> Planted | None:
        """Double a line of stored messages."""
        for read in self._reads(CertifiedLine):
            at = list(offsets_of(read.line.runs))
            if at:
                rewrite(read.path, {read.number: [raw(read)] * 2})
                return self._planted("doubled_certified", "certified_twice", read.line, at)
        return None

    def doubled_dispatched(self) -> Planted | None:
        """Double a delivery at the same time."""
        return self._again("doubled_dispatched", 0)

    def given_again(self) -> Planted | None:
        """Repeat a delivery a little later, although the message had not returned."""
        return self._again("given_again", 1_000)

    def _again(self, kind: str, later_us: int) -> Planted | None:
        for read in self._reads(DispatchedLine):
            line, at = read.line, list(offsets_of(read.line.runs))
            if line.group is None or not at:
                continue
            if all(self._is_given_once(line, where, later_us) for where in at):
                one = raw(read)
                again = one | {"dispatched_unix_us": line.dispatched_unix_us + later_us}
                rewrite(read.path, {read.number: [one, again]})
                return self._planted(kind, "repetition", line, at)
        return None

    def _is_given_once(self, line: DispatchedLine, where: Where, later_us: int) -> bool:
        """Whether it is the only delivery, of an epoch that goes on, and no return explains another
        one."""
        place = (line.queue_id, str(line.group), where[0])
        ends = self._ends(place, where[1])
        later = self._segment(place, line.gateway, line.dispatched_unix_us + later_us + 1_000)
        return (
            len(self.log.given[place, where[1]]) == 1
            and not any(outcome in BACK or outcome == "parked" for _, outcome, _ in ends)
            and later is not None
            and later == self._segment(place, line.gateway, line.dispatched_unix_us)
        )

    def doubled_settled(self) -> Planted | None:
        """Double an ack, as of one delivery."""
        for read in self._reads(SettledLine):
            line, at = read.line, list(offsets_of(read.line.runs))
            if line.outcome == "acked" and all(
                self._given_in_epoch((line.queue_id, line.group, number), offset, read)
                for number, offset in at
            ):
                rewrite(read.path, {read.number: [raw(read)] * 2})
                return self._planted("doubled_settled", "settled_twice", line, at)
        return None

    # --- Moved in time ---------------------------------------------------------------------------

    def swapped_dispatched(self) -> Planted | None:
        """Exchange the times of the first deliveries of two messages of one key."""
        for (place, _), line in self._singles().items():
            for (first, one), (second, other) in pairwise(line):
                if one is None or other is None:
                    continue
                times = one.line.dispatched_unix_us, other.line.dispatched_unix_us
                gateway = one.line.gateway
                if (
                    other.line.gateway == gateway
                    and times[1] - times[0] > 2_000
                    and self._is_fresh(place, first, gateway, times[0])
                    and self._segment(place, gateway, times[0])
                    == self._segment(place, gateway, times[1])
                ):
                    self._set(one, "dispatched_unix_us", times[1])
                    self._set(other, "dispatched_unix_us", times[0])
                    at = (place[2], first), (place[2], second)
                    return self._planted(
                        "swapped_dispatched", "inversion", one.line, at[:1], touched=at
                    )
        return None

    def _is_fresh(self, place: Place, offset: int, gateway: str, at_us: int) -> bool:
        """Whether no owner before can have given this, or settled it, in lost lines."""
        found = self._segment(place, gateway, at_us)
        if found is None:
            return False
        owned = found[0][found[1]].owned
        return not self.log.lossy or offset >= max(owned.frontier, owned.ahead or 0)

    def _singles(self) -> dict[tuple[Place, bytes], list[tuple[int, Read | None]]]:
        """Return, by place and key, in random order, the messages of a key. None instead of a line:
        it was given more than once, not acked, or with others."""
        found: dict[tuple[Place, bytes], list[tuple[int, Read | None]]] = defaultdict(list)
        for (partition, offset), key in sorted(self.log.keys.items(), key=lambda one: one[0][1]):
            for place in self.log.epochs if key else ():
                if (place[0], place[2]) != partition:
                    continue
                gave = self.log.given.get((place, offset), [])
                outcomes = [outcome for _, outcome, _ in self._ends(place, offset)]
                is_single = len(gave) == 1 and outcomes == ["acked"]
                read = gave[0].read if is_single and self._is_alone(gave[0].read) else None
                found[place, key].append((offset, read))
        return dict(self._shuffled(found))

    def _is_alone(self, read: Read) -> bool:
        """Whether this line is of one message, and of a gateway without lost lines."""
        line = read.line
        return (
            sum(count for _, _, count in line.runs) == 1
            and line.gateway not in self.log.lossy
            and self._only in (None, line.gateway)
        )

    def _set(self, read: Read, name: str, value: int) -> None:
        rewrite(read.path, {read.number: [raw(read) | {name: value}]})

    def swapped_certified(self) -> Planted | None:
        """Exchange the times of two lines of neighbouring offsets."""
        by_first = {}
        for read in self._reads(CertifiedLine):
            if len(read.line.runs) == 1 and read.line.certified_unix_us is not None:
                number, first, _ = read.line.runs[0]
                by_first[read.line.queue_id, number, first] = read
        for (queue_id, number, first), read in by_first.items():
            other = by_first.get((queue_id, number, first + read.line.runs[0][2]))
            if other is None or other.line.gateway != read.line.gateway:
                continue
            if other.line.asked_unix_us - read.line.asked_unix_us > 2_000:
                one, two = raw(read), raw(other)
                for name in ("accepted_unix_us", "asked_unix_us", "certified_unix_us"):
                    one[name], two[name] = two[name], one[name]
                for at, changed in ((read, one), (other, two)):
                    rewrite(at.path, {at.number: [changed]})
                both = [*offsets_of(read.line.runs), *offsets_of(other.line.runs)]
                return self._planted("swapped_certified", "disorder", read.line, [], touched=both)
        return None

    def settled_early(self) -> Planted | None:
        """Make an ack earlier than its delivery."""
        for read in self._reads(SettledLine):
            line, at = read.line, list(offsets_of(read.line.runs))
            given = [given_us_of(line, *where) for where in at]
            if line.outcome != "acked" or None in given:
                continue
            early_us = min(one for one in given if one is not None) - 2_000
            if all(
                len(self.log.given.get(((line.queue_id, line.group, number), offset), ())) == 1
                and self._given_in_epoch((line.queue_id, line.group, number), offset, read)
                and self._segment((line.queue_id, line.group, number), line.gateway, early_us)
                == self._segment(
                    (line.queue_id, line.group, number), line.gateway, line.settled_unix_us
                )
                for number, offset in at
            ):
                self._set(read, "settled_unix_us", early_us)
                return self._planted("settled_early", "settled_early", line, at)
        return None

    def overtaking(self) -> Planted | None:
        """Give the next message of a key while an earlier one has returned and waits."""
        for (place, offset), ends in self._shuffled(self.log.ended):
            key = self.log.keys.get(((place[0], place[2]), offset), b"")
            backs = [(at, read) for at, outcome, read in ends if outcome == "nacked"]
            if not key or len(backs) != 1:
                continue
            back_us, nack = backs[0]
            gateway = nack.line.gateway
            if gateway in self.log.lossy or self._only not in (None, gateway):
                continue
            again = [
                one for one in self.log.given[place, offset]
                if one.gateway == gateway and one.at_us > back_us
            ]  # fmt: skip
            if not again or again[0].at_us - back_us < 10_000:
                continue
            middle_us = (back_us + again[0].at_us) // 2
            segment = self._segment(place, gateway, back_us)
            for later in range(offset + 1, offset + 60):
                if self.log.keys.get(((place[0], place[2]), later)) != key:
                    continue
                gave = self.log.given.get((place, later), [])
                if (
                    len(gave) == 1 and gave[0].gateway == gateway
                    and gave[0].at_us > again[0].at_us
                    and sum(run[2] for run in gave[0].read.line.runs) == 1
                    and segment == self._segment(place, gateway, gave[0].at_us)
                    and segment == self._segment(place, gateway, again[0].at_us)
                ):  # fmt: skip
                    self._set(gave[0].read, "dispatched_unix_us", middle_us)
                    at = [(place[2], later)]
                    return self._planted("overtaking", "overtaken", gave[0].read.line, at)
                break
        return None

    def _shuffled(self, found: dict[Any, Any]) -> list[tuple[Any, Any]]:
        items = list(found.items())
        self.random.shuffle(items)
        return items

    def given_at_the_next_owner(self) -> Planted | None:
        """Repeat at the next gateway a delivery that one gateway settled before it released its
        epoch in an orderly way."""
        for place in self.random.sample(list(self.log.epochs), len(self.log.epochs)):
            for segment in self.log.segments(place):
                for before, after in pairwise(segment):
                    made = self._give_again(place, before, after)
                    if made is not None:
                        return made
        return None

    def _give_again(self, place: Place, before: Epoch, after: Epoch) -> Planted | None:
        gone = before.released
        lossy = {before.gateway, after.gateway} & self.log.lossy
        if gone is None or not gone.is_clean or lossy or before.gateway == after.gateway:
            return None
        outs = [
            read for read in self._reads(DispatchedLine)
            if read.line.gateway == after.gateway
            and (read.line.queue_id, read.line.group) == place[:2]
            and after.has(after.gateway, read.line.dispatched_unix_us)
            and read.line.dispatched_unix_us > after.owned.at_unix_us
        ]  # fmt: skip
        done = [
            offset
            for (at, offset), ends in self.log.ended.items()
            if at == place
            and [outcome for _, outcome, _ in ends] == ["acked"]
            and before.has(before.gateway, ends[0][0])
            and before.gateway == ends[0][2].line.gateway
        ]
        if not outs or not done:
            return None
        read, offset = outs[0], self.random.choice(done)
        one = raw(read)
        again = one | {"runs": [[place[2], offset, 1]], "attempt": 1}
        rewrite(read.path, {read.number: [one, again]})
        at = [(place[2], offset)]
        return self._planted("given_at_the_next_owner", "repetition", read.line, at)

    # --- Files -----------------------------------------------------------------------------------

    def _middle_file(self) -> Path | None:
        files = sorted({read.path for read in self.log.reads})
        last = {path.name.partition("-")[0]: path for path in files}
        chosen = [
            path for path in files
            if path not in last.values() and not path.name.endswith("000001.jsonl")
            and self._only in (None, path.name.partition("-")[0])
        ]  # fmt: skip
        return self.random.choice(chosen) if chosen else None

    def missing_file(self) -> Planted | None:
        """Remove a file from the middle."""
        path = self._middle_file()
        if path is None:
            return None
        line = next(read.line for read in self.log.reads if hasattr(read.line, "queue"))
        path.unlink()
        return Planted("missing_file", None, line.queue, None, frozenset(), frozenset(), path)

    def damaged_file(self) -> Planted | None:
        """Change a digit of one line."""
        path = self._middle_file()
        if path is None:
            return None
        line = next(read.line for read in self.log.reads if hasattr(read.line, "queue"))
        text = bytearray(path.read_bytes())
        at = text.index(b'"queue_id":"') + len(b'"queue_id":"')
        text[at] = ord("x") if text[at] != ord("x") else ord("y")
        path.write_bytes(bytes(text))
        return Planted("damaged_file", None, line.queue, None, frozenset(), frozenset(), path)


FAULTS: Final[dict[str, Callable[[Planter], Planted | None]]] = {
    one.__name__: one
    for one in (
        Planter.lost_dispatched, Planter.lost_settled, Planter.lost_message,
        Planter.lost_certified, Planter.lost_position, Planter.lost_beginning,
        Planter.doubled_certified, Planter.doubled_dispatched, Planter.given_again,
        Planter.doubled_settled, Planter.swapped_dispatched, Planter.swapped_certified,
        Planter.settled_early, Planter.overtaking, Planter.given_at_the_next_owner,
        Planter.missing_file, Planter.damaged_file,
    )
}  # fmt: skip
