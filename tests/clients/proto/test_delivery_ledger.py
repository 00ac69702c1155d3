"""The ledger of held deliveries: one of a key at a time, never one that is gone, and credit that
adds up (P3, R16, R17, R19, R25)."""

import itertools
from collections.abc import Sequence

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tocsin.errors import StaleDelivery
from tocsin.proto import wire
from tocsin.proto.delivery_ledger import AHEAD, DeliveryLedger
from tocsin.proto.leases import usable_s
from tocsin.proto.message import Message, Settler, State
from tocsin.proto.wire import delivery_list, ranges_of, split_deliveries


class Nobody:
    """The ledger's tests settle through the ledger, not through the messages."""

    def ack(self, message: Message) -> None:
        raise AssertionError

    async def ack_confirmed(self, message: Message) -> None:
        raise AssertionError

    def nack(
        self, message: Message, delay_s: float | None, reason: str | None, *, reject: bool = False
    ) -> None:
        raise AssertionError

    async def nack_confirmed(
        self, message: Message, delay_s: float | None, reason: str | None, *, reject: bool = False
    ) -> None:
        raise AssertionError

    async def extend(self, message: Message, lease_s: float | None) -> None:
        raise AssertionError

    def gone(self, message: Message) -> bool:
        return False


def push(
    keys: Sequence[str],
    *,
    offset: int = 0,
    number: int = 1,
    epoch: int = 1,
    attempt: int = 1,
    skips: Sequence[int] = (),
) -> wire.Push:
    """Return one message per key; "-": none."""
    return wire.Push(
        subscription=3,
        partition=0,
        epoch=epoch,
        push=number,
        offset=offset,
        attempt=attempt,
        skips=list(skips),
        id_prefix="q-1-0-",
        messages=[wire.PushedMessage(key=None if key == "-" else key) for key in keys],
    )


def ledger(
    credit: int = 100,
    lease_s: float = 30.0,
    settler: Settler | None = None,
    *,
    auto_extend: bool = False,
) -> DeliveryLedger:
    return DeliveryLedger(
        settler or Nobody(),
        subscription=3,
        credit=credit,
        lease_s=lease_s,
        auto_extend=auto_extend,
    )


def drain(held: DeliveryLedger, now: float = 0.0) -> list[Message]:
    """Everything that can be handed out now."""
    found: list[Message] = []
    while (message := held.next(now=now)) is not None:
        found.append(message)
    held.check()
    return found


def sent(held: DeliveryLedger) -> list[wire.SentFrame]:
    return held.take(itertools.count(1), now=0.0)


def test_the_next_of_a_key_waits_for_the_one_before_and_other_keys_do_not() -> None:
    held = ledger()
    held.receive(push("aabca-"), now=0.0)
    first = drain(held)
    assert [m.offset for m in first] == [0, 2, 3, 5]
    held.ack(first[0], now=0.0)
    (second,) = drain(held)
    assert second.offset == 1
    held.ack(second, now=0.0)
    assert [m.offset for m in drain(held)] == [4]


def test_acks_are_ranges_per_push_and_marks_travel_with_them() -> None:
    held = ledger()
    held.receive(push("-----"), now=0.0)
    held.receive(push("--", offset=5, number=2), now=0.0)
    for message in drain(held):
        if message.offset not in (3, 6):
            held.ack(message, now=0.0)
    ack, credit = sent(held)
    assert credit == wire.Credit(subscription=3, granted=105)
    assert ack == wire.Ack(
        subscription=3,
        deliveries=[[0, 1, 1, 0, 2, 4, 4], [0, 1, 2, 5, 5]],
        started=[[0, 1, 1, 3, 3], [0, 1, 2, 6, 6]],
    )
    assert sent(held) == []


def test_a_started_message_is_marked_where_nothing_is_acked() -> None:
    """R19: only what has started counts as an attempt."""
    held = ledger()
    held.receive(push("ab"), now=0.0)
    held.next(now=0.0)
    assert sent(held) == [wire.Extend(subscription=3, started=[[0, 1, 1, 0, 0]])]


def test_a_nacked_message_takes_the_later_ones_of_its_key_with_it() -> None:
    held = ledger()
    held.receive(push("aba"), now=0.0)
    first, other = drain(held)
    held.nack(first, now=0.0, delay_s=2.0, reason="no")
    assert drain(held) == []
    nack, *_ = sent(held)
    assert nack == wire.Extend(subscription=3, started=[[0, 1, 1, 1, 1]])
    with pytest.raises(StaleDelivery, match="nacked"):
        held.ack(first, now=0.0)
    held.ack(other, now=0.0)
    held.check()


def test_nacks_say_when_and_why() -> None:
    held = ledger(credit=1000)
    held.receive(push("abcd"), now=0.0)
    for message, why in zip(drain(held), ("x", "x", "y", None), strict=True):
        held.nack(message, now=0.0, reason=why, delay_s=1.0 if why else None)
    nacks = [frame for frame in sent(held) if isinstance(frame, wire.Nack)]
    assert [(n.deliveries, n.delay_s, n.reason) for n in nacks] == [
        ([[0, 1, 1, 0, 1]], 1.0, "x"),
        ([[0, 1, 1, 2, 2]], 1.0, "y"),
        ([[0, 1, 1, 3, 3]], None, None),
    ]


def test_what_was_revoked_is_not_handed_out_nor_is_what_is_behind_it() -> None:
    held = ledger()
    held.receive(push("aabb"), now=0.0)
    held.revoke([[0, 1, 1, 0, 0, 3, 3], [0, 1, 9, 0, 5]])
    assert [m.offset for m in drain(held)] == [2]


def test_an_ack_of_a_revoked_message_is_stale() -> None:
    held = ledger()
    held.receive(push("a"), now=0.0)
    (message,) = drain(held)
    held.revoke([[0, 1, 1, 0, 0]])
    with pytest.raises(StaleDelivery, match="no longer"):
        held.ack(message, now=0.0)


def test_a_lease_that_is_over_here_counts_as_revoked() -> None:
    """R17: the lease from receipt, less a margin; m+1 is never run when m has expired."""
    held = ledger(lease_s=30.0)
    held.receive(push("aa-"), now=100.0)
    first = held.next(now=100.0)
    assert first is not None
    assert held.next_deadline() == 128.0
    assert held.next(now=128.0) is None
    with pytest.raises(StaleDelivery):
        held.ack(first, now=128.0)
    held.check()
    assert usable_s(1.0) == 0.9


def test_an_ack_after_the_deadline_is_stale_even_before_anybody_looked() -> None:
    held = ledger(lease_s=30.0)
    held.receive(push("a"), now=0.0)
    (message,) = drain(held)
    with pytest.raises(StaleDelivery):
        held.ack(message, now=28.0)


def test_an_extended_lease_lasts_and_its_successor_expires_alone() -> None:
    held = ledger(lease_s=30.0)
    held.receive(push("ab"), now=0.0)
    first, _second = drain(held)
    held.on_extension(first, until=70.0)
    held.expire(now=28.0)
    held.check()
    assert held.next_deadline() == 70.0
    held.ack(first, now=69.0)
    assert held.next_deadline() is None


def test_what_was_prolonged_holds_up_the_end_of_no_other_lease() -> None:
    held = ledger(lease_s=30.0, auto_extend=True)
    held.receive(push("a"), now=0.0)
    held.receive(push("bc", offset=1, number=2), now=1.0)
    first = held.next(now=1.0)
    assert first is not None
    held.on_extension(first, until=90.0)
    assert held.next_deadline() == 15.0
    held.expire(now=15.0)
    frames = held.take(itertools.count(1), now=15.0)
    asked = [frame.deliveries for frame in frames if isinstance(frame, wire.Extend) and frame.ref]
    assert asked == [[[0, 1, 2, 1, 2]]]
    assert held.next_deadline() == 29.0
    assert held.next(now=29.0) is None, "nor is it looked for without end"
    assert held.next_deadline() == 76.0


def prolonged(held: DeliveryLedger, now: float) -> list[int]:
    """Return what more time is asked for, and granted, at `now`."""
    held.expire(now=now)
    frames = held.take(itertools.count(1), now=now)
    asked = [f for f in frames if isinstance(f, wire.Extend) and f.ref is not None]
    for frame in asked:
        held.leases.on_answer(frame.ref or 0, [])
    held.check()
    rows = [row for frame in asked for row in frame.deliveries]
    return [
        offset
        for row in rows
        for first, last in zip(row[3::2], row[4::2], strict=True)
        for offset in range(first, last + 1)
    ]


def test_behind_a_message_that_is_in_hand_for_long_a_handful_is_prolonged() -> None:
    """P8: the others of its key go back when their leases end, uncounted, and make room; whoever
    waits for a handler, or moves on, is prolonged as a whole."""
    held = ledger(lease_s=30.0, auto_extend=True)
    held.receive(push("a" * 100 + "bc"), now=0.0)
    hung, waiting = held.next(now=0.0), held.next(now=0.0)
    assert hung is not None
    assert waiting is not None
    held.put_back(waiting)
    assert prolonged(held, 15.0) == [*range(102)], "it may be slow, no more"
    assert prolonged(held, 29.0) == [*range(1 + AHEAD), 100, 101]
    held.expire(now=43.0)
    held.check()
    assert held.received - held.released == 1 + AHEAD + 2
    assert held.granted == 100 + 100 - 1 - AHEAD, "R25: there is room for others"
    assert prolonged(held, 43.0) == [*range(1 + AHEAD), 100, 101]
    held.ack(hung, now=44.0)
    following = held.next(now=44.0)
    assert following is not None
    assert following.offset in (1, 100)


def test_behind_a_message_that_is_handled_in_time_all_are_prolonged() -> None:
    held = ledger(lease_s=30.0, auto_extend=True)
    held.receive(push("a" * 100), now=0.0)
    for number in range(6):
        now = 14.0 * number
        message = held.next(now=now)
        assert message is not None
        assert prolonged(held, now + 1.0) == ([*range(number, 100)] if number else [])
        held.ack(message, now=now + 2.0)


def test_acking_twice_is_settling_once() -> None:
    held = ledger(credit=4)
    held.receive(push("a"), now=0.0)
    (message,) = drain(held)
    held.ack(message, now=0.0)
    held.ack(message, now=99.0)
    assert held.released == 1


def test_a_message_that_was_not_handed_out_cannot_be_settled() -> None:
    held = ledger()
    held.receive(push("aa"), now=0.0)
    first = held.next(now=0.0)
    assert first is not None
    second = first.held.deliveries[1]
    with pytest.raises(StaleDelivery, match="not been handed out"):
        held.ack(second, now=0.0)


def test_a_push_that_is_not_newer_is_discarded_and_its_credit_returned() -> None:
    """R16: deliveries are numbered by (epoch, push)."""
    held = ledger(credit=4)
    held.receive(push("a", epoch=2), now=0.0)
    held.receive(push("b", epoch=1, number=9), now=0.0)
    assert [m.key for m in drain(held)] == ["a"]
    assert wire.Credit(subscription=3, granted=5) in sent(held)
    held.receive(push("c", epoch=3, number=1, offset=5), now=0.0)
    assert [m.key for m in drain(held)] == ["c"]


def test_what_a_push_skips_is_not_counted_among_its_offsets() -> None:
    """P8: what waits between them is named, acks and revocations name offsets."""
    held = ledger()
    held.receive(push("abcd", offset=5, skips=[6, 8]), now=0.0)
    messages = drain(held)
    assert [(m.offset, m.id) for m in messages] == [
        (5, "q-1-0-5"), (7, "q-1-0-7"), (9, "q-1-0-9"), (10, "q-1-0-10"),
    ]  # fmt: skip
    held.revoke([[0, 1, 1, 6, 7]])
    held.ack(messages[0], now=0.0)
    held.ack(messages[3], now=0.0)
    with pytest.raises(StaleDelivery):
        held.ack(messages[1], now=0.0)
    (ack,) = [frame for frame in sent(held) if isinstance(frame, wire.Ack)]
    assert ack.deliveries == [[0, 1, 1, 5, 5, 10, 10]]
    held.check()


def test_a_redelivery_supersedes_what_is_held_of_it() -> None:
    held = ledger()
    held.receive(push("aa"), now=0.0)
    (old,) = drain(held)
    held.receive(push("a", number=2, attempt=2), now=0.0)
    (new,) = drain(held)
    assert (new.offset, new.attempt) == (0, 2)
    with pytest.raises(StaleDelivery):
        held.ack(old, now=0.0)


def test_credit_is_granted_for_settled_discarded_and_revoked_alike() -> None:
    """R25, and lazily: a quarter of the window, or with acks that go out anyway."""
    held = ledger(credit=8)
    held.receive(push("abcdeff"), now=0.0)
    messages = drain(held)
    sent(held)
    held.revoke([[0, 1, 1, 0, 0]])
    assert sent(held) == []
    held.ack(messages[1], now=0.0)
    ack, credit = sent(held)
    assert isinstance(ack, wire.Ack)
    assert credit == wire.Credit(subscription=3, granted=10)
    held.expire(now=100.0)
    assert sent(held) == [wire.Credit(subscription=3, granted=15)]


def test_a_confirmed_ack_tells_who_was_settled() -> None:
    held = ledger(credit=1000)
    held.receive(push("ab"), now=0.0)
    for message, ticket in zip(drain(held), ("A", "B"), strict=True):
        held.ack(message, now=0.0, ticket=ticket)
    ack = next(frame for frame in sent(held) if isinstance(frame, wire.Ack))
    assert ack.ref is not None
    assert ack.deliveries == [[0, 1, 1, 0, 1]]
    assert held.acks.on_ack_answer(ack.ref, [[0, 1, 1, 1, 1]]) == (["A"], ["B"], [])
    assert held.acks.on_ack_answer(ack.ref, []) == ([], [], [])


def test_a_confirmed_nack_tells_who_was_returned() -> None:
    held = ledger(credit=1000)
    held.receive(push("abc"), now=0.0)
    for message, ticket in zip(drain(held), ("A", "B", None), strict=True):
        held.nack(message, now=0.0, ticket=ticket)
    nack = next(frame for frame in sent(held) if isinstance(frame, wire.Nack))
    assert nack.ref is not None
    assert nack.deliveries == [[0, 1, 1, 0, 2]]
    assert held.on_nack_answer(nack.ref, [[0, 1, 1, 1, 2]]) == (["A"], ["B"], [])
    assert held.on_nack_answer(nack.ref) == ([], [], [])
    assert held.on_session_loss() == []


def test_a_lost_session_names_the_nacks_that_were_to_be_confirmed() -> None:
    held = ledger()
    held.receive(push("abc"), now=0.0)
    first, second, third = drain(held)
    held.nack(first, now=0.0, ticket="A")
    held.nack(second, now=0.0)
    sent(held)
    held.nack(third, now=0.0, reject=True, ticket="C")
    assert sorted(map(str, held.on_session_loss())) == ["A", "C"]
    assert held.on_session_loss() == []


def test_a_lost_connection_takes_everything_and_names_the_unconfirmed() -> None:
    held = ledger()
    held.receive(push("abca"), now=0.0)
    first, second, _ = drain(held)
    held.ack(first, now=0.0, ticket="A")
    sent(held)
    held.ack(second, now=0.0, ticket="B")
    assert sorted(map(str, held.on_session_loss())) == ["A", "B"]
    assert drain(held) == []
    assert sent(held) == []


def test_what_has_gone_is_not_kept_where_nobody_iterates() -> None:
    """P9"""
    held = ledger(lease_s=10.0)
    for number in range(1, 200):
        held.receive(push("-" * 50, number=number, offset=50 * number), now=20.0 * number)
        held.expire(now=20.0 * number + 10)
    assert held.ready == 0
    assert len(held._ready) <= 64


def test_ranges_columns_and_parts_of_delivery_lists() -> None:
    assert ranges_of([3, 1, 2, 7]) == [1, 3, 7, 7]
    assert delivery_list([((0, 1, 1), 4), ((0, 1, 2), 9), ((0, 1, 1), 5)]) == [
        [0, 1, 1, 4, 5],
        [0, 1, 2, 9, 9],
    ]
    many = [[0, 1, push, 1, 1] for push in range(1200)]
    assert [len(part) for part in split_deliveries(many)] == [500, 500, 200]
    assert list(split_deliveries([])) == []


class LedgerMachine(RuleBasedStateMachine):
    """A ledger against a naive model: a list of what is held, in the order of its coming."""

    LEASE_S = 10.0

    def __init__(self) -> None:
        super().__init__()
        self.held = DeliveryLedger(Nobody(), subscription=3, credit=20, lease_s=self.LEASE_S)
        self.model: list[Message] = []  # held, in order
        self.working: list[Message] = []  # of these, handed out
        self.until: dict[int, float] = {}
        self.now = 0.0
        self.number = 0
        self.offset = 0
        self.granted = 20
        self.given = 0

    def forget(self, gone: list[Message]) -> None:
        """These go, and of each key what is behind them (R17)."""
        places = {id(m) for m in gone}
        for message in gone:
            index = self.model.index(message)
            places |= {
                id(m)
                for m in self.model[index:]
                if message.key is not None and m.key == message.key
            }
        self.model = [m for m in self.model if id(m) not in places]
        self.working = [m for m in self.working if id(m) not in places]

    @rule(keys=st.lists(st.sampled_from("abc-"), min_size=1, max_size=6))
    def receive(self, keys: list[str]) -> None:
        keys = keys[: self.granted - self.given]
        if not keys:
            return
        self.broker_knows()
        self.number += 1
        pushed = push(keys, offset=self.offset, number=self.number)
        self.held.receive(pushed, now=self.now)
        self.offset += len(keys)
        self.given += len(keys)
        new = self.held._pushes[0, 1, self.number].deliveries
        self.model += new
        self.until.update({id(m): self.now + usable_s(self.LEASE_S) for m in new})

    def broker_knows(self) -> None:
        """What was returned here is known there: nothing under way is of a closed key."""
        self.held.expire(now=self.now)
        self.expire_model()
        self.send()
        self.held.revoke([[0, 1, 0, 0, self.offset]])

    @rule()
    def hand_out(self) -> None:
        message = self.held.next(now=self.now)
        self.expire_model()
        free = [
            m
            for place, m in enumerate(self.model)
            if m not in self.working
            and (m.key is None or all(e.key != m.key for e in self.model[:place]))
        ]
        if message is None:
            assert free == [], "a message whose key is free is held back"
        else:
            assert message in free, "P3, R17: handed out too early, or gone"
            self.working.append(message)

    def expire_model(self) -> None:
        late = [m for m in self.model if self.until[id(m)] <= self.now]
        if late:
            self.forget(late)

    @precondition(lambda self: self.working)
    @rule(data=st.data(), action=st.sampled_from(["ack", "ack", "ack", "nack", "extend"]))
    def settle(self, data: st.DataObject, action: str) -> None:
        message = data.draw(st.sampled_from(self.working), label="message")
        self.expire_model()
        try:
            if action == "ack":
                self.held.ack(message, now=self.now)
            elif action == "nack":
                self.held.nack(message, now=self.now)
            else:
                self.held.check_held(message, now=self.now)
                self.held.on_extension(message, until=self.now + 15.0)
        except StaleDelivery:
            assert message not in self.working
            return
        assert message in self.working, "a stale delivery was settled"
        if action == "ack":
            self.model.remove(message)
            self.working.remove(message)
        elif action == "nack":
            self.forget([message])
        else:
            self.until[id(message)] = self.now + 15.0

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def revoke(self, data: st.DataObject) -> None:
        message = data.draw(st.sampled_from(self.model), label="message")
        self.expire_model()
        self.held.expire(now=self.now)
        self.held.revoke([[*message.held.place, message.offset, message.offset]])
        if message in self.model:
            self.forget([message])

    @rule(seconds=st.sampled_from([0.5, 4.0, 20.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def expire(self) -> None:
        self.held.expire(now=self.now)
        self.expire_model()
        assert [m for m in self.model if m.state <= State.HANDED] == self.model

    @rule()
    def send(self) -> None:
        for frame in self.held.take(itertools.count(1), now=self.now):
            if isinstance(frame, wire.Credit):
                assert frame.granted > self.granted, "R25: granted only grows"
                self.granted = frame.granted
            elif isinstance(frame, wire.Nack) and frame.ref is not None:
                self.held.on_nack_answer(frame.ref)

    @invariant()
    def holds(self) -> None:
        self.held.check()
        assert self.granted - self.given + (self.held.received - self.held.released) <= 20, "R25"

    def teardown(self) -> None:
        self.held.expire(now=self.now + 1000)
        self.send()
        assert self.granted - self.given > 20 * 3 // 4, "R25: the window has opened again"


LedgerMachine.TestCase.settings = settings(max_examples=1000, stateful_step_count=30)
TestLedger = LedgerMachine.TestCase
