"""The ledger and a broker with frames under way in both directions: whatever crosses whatever, a
message of a key is handed out only when all earlier ones of it have been acked (P3, R17), credit
is never overdrawn (R25), and in the end everything has been settled (P6)."""

import itertools
from collections import deque

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tocsin.errors import StaleDelivery
from tocsin.proto import wire
from tocsin.proto.delivery_ledger import DeliveryLedger
from tocsin.proto.message import Message

from tests.clients.proto.test_delivery_ledger import Nobody, drain, ledger, push, sent

LEASE_S = 10.0
CREDIT = 12


def test_what_crosses_a_nack_is_not_handed_out() -> None:
    """R17: [m is nacked; m+1, pushed before the broker has read the nack, is handled; m comes
    again.]"""
    held = ledger()
    held.receive(push("a"), now=0.0)
    (first,) = drain(held)
    held.nack(first, now=0.0)
    nack = next(frame for frame in sent(held) if isinstance(frame, wire.Nack))
    assert nack.ref is not None
    held.receive(push("aba", offset=1, number=2), now=0.0)
    assert [m.key for m in drain(held)] == ["b"]
    held.on_nack_answer(nack.ref)
    held.receive(push("aa", offset=0, number=3, attempt=2), now=0.0)
    assert [m.offset for m in drain(held)] == [0]


def test_the_returned_message_itself_opens_its_key() -> None:
    held = ledger()
    held.receive(push("a"), now=0.0)
    (first,) = drain(held)
    held.nack(first, now=0.0)
    held.receive(push("a", number=2, attempt=2), now=0.0)
    assert [m.attempt for m in drain(held)] == [2]


def test_what_crosses_the_end_of_a_lease_is_not_handed_out() -> None:
    """R17: the client's deadline is before the broker's; between them it still pushes."""
    held = ledger(lease_s=10.0)
    held.receive(push("a"), now=0.0)
    assert len(drain(held)) == 1
    held.expire(now=9.5)
    held.receive(push("ab", offset=1, number=2), now=9.5)
    assert [m.key for m in drain(held, now=9.5)] == ["b"]
    held.revoke([[0, 1, 1, 0, 0], [0, 1, 2, 1, 1]])
    held.receive(push("aa", number=3, attempt=2), now=10.0)
    assert [m.offset for m in drain(held, now=10.0)] == [0]


@pytest.mark.parametrize("last", [3, 300])
def test_a_revoked_range_opens_every_key_in_it(last: int) -> None:
    held = ledger(lease_s=10.0)
    held.receive(push("abcd"), now=0.0)
    held.expire(now=9.0)
    held.receive(push("abcd", offset=10, number=2), now=9.0)
    assert drain(held, now=9.0) == []
    held.revoke([[0, 1, 1, 0, last]])
    held.receive(push("abcd", offset=20, number=3), now=9.0)
    assert len(drain(held, now=9.0)) == 4


class Broker:
    """A partition of a group, without backoff: by R17 and R21, as naive as can be."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.settled: set[int] = set()
        self.flying: dict[int, tuple[int, float]] = {}  # offset -> (push, lease until)
        self.attempts: dict[int, int] = {}
        self.returned: set[int] = set()
        self.granted = CREDIT
        self.given = 0
        self.number = 0

    def push(self, count: int, now: float) -> wire.Push | None:
        """The next run that may be given."""
        run: list[int] = []
        for offset, key in enumerate(self.keys):
            if offset in self.settled or offset in self.flying:
                if run:
                    break
                continue
            gated = any(
                earlier in self.returned and earlier not in run
                for earlier in range(offset)
                if self.keys[earlier] == key
            )
            if gated or (run and self.attempt(offset) != self.attempt(run[0])):
                if run:
                    break
                continue
            if len(run) == count or self.given + len(run) >= self.granted:
                break
            run.append(offset)
        if not run:
            return None
        attempt = self.attempt(run[0])
        self.number += 1
        self.given += len(run)
        for offset in run:
            self.flying[offset] = (self.number, now + LEASE_S)
            self.returned.discard(offset)
            self.attempts[offset] = self.attempt(offset)
        return push(
            [self.keys[offset] for offset in run],
            offset=run[0], number=self.number, attempt=attempt,
        )  # fmt: skip

    def attempt(self, offset: int) -> int:
        return self.attempts.get(offset, 0) + 1

    def give_back(self, offset: int) -> wire.Revoked | None:
        """It returns, and with it what is in flight behind it."""
        gone = [
            later
            for later in sorted(self.flying)
            if later >= offset and self.keys[later] == self.keys[offset]
        ]
        places = [[0, 1, self.flying[later][0], later, later] for later in gone]
        for later in gone:
            del self.flying[later]
            self.returned.add(later)
        return wire.Revoked(subscription=3, deliveries=places) if places else None

    def read(self, frame: wire.SentFrame) -> list[wire.ReceivedFrame]:
        """Return what one frame of the client leads to."""
        out: list[wire.ReceivedFrame] = []
        if isinstance(frame, wire.Credit):
            self.granted = max(self.granted, frame.granted)
        elif isinstance(frame, wire.Ack | wire.Nack):
            for _, _, number, *pairs in frame.deliveries:
                for first, last in zip(pairs[::2], pairs[1::2], strict=True):
                    for offset in range(first, last + 1):
                        if self.flying.get(offset, (None,))[0] != number:
                            continue  # stale
                        if isinstance(frame, wire.Ack):
                            del self.flying[offset]
                            self.settled.add(offset)
                        else:
                            revoked = self.give_back(offset)
                            out += [revoked] if revoked else []
            if isinstance(frame, wire.Nack) and frame.ref is not None:
                out.append(wire.Ok(ref=frame.ref))
        return out

    def expire(self, now: float) -> list[wire.ReceivedFrame]:
        """Leases that are over."""
        out: list[wire.ReceivedFrame] = []
        for offset in sorted(self.flying):
            if offset in self.flying and self.flying[offset][1] <= now:
                revoked = self.give_back(offset)
                out += [revoked] if revoked else []
        return out


class CrossingMachine(RuleBasedStateMachine):
    """A ledger, a broker, and two wires."""

    def __init__(self) -> None:
        super().__init__()
        self.broker = Broker()
        self.held = DeliveryLedger(Nobody(), subscription=3, credit=CREDIT, lease_s=LEASE_S)
        self.refs = itertools.count(1)
        self.there: deque[wire.SentFrame] = deque()
        self.back: deque[wire.ReceivedFrame] = deque()
        self.now = 0.0
        self.working: list[Message] = []
        self.acked: set[int] = set()

    @rule(keys=st.text("aabc-", min_size=1, max_size=6))
    def publish(self, keys: str) -> None:
        self.broker.keys += [key if key != "-" else f"k{len(self.broker.keys)}" for key in keys]

    @rule(count=st.integers(1, 4))
    def give(self, count: int) -> None:
        pushed = self.broker.push(count, self.now)
        if pushed is not None:
            self.back.append(pushed)

    @precondition(lambda self: self.back)
    @rule()
    def arrive(self) -> None:
        frame = self.back.popleft()
        if isinstance(frame, wire.Push):
            self.held.receive(frame, now=self.now)
        elif isinstance(frame, wire.Revoked):
            self.held.revoke(frame.deliveries)
        elif isinstance(frame, wire.Ok):
            self.held.on_nack_answer(frame.ref)

    @rule()
    def send(self) -> None:
        self.there += self.held.take(self.refs, now=self.now)

    @precondition(lambda self: self.there)
    @rule()
    def reach(self) -> None:
        self.back += self.broker.read(self.there.popleft())

    @rule()
    def hand_out(self) -> None:
        message = self.held.next(now=self.now)
        if message is None:
            return
        earlier = {
            offset for offset in range(message.offset) if self.broker.keys[offset] == message.key
        }
        assert earlier <= self.acked, "P3: an earlier message of the key has not been acked"
        self.working.append(message)

    @precondition(lambda self: self.working)
    @rule(data=st.data(), ack=st.sampled_from([True, True, False]))
    def settle(self, data: st.DataObject, ack: bool) -> None:
        place = data.draw(st.integers(0, len(self.working) - 1), label="place")
        message = self.working.pop(place)
        try:
            if ack:
                self.held.ack(message, now=self.now)
                self.acked.add(message.offset)
            else:
                self.held.nack(message, now=self.now)
        except StaleDelivery:
            pass

    @rule(seconds=st.sampled_from([0.5, 4.0, 9.2]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def expire_there(self) -> None:
        self.back += self.broker.expire(self.now)

    @rule()
    def expire_here(self) -> None:
        self.held.expire(now=self.now)

    @invariant()
    def holds(self) -> None:
        self.held.check()
        assert self.broker.granted - self.broker.given >= 0, "R25"
        assert self.held.received - self.held.released <= CREDIT, "R25: more is held than granted"

    def teardown(self) -> None:
        for turn in range(200):
            if len(self.broker.settled) == len(self.broker.keys):
                return
            if turn % 20 == 19:
                self.now += 11.0
            self.back += self.broker.expire(self.now)
            self.give(4)
            while self.back:
                self.arrive()
            while (message := self.held.next(now=self.now)) is not None:
                self.held.ack(message, now=self.now)
            self.send()
            while self.there:
                self.reach()
        raise AssertionError("P6: something is never settled")


CrossingMachine.TestCase.settings = settings(max_examples=1000, stateful_step_count=30)
TestCrossing = CrossingMachine.TestCase
