"""A naive model of delivery: one object per message, every rule a loop over all of them.

`Store` does with cursor writes what the storage port says. `Model` is told what a delivery did and
says what it had to do; it raises AssertionError with the id of the rule that was broken.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from push import limits
from push.delivery.key_lines import loose
from push.delivery.leases import ADOPTED, Push
from push.delivery.scan import Share
from push.delivery.values import DeliverySettings, Judged
from push.delivery.waiting import DeadLetter
from push.places import Parked, ParkedLine
from push.ranges import Dead, DeadRanges, RangeSet
from push.record import Record, RecordBuilder
from push.storage_port import Cursor, CursorWrite, Owned, Retry, Written

WALL0_UNIX_MS = 1_700_000_000_000


def wall_unix_ms(now: float) -> int:
    """The wall clock of the tests runs with the monotonic one."""
    return WALL0_UNIX_MS + int(now * 1000)


def make_record(first: int, keys: Iterable[int], expires_unix_ms: Iterable[int] = ()) -> Record:
    """A record of messages with these key hashes (0: none), at offsets from `first` on."""
    builder = RecordBuilder()
    expiries = list(expires_unix_ms)
    for index, key in enumerate(keys):
        builder.add(b'{"body":1}', key)
        if expiries and expiries[index]:
            builder.mark(index, None, expiries[index])
    header, payload, _ = builder.close(
        record_id=bytes(16), published_unix_ms=WALL0_UNIX_MS, ring_epoch=1, tenant=0
    )
    return Record.load(first, header, payload, ())


class Store:
    """A cursor, as the storage port describes it."""

    def __init__(self) -> None:
        self.epoch = 0
        self.settled: set[int] = set()
        self.ended: set[int] = set()
        self.aside: dict[int, int] = {}
        self.retries: dict[int, Retry] = {}
        self.parked: dict[int, Parked] = {}
        self.dead: dict[int, str] = {}
        self.dead_passed: set[int] = set()
        """Of these: what stood aside, and is passed therefore."""

    def own(self, certified: int, *, again: bool = False) -> Owned:
        """`again`: by the owner of before (R22)."""
        previous = self.epoch if again else None
        self.epoch += 1
        passed = RangeSet((o, o) for o in self.settled | self.aside.keys() | self.dead_passed)
        floor = passed.pop_prefix(0)
        lines: dict[int, int] = {}
        for key in self.aside.values():
            lines[key] = lines.get(key, 0) + 1
        cursor = Cursor(
            floor,
            tuple(passed),
            tuple(self.retries.values()),
            tuple(lines.items()),
            tuple(self.parked.values()),
            tuple(RangeSet((o, o) for o in self.ended)),
            tuple(DeadRanges(Dead(o, o, reason) for o, reason in self.dead.items())),
        )
        return Owned(self.epoch, cursor, certified, generation=1, previous=previous)

    def settle(self, offset: int) -> None:
        self.settled.add(offset)
        self.retries.pop(offset, None)
        self.aside.pop(offset, None)
        self.dead.pop(offset, None)
        self.dead_passed.discard(offset)

    def apply(self, write: CursorWrite) -> Written:
        if write.epoch != self.epoch:
            return Written(fenced=True)
        for first, last in write.settled:
            for offset in range(first, last + 1):
                self.settle(offset)
        for first, last in write.ended:
            over = self.settled | {o for one in write.dead for o in range(one.first, one.last + 1)}
            assert over >= {*range(first, last + 1)}, "R21: it has ended, and is not settled"
            self.ended.update(range(first, last + 1))
        refused = []
        for retry in write.retries:
            if retry.offset in self.settled:
                refused.append(retry.offset)
            else:
                self.retries[retry.offset] = retry
        for side in write.aside:
            assert list(side.offsets) == sorted(side.offsets)
            for offset in side.offsets:
                if offset not in self.settled:
                    self.aside.setdefault(offset, side.key_hash)
        for mark in write.parked:
            self.parked[mark.key_hash] = mark
        for key in write.unparked:
            self.parked.pop(key, None)
        for first, last, reason in write.dead:
            for offset in range(first, last + 1):
                if offset in self.settled:
                    refused.append(offset)
                    continue
                self.dead[offset] = reason
                if self.aside.pop(offset, None) is not None:
                    self.dead_passed.add(offset)
        return Written(tuple(refused))

    def parked_line(self, key: int) -> ParkedLine:
        """A key that is parked, as an operator sees it; one that is not: as it would be."""
        mark = self.parked.get(key, Parked(key, "exhausted", 0))
        line = sorted(offset for offset, side in self.aside.items() if side == key)
        head = line[0] if line else None
        return ParkedLine(key, mark.reason, mark.since_unix_ms, len(line), head, 0)

    def read_side(self, key: int, after: int, count_max: int) -> tuple[int, ...]:
        offsets = sorted(o for o, k in self.aside.items() if k == key and o > after)
        return tuple(offsets[:count_max])


@dataclass(slots=True)
class Told:
    """A message, as the model knows it under the present epoch."""

    offset: int
    key: int
    expires_unix_ms: int
    state: str = "log"
    """log, flight, waiting (given or skipped, and not in flight), dying (it goes to the dead
    letters, and that is not durable), dead (it is), settled"""
    gone: bool = False
    """No longer in the log."""
    tried: bool = False
    """The previous owner noted attempts, or a redelivery."""
    attempts: int = 0
    rejected: bool = False
    due: float = 0.0
    push: int = 0
    """The last push it was given in, under this epoch; 0: none."""
    pull: int = 0
    of_line: bool = False
    dies_of: str = ""
    """Why it goes to the dead letters, from the decision on; "": nothing was decided."""
    ended: bool = False
    """It was given out, and no ack has settled it."""
    elsewhere: bool = False
    """Settled in the storage by somebody else (a session that moved)."""
    overflowed: bool = False
    was_given: bool = False
    """By whichever owner."""
    forgiven: bool = False
    """Released with its line, and not in memory yet."""
    given_at: float = 0.0
    deadline: float = 0.0
    started: bool = False

    @property
    def line(self) -> int:
        """The line it waits or dies in."""
        return self.key or loose(self.offset)


@dataclass
class Model:
    """See the module. `now` is seconds."""

    settings: DeliverySettings
    store: Store
    messages: list[Told] = field(default_factory=list)
    pushes: dict[int, tuple[int, int, frozenset[int]]] = field(default_factory=dict)
    """number → first, last, and what it skips between them."""
    parked: set[int] = field(default_factory=set)
    decisions: dict[int, str] = field(default_factory=dict)
    """Line → what an operator wants of it; retry: until it is parked again."""
    once: dict[int, int] = field(default_factory=dict)
    """Line → the offset that is tried once more."""
    heads: dict[int, int | None] = field(default_factory=dict)
    """Line → its head, as who decided about it has seen it."""
    drain_deadline: float = float("inf")
    first_given: dict[int, int] = field(default_factory=dict)
    """Line → the highest offset of it that was given out first, by whichever owner."""
    adopted: set[int] = field(default_factory=set)
    """Offsets that were adopted under this epoch."""
    front: float = float("-inf")
    """When the newest was given of what was settled or nacked."""
    settled_at: float = float("-inf")

    def add(self, key: int, expires_unix_ms: int) -> None:
        self.messages.append(Told(len(self.messages), key, expires_unix_ms))

    def exhausted(self, message: Told) -> bool:
        if self.once.get(message.line) == message.offset and message.attempts:
            return True
        if message.rejected:
            return True
        return 0 < self.settings.attempts_max <= message.attempts

    def of_line(self, line: int, *states: str) -> list[Told]:
        return [m for m in self.messages if m.line == line and m.state in states]

    def earlier(self, message: Told, *states: str) -> list[Told]:
        return [m for m in self.of_line(message.line, *states) if m.offset < message.offset]

    def settled(self) -> RangeSet:
        return RangeSet((m.offset, m.offset) for m in self.messages if m.state == "settled")

    # --- Giving --------------------------------------------------------------------------------

    def scanned(
        self, old: int, new: int, outs: list[Push], now: float, pull: int, *,
        share: Share | None = None,
    ) -> None:  # fmt: skip
        """The log was given from; the frontier went from `old` to `new`."""
        given = {o: out for out in outs for o in out.offsets()}
        assert len(given) == sum(out.count for out in outs), "P7: given twice"
        assert all(old <= offset < new for offset in given)
        ample = share.ample if share is not None else 0
        rest = share.after(len(given)) if share is not None else None
        for message in self.messages[old:new]:
            out = given.get(message.offset)
            if out is not None:
                has_its_share = ample <= 0 and self._has_its_share(message, share)
                assert not has_its_share, f"P8: {message} is one too many"
                ample -= 1
                self._give_from_log(message, out, now, pull)
            elif message.state == "log":
                if (
                    ample <= 0
                    and self._has_its_share(message, rest)
                    and (self.settings.pulls or self._slow_from(message, rest) <= now)
                ):
                    for other in self.of_line(message.line, "flight"):
                        other.of_line = True  # its line waits for them
                self._pass_over(message, now, pull)
        for out in outs:
            assert out.number == max(0, *self.pushes, 0) + 1, "R16: numbers count up"
            assert out.attempt == 1, "R19"
            assert list(out.skips) == sorted(set(out.skips)), f"{out}"
            assert all(out.first < skip < out.last for skip in out.skips), f"{out}"
            self.pushes[out.number] = (out.first, out.last, frozenset(out.skips))

    def _has_its_share(self, message: Told, share: Share | None) -> bool:
        """P8: whether as much of its key is in flight as may be."""
        if share is None or not message.key:
            return False
        return len(self.of_line(message.line, "flight")) >= share.limit

    def _slow_from(self, message: Told, share: Share | None) -> float:
        """From when on its key, which has its share, is slow, if nothing else happens."""
        assert share is not None
        held = self.of_line(message.line, "flight")
        old_at = min(m.given_at for m in held) + limits.KEY_PATIENCE_S
        if len(held) >= share.much or self.front > old_at:
            return old_at
        return max(old_at, self.settled_at + limits.KEY_PATIENCE_S)

    def stops(
        self, frontier: int, again_at: float, share: Share | None, now: float, *, few: int
    ) -> None:
        """P8: nothing more is given before `again_at`: the next message waits because its key has
        its share and is not slow yet; or, where more than a `few` are in flight, nothing is."""
        assert share is not None
        message = self.messages[frontier]
        flying = [m for m in self.messages if m.state == "flight"]
        young = [m.given_at + limits.KEY_PATIENCE_S for m in flying if not m.of_line]
        assert message.state == "log"
        assert again_at > now, "P8: it is looked at without end"
        assert message.key, "P8: what has no key has no share"
        if not self._has_its_share(message, share):
            assert len(flying) >= few, f"P8: {message} waits for no reason"
            assert young, f"P8: {message} waits, and what is in flight is slow"
            assert now < again_at <= min(young), f"P8: {message} is not looked at"
            return
        assert again_at <= self._slow_from(message, share), f"P8: {message} is not looked at"

    def _give_from_log(self, message: Told, out: Push, now: float, pull: int) -> None:
        assert message.state == "log", f"R18, P5: {message} is given from the log"
        assert not message.gone
        assert not message.tried, f"R16: {message} is given again without a write"
        self._may_go(message, now, pull)
        self._in_flight(message, out.number, now, pull)
        message.of_line = False

    def _may_go(self, message: Told, now: float, pull: int) -> None:
        """P3, R17, R24: whether a message may be given out at all."""
        assert message.line not in self.parked, f"R17: {message} is parked"
        assert not self.earlier(message, "log", "waiting", "dying"), f"P3: {message} overtakes"
        expires = message.expires_unix_ms
        assert not expires or expires > wall_unix_ms(now), f"R13: {message} is expired"
        assert not self.exhausted(message), f"R19: {message} is exhausted"
        if self.settings.pulls and message.key:
            for other in self.of_line(message.line, "flight"):
                assert other.pull == pull, f"R24: {other} is in flight and {message} is given"

    def _in_flight(self, message: Told, number: int, now: float, pull: int) -> None:
        if not message.was_given:
            before = self.first_given.get(message.line, -1)
            assert before < message.offset, f"P3: {message} is given first behind {before}"
            message.was_given, self.first_given[message.line] = True, message.offset
        message.state, message.push, message.pull = "flight", number, pull
        message.given_at, message.deadline = now, now + self.settings.lease_s
        message.started = self.settings.pulls

    def _pass_over(self, message: Told, now: float, pull: int) -> None:
        """It was not given: there must be a reason (P8)."""
        expires = message.expires_unix_ms
        is_expired = bool(expires) and expires <= wall_unix_ms(now)
        behind = self.of_line(message.line, "waiting", *([] if is_expired else ["dying"]))
        in_flight = self.of_line(message.line, "flight")
        closed = any(m.of_line or (self.settings.pulls and m.pull != pull) for m in in_flight)
        if message.gone:
            message.state = "settled"
        elif behind or closed or message.line in self.parked or message.tried:
            message.state = "waiting"
            if message.line not in self.parked:
                self.comes_back(message)  # what was released before it was come to
        elif is_expired:
            message.state = "dying"
        else:
            raise AssertionError(f"P8: {message} was passed over for no reason")

    def evicted(self, old: int, new: int, count: int) -> None:
        """The queue overflowed: `count` messages at the frontier go to the dead letters."""
        due = [m for m in self.messages[old:new] if m.state == "log"]
        assert len(due) == count, f"R18: {due}"
        for message in due:
            message.state, message.overflowed = "dying", True

    def sent(self, offset: int, out: Push, now: float, pull: int) -> None:
        """A line sent a message."""
        message = self.messages[offset]
        assert (out.first, out.last, out.skips) == (offset, offset, ())
        assert message.state == "waiting", f"R18, P5: {message} comes from a line"
        assert not message.elsewhere, f"R16: {message} is settled and given again"
        assert message.due <= now + 0.002, f"backoff: {message} at {now}"
        self._may_go(message, now, pull)
        assert out.attempt == message.attempts + 1, f"R19: {message} as attempt {out.attempt}"
        if message.push or message.tried:
            noted = self.store.retries.get(offset)
            assert noted is not None, f"R16: {message} is given again and nothing is durable"
            assert noted.attempts == message.attempts, f"R16: {message}, durable is {noted}"
        assert out.number == max(0, *self.pushes, 0) + 1, "R16: numbers count up"
        self.pushes[out.number] = (offset, offset, frozenset())
        self._in_flight(message, out.number, now, pull)
        message.of_line = True

    # --- What the consumer says ----------------------------------------------------------------

    def ack(self, number: int, first: int, last: int, now: float) -> Judged:
        """R21: the verdict, offset by offset; settles."""
        verdicts: dict[int, str] = {}
        for offset in range(first, last + 1):
            if not self.skips(number, offset):
                verdicts[offset] = self._ack(number, offset, now)
        return judged(verdicts)

    def works(self, message: Told, now: float) -> None:
        """Its consumer settles or refuses what is in flight."""
        self.front, self.settled_at = max(self.front, message.given_at), now

    def _ack(self, number: int, offset: int, now: float) -> str:
        if not self.covers(number, offset):
            return self.unknown(number)
        message = self.messages[offset]
        if message.state == "settled":
            return "stale" if message.ended else "settled"
        if message.state in ("dying", "dead") or message.push != number:
            return "stale"
        if message.state == "waiting" and (
            message.line in self.parked or self.earlier(message, "waiting", "dying")
        ):
            return "stale"
        if message.state == "flight":
            self.works(message, now)
        message.state = "settled"
        return "settled"

    def ends(self, message: Told) -> None:
        """It is settled, in the dead letters or gone, and no ack did that: late ones are told."""
        message.state = "settled"
        message.ended |= message.push != 0

    def covers(self, number: int, offset: int) -> bool:
        first, last, skips = self.pushes.get(number, (0, -1, frozenset()))
        return first <= offset <= last and offset not in skips

    def skips(self, number: int, offset: int) -> bool:
        """Whether it lies inside this push and is not of it: naming it means nothing."""
        return number > 0 and number in self.pushes and offset in self.pushes[number][2]

    def unknown(self, number: int) -> str:
        """R22: of the epoch before, what was not adopted is over."""
        return "stale" if number < 0 else "not_delivered"

    def in_flight(self, number: int, offset: int) -> bool:
        return self.covers(number, offset) and (
            self.messages[offset].state == "flight" and self.messages[offset].push == number
        )

    def touch(self, number: int, first: int, last: int) -> Judged:
        """Return what a nack or extend takes effect on."""
        verdicts = {}
        for offset in range(first, last + 1):
            if self.skips(number, offset):
                continue
            if not self.covers(number, offset):
                verdicts[offset] = self.unknown(number)
            else:
                verdicts[offset] = "settled" if self.in_flight(number, offset) else "stale"
        return judged(verdicts)

    def come_back(
        self, offset: int, due: float, counted: bool, rejected: bool = False
    ) -> list[tuple[int, int]]:
        """A delivery returned, and with it the later ones of its key. Returns the latter (R17)."""
        message = self.messages[offset]
        message.rejected |= rejected
        message.state, message.due = "waiting", due
        message.attempts += counted
        revoked = []
        for other in self.of_line(message.line, "flight"):
            if other.offset > offset:
                other.state = "waiting"
                revoked.append((other.push, other.offset))
        if self.exhausted(message):
            if self.settings.park:
                self.parked.add(message.line)
            else:
                message.state = "dying"
        if message.line in self.parked:
            self._void(message.line)
        return revoked

    def _void(self, line: int) -> None:
        """R21: what is parked is the operator's: no ack of before counts any more."""
        for message in self.of_line(line, "waiting", "log"):
            message.push = -1 if message.push else 0
            message.forgiven = False

    def extend(self, number: int, first: int, last: int, lease_s: float, now: float) -> None:
        """R20."""
        for message in self.messages[first : last + 1]:
            if self.in_flight(number, message.offset):
                cap = min(message.given_at + self.settings.lease_total_s, self.drain_deadline)
                message.deadline = max(message.deadline, min(now + lease_s, cap))

    def expire(self, now: float, arrivals: Mapping[int, float | None]) -> set[tuple[int, int]]:
        """P6, R19: what time takes from the consumer. `arrivals`: of pushes that were long in
        transit, when they arrived, or None."""
        cut_off = now >= self.drain_deadline
        for message in self.messages:
            if message.state == "flight" and message.deadline <= now and message.push > 0:
                since = arrivals.get(message.push, message.given_at)
                until = now + 5 if since is None else since + self.settings.lease_s
                cap = min(message.given_at + self.settings.lease_total_s, self.drain_deadline)
                message.deadline = max(message.deadline, min(until, cap))
        due = [m for m in self.messages if m.state == "flight" and (cut_off or m.deadline <= now)]
        taken = set()
        for message in sorted(due, key=lambda m: (m.push, m.offset)):
            if message.state == "flight":
                taken.add((message.push, message.offset))
                taken.update(self.come_back(message.offset, now, message.started))
        return taken

    def holder_died(self) -> None:
        """R19: of what was in flight, what had started is an attempt."""
        for message in self.messages:
            if message.state == "flight":
                message.attempts += message.started
                message.state = "log"

    def holder_moves(self) -> None:
        """R22: it is not dead. Nothing counts."""
        for message in self.messages:
            if message.state == "flight":
                message.state = "log"

    def adopt(self, claims: set[tuple[int, int]], end: int, now: float) -> set[tuple[int, int]]:
        """R22: the holder of before names what it holds, (push, offset) each. Returns what is not
        its own any more."""
        begins = {push: min(o for p, o in claims if p == push) for push, _ in claims}
        newest = {
            offset: push for push, offset in sorted(claims)
            if offset < begins[push] + limits.PUSH_MESSAGES_MAX
        }  # fmt: skip
        lost = {(push, offset) for push, offset in claims if newest.get(offset) != push}
        kept: dict[int, list[int]] = {}
        for offset, push in sorted(newest.items()):
            if offset < end and self._goes_on(self.messages[offset], now):
                kept.setdefault(push, []).append(offset)
                message = self.messages[offset]
                if message.state == "log":
                    self._in_flight(message, push - ADOPTED, now, 0)
                    message.of_line = False
                    self.adopted.add(offset)
            else:
                lost.add((push, offset))
        for push, offsets in kept.items():
            between = frozenset(range(offsets[0], offsets[-1])) - {*offsets}
            self.pushes[push - ADOPTED] = (offsets[0], offsets[-1], between)
        return lost

    def _goes_on(self, message: Told, now: float) -> bool:
        if message.state == "settled":
            if message.ended:
                return False
            return not self.store.aside  # else the storage cannot tell it from what is set aside
        if message.state != "log" or message.gone or message.due > now or self.exhausted(message):
            return False
        if message.line in self.parked or self.of_line(message.line, "waiting"):
            return False
        return not any(not m.gone for m in self.earlier(message, "log"))

    # --- What the delivery decided -------------------------------------------------------------

    def dies(self, offset: int, reason: str, now: float) -> None:
        """It was decided, and is to be written. It stays decided until it is durable: what comes
        back meanwhile is the key's next head, and not the one that was meant."""
        message = self.messages[offset]
        assert message.state in ("waiting", "dying"), f"{message} is a dead letter"
        if message.dies_of:
            assert message.dies_of == reason, f"R19: {message} dies of {reason}"
            return
        if reason in ("exhausted", "rejected"):
            assert self.exhausted(message), f"R19: {message}"
            assert (reason == "rejected") == message.rejected
            assert not self.settings.park
        elif reason == "skipped":
            assert self.decisions.get(message.line) == "skip", message
            assert self.heads[message.line] == offset, f"R17: {message} is not what was meant"
            assert not self.earlier(message, "waiting", "dying"), f"P3: {message} is no head"
        elif reason == "overflow":
            assert message.overflowed, message
        else:
            expires = message.expires_unix_ms
            assert reason == "expired", message
            assert 0 < expires <= wall_unix_ms(now), f"R13: {message}"
        message.state, message.dies_of = "dying", reason

    def is_dead(self, letter: DeadLetter) -> None:
        """It is to be moved."""
        message = self.messages[letter.offset]
        assert message.state in ("dying", "dead"), f"P5: {message} is a dead letter"
        assert self.store.dead.get(letter.offset) == letter.reason, f"P5: {letter} is not durable"
        assert letter.attempts == message.attempts, f"R19: {letter}, {message}"
        message.state = "dead"

    def parks(self, line: int) -> None:
        if line not in self.parked:
            assert self.settings.park
            exhausted = [m for m in self.of_line(line, "waiting") if self.exhausted(m)]
            assert exhausted, f"R19: {line}"
            once = self.messages[self.once[line]] if line in self.once else exhausted[0]
            assert (
                once.state in ("settled", "dying", "dead") or exhausted[0].offset <= once.offset
            ), f"R19: {once} was not tried once more"
            self.parked.add(line)
            self._void(line)

    def drops(self, line: int) -> None:
        """An operator's decision is not made."""
        del self.decisions[line]
        head = self.of_line(line, "waiting")[0].offset
        assert head != self.heads.pop(line), f"R17: the head of {line:x} is as it was seen"

    def unparks(self, line: int) -> None:
        """An operator's decision is durable."""
        verb = self.decisions.pop(line)
        assert line in self.parked
        self.parked.remove(line)
        self.once.pop(line, None)
        assert line not in self.store.parked, "R18: the mark is still there"
        waiting = self.of_line(line, "waiting")
        if verb != "skip" and waiting:
            head = self.heads.pop(line)
            assert head is not None
            assert self.store.retries[head].attempts == 0, "R16: the head is as it was"
            self.messages[head].attempts, self.messages[head].due = 0, 0.0
            self.messages[head].rejected = False
            if verb == "retry":
                self.once[line] = head
        for message in (*waiting, *self.of_line(line, "log")):
            message.forgiven = verb == "release"

    def comes_back(self, message: Told) -> None:
        """A released message is in memory again: what was tried of it counts no more."""
        if message.forgiven:
            message.forgiven = False
            if message.attempts:
                message.attempts, message.due = 0, 0.0
                message.rejected = False

    def new_owner(self) -> None:
        """Everything that is not durable is forgotten."""
        self.pushes.clear()
        self.parked = set(self.store.parked)
        self.decisions.clear()
        self.heads.clear()
        self.once.clear()
        self.adopted.clear()
        self.front = self.settled_at = float("-inf")
        self.drain_deadline = float("inf")
        for message in self.messages:
            noted = self.store.retries.get(message.offset)
            message.tried = noted is not None
            message.attempts = noted.attempts if noted else 0
            message.rejected = noted.rejected if noted else False
            message.due = (noted.due_unix_ms - WALL0_UNIX_MS) / 1000 if noted else 0.0
            message.push, message.of_line, message.overflowed = 0, False, False
            message.forgiven, message.dies_of = False, ""
            message.ended = message.offset in self.store.ended
            if message.offset in self.store.settled:
                message.state = "settled"
            elif message.offset in self.store.dead:
                message.state = "dead"
            else:
                message.state = "waiting" if message.offset in self.store.aside else "log"


def judged(verdicts: dict[int, str]) -> Judged:
    """Ranges of offsets by verdict."""
    sets = {name: RangeSet() for name in ("settled", "stale", "not_delivered")}
    for offset, verdict in verdicts.items():
        sets[verdict].add(offset, offset)
    return Judged(*(list(sets[name]) for name in ("settled", "stale", "not_delivered")))
