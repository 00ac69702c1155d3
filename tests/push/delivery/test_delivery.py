"""The histories that break delivery without its rules, one test each, in literal time (R13,
R16–R21, R24, R25). Key 0 is: no key."""

from functools import partial

import pytest

from push import limits
from push.delivery.checks import check
from push.delivery.delivery import Delivery
from push.delivery.leases import Push
from push.delivery.values import DeliverySettings
from push.delivery.waiting import DeadLetter
from push.places import CursorPlace, Partition
from push.ranges import Dead
from push.record import Record
from push.storage_port import Retry
from tests.push.delivery_model import Store, make_record, wall_unix_ms

PLACE = CursorPlace("g", Partition("q", 0))
A, B, C = 0xA, 0xB, 0xC


class World:
    """Deliveries, one after the other, over one store; `now` is moved by the tests."""

    def __init__(self, *keys: int, expires: dict[int, float] | None = None, **settings: object):
        self.settings = DeliverySettings(**settings)  # type: ignore[arg-type]
        self.store = Store()
        self.records: list[Record] = []
        self.now = 100.0
        self.publish(*keys, expires=expires)
        self.own()

    def publish(self, *keys: int, expires: dict[int, float] | None = None) -> None:
        """One record; `expires`: when (seconds) the message at an index expires."""
        at = {index: wall_unix_ms(seconds) for index, seconds in (expires or {}).items()}
        if keys:
            column = [at.get(index, 0) for index in range(len(keys))]
            self.records.append(make_record(self.end, keys, column))
        if hasattr(self, "delivery"):
            self.delivery.certify(self.end)

    @property
    def end(self) -> int:
        return self.records[-1].last + 1 if self.records else 0

    @property
    def wall(self) -> int:
        return wall_unix_ms(self.now)

    def own(self) -> Delivery:
        """A new owner starts under the next epoch."""
        owned = self.store.own(self.end)
        self.delivery = Delivery(PLACE, owned, b"token", self.settings, now=self.now)
        return self.delivery

    def give(self, credit: int = 1000) -> list[Push]:
        """First give-outs."""
        outs: list[Push] = []
        for record in self.records:
            if record.last >= self.delivery.frontier and credit > sum(sizes(outs)):
                outs += self.delivery.give(
                    record, credit - sum(sizes(outs)), now=self.now, wall_unix_ms=self.wall
                )
        check(self.delivery)
        return outs

    def write(self) -> None:
        """Everything so far is durable."""
        while (write := self.delivery.take_write(wall_unix_ms=self.wall)) is not None:
            self.delivery.written(self.store.apply(write), now=self.now)

    def send(self) -> list[Push]:
        """Give what is giveable."""
        outs = []
        while self.delivery.giveable:
            key, offset = self.delivery.giveable.pop(0)
            record = next(r for r in self.records if r.first <= offset <= r.last)
            outs.append(
                self.delivery.give_line(key, offset, record, now=self.now, wall_unix_ms=self.wall)
            )
        check(self.delivery)
        return [out for out in outs if out is not None]

    def retry(self, credit: int = 1000) -> list[Push]:
        """Everything that lines have to give now, through storage and back."""
        self.delivery.plan_retries(credit, now=self.now)
        self.load_sides()
        self.delivery.plan_retries(credit, now=self.now)
        self.write()
        return self.send()

    def load_sides(self) -> None:
        """What is wanted of side lines is read."""
        for key, after in self.delivery.waiting.side_wanted():
            offsets = self.store.read_side(key, after, 1000)
            self.delivery.waiting.side_loaded(key, offsets, self.now)

    def ack(self, push: int, first: int, last: int | None = None) -> str:
        """The verdict, of one kind."""
        judged = self.delivery.ack(push, first, first if last is None else last, now=self.now)
        check(self.delivery)
        (verdict,) = [
            name for name in ("settled", "stale", "not_delivered") if getattr(judged, name)
        ]
        return verdict

    def nack(self, push: int, offset: int, delay_s: float | None = 0.0) -> list[tuple[int, int]]:
        """Return what is revoked with it."""
        _, revoked = self.delivery.nack(
            push, offset, offset,
            delay_s=delay_s, draw=lambda: 0.0, now=self.now, wall_unix_ms=self.wall,
        )  # fmt: skip
        check(self.delivery)
        return revoked

    def expire(
        self, after_s: float = 0.0, *, arrived: dict[int, float | None] | None = None
    ) -> list[tuple[int, int]]:
        """What is taken from the consumer this many seconds later. `arrived`: push → when it has,
        or None; of others, when they were given."""
        self.now += after_s
        at = arrived or {}
        taken = self.delivery.expire(
            now=self.now,
            wall_unix_ms=self.wall,
            arrived=lambda push: at.get(push.number, push.given_at),
        )
        check(self.delivery)
        return taken

    def lose_holder(self) -> Delivery:
        """The consumer dies; the next owner starts."""
        self.delivery.abandon(wall_unix_ms=self.wall)
        self.write()
        return self.own()

    def bury(self) -> list[DeadLetter]:
        """It is durable what goes to the dead letters, and they arrive there."""
        self.write()
        letters = self.delivery.take_dead_letters(1000)
        for letter in letters:
            self.delivery.dead_lettered(letter.offset, letter.offset)
        check(self.delivery)
        return letters


def sizes(outs: list[Push]) -> list[int]:
    return [out.count for out in outs]


def offsets(outs: list[Push]) -> list[int]:
    return [offset for out in outs for offset in out.offsets()]


# --- R10, R13, R25: what goes out ----------------------------------------------------------------


def test_nothing_above_the_certified_end_is_given() -> None:
    """R10."""
    world = World(A, B, C)
    late = Delivery(PLACE, Store().own(certified=2), b"token", world.settings, now=world.now)
    assert offsets(late.give(world.records[0], 10, now=0.0, wall_unix_ms=world.wall)) == [0, 1]
    assert not late.wants_log
    late.certify(3)
    assert offsets(late.give(world.records[0], 10, now=0.0, wall_unix_ms=world.wall)) == [2]


def test_no_more_is_given_than_there_is_credit() -> None:
    """R25."""
    world = World(*[A, B, C, 0] * 3)
    world.give(2)
    world.nack(1, 0)  # a line, so that some go singly
    assert sum(sizes(world.give(3))) == 3
    assert sum(sizes(world.retry(1))) == 1


def test_everything_that_is_taken_back_is_said_once() -> None:
    """R25: deliveries expire: one side counts them, the other does not; the subscription stalls."""
    world = World(A, A, B, lease_s=10)
    world.give()
    revoked = world.nack(1, 0, 100.0)
    taken = world.expire(11)
    assert sorted(revoked + taken) == [(1, 1), (1, 2)]
    assert world.expire(11) == []
    assert world.delivery.leases.open_count == 0


def test_ttl_is_judged_when_a_message_would_be_given_out() -> None:
    """R13."""
    world = World(A, B, expires={0: 105.0, 1: 120.0})
    world.now = 110.0
    assert offsets(world.give()) == [1]
    assert world.bury() == [DeadLetter(0, "expired", 0)]
    assert world.ack(1, 1) == "settled"
    world.write()
    assert world.store.settled == {0, 1}


def test_ttl_does_not_fire_in_flight() -> None:
    """R13."""
    world = World(A, expires={0: 105.0}, lease_s=30)
    world.give()
    assert world.expire(10) == []
    assert world.bury() == []
    assert world.ack(1, 0) == "settled"


def test_ttl_fires_for_what_would_be_given_again() -> None:
    """R13."""
    world = World(A, A, expires={0: 105.0}, lease_s=30)
    world.give()
    world.expire(31)
    assert world.retry() == []
    assert world.bury() == [DeadLetter(0, "expired", 0)]
    assert offsets(world.retry()) == [1]


def test_what_expires_on_its_way_out_holds_back_what_is_behind_it() -> None:
    """P3, R13."""
    world = World(A, A, A, expires={1: 150.0}, pulls=True)
    world.delivery.begin_pull()
    world.give(1)
    world.delivery.begin_pull()
    world.give()
    world.ack(1, 0)
    world.delivery.plan_retries(10, now=world.now)
    assert [offset for _, offset in world.delivery.giveable] == [1, 2]
    world.now = 200.0
    assert world.send() == []
    assert [letter.offset for letter in world.bury()] == [1]
    assert offsets(world.retry()) == [2]


def test_what_has_expired_between_others_is_left_out_of_their_push() -> None:
    """R13."""
    world = World(A, B, C, expires={1: 50.0})
    assert offsets(world.give()) == [0, 2]
    assert world.bury() == [DeadLetter(1, "expired", 0)]


def test_a_key_waits_until_its_expired_message_is_in_the_dead_letters() -> None:
    """P1, P3."""
    world = World(A, A, B, expires={0: 50.0})
    assert offsets(world.give()) == [2]
    assert world.retry() == []
    world.bury()
    assert offsets(world.retry()) == [1]


def test_what_is_not_in_the_log_any_more_is_passed() -> None:
    """R12: a record may go before its group has come to it (overflow, damage)."""
    world = World(A, B)
    world.publish(A, C)
    del world.records[0]
    assert offsets(world.give()) == [2, 3]
    world.write()
    assert world.store.settled == {0, 1}


def test_what_overflows_goes_to_the_dead_letters_and_holds_up_nothing_then() -> None:
    """P3: until then the log waits, for nobody knows the keys of what overflows. [Its successor
    gives it, behind what came after it of its key.]"""
    world = World(A, A, B)
    world.give(1)
    assert world.delivery.evict(1, now=world.now) == 1
    assert not world.delivery.wants_log
    assert offsets(world.give()) == []
    assert world.delivery.take_dead_letters(10) == []
    world.write()
    assert offsets(world.give()) == [2]
    assert world.delivery.evict(5, now=world.now) == 0
    assert world.bury() == [DeadLetter(1, "overflow", 0)]
    world.write()
    assert world.store.settled == {1}
    world.delivery.drain(deadline=200.0)
    world.publish(A)
    assert world.delivery.evict(1, now=world.now) == 0


def test_what_overflows_and_is_not_moved_yet_is_the_next_owners_to_move_and_not_to_give() -> None:
    """P3, P5, R15: what is decided under one epoch stands under the next. [The letter is under way;
    the successor gives the message, and it is acked as well.]"""
    world = World(A, B, A)
    world.delivery.evict(2, now=world.now)
    world.write()
    assert [letter.offset for letter in world.delivery.take_dead_letters(1)] == [0]
    world.lose_holder()
    assert world.bury() == [DeadLetter(0, "overflow", 0), DeadLetter(1, "overflow", 0)]
    assert offsets(world.give()) == [2]
    world.write()
    assert world.store.settled == {0, 1}


def test_what_was_decided_under_an_epoch_that_had_ended_is_nothing() -> None:
    """P5, R15: the write is refused, and no letter goes out; the next owner gives it."""
    world = World(A, B)
    world.delivery.evict(2, now=world.now)
    late = world.delivery
    world.own()
    write = late.take_write(wall_unix_ms=world.wall)
    assert write is not None
    assert world.store.apply(write).fenced
    assert late.take_dead_letters(10) == []
    assert offsets(world.give()) == [0, 1]


def test_a_backlog_that_has_expired_dies_as_one_range() -> None:
    """R13: whatever its records, its keys and its length; what is fresh behind it goes out when
    that is durable, before any letter has arrived. [It is moved one by one, and a fresh message
    waits for as long.]"""
    world = World(A, expires={0: 50.0})
    for _ in range(1, 300):
        world.publish(A, expires={0: 50.0})
    for _ in range(3):
        world.publish(A, *[B] * 699, expires=dict.fromkeys(range(700), 50.0))
    world.publish(A, B)
    assert offsets(world.give()) == []
    assert world.delivery.take_dead_letters(10) == []
    write = world.delivery.take_write(wall_unix_ms=world.wall)
    assert write is not None
    assert write.dead == (Dead(0, 2399, "expired"),)
    world.delivery.written(world.store.apply(write), now=world.now)
    fresh = offsets(world.give())
    world.write()
    assert fresh + offsets(world.retry()) == [2400, 2401]
    world.write()
    letters = world.delivery.take_dead_letters(5000)
    assert [letter.offset for letter in letters] == [*range(2400)]


def test_what_has_expired_behind_a_message_that_waits_does_not_die_before_it() -> None:
    """R17: it is judged when it would be given out."""
    world = World(A)
    world.give()
    world.nack(1, 0, 30.0)
    world.publish(*[A] * 40, B, expires=dict.fromkeys(range(40), 50.0))
    assert offsets(world.give()) == [41]
    assert world.bury() == []


def test_a_line_of_what_has_expired_dies_many_at_a_time() -> None:
    """R13: one write for what was sent at once, and more each time."""
    world = World(*[A] * 100, expires=dict.fromkeys(range(1, 100), 120.0), lease_s=10)
    world.give()
    world.nack(1, 0, 0.0)
    world.now = 130.0
    (out,) = world.retry()
    assert world.ack(out.number, 0) == "settled"
    rounds = 0
    while world.delivery.waiting.lines.by_key:
        assert world.retry() == []
        world.write()
        rounds += 1
    assert rounds < 12
    assert len(world.bury()) == 99


def test_a_line_passes_what_is_not_in_the_log_any_more() -> None:
    world = World(A, A, lease_s=10)
    world.give()
    world.expire(11)
    world.delivery.plan_retries(10, now=world.now)
    world.write()
    ((key, offset),) = world.delivery.giveable
    assert world.delivery.pass_line(key, offset, now=world.now, wall_unix_ms=world.wall)
    world.delivery.giveable.clear()
    assert offsets(world.retry()) == [1]
    world.write()
    assert world.store.settled == {0}


# --- R16: numbers and records --------------------------------------------------------------------


def test_first_give_outs_need_no_write() -> None:
    """R16."""
    world = World(A, B, C)
    assert offsets(world.give()) == [0, 1, 2]
    assert not world.delivery.dirty


def test_numbers_restart_under_a_higher_epoch() -> None:
    """R16: number 3, crash, new owner starts at 1: distinguished by the epoch."""
    world = World(A)
    for _ in range(2):
        world.give()
        world.nack(world.delivery.leases.number, 0)
        world.retry()
    first = world.delivery
    assert first.leases.number == 3
    world.write()
    second = world.own()
    assert second.epoch > first.epoch
    assert world.give() == []
    (out,) = world.retry()
    assert out.number == 1


def test_a_new_owner_gives_what_is_not_settled_and_nothing_else() -> None:
    """P1, P5, R18."""
    world = World(*[A, B, C, 0] * 3)
    world.give()
    for offset in (0, 2, 3, 5, 9, 11):
        world.ack(1, offset)
    world.write()
    world.own()
    outs = world.give()
    assert [(out.first, out.last) for out in outs] == [(1, 1), (4, 4), (6, 8), (10, 10)]
    for out in outs:
        world.ack(out.number, out.first, out.last)
    world.write()
    assert world.store.settled == set(range(12))


def test_a_redelivery_waits_until_its_attempt_is_durable() -> None:
    """R16."""
    world = World(A, lease_s=10)
    world.give()
    world.delivery.start(1, 0, 0, now=world.now)
    world.expire(11)
    world.delivery.plan_retries(10, now=world.now)
    assert world.delivery.urgent
    assert world.send() == []
    write = world.delivery.take_write(wall_unix_ms=world.wall)
    assert write is not None
    assert world.send() == []
    world.delivery.not_written()  # unknown: it is asked again, whole (R29)
    assert world.send() == []
    world.write()
    assert world.store.retries[0].attempts == 1
    (out,) = world.send()
    assert (out.number, out.attempt) == (2, 2)


def test_a_redelivery_of_what_is_settled_is_refused() -> None:
    """R16: the storage knows it, from a session that moved; it is not given again."""
    world = World(A, A, lease_s=10)
    world.give()
    world.expire(11)
    world.store.settled.add(0)
    assert offsets(world.retry()) == []
    assert offsets(world.retry()) == [1]


def test_what_never_was_given_does_not_overtake_a_redelivery_that_is_being_recorded() -> None:
    """P3: after 0 settles, two of the key may go: 1 waits for its write, 2 needs none."""
    world = World(A, A, lease_s=10)
    world.give()
    world.publish(A)
    world.nack(1, 0)
    world.give()
    (out,) = world.retry()
    world.ack(out.number, 0)
    world.delivery.plan_retries(10, now=world.now)
    assert world.delivery.giveable == []
    world.write()
    assert offsets(world.send()) == [1]
    assert offsets(world.retry()) == [2]


def test_only_the_write_that_holds_the_attempt_lets_a_redelivery_go() -> None:
    """R16: 1 was called back while its first record was on its way; the answer to that one says
    nothing about the second."""
    world = World(A, A, A, lease_s=10)
    world.give()
    world.nack(1, 0)
    (zero,) = world.retry()
    world.ack(zero.number, 0)  # two may go now: 1 and 2
    world.delivery.plan_retries(10, now=world.now)
    world.write()
    (key, offset), second = world.delivery.giveable
    assert (offset, second[1]) == (1, 2)
    del world.delivery.giveable[:]
    out = world.delivery.give_line(key, 1, world.records[0], now=world.now, wall_unix_ms=world.wall)
    assert out is not None
    world.nack(out.number, 1)  # 2 was on its way: it is called back, though the shell holds it
    stale = world.delivery.give_line(
        *second, world.records[0], now=world.now, wall_unix_ms=world.wall
    )
    assert stale is None
    assert offsets(world.retry()) == [1]


def test_a_shell_that_gives_out_of_order_is_refused() -> None:
    """P3: it read the record of the second one first."""
    world = World(A, A, A, pulls=True)
    world.delivery.begin_pull()
    world.give(1)
    world.delivery.begin_pull()
    world.give()
    world.ack(1, 0)
    world.delivery.plan_retries(10, now=world.now)
    second = world.delivery.giveable.pop(1)
    early = world.delivery.give_line(
        *second, world.records[0], now=world.now, wall_unix_ms=world.wall
    )
    assert early is None
    (out,) = world.send()
    assert out.first == 1
    world.ack(out.number, 1)
    assert offsets(world.retry()) == [2]


# --- R17: the gate -------------------------------------------------------------------------------


def test_during_backoff_the_next_message_of_the_key_is_not_given() -> None:
    """R17: m expires; during backoff the SDK runs m + 1 from its buffer."""
    world = World(A, A, B, lease_s=10)
    world.give()
    assert sorted(world.expire(10)) == [(1, 0), (1, 1), (1, 2)]
    (m, b) = world.retry()
    assert {m.first, b.first} == {0, 2}
    assert world.nack(m.number, 0, 30.0) == []
    world.publish(A, C)
    assert offsets(world.give()) == [4]
    assert world.ack(b.number, 2) == world.ack(3 + 1, 4) == "settled"
    world.expire(29.9)
    assert world.retry() == []
    world.expire(0.1)
    assert offsets(world.retry()) == [0]


def test_later_messages_of_the_key_are_revoked_at_that_moment() -> None:
    """R17: whatever push they were given in."""
    world = World(A, B, A)
    world.give()
    world.publish(B, A)
    world.give()
    assert sorted(world.nack(1, 0)) == [(1, 2), (2, 4)]
    assert world.ack(1, 1) == "settled"
    assert world.ack(2, 3) == "settled"


def test_messages_of_a_key_come_again_in_order() -> None:
    """P3: one at first, then more of them at once."""
    world = World(*[A] * 7)
    world.give()
    world.nack(1, 0)
    order = []
    for _ in range(10):
        outs = world.retry()
        order += offsets(outs)
        for out in outs:
            world.ack(out.number, out.first)
    assert order == list(range(7))
    assert world.delivery.waiting.lines.by_key == {}


def test_earlier_messages_of_the_key_stay_in_flight() -> None:
    """R17: what returns takes later ones with it, never earlier ones."""
    world = World(A, A)
    world.give()
    assert world.nack(1, 1) == []
    assert world.ack(1, 0) == "settled"


def test_messages_without_a_key_wait_for_nobody() -> None:
    world = World(0, 0, 0)
    world.give()
    assert world.nack(1, 0, 60.0) == []
    assert world.nack(1, 1, 0.0) == []
    assert offsets(world.retry()) == [1]


def test_one_key_in_backoff_costs_the_others_nothing() -> None:
    """P8."""
    world = World(A, *[B, C] * 10)
    world.give(1)
    world.nack(1, 0, 1000.0)
    assert offsets(world.give()) == list(range(1, 21))


# --- R18: the held set ---------------------------------------------------------------------------


def test_beyond_the_bound_a_line_goes_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    """R18: ten million behind a key: its line costs no memory, and nothing is read again."""
    monkeypatch.setattr(limits, "HELD_PER_PARTITION_MAX", 8)
    monkeypatch.setattr(limits, "ASIDE_UNWRITTEN_MAX", 8)
    world = World(A)
    world.give()
    world.nack(1, 0, 1000.0)
    for _ in range(100):
        world.publish(*[A] * 10)
        while world.delivery.wants_log:
            world.give()
            world.write()
    assert world.delivery.frontier == 1001
    assert world.delivery.waiting.lines.held <= 8
    assert len(world.delivery.waiting.lines._due) <= 2
    assert len(world.store.aside) >= 1001 - 8
    owner = world.own()
    assert owner.frontier == 0
    world.give()
    assert owner.waiting.lines.held <= 8


def test_the_partition_waits_for_what_is_being_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    """R18, P9: what is not durable yet is held in memory, too."""
    monkeypatch.setattr(limits, "HELD_PER_PARTITION_MAX", 4)
    monkeypatch.setattr(limits, "ASIDE_UNWRITTEN_MAX", 4)
    world = World(A, *[A] * 100)
    world.give(1)
    world.nack(1, 0, 1000.0)
    world.give()
    assert not world.delivery.wants_log
    assert world.delivery.frontier < 12
    world.write()
    assert world.delivery.wants_log


def test_a_side_line_keeps_its_order_over_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    """R18: 1 and 2 were held in memory, 3 and 4 stand aside. The next owner reads 1 and 2 from
    the log again, and nothing of the side line goes out before that and before they stand in it."""
    monkeypatch.setattr(limits, "HELD_PER_PARTITION_MAX", 3)
    monkeypatch.setattr(limits, "ASIDE_UNWRITTEN_MAX", 3)
    world = World(A, A, A, A, A)
    world.give(1)
    world.nack(1, 0)
    while world.delivery.wants_log:
        world.give()
        world.write()
    assert sorted(world.store.aside) == [3, 4]
    owner = world.own()
    assert world.retry() == []
    assert owner.waiting.side_wanted() == []
    world.give()
    assert owner.waiting.side_wanted() == []  # 0, 1 and 2 are not durably set aside yet
    order = []
    for _ in range(10):
        outs = world.retry()
        order += offsets(outs)
        for out in outs:
            world.ack(out.number, out.first)
    assert order == [0, 1, 2, 3, 4]


def test_a_side_line_is_read_on_behind_what_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """R18, P5: what is settled may stand in the side line until that is durable."""
    monkeypatch.setattr(limits, "HELD_PER_PARTITION_MAX", 1)
    monkeypatch.setattr(limits, "ASIDE_UNWRITTEN_MAX", 1)
    world = World(A, A, A)
    world.give(1)
    world.nack(1, 0)
    while world.delivery.wants_log:
        world.give()
        world.write()
    waiting = world.delivery.waiting
    (out,) = world.retry()
    world.ack(out.number, 0)
    assert waiting.side_wanted() == [(A, -1)]
    waiting.side_loaded(A, world.store.read_side(A, -1, 1), world.now)
    world.delivery.plan_retries(10, now=world.now)
    (out,) = world.send()
    assert out.first == 1
    world.ack(out.number, 1)
    assert 1 in world.store.aside
    assert waiting.side_wanted() == [(A, 1)]


def test_a_side_line_that_could_not_be_read_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "HELD_PER_PARTITION_MAX", 1)
    monkeypatch.setattr(limits, "ASIDE_UNWRITTEN_MAX", 1)
    world = World(A, A)
    world.give(1)
    world.nack(1, 0)
    world.give()
    world.write()
    (out,) = world.retry()
    world.ack(out.number, 0)
    wanted = world.delivery.waiting.side_wanted()
    assert wanted
    assert world.delivery.waiting.side_wanted() == []
    world.delivery.waiting.side_not_loaded(A, world.now)
    assert world.delivery.waiting.side_wanted() == wanted


def test_what_joins_a_side_line_while_it_is_read_is_not_taken_from_it_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """R18: 3 stands in the store and nobody knows yet; settled now, it would be set aside again
    with the write that is sent again, behind its settlement."""
    monkeypatch.setattr(limits, "HELD_PER_PARTITION_MAX", 2)
    monkeypatch.setattr(limits, "ASIDE_UNWRITTEN_MAX", 2)
    world = World(A, A)
    world.store.aside = {0: A, 1: A}
    world.own()
    world.expire()
    waiting = world.delivery.waiting
    assert waiting.side_wanted() == [(A, -1)]
    world.publish(A)
    world.give()
    write = world.delivery.take_write(wall_unix_ms=world.wall)
    assert write is not None
    world.store.apply(write)
    waiting.side_loaded(A, world.store.read_side(A, -1, 10), world.now)
    check(world.delivery)
    assert list(waiting.lines.by_key[A].waiting) == [0, 1]
    world.delivery.not_written()
    order = []
    for _ in range(5):
        outs = world.retry()
        order += offsets(outs)
        for out in outs:
            world.ack(out.number, out.first)
    world.write()
    assert (order, world.store.aside) == ([0, 1, 2], {})


def test_what_is_set_aside_without_a_key_has_a_key_that_can_be_stored() -> None:
    world = World(0, attempts_max=1, park=True)
    world.give()
    world.nack(1, 0)
    world.write()
    (key,) = world.store.parked
    assert 0 < key < 1 << 64
    assert world.store.aside == {0: key}


# --- R19: attempts -------------------------------------------------------------------------------


def test_five_crashes_do_not_dead_letter_what_never_ran() -> None:
    """R19: five crashes dead-letter 990 messages that never ran."""
    world = World(*[A, B, C] * 30, attempts_max=5)
    for _ in range(5):
        (ran,) = [out for out in world.give() + world.retry() if out.first == 0]
        world.delivery.start(ran.number, 0, 0, now=world.now)
        world.lose_holder()
    assert len(offsets(world.give())) == 60  # all but those behind 0
    assert [letter.offset for letter in world.bury()] == [0]
    assert world.store.retries.keys() <= {0}


def test_a_message_that_kills_its_consumer_is_not_tried_for_ever() -> None:
    """R19."""
    world = World(A, attempts_max=3)
    for _ in range(3):
        outs = world.give() + world.retry()
        assert offsets(outs) == [0]
        world.delivery.start(outs[0].number, 0, 0, now=world.now)
        world.lose_holder()
    assert world.give() + world.retry() == []
    assert world.bury() == [DeadLetter(0, "exhausted", 3)]


def test_a_lease_that_ends_counts_only_when_the_handler_had_started() -> None:
    """R19."""
    world = World(A, B, lease_s=10, attempts_max=1)
    world.give()
    world.delivery.start(1, 1, 1, now=world.now)
    world.expire(11)
    assert world.bury() == [DeadLetter(1, "exhausted", 1)]
    (again,) = world.retry()
    assert (again.first, again.attempt) == (0, 1)


def test_a_pull_counts_at_once() -> None:
    """R19."""
    world = World(A, lease_s=10, attempts_max=2, pulls=True)
    world.delivery.begin_pull()
    world.give()
    world.expire(11)
    (again,) = world.retry()
    assert again.attempt == 2


def test_what_is_revoked_has_not_been_tried() -> None:
    """R19: only the message that was nacked counts."""
    world = World(A, A, attempts_max=1)
    world.give()
    world.nack(1, 0)
    assert world.bury() == [DeadLetter(0, "exhausted", 1)]
    (out,) = world.retry()
    assert (out.first, out.attempt) == (1, 1)


def test_a_new_owner_does_not_give_what_is_exhausted() -> None:
    """R19: whether it stands in the log, behind another one, or in a side line."""
    world = World(A, A, B, attempts_max=2)
    world.store.retries = {0: Retry(0, 1), 1: Retry(1, 2), 2: Retry(2, 2)}
    world.own()
    assert world.give() == []
    assert {letter.offset for letter in world.bury()} == {1, 2}
    assert offsets(world.retry()) == [0]


def test_a_new_owner_does_not_give_what_is_exhausted_in_a_side_line() -> None:
    """R19."""
    world = World(A, A, attempts_max=2)
    world.store.aside = {0: A, 1: A}
    world.store.retries = {0: Retry(0, 2)}
    world.own()
    world.expire()
    assert offsets(world.retry()) == []
    assert [letter.offset for letter in world.bury()] == [0]
    assert offsets(world.retry()) == [1]


def test_give_back_counts_nothing() -> None:
    """R19: its consumer never saw it."""
    world = World(A, A, attempts_max=1, pulls=True)
    world.delivery.begin_pull()
    world.give()
    assert world.delivery.give_back(1, 0, now=world.now) == [(1, 1)]
    assert world.delivery.give_back(1, 0, now=world.now) == []
    assert world.delivery.give_back(7, 0, now=world.now) == []
    assert world.bury() == []
    (out,) = world.retry()
    assert (out.first, out.attempt) == (0, 1)


# --- Exhausted: dead letters, parking ------------------------------------------------------------


def test_a_key_goes_on_when_it_is_durable_what_goes_to_the_dead_letters() -> None:
    """P3: not before; and it need not have arrived there. [The dead-letter queue is full: nothing
    of the key is given for as long.]"""
    world = World(A, A, B, attempts_max=1)
    world.give()
    world.nack(1, 0)
    world.delivery.plan_retries(1000, now=world.now)
    assert world.send() == []
    assert world.delivery.take_dead_letters(10) == []
    world.write()
    (letter,) = world.delivery.take_dead_letters(10)
    assert world.delivery.take_dead_letters(10) == []
    world.delivery.dead_lettered(letter.offset, letter.offset)
    (out,) = world.retry()
    assert out.first == 1
    assert world.ack(out.number, 1) == "settled"
    world.publish(A)
    assert offsets(world.give()) == [3]
    assert not world.delivery.waiting.lines.by_key


def test_a_parked_key_lets_others_flow() -> None:
    """P8."""
    world = World(A, A, B, attempts_max=1, park=True)
    world.give()
    world.nack(1, 0)
    world.publish(*[A, B, C] * 5)
    assert {r % 3 for r in offsets(world.give())} == {1, 2}
    world.expire(10_000)
    world.write()
    assert set(world.store.parked) == {A}
    assert sorted(world.store.aside) == [0, 1, *range(3, 18, 3)]
    assert A not in {key for key, _ in world.delivery.giveable}
    assert world.delivery.waiting.lines.counts() == (3, 1, 7)


def test_a_parked_key_stays_parked_under_the_next_owner() -> None:
    world = World(A, A, B, attempts_max=1, park=True)
    world.give()
    world.nack(1, 0)
    world.write()
    world.own()
    world.publish(A, C)
    assert offsets(world.give()) == [2, 4]
    assert world.retry() == []
    assert world.delivery.waiting.side_wanted() == []


def test_a_key_is_parked_with_what_was_on_its_way_out() -> None:
    """R17: 2 is exhausted while 0 is about to go again: the whole key waits for the operator."""
    world = World(A, B, A, attempts_max=2, park=True)
    world.store.retries = {2: Retry(2, 2)}
    world.own()
    world.give(2)
    world.nack(1, 0)
    world.delivery.plan_retries(10, now=world.now)
    world.write()
    assert world.delivery.giveable == [(A, 0)]
    world.give()
    assert world.delivery.giveable == []
    world.write()
    assert sorted(world.store.aside) == [0, 2]
    assert set(world.store.parked) == {A}


def test_an_ack_does_not_release_what_is_parked() -> None:
    """R21: not against an operator's decision."""
    world = World(A, attempts_max=1, park=True)
    world.give()
    world.nack(1, 0)
    assert world.ack(1, 0) == "stale"


# --- R3, retry -----------------------------------------------------------------------------------


def test_backoff_goes_on_under_the_next_owner() -> None:
    """R3: what a nack asked for is kept, in wall time."""
    world = World(A, backoff_max_s=60)
    world.give()
    world.nack(1, 0, 3600.0)
    world.write()
    world.own()
    world.give()
    assert world.retry() == []
    world.expire(3599)
    assert world.retry() == []
    world.expire(1)
    assert offsets(world.retry()) == [0]


def test_backoff_in_a_side_line_goes_on_under_the_next_owner() -> None:
    world = World(A, A)
    world.store.aside = {0: A, 1: A}
    world.store.retries = {0: Retry(0, 1, wall_unix_ms(160.0))}
    delivery = world.own()
    at = delivery.next_deadline()
    assert at is not None
    assert at <= world.now  # nothing is known in this process's time yet
    world.expire()
    assert world.retry() == []
    assert delivery.next_deadline() == pytest.approx(160.0)
    world.expire(60)
    assert offsets(world.retry()) == [0]


def test_a_clock_that_was_a_year_ahead_delays_nobody_for_a_year() -> None:
    """R3: a persisted backoff is clamped to the longest one there is."""
    world = World(A)
    world.store.retries = {0: Retry(0, 1, wall_unix_ms(365 * 86_400.0))}
    world.own()
    world.give()
    world.expire(limits.DELAY_S_MAX)
    assert offsets(world.retry()) == [0]


# --- R20, P6: time -------------------------------------------------------------------------------


def test_an_unsettled_delivery_returns_with_its_lease() -> None:
    """P6."""
    world = World(A, lease_s=10)
    world.give()
    assert world.delivery.next_deadline() == 110.0
    assert world.expire(9.9) == []
    assert world.expire(0.1) == [(1, 0)]
    assert [(out.number, out.first) for out in world.retry()] == [(2, 0)]


def test_a_lease_can_be_extended_up_to_its_total() -> None:
    """R20: then it counts as stuck and returns."""
    world = World(A, lease_s=10, lease_total_s=25)
    world.give()
    for _ in range(4):
        world.now += 5
        world.delivery.extend(1, 0, 0, lease_s=10, now=world.now)
    assert world.expire(4.9) == []
    assert world.expire(0.1) == [(1, 0)]


def test_a_lease_does_not_run_in_transit() -> None:
    """R20: a message that is longer on its way than its lease."""
    world = World(A, lease_s=10)
    world.give()
    for _ in range(4):
        assert world.expire(10, arrived={1: None}) == []
        assert world.delivery.next_deadline() == world.now + limits.TRANSIT_LOOK_S
    assert world.expire(0, arrived={1: 142.0}) == []
    assert world.expire(11.9, arrived={1: 142.0}) == []
    assert world.delivery.next_deadline() == 152.0
    assert world.expire(0.1, arrived={1: 142.0}) == [(1, 0)]
    assert world.delivery.waiting.attempts == {}, "its handler never began"


def test_what_is_in_transit_returns_after_the_total() -> None:
    """R20."""
    world = World(A, lease_s=10, lease_total_s=25)
    world.give()
    assert world.expire(24.9, arrived={1: None}) == []
    assert world.expire(0.1, arrived={1: None}) == [(1, 0)]


def test_what_is_in_transit_does_not_hold_up_a_drain() -> None:
    """R20."""
    world = World(A, lease_s=10)
    world.give()
    world.delivery.drain(deadline=115.0)
    assert world.expire(14.9, arrived={1: None}) == []
    assert world.expire(0.1, arrived={1: None}) == [(1, 0)]


def test_what_stands_behind_it_in_transit_goes_on_alone() -> None:
    world = World(A, B, lease_s=10)
    world.give(1)
    world.give(1)
    assert world.expire(10, arrived={2: None}) == [(1, 0)]
    assert world.expire(5, arrived={2: 115.0}) == []
    assert world.expire(10, arrived={2: 115.0}) == [(2, 1)]


def test_an_extend_never_takes_time_away() -> None:
    world = World(A, B, lease_s=10)
    world.give()
    judged = world.delivery.extend(1, 0, 0, lease_s=1, now=world.now)
    assert judged.settled == [(0, 0)]
    assert world.expire(9) == []


def test_extending_some_of_a_push_leaves_the_others() -> None:
    world = World(A, B, C, lease_s=10)
    world.give()
    world.now += 5
    world.delivery.extend(1, 1, 1, lease_s=10, now=world.now)
    assert sorted(world.expire(5)) == [(1, 0), (1, 2)]
    assert world.expire(4) == []
    assert world.expire(1) == [(1, 1)]


def test_an_extend_of_what_is_not_in_flight_is_judged() -> None:
    world = World(A, B)
    world.give()
    world.ack(1, 0)
    judged = world.delivery.extend(1, 0, 5, lease_s=10, now=world.now)
    assert (judged.settled, judged.stale, judged.not_delivered) == ([(1, 1)], [(0, 0)], [(2, 5)])


def test_a_drain_ends_at_its_deadline() -> None:
    """R20: extends past it are refused; what is in flight then is cut off."""
    world = World(A, B, lease_s=10, lease_total_s=1000)
    world.give(1)
    world.delivery.drain(deadline=130.0)
    assert world.give() == []
    assert not world.delivery.drained
    world.delivery.extend(1, 0, 0, lease_s=500, now=world.now)
    assert world.expire(29) == []
    assert world.expire(1) == [(1, 0)]
    assert world.delivery.drained
    assert world.retry() == []


def test_a_drain_cuts_off_leases_that_are_longer() -> None:
    """R20."""
    world = World(A, lease_s=600)
    world.give()
    world.delivery.drain(deadline=130.0)
    assert world.delivery.next_deadline() == 130.0
    assert world.expire(30) == [(1, 0)]


def test_what_a_drain_cuts_off_has_not_lapsed() -> None:
    """R14: time took it away before its lease had ended; what the lease ended has."""
    world = World(1, 2, lease_s=3600)
    began = world.delivery.lapsed_at
    world.give()
    world.delivery.drain(deadline=130.0)
    world.now = 130.0
    assert world.delivery.expire(now=world.now, wall_unix_ms=world.wall)
    assert world.delivery.lapsed_at == began == float("-inf")
    world = World(1, 2, lease_s=30)
    given_at = world.now
    world.give()
    world.now += 30.0
    assert world.delivery.expire(now=world.now, wall_unix_ms=world.wall)
    assert world.delivery.lapsed_at == given_at


def test_a_draining_partition_settles_what_is_in_flight() -> None:
    world = World(A, B)
    world.give(1)
    world.delivery.drain(deadline=130.0)
    assert world.delivery.next_deadline() is not None
    assert world.ack(1, 0) == "settled"
    assert world.delivery.drained
    world.write()
    world.own()
    assert offsets(world.give()) == [1]


# --- R21: acks -----------------------------------------------------------------------------------


def test_a_late_ack_settles_what_was_not_given_again() -> None:
    """R21: it expired; the ack comes before the redelivery."""
    world = World(A, A, lease_s=10)
    world.give()
    world.expire(11)
    assert world.ack(1, 0) == "settled"
    assert offsets(world.retry()) == [1]


def test_a_late_ack_settles_what_is_being_recorded() -> None:
    """R16, R21: and then it is not given again."""
    world = World(A, lease_s=10)
    world.give()
    world.expire(11)
    world.delivery.plan_retries(10, now=world.now)
    write = world.delivery.take_write(wall_unix_ms=world.wall)
    assert write is not None
    assert world.ack(1, 0) == "settled"
    world.delivery.written(world.store.apply(write), now=world.now)
    assert world.send() == []
    world.write()
    assert world.store.settled == {0}
    assert world.store.retries == {}


def test_a_late_ack_is_stale_while_an_earlier_message_of_its_key_waits() -> None:
    """R21."""
    world = World(A, A, lease_s=10)
    world.give()
    world.expire(11)
    assert world.ack(1, 1) == "stale"
    assert offsets(world.retry()) == [0]


def test_a_late_ack_is_not_stale_because_a_later_message_of_its_key_is_dead() -> None:
    """R21: 1 expired in the log while 0 was in flight."""
    world = World(A, A, expires={1: 50.0}, lease_s=10)
    world.give()
    world.expire(11)
    assert world.ack(1, 0) == "settled"


def test_a_late_ack_is_stale_while_an_earlier_message_of_its_key_is_dying() -> None:
    """R21: were the dead letter never to arrive, the key would be out of order."""
    world = World(A, A, attempts_max=1)
    world.give()
    world.nack(1, 0)
    assert world.ack(1, 1) == "stale"
    world.bury()
    assert world.ack(1, 1) == "settled"


def test_an_ack_of_an_older_delivery_is_stale() -> None:
    """R21: a newer one was given."""
    world = World(A, lease_s=10)
    world.give()
    world.expire(11)
    (again,) = world.retry()
    assert world.ack(1, 0) == "stale"
    assert world.ack(again.number, 0) == "settled"
    assert world.ack(1, 0) == "settled"  # it is settled already, under the same epoch


def test_an_ack_of_an_older_delivery_is_stale_while_the_newer_one_waits() -> None:
    """R21."""
    world = World(A, lease_s=10)
    world.give()
    world.expire(11)
    (again,) = world.retry()
    world.expire(11)
    assert world.ack(1, 0) == "stale"
    assert world.ack(again.number, 0) == "settled"


def test_an_ack_can_be_repeated() -> None:
    """R21."""
    world = World(A, B, C)
    world.give()
    assert world.ack(1, 0, 2) == "settled"
    assert world.ack(1, 0, 2) == "settled"
    world.write()
    assert world.store.settled == {0, 1, 2}


def test_an_ordinary_ack_settles_all_of_its_ranges_or_leaves_them_to_be_judged() -> None:
    """R21: it decides nothing itself."""
    world = World(*[A, B, C, 0] * 3)
    world.give()
    act = partial(world.delivery.ack_ordinary, now=world.now)
    assert act(1, [0, 1, 1, 0, 1, 5, 6], 3) == 4
    assert act(1, [0, 1, 1, 2, 3, 6, 7], 3) == 0  # 6 is settled
    assert act(1, [2, 12], 0) == 0
    assert act(2, [2, 3], 0) == 0
    world.nack(1, 2)
    assert act(1, [2, 2], 0) == 0
    assert act(1, [3, 4], 0) == 2
    world.write()
    assert world.store.settled == {0, 1, 3, 4, 5, 6}
    (again,) = world.retry()
    assert act(again.number, [2, 2], 0) == 0  # a line waits to hear of it
    assert world.ack(again.number, 2) == "settled"
    check(world.delivery)


def test_an_invented_ack_settles_nothing() -> None:
    """R21, P12."""
    world = World(A, B, C)
    world.give(2)
    assert world.ack(9, 0) == "not_delivered"
    assert world.ack(0, 0) == "not_delivered"
    judged = world.delivery.ack(1, 0, 7, now=world.now)
    assert (judged.settled, judged.not_delivered) == ([(0, 1)], [(2, 7)])
    assert world.delivery.frontier == 2


def test_an_ack_of_a_dead_letter_is_stale() -> None:
    """R21: while it is dying, and behind that. [Somebody redrives it: the work is done twice, and
    who did it the first time was told that it counted.]"""
    world = World(A, B, attempts_max=1)
    world.give()
    world.nack(1, 0)
    assert world.ack(1, 0) == "stale"
    world.bury()
    assert world.ack(1, 0) == "stale"
    assert world.ack(1, 1) == world.ack(1, 1) == "settled"
    world.write()
    assert (world.store.settled, world.store.ended) == ({0, 1}, {0})
    assert world.ack(1, 0) == "stale"


def test_an_ack_of_any_earlier_delivery_of_a_dead_letter_is_stale() -> None:
    """R21."""
    world = World(A, attempts_max=2)
    world.give()
    world.nack(1, 0)
    (again,) = world.retry()
    world.nack(again.number, 0)
    world.bury()
    assert (world.ack(1, 0), world.ack(again.number, 0)) == ("stale", "stale")


def test_an_ack_of_what_expired_while_it_waited_is_stale() -> None:
    """R13, R21: it was given, its lease ended, and then it was too old."""
    world = World(A, expires={0: 120.0}, lease_s=10)
    world.give()
    world.expire(25)
    assert world.retry() == []
    assert world.ack(1, 0) == "stale"
    world.bury()
    assert world.ack(1, 0) == "stale"


def test_an_ack_of_what_an_operator_skipped_is_stale() -> None:
    """R17, R21: while it is parked, on its way and in the dead letters."""
    world = World(A, A, attempts_max=1, park=True)
    world.give()
    world.nack(1, 0)
    assert world.ack(1, 0) == "stale"
    world.write()
    assert world.delivery.waiting.decide("skip", world.store.parked_line(A), world.now)
    assert world.ack(1, 0) == "stale"
    world.bury()
    world.write()
    assert world.ack(1, 0) == "stale"


def test_what_is_not_in_the_log_any_more_is_not_passed_by_a_partition_that_moves() -> None:
    """The next owner passes it."""
    world = World(A, lease_s=10)
    world.give()
    world.expire(11)
    world.delivery.plan_retries(1, now=world.now)
    world.write()
    ((key, offset),) = world.delivery.giveable
    world.delivery.drain(deadline=world.now)
    assert not world.delivery.pass_line(key, offset, now=world.now, wall_unix_ms=world.wall)
    world.write()
    assert world.store.settled == set()
    assert world.delivery.unsettled_passed == 1


def test_an_ack_of_what_is_no_longer_in_the_log_is_stale() -> None:
    """R21, R30: nobody has settled it, and nobody will."""
    world = World(A, lease_s=10)
    world.give()
    world.expire(11)
    world.delivery.plan_retries(1, now=world.now)
    world.write()
    ((key, offset),) = world.delivery.giveable
    world.delivery.giveable.clear()
    assert world.delivery.pass_line(key, offset, now=world.now, wall_unix_ms=world.wall)
    assert world.ack(1, 0) == "stale"


def test_what_has_ended_is_remembered_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """P9: beyond it the oldest become one with what lies between them, of which an ack that is
    repeated is called stale, too. What is in flight is settled all the same."""
    monkeypatch.setattr(limits, "ENDED_RANGES_MAX", 2)
    world = World(A, B, C, A + 10, B + 10, C + 10, attempts_max=1)
    world.give()
    assert world.ack(1, 3) == "settled"
    for offset in (0, 2, 4):
        world.nack(1, offset)
        world.bury()
    assert list(world.delivery.waiting.ended) == [(0, 2), (4, 4)]
    assert [world.ack(1, offset) for offset in range(6)] == [
        "stale", "settled", "stale", "settled", "stale", "settled",
    ]  # fmt: skip
    assert world.ack(1, 1) == "stale"
    check(world.delivery)


def test_an_ack_after_its_holder_was_declared_dead_settles_nothing() -> None:
    """R21: the next owner gives it again; nobody may be told that it is settled."""
    world = World(A, B)
    world.give()
    world.ack(1, 0)
    world.delivery.abandon(wall_unix_ms=world.wall)
    assert world.ack(1, 1) == "stale"


def test_a_delivery_that_is_too_old_to_be_remembered_is_stale(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """P9: the memory of finished pushes is bounded."""
    monkeypatch.setattr(limits, "FINISHED_PUSHES_MAX", 2)
    world = World(*[A] * 5)
    for number in range(1, 5):
        world.give(1)
        world.ack(number, number - 1)
    assert world.ack(4, 3) == "settled"
    assert world.ack(1, 0) == "stale"


# --- R24: pulls ----------------------------------------------------------------------------------


def test_to_pulls_a_key_in_flight_is_closed() -> None:
    """R24."""
    world = World(A, B, A, A, pulls=True)
    world.delivery.begin_pull()
    assert offsets(world.give(1)) == [0]
    world.delivery.begin_pull()
    assert offsets(world.give()) == [1]
    world.delivery.begin_pull()
    assert world.retry() == []
    world.ack(1, 0)
    assert offsets(world.retry()) == [2, 3]


def test_one_pull_may_carry_several_of_a_key() -> None:
    """R24."""
    world = World(A, A, B, A, pulls=True)
    world.delivery.begin_pull()
    assert offsets(world.give()) == [0, 1, 2, 3]
    assert world.ack(1, 0) == "settled"
    world.publish(A)
    world.delivery.begin_pull()
    assert offsets(world.give()) == []  # 1 and 3 are in flight
    assert world.ack(1, 1) == "settled"
    assert world.ack(1, 3) == "settled"
    assert offsets(world.retry()) == [4]


def test_a_pull_carries_nothing_of_a_key_past_what_it_gave_back() -> None:
    """R17, R24."""
    world = World(A, A, pulls=True)
    world.delivery.begin_pull()
    world.give()
    world.nack(1, 1, 60.0)
    world.publish(A)
    assert world.give() == []


def test_what_waits_for_its_pull_is_called_back_when_another_pull_carries_its_key() -> None:
    """R24: both were giveable; the first pull took one."""
    world = World(A, A, A, pulls=True)
    world.delivery.begin_pull()
    world.give(1)
    world.delivery.begin_pull()
    world.give()
    world.ack(1, 0)
    world.delivery.plan_retries(10, now=world.now)
    first, second = world.delivery.giveable
    del world.delivery.giveable[:]
    world.delivery.begin_pull()
    out = world.delivery.give_line(*first, world.records[0], now=world.now, wall_unix_ms=world.wall)
    assert out is not None
    world.delivery.begin_pull()
    assert (
        world.delivery.give_line(*second, world.records[0], now=world.now, wall_unix_ms=world.wall)
        is None
    )
    world.ack(out.number, 1)
    assert offsets(world.retry()) == [2]


def test_an_old_receipt_is_stale_after_the_lease() -> None:
    """R24: the ack through another gateway comes when the message was given again."""
    world = World(A, lease_s=10, pulls=True)
    world.delivery.begin_pull()
    world.give()
    world.expire(11)
    world.delivery.begin_pull()
    (again,) = world.retry()
    assert world.ack(1, 0) == "stale"
    assert world.ack(again.number, 0) == "settled"


# --- P9: memory ----------------------------------------------------------------------------------


def test_one_hung_delivery_does_not_keep_the_deadlines_of_all_behind_it() -> None:
    """P9: its lease is an hour; a hundred thousand others are settled meanwhile."""
    world = World(A, *[B] * 1000, lease_s=3600)
    world.give(1)
    for offset in range(1, 1001):
        world.give(1)
        world.ack(offset + 1, offset)
        assert len(world.delivery.leases._deadlines) <= 68


def test_extends_cost_no_memory() -> None:
    """P9: a client that extends a thousand times a second."""
    world = World(A, B, C, lease_s=10, lease_total_s=10_000)
    world.give()
    for step in range(1000):
        world.now += 0.001
        world.delivery.extend(1, step % 3, step % 3, lease_s=1000, now=world.now)
    push = world.delivery.leases.pushes[1]
    assert len(push.parts) <= 3
    assert len(world.delivery.leases._deadlines) <= 66
    assert world.expire(999.9) == [(1, 0), (1, 1), (1, 2)] or world.expire(1.0)


def gated_world() -> World:
    """A key that waits for its retry, and one push of what was published behind it."""
    world = World(A)
    world.give()
    world.nack(1, 0, 60.0)
    world.publish(B, A, C, A, A, 0, A)
    return world


def test_what_waits_costs_no_push_of_its_own() -> None:
    """P8, R17: the others go out together; what is gated is named as skipped, at the ends not."""
    world = gated_world()
    (out,) = world.give()
    assert (out.first, out.last, out.skips, out.count) == (1, 6, (2, 4, 5), 3)
    assert list(out.offsets()) == [1, 3, 6]
    assert world.delivery.leases.open_count == 3


@pytest.mark.parametrize("ordinary", [True, False])
def test_an_ack_that_spans_what_a_push_skips_settles_only_its_own(ordinary: bool) -> None:
    """P1, R21: the skipped were not given; naming them means nothing."""
    world = gated_world()
    (out,) = world.give()
    if ordinary:
        assert world.delivery.ack_ordinary(out.number, [1, 6], 0, now=world.now) == 3
    else:
        judged = world.delivery.ack(out.number, 1, 6, now=world.now)
        assert (judged.settled, judged.stale, judged.not_delivered) == (
            [(1, 1), (3, 3), (6, 6)], [], [],
        )  # fmt: skip
    world.write()
    assert world.store.settled == {1, 3, 6}
    again = world.delivery.ack(out.number, 0, 8, now=world.now)
    assert (again.settled, again.stale) == ([(1, 1), (3, 3), (6, 6)], [])
    assert again.not_delivered == [(0, 0), (7, 8)]


def test_a_nack_that_spans_what_a_push_skips_returns_only_its_own() -> None:
    """P3: a skipped one stays where it waits."""
    world = gated_world()
    (out,) = world.give()
    judged, revoked = world.delivery.nack(
        out.number, 2, 4, delay_s=None, draw=lambda: 0.5, now=world.now, wall_unix_ms=world.wall
    )
    assert (judged.settled, judged.stale, judged.not_delivered) == ([(3, 3)], [], [])
    assert revoked == []
    assert world.delivery.leases.open_count == 2


@pytest.mark.parametrize("finished", [True, False])
def test_an_ack_beyond_all_offsets_costs_nothing(finished: bool) -> None:
    """P9, P12: a range may have any length; the mask that judges it has not."""
    world = World(A, B, C)
    world.give()
    if finished:
        world.ack(1, 0, 2)
    last = (1 << 53) - 1
    assert world.delivery.ack_ordinary(1, [0, last], 0, now=world.now) == 0
    judged = world.delivery.ack(1, 0, last, now=world.now)
    assert (judged.settled, judged.not_delivered) == ([(0, 2)], [(3, last)])
    assert world.delivery.extend(1, 1, last, lease_s=5, now=world.now).stale == [(1, 2)]
