"""Random histories of one group-partition against the naive model, through many owners."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from push import limits
from push.delivery import scan as shares
from push.delivery.checks import Outside, check
from push.delivery.delivery import Delivery
from push.delivery.resume import adopt, can_adopt, keys_wanted
from push.delivery.scan import Share
from push.delivery.values import DeliverySettings, Judged, Notices
from push.places import CursorPlace, Partition, Verb
from push.ranges import RangeSet
from push.record import Record
from push.retry import backoff_s
from push.storage_port import CursorWrite
from tests.push.delivery_model import Model, Store, Told, judged, make_record, wall_unix_ms

PLACE = CursorPlace("g", Partition("q", 0))
KEYS = st.sampled_from([0, 1, 1, 1, 1, 2, 2, 3])
SHARES = st.sampled_from(
    [None, None, *(Share(*of) for of in [(0, 1, 1), (0, 1, 9), (0, 70, 0), (0, 99, 4), (2, 9, 9)])]
)
PICK = st.integers(0, 999)
"""Chooses among whatever there is then."""
PROFILE = settings(
    max_examples=1000,
    stateful_step_count=40,
    suppress_health_check=list(HealthCheck),
)


def same(left: Judged, right: Judged) -> bool:
    """Equal as sets of offsets."""
    return all(
        RangeSet(getattr(left, name)) == RangeSet(getattr(right, name))
        for name in ("settled", "stale", "not_delivered")
    )


class DeliveryMachine(RuleBasedStateMachine):
    """The world around a `Delivery`: log, storage, consumer and clock. Subclasses set `pulls`."""

    pulls = False

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.now = 1000.0
        self.records: list[Record] = []
        self.certified = 0
        self.store = Store()
        self.under_way: CursorWrite | None = None
        self.loads: list[tuple[int, int]] = []
        self.taken: list[tuple[int, int]] = []
        self.letters: dict[int, None] = {}
        self.pull = 0

    @initialize(
        attempts_max=st.sampled_from([0, 1, 2, 3]),
        park=st.booleans(),
        held=st.sampled_from([1, 2, 4, 256]),
        push=st.sampled_from([2, 3, 1024]),
        window=st.sampled_from([2, 4, 256]),
        keys=st.lists(KEYS, min_size=3, max_size=8),
        few=st.sampled_from([3, 128]),
        last=SHARES,
    )
    def begin(
        self, *, attempts_max: int, park: bool, held: int, push: int, window: int, keys: list[int],
        few: int, last: Share | None,
    ) -> None:  # fmt: skip
        self.patch.setattr(limits, "HELD_PER_PARTITION_MAX", held)
        self.patch.setattr(limits, "ASIDE_UNWRITTEN_MAX", held)
        self.patch.setattr(limits, "PUSH_MESSAGES_MAX", push)
        self.patch.setattr(limits, "LINE_WINDOW_MAX", window)
        self.patch.setattr(limits, "DYING_PER_PARTITION_MAX", 2 * held)
        self.patch.setattr(limits, "DEAD_RANGES_MAX", 2 * held)
        self.patch.setattr(limits, "DEAD_RUN_MIN", min(held, 4))
        self.patch.setattr(limits, "KEY_PATIENCE_S", 2.0)
        self.patch.setattr(limits, "KEY_PATIENCE_S_MAX", 2.0)
        self.patch.setattr(shares, "_FEW", few)
        self.few, self.last_share = few, last
        self.settings = DeliverySettings(
            lease_s=10, lease_total_s=25, attempts_max=attempts_max, backoff_s=4, backoff_max_s=16,
            park=park, pulls=self.pulls,
        )  # fmt: skip
        self.model = Model(self.settings, self.store)
        self.own()
        self.publish(keys, 0)
        self.give(6)

    def teardown(self) -> None:
        try:
            if hasattr(self, "delivery"):
                self.everything_comes_to_an_end()
        finally:
            self.patch.undo()

    # --- Helpers -------------------------------------------------------------------------------

    @property
    def wall(self) -> int:
        return wall_unix_ms(self.now)

    def own(self, *, again: bool = False) -> None:
        owned = self.store.own(self.certified, again=again)
        self.under_way, self.loads, self.taken, self.letters = None, [], [], {}
        self.arrivals: dict[int, float | None] = {}
        self.delivery = Delivery(PLACE, owned, b"token", self.settings, now=self.now)
        self.model.new_owner()
        self.observe()

    @property
    def end(self) -> int:
        return self.records[-1].last + 1 if self.records else 0

    def record_of(self, offset: int) -> Record | None:
        """The record that holds the offset, if it is retained."""
        return next((r for r in self.records if r.first <= offset <= r.last), None)

    def record_from(self, offset: int) -> Record | None:
        """Return what a read at this offset finds."""
        kept = (r for r in self.records if not self.model.messages[r.first].gone)
        return next((r for r in kept if r.last >= offset), None)

    def observe(self) -> None:
        """After every act: what the delivery decided by itself."""
        going = [
            (offset, one.reason)
            for one in self.delivery.waiting.pending.going_to_die()
            for offset in range(one.first, one.last + 1)
        ]
        for offset, reason in going:
            self.model.dies(offset, reason, self.now)
        for letter in self.delivery.take_dead_letters(1000):
            self.model.is_dead(letter)
            self.letters[letter.offset] = None
        for key, line in self.delivery.waiting.lines.by_key.items():
            if line.parked:
                self.model.parks(key)
        notices = self.delivery.take_notices() or Notices()
        for key in notices.opened:
            self.model.unparks(key)
        for key in notices.dropped:
            self.model.drops(key)
        for message in self.model.messages:
            if message.forgiven and self.in_memory(message):
                self.model.comes_back(message)
            if message.elsewhere and message.state == "waiting" and not self.in_memory(message):
                message.state = "settled"
        dying = {m.offset for m in self.model.messages if m.state == "dying"}
        assert dying == {offset for offset, _ in going}, "R19, R13: it dies and nobody writes that"
        dead = {m.offset for m in self.model.messages if m.state == "dead"}
        assert dead == self.letters.keys(), "P1: dead and nobody was told"

    def in_flight(self) -> list[Told]:
        return [m for m in self.model.messages if m.state == "flight"]

    def something(self, push: int, pick: int) -> tuple[int, int, int]:
        """(push, first, last): mostly of what is in flight, else anything there was or was not."""
        open_ = self.in_flight()
        if open_ and push % 4:
            message = open_[push % len(open_)]
            high = self.model.pushes[message.push][1]
            return message.push, message.offset, min(high, message.offset + pick % 3)
        number = push % (len(self.model.pushes) + 2)
        low, high, _ = self.model.pushes.get(number, (0, 3, None))
        return number, max(0, low - pick % 2), high + pick % 3

    # --- The log -------------------------------------------------------------------------------

    @rule(
        keys=st.lists(KEYS, min_size=1, max_size=6),
        ttl=st.sampled_from([0, 0, 0, 5, 30]),
        lag=st.sampled_from([0, 0, 0, 1, 4]),
    )
    def publish(self, keys: list[int], ttl: int, lag: int = 0) -> None:
        """The last `lag` messages are not certified yet (R10)."""
        # Every second message of a record with a TTL has one.
        expires = [self.wall + ttl * 1000 if ttl and i % 2 == 0 else 0 for i in range(len(keys))]
        self.records.append(make_record(self.end, keys, expires))
        for key, expires_unix_ms in zip(keys, expires, strict=True):
            self.model.add(key, expires_unix_ms)
        self.certify(lag)

    def certify(self, lag: int) -> None:
        self.certified = max(self.certified, self.end - lag)
        self.delivery.certify(self.certified)

    def evict(self, pick: int) -> None:
        """A record goes from the log (overflow, damage). The last one stays."""
        if len(self.records) > 1:
            record = self.records[pick % (len(self.records) - 1)]
            for message in self.model.messages[record.first : record.last + 1]:
                message.gone = True

    def overflow(self, count: int) -> None:
        """The queue is full: the oldest messages go to the dead letters."""
        old = self.delivery.frontier
        evicted = self.delivery.evict(count, now=self.now)
        self.model.evicted(old, self.delivery.frontier, evicted)
        self.observe()

    def settle_elsewhere(self, pick: int) -> None:
        """R16: the storage knows that a message is settled which waits here to be given again."""
        lines = self.delivery.waiting.lines.by_key
        waiting = [
            m for m in self.model.messages
            if m.state == "waiting" and (m.push or m.tried) and m.offset in lines[m.line].waiting
            and m.line not in self.model.parked
            and not any(other.rejected for other in self.model.of_line(m.line, "waiting"))
        ]  # fmt: skip
        # What dies or is parked goes its way here, whatever the storage knows.
        if waiting and not self.settings.attempts_max and self.under_way is None:
            message = waiting[pick % len(waiting)]
            message.elsewhere = True
            self.store.settle(message.offset)

    @rule(credit=st.integers(1, 8), new_pull=st.booleans(), share=SHARES)
    def give(self, credit: int, new_pull: bool = True, share: Share | None = None) -> None:
        self.serve(new_pull)
        while credit > 0 and self.delivery.wants_log:
            record = self.record_from(self.delivery.frontier)
            assert record is not None
            given = self.give_from(record, credit, share)
            credit -= given
            share = share.after(given) if share is not None else None
            again_at = self.delivery.scan.again_at
            if again_at is not None and credit > 0:
                self.model.stops(self.delivery.frontier, again_at, share, self.now, few=self.few)
                return
        record = self.record_from(self.delivery.frontier)
        if record is not None and not self.delivery.wants_log:
            assert self.give_from(record, 1) == 0

    def serve(self, new_pull: bool) -> None:
        if self.pulls and new_pull:
            self.pull += 1
            self.delivery.begin_pull()

    def give_from(self, record: Record, credit: int, share: Share | None = None) -> int:
        old = self.delivery.frontier
        outs = self.delivery.give(record, credit, now=self.now, wall_unix_ms=self.wall, share=share)
        count = sum(out.count for out in outs)
        assert count <= credit, "R25"
        assert all(out.last - out.first < limits.PUSH_MESSAGES_MAX for out in outs)
        self.model.scanned(old, self.delivery.frontier, outs, self.now, self.pull, share=share)
        self.observe()
        return count

    # --- Lines ---------------------------------------------------------------------------------

    @rule(step=st.sampled_from("ppaaasslllfftte"), pick=PICK)
    def shell_step(self, step: str, pick: int) -> None:
        """One of the things that a shell does, at its own time: the order of them is not given."""
        waiting = self.delivery.waiting
        if step == "p":
            self.plan(pick % 7, [None, Share(0, 1, 1), Share(0, 70, 2)][pick % 3])
        elif step == "a" and self.delivery.giveable:
            self.taken.append(self.delivery.giveable.pop(pick % len(self.delivery.giveable)))
        elif step == "s":
            self.send(pick % 5, pick % 2 == 0)
        elif step == "l" and not self.loads:
            self.loads += waiting.side_wanted()
        elif step == "l":
            self.load_side(pick % 3 + 1, fails=pick % 5 == 0, late=pick % 2 == 0)
        elif step == "t" or (step == "f" and self.under_way is None):
            self.take_write()
        elif step == "f":
            self.end_write(applied=pick % 2 == 0, known=pick % 5 > 1)
        elif step == "e" and pick % 4 == 0:
            self.evict(pick // 4)
        elif step == "e" and pick % 4 == 1:
            self.overflow(pick // 4 % 3)
        elif step == "e":
            self.settle_elsewhere(pick // 4)

    def plan(self, credit: int, share: Share | None = None) -> None:
        lines = self.delivery.waiting.lines.by_key
        before = {key: len(line.in_flight) + len(line.leaving) for key, line in lines.items()}
        self.delivery.plan_retries(credit, now=self.now, share=share)
        for key, line in lines.items():
            out = len(line.in_flight) + len(line.leaving)
            assert share is None or share.ample or out <= max(share.limit, before[key]), (
                f"P8: {line}"
            )

    def send(self, count: int, new_pull: bool) -> None:
        self.serve(new_pull)
        while count > 0 and (self.taken or self.delivery.giveable):
            count -= 1
            taken = self.taken.pop() if self.taken else self.delivery.giveable.pop(0)
            self.give_line(*taken)

    def give_line(self, key: int, offset: int) -> None:
        message = self.model.messages[offset]
        assert key == message.line
        out, is_passed = None, False
        if message.gone:
            is_passed = self.delivery.pass_line(key, offset, now=self.now, wall_unix_ms=self.wall)
        else:
            record = self.record_of(offset)
            assert record is not None
            out = self.delivery.give_line(key, offset, record, now=self.now, wall_unix_ms=self.wall)
        if out is not None:
            assert not self.delivery.draining, "R20"
            self.model.sent(offset, out, self.now, self.pull)
        elif message.gone and message.state == "waiting" and not self.in_memory(message):
            assert is_passed
            self.model.ends(message)
        else:
            assert not is_passed
        self.observe()

    def in_memory(self, message: Told) -> bool:
        line = self.delivery.waiting.lines.by_key.get(message.line)
        return line is not None and (
            message.offset in line.leaving or message.offset in line.waiting
        )

    def load_side(self, count_max: int, *, fails: bool, late: bool) -> None:
        key, after = self.loads.pop(-1 if late else 0)
        if fails:
            self.delivery.waiting.side_not_loaded(key, self.now)
        else:
            offsets = self.store.read_side(key, after, count_max)
            self.delivery.waiting.side_loaded(key, offsets, self.now)
        self.observe()

    # --- Writes --------------------------------------------------------------------------------

    def take_write(self) -> None:
        write = self.delivery.take_write(wall_unix_ms=self.wall)
        if write is not None:
            assert self.under_way is None
            self.under_way = write

    def end_write(self, *, applied: bool, known: bool) -> None:
        """Durable, or not, or nobody knows."""
        if self.under_way is None:
            return
        write, self.under_way = self.under_way, None
        if applied or known:
            answer = self.store.apply(write)
        if known:
            self.delivery.written(answer, now=self.now)
            for first, last in write.settled:
                assert all(o in self.store.settled for o in range(first, last + 1)), "P5"
        else:
            self.delivery.not_written()
        self.observe()

    def write(self) -> None:
        """Everything is durable, and known to be."""
        for _ in range(2):
            self.end_write(applied=True, known=True)
            self.take_write()
        self.end_write(applied=True, known=True)

    @rule(credit=st.integers(1, 6), new_pull=st.booleans(), write=st.integers(0, 9))
    def pump(self, credit: int, new_pull: bool, write: int = 9) -> None:
        """What a shell does all the time; now and then the write goes wrong, or takes its time."""
        self.plan(credit)
        if write < 4:
            self.end_write(applied=write % 2 == 0, known=write > 1)
            self.take_write()
        else:
            self.write()
        self.loads += self.delivery.waiting.side_wanted()
        while self.loads:
            self.load_side(3, fails=False, late=False)
        self.send(credit, new_pull)

    # --- The consumer --------------------------------------------------------------------------

    @rule(push=PICK, pick=PICK)
    def ack(self, push: int, pick: int) -> None:
        number, first, last = self.something(push, pick)
        expected = self.model.ack(number, first, last, self.now)
        if pick % 2 and (
            count := self.delivery.ack_ordinary(number, [first, last], 0, now=self.now)
        ):
            assert count == sum(high - low + 1 for low, high in expected.settled)
            actual = Judged(expected.settled)
        else:
            actual = self.delivery.ack(number, first, last, now=self.now)
        assert same(actual, expected), f"R21: {actual}, not {expected}"
        self.observe()

    @rule(push=PICK, pick=PICK, delay_s=st.sampled_from([None, 0.0, 3.0, 20.0, "reject"]))
    def nack(self, push: int, pick: int, delay_s: "float | str | None") -> None:
        number, first, last = self.something(push, pick)
        verdicts: dict[int, str] = {}
        expected: list[tuple[int, int]] = []
        # As settle_elsewhere: what is parked goes its way, whatever the storage knows.
        reject = delay_s == "reject" and not any(
            m.elsewhere and m.state == "waiting" for m in self.model.messages
        )
        seconds = delay_s if isinstance(delay_s, float) else None
        for offset in range(first, last + 1):
            if self.model.skips(number, offset):
                continue
            known = self.model.covers(number, offset)
            verdicts[offset] = "stale" if known else self.model.unknown(number)
            if self.model.in_flight(number, offset):
                verdicts[offset] = "settled"
                self.model.works(self.model.messages[offset], self.now)
                attempt = self.model.messages[offset].attempts + 1
                wait_s = 0.0 if reject else seconds
                if wait_s is None:
                    wait_s = backoff_s(attempt, base_s=4, max_s=16, draw=0.5)
                expected += self.model.come_back(offset, self.now + wait_s, True, reject)
        actual, revoked = self.delivery.nack(
            number, first, last,
            delay_s=seconds, draw=lambda: 0.5, now=self.now, wall_unix_ms=self.wall,
            reject=reject,
        )  # fmt: skip
        assert same(actual, judged(verdicts)), f"{actual}, not {verdicts}"
        assert sorted(revoked) == sorted(expected), f"R17: {revoked} revoked, not {expected}"
        self.observe()

    def give_back(self, push: int, pick: int) -> None:
        number, offset, _ = self.something(push, pick)
        expected: list[tuple[int, int]] = []
        if self.model.in_flight(number, offset):
            expected = self.model.come_back(offset, self.now, False)
        revoked = self.delivery.give_back(number, offset, now=self.now)
        assert sorted(revoked) == sorted(expected), "R17"
        self.observe()

    def start(self, push: int, pick: int) -> None:
        number, first, last = self.something(push, pick)
        self.delivery.start(number, first, last, now=self.now)
        for message in self.model.messages[first : last + 1]:
            message.started |= self.model.in_flight(number, message.offset)

    @rule(push=PICK, pick=PICK, lease_s=st.sampled_from([0.0, 0.0, -1.0, 1.0, 10.0, 100.0]))
    def prolong(self, push: int, pick: int, lease_s: float) -> None:
        """Mostly a handler starts; now and then a delivery goes back unseen."""
        if lease_s < 0:
            self.give_back(push, pick)
        else:
            self.start(push, pick)
            if lease_s:
                self.extend(push, pick, lease_s)

    def extend(self, push: int, pick: int, lease_s: float) -> None:
        number, first, last = self.something(push, pick)
        expected = self.model.touch(number, first, last)
        self.model.extend(number, first, last, lease_s, self.now)
        actual = self.delivery.extend(number, first, last, lease_s=lease_s, now=self.now)
        assert same(actual, expected), "R20"

    # --- Time and owners -----------------------------------------------------------------------

    @rule(does=st.sampled_from(["slow", "arrived"]), pick=PICK)
    def line(self, does: str, pick: int) -> None:
        """What was given last is long in transit; or some of it has arrived."""
        if does == "slow":
            last = [number for number in self.delivery.leases.pushes if number > 0][-2:]
            self.arrivals |= {n: None for n in last if n not in self.arrivals}
        else:
            waiting = [number for number, at in self.arrivals.items() if at is None]
            self.arrivals |= dict.fromkeys(waiting[: 1 + pick % 2], self.now)

    @rule(seconds=st.sampled_from([0.0, 0.5, 3.0, 10.0, 25.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        deadline = self.delivery.next_deadline()
        for message in self.model.messages:
            if message.state == "flight":
                assert deadline is not None, f"P6: nobody looks at {message}"
                assert deadline <= message.deadline, f"P6: {message} is looked at too late"
        expected = self.model.expire(self.now, self.arrivals)
        taken = self.delivery.expire(
            now=self.now,
            wall_unix_ms=self.wall,
            arrived=lambda push: self.arrivals.get(push.number, push.given_at),
        )
        assert len(set(taken)) == len(taken)
        assert set(taken) == expected, f"P6, R17: {taken}, not {expected}"
        self.observe()

    @precondition(lambda self: self.letters)
    @rule(pick=PICK)
    def bury(self, pick: int) -> None:
        offset = list(self.letters)[pick % len(self.letters)]
        del self.letters[offset]
        self.delivery.dead_lettered(offset, offset)
        self.model.ends(self.model.messages[offset])
        self.observe()

    @precondition(lambda self: self.model.parked)
    @rule(verb=st.sampled_from(["retry", "skip", "release"]), pick=PICK)
    def decide(self, verb: Verb, pick: int) -> None:
        """An operator decides about a parked key, or about one that is not parked."""
        waiting = self.delivery.waiting
        if pick % 5 == 0:
            key = pick % 7 + 1
            if key not in self.model.parked:
                assert not waiting.decide(verb, self.store.parked_line(key), self.now)
                return
        if pick % 2:
            self.write()
            self.observe()
        if not self.model.parked:
            return
        key = sorted(self.model.parked)[pick % len(self.model.parked)]
        seen = self.store.parked_line(key)
        if pick % 3 == 0:
            anew = replace(seen, since_unix_ms=seen.since_unix_ms - 1)
            assert not waiting.decide(verb, anew, self.now), "R24: it was parked anew since"
        decided = waiting.decide(verb, seen, self.now)
        if key in self.model.decisions:
            assert not decided, "P5: two decisions"
        elif pick % 2:
            assert decided
        if decided:
            self.model.decisions[key] = verb
            self.model.heads[key] = seen.head
        self.observe()

    @rule(how=st.sampled_from("dmlcan"), pick=PICK)
    def change_owner(self, how: str, pick: int) -> None:
        """Not in every history often, or little else would happen."""
        if self.delivery.drained:
            self.move()
        elif how == "d" and pick % 2:
            self.drain(pick % 9 * 4.0)
        elif how == "l" and pick % 3 == 0:
            self.lose_holder()
        elif how == "c" and pick % 3 == 0:
            self.crash(applied=pick % 2 == 0)
        elif how == "a" and not self.pulls:
            self.adopt(pick)

    def drain(self, seconds: float) -> None:
        self.delivery.drain(deadline=self.now + seconds)
        self.model.drain_deadline = min(self.model.drain_deadline, self.now + seconds)

    def move(self) -> None:
        """R20: a drained partition goes to its next owner after the last write."""
        self.write()
        self.own()

    def lose_holder(self) -> None:
        """The session is gone, the gateway is not: nothing counted is lost (R19)."""
        self.model.holder_died()
        self.delivery.abandon(wall_unix_ms=self.wall)
        assert self.delivery.drained
        self.write()
        for message in self.model.messages:
            if message.state != "settled" and not message.elsewhere:
                noted = self.store.retries.get(message.offset)
                assert message.attempts == (noted.attempts if noted else 0), f"R19: {message}"
        self.own()

    def crash(self, *, applied: bool) -> None:
        """The gateway is gone, and with it what was not durable."""
        if self.under_way is not None and applied:
            self.store.apply(self.under_way)
        self.own()

    def adopt(self, pick: int) -> None:
        """R22: its owner comes back, after a crash or an orderly end, and says what it holds:
        mostly what was in flight, now and then what was not, or never was."""
        random = Random(pick)
        told = [(m.push, m.offset) for m in self.model.messages if m.push > 0]
        flying = {m.offset for m in self.in_flight()}
        claims = {
            (push, offset) for push, offset in told
            if random.random() < (0.8 if offset in flying else 0.3)
        }  # fmt: skip
        if random.random() < 0.3 and self.model.messages:
            claims.add((random.randint(1, 5), random.randrange(len(self.model.messages))))
        if random.random() < 0.5:
            self.delivery.abandon(wall_unix_ms=self.wall, moves=True)
            self.model.holder_moves()
            self.write()
        elif self.under_way is not None and random.random() < 0.5:
            self.store.apply(self.under_way)
        self.own(again=True)
        self.say_what_is_held(claims)

    def say_what_is_held(self, claims: set[tuple[int, int]]) -> None:
        pushes: dict[int, list[tuple[int, int]]] = {}
        for push, offset in claims:
            pushes.setdefault(push, []).append((offset, offset))
        assert can_adopt(self.delivery, self.store.epoch - 1)
        keys = {
            offset: self.model.messages[offset].key
            for first, last in keys_wanted(self.delivery, pushes)
            for offset in range(first, last + 1)
            if not self.model.messages[offset].gone
        }
        expected = self.model.adopt(claims, self.certified, self.now)
        lost = adopt(self.delivery, pushes, keys, now=self.now, wall_unix_ms=self.wall)
        actual = {(p, o) for p, its in lost.items() for a, b in its for o in range(a, b + 1)}
        assert actual == expected, f"R22: {actual} lost, not {expected}"
        self.observe()

    # --- What must hold ------------------------------------------------------------------------

    @invariant()
    def nothing_is_forgotten(self) -> None:
        if not hasattr(self, "delivery"):
            return
        messages = self.model.messages
        waiting = self.delivery.waiting
        taken = self.under_way.aside if self.under_way is not None else ()
        aside = {*self.store.aside, *(o for side in taken for o in side.offsets)}
        aside.update(o for offsets in waiting.pending._aside.values() for o in offsets)
        aside = {
            o for o in aside
            if messages[o].state == "waiting" and not self.in_memory(messages[o])
        }  # fmt: skip
        check(self.delivery, Outside(self.model.settled(), RangeSet((o, o) for o in aside)))
        held = sum(m.state in ("flight", "waiting") for m in messages)
        ahead = range(self.delivery.frontier, self.delivery.end)
        left = sum(offset not in self.model.adopted for offset in ahead)
        assert self.delivery.unsettled == held + left
        in_flight = {m.offset for m in messages if m.state == "flight"}
        assert in_flight == {
            o for p in self.delivery.leases.pushes.values() for o in range(p.first, p.last + 1)
            if p.open >> (o - p.first) & 1
        }  # fmt: skip
        for message in messages[: self.delivery.frontier]:
            if message.state in ("waiting", "flight"):
                assert waiting.attempts.get(message.offset, 0) == message.attempts, f"R19 {message}"

    def everything_comes_to_an_end(self) -> None:
        """P1, P8: with credit, time and acks, every message is settled, dead or behind a parked
        head."""
        if self.delivery.draining:
            self.delivery.abandon(wall_unix_ms=self.wall)
            self.model.holder_died()
            self.write()
            self.own()
        self.certify(0)
        self.arrivals = {}
        for _ in range(len(self.model.messages) * 4 + 20):
            if all(m.state == "settled" for m in self.model.messages):
                break
            while self.taken:
                self.send(1, False)
            self.pump(1000, True)
            self.give(1000, True, self.last_share)
            while self.loads:
                self.load_side(3, fails=False, late=False)
            for number, (first, last, _) in list(self.model.pushes.items()):
                if number in self.delivery.leases.pushes:
                    self.model.ack(number, first, last, self.now)
                    self.delivery.ack(number, first, last, now=self.now)
            for offset in list(self.letters):
                self.bury(list(self.letters).index(offset))
            self.pass_time(25.0)
            self.nothing_is_forgotten()
        left = [m for m in self.model.messages if m.state != "settled"]
        assert all(m.line in self.model.parked for m in left), f"P8: {left}"
        self.write()
        assert self.store.settled >= {m.offset for m in self.model.messages} - {
            m.offset for m in left
        }, "P5"
        assert self.store.aside.keys() <= {m.offset for m in left}
