"""What a key may take of a consumer's credit (P8, R25): the histories that break without the rule,
in literal time. Key 0 is: no key."""

from collections.abc import Sequence

from push import limits
from push.delivery.checks import check
from push.delivery.delivery import Delivery
from push.delivery.leases import Push
from push.delivery.resume import adopt
from push.delivery.scan import kept, share
from push.delivery.values import DeliverySettings
from push.places import CursorPlace, Partition
from push.record import Record
from tests.push.delivery_model import Store, make_record, wall_unix_ms

PLACE = CursorPlace("g", Partition("q", 0))
HUNG = 7
RECORD = 1000


class Consumer:
    """A consumer of one partition with a window of credit, as a shell serves it."""

    def __init__(self, keys: Sequence[int], window: int = 1000, **settings: object) -> None:
        self.now = 100.0
        self.store = Store()
        self.records: list[Record] = []
        self.keys: list[int] = []
        self.window = window
        self.held: dict[int, Push] = {}
        self.handled: list[int] = []
        wanted = DeliverySettings(**settings)  # type: ignore[arg-type]
        self.delivery = Delivery(PLACE, self.store.own(0), b"token", wanted, now=self.now)
        self.publish(keys)

    def publish(self, keys: Sequence[int]) -> None:
        for begin in range(0, len(keys), RECORD):
            part = keys[begin : begin + RECORD]
            self.records.append(make_record(len(self.keys), part))
            self.keys += part
        self.delivery.certify(len(self.keys))

    @property
    def available(self) -> int:
        return self.window - len(self.held)

    def pump(self) -> list[int]:
        """Give what there is; returns the offsets."""
        given: list[int] = []
        quiet = 0
        while quiet < 3:  # what is to be recorded first goes with a later round
            outs = self._from_lines() + self._from_log()
            self._write()
            quiet = 0 if outs else quiet + 1
            for out in outs:
                for offset in out.offsets():
                    self.held[offset] = out
                    given.append(offset)
        check(self.delivery)
        return given

    def _from_log(self) -> list[Push]:
        delivery, outs = self.delivery, []
        used = 0
        while delivery.wants_log and self.available - used > 0:
            frontier = delivery.frontier
            record = next(r for r in self.records if r.last >= frontier)
            available = self.available - used
            some = delivery.give(
                record, available, now=self.now, wall_unix_ms=wall_unix_ms(self.now),
                share=share(available, available - kept(self.window), len(self.held) + used),
            )  # fmt: skip
            used += sum(out.count for out in some)
            outs += some
            self._write()
            if delivery.scan.again_at is not None:
                break
        return outs

    def _from_lines(self) -> list[Push]:
        delivery = self.delivery
        most = share(self.available, self.available - kept(self.window), len(self.held))
        delivery.plan_retries(self.available, now=self.now, share=most)
        for key, after in delivery.waiting.side_wanted():
            found = self.store.read_side(key, after, limits.SIDE_LOAD_MAX)
            delivery.waiting.side_loaded(key, found, self.now)
        outs = []
        while delivery.giveable:
            key, offset = delivery.giveable.pop(0)
            record = next(r for r in self.records if r.last >= offset)
            out = delivery.give_line(
                key, offset, record, now=self.now, wall_unix_ms=wall_unix_ms(self.now)
            )
            outs += [out] if out is not None else []
        return outs

    def _write(self) -> None:
        write = self.delivery.take_write(wall_unix_ms=wall_unix_ms(self.now))
        if write is not None:
            self.delivery.written(self.store.apply(write), now=self.now)

    def ack(self, offset: int) -> None:
        out = self.held.pop(offset)
        self.handled.append(offset)
        if not self.delivery.ack_ordinary(out.number, [offset, offset], 0, now=self.now):
            assert self.delivery.ack(out.number, offset, offset, now=self.now).settled

    def work(self, *hung: int) -> None:
        """Handle at once whatever is not of these keys, pump, until nothing is left to handle."""
        while todo := [offset for offset in self.held if self.keys[offset] not in hung]:
            for offset in todo:
                self.ack(offset)
            self.pump()

    def of(self, key: int) -> int:
        """How many messages of a key it holds."""
        return sum(self.keys[offset] == key for offset in self.held)

    def wait(self) -> None:
        """Until there is something to do."""
        at = self.delivery.scan.again_at
        assert at is not None
        assert at > self.now, "it would be looked at without end"
        looked_at = self.delivery.next_deadline()
        assert looked_at is not None
        assert looked_at <= at, "nobody looks at it"
        self.now = at
        assert self.delivery.expire(now=self.now, wall_unix_ms=wall_unix_ms(self.now)) == []


def test_behind_thousands_of_a_hung_key_the_others_are_given() -> None:
    """A key whose handler hangs, 5,000 of its messages first, and the others behind them in the
    same log: it has half of the credit, and the others flow through the rest."""
    consumer = Consumer([HUNG] * 5000 + [100 + i for i in range(1000)])
    assert len(consumer.pump()) == 500
    assert consumer.pump() == [], "it may keep pace yet"
    consumer.wait()
    assert consumer.now == 100.0 + limits.KEY_PATIENCE_S_MAX
    consumer.pump()
    consumer.work(HUNG)
    assert consumer.handled == [*range(5000, 6000)]
    assert consumer.of(HUNG) == 500


def test_a_key_has_a_part_of_what_is_kept_and_no_more() -> None:
    consumer = Consumer([0] * 500 + [HUNG] * 100 + [0] * 10)
    consumer.pump()
    assert consumer.of(HUNG) == 500 // 32


def test_twenty_hung_keys_leave_most_of_the_rest() -> None:
    """One after the other, each with thousands in front: the worst case for one log."""
    hung = range(1, 21)
    consumer = Consumer([key for key in hung for _ in range(2000)] + [100 + i for i in range(1000)])
    for _ in hung:
        consumer.pump()
        consumer.work(*hung)
        consumer.wait() if consumer.delivery.scan.again_at is not None else None
    consumer.pump()
    consumer.work(*hung)
    assert len(consumer.handled) == 1000
    assert consumer.available >= 150
    assert consumer.now - 100.0 <= len(hung) * limits.KEY_PATIENCE_S_MAX


def test_a_hundred_hung_keys_leave_something() -> None:
    """What a key may have shrinks with what is left."""
    hung = range(1, 101)
    consumer = Consumer([*hung] * 50 + [1000 + i for i in range(1000)])
    for _ in range(4):
        consumer.pump()
        consumer.work(*hung)
        if consumer.delivery.scan.again_at is not None:
            consumer.wait()
    assert len(consumer.handled) == 1000
    assert consumer.available > 0


def test_a_slow_key_goes_on_in_order_with_a_handful_ahead() -> None:
    """Its handler takes a second: the others pass, and it is handled one after another."""
    consumer = Consumer([HUNG] * 700 + [100 + i for i in range(100)] + [HUNG])
    consumer.pump()
    consumer.wait()
    consumer.pump()
    consumer.work(HUNG)
    assert consumer.handled == [*range(700, 800)]
    while consumer.held:
        consumer.now += 1.0
        consumer.ack(min(consumer.held))
        consumer.pump()
        if len(consumer.handled) > 100 + 500:
            assert consumer.of(HUNG) <= limits.KEY_AHEAD_MAX
    assert consumer.handled[100:] == [*range(700), 800]
    assert not consumer.delivery.waiting.lines.by_key, "it is a key like others again"


def test_a_key_that_keeps_pace_is_never_put_aside() -> None:
    """A few keys, a long backlog, a consumer that acks in time: no line, and nothing is written
    beside the cursor, however often the credit is used up to its half."""
    consumer = Consumer([1 + i % 5 for i in range(20_000)])
    while len(consumer.handled) < 20_000:
        consumer.pump()
        assert not consumer.delivery.waiting.lines.by_key
        consumer.now += 0.1
        for offset in [*consumer.held][:250]:
            consumer.ack(offset)
    assert consumer.handled == [*range(20_000)]
    assert not consumer.store.aside


def test_what_has_no_key_may_use_all_of_the_credit() -> None:
    consumer = Consumer([0] * 2000)
    assert len(consumer.pump()) == 1000
    assert consumer.delivery.scan.again_at is None


def test_what_has_no_key_is_not_limited_beside_what_has_one() -> None:
    consumer = Consumer([1000 + i if i % 50 == 0 else 0 for i in range(2000)])
    consumer.pump()
    assert len(consumer.held) == 1000


def test_many_keys_use_the_credit_as_long_as_each_has_little() -> None:
    consumer = Consumer([1 + i for i in range(2000)], window=200)
    consumer.pump()
    assert len(consumer.held) == 200


def test_a_small_credit_is_shared_as_well() -> None:
    """Four: three for whatever comes, one for another key."""
    consumer = Consumer([HUNG] * 50 + [1, 2, 3], window=4)
    assert consumer.pump() == [0, 1, 2]
    consumer.wait()
    assert consumer.pump() == [50]
    consumer.work(HUNG)
    assert consumer.handled == [50, 51, 52]


def test_a_credit_of_one_goes_to_the_next_message() -> None:
    for window in (1, 2, 3):
        consumer = Consumer([HUNG] * 9, window=window)
        assert consumer.pump() == [*range(window)]


def test_a_key_that_comes_back_and_hangs_has_a_handful() -> None:
    """A line that recovers may have 256 in flight; one whose messages settle late a handful."""
    consumer = Consumer([HUNG] * 2000, attempts_max=0)
    consumer.pump()
    (out,) = {id(o): o for o in consumer.held.values()}.values()
    _, revoked = consumer.delivery.nack(
        out.number, 0, 0,
        delay_s=0.0, draw=lambda: 0.0, now=consumer.now, wall_unix_ms=wall_unix_ms(consumer.now),
    )  # fmt: skip
    assert len(revoked) == 499
    consumer.held.clear()
    while len(consumer.handled) < 40:
        consumer.pump()
        consumer.now += 5.0
        consumer.ack(min(consumer.held))
    consumer.pump()
    assert consumer.of(HUNG) == limits.KEY_AHEAD_MAX


def test_who_is_far_away_is_not_taken_for_slow() -> None:
    """Each message settles after 0.3 s, because the consumer is far away: the key keeps pace."""
    consumer = Consumer([1 + i % 3 for i in range(3000)])
    while len(consumer.handled) < 3000:
        consumer.pump()
        if consumer.delivery.scan.again_at is not None:
            assert consumer.delivery.scan.again_at - consumer.now > 0.3
        consumer.now += 0.3
        for offset in [*consumer.held]:
            consumer.ack(offset)
    assert not consumer.store.aside


def test_an_owner_that_follows_counts_what_was_adopted() -> None:
    """R22: what was in flight over a new owner's start is in flight for the rule as well."""
    consumer = Consumer([HUNG] * 600 + [1, 2, 3])
    consumer.pump()
    held = [*consumer.held]
    assert consumer.of(HUNG) == 500
    consumer.delivery.abandon(wall_unix_ms=wall_unix_ms(consumer.now), moves=True)
    consumer._write()
    owned = consumer.store.own(len(consumer.keys), again=True)
    consumer.delivery = Delivery(PLACE, owned, b"token", DeliverySettings(), now=consumer.now)
    adopt(
        consumer.delivery, {1: [(held[0], held[-1])]}, dict.fromkeys(held, HUNG),
        now=consumer.now, wall_unix_ms=wall_unix_ms(consumer.now),
    )  # fmt: skip
    assert consumer.delivery.leases.open_count == 500
    assert consumer.pump() == []
    consumer.wait()
    assert consumer.pump() == [600, 601, 602]
