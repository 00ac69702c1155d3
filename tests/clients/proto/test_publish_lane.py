"""The lane: whatever the broker refuses and however often the connection breaks, no message of a
key overtakes another and none is lost (R6, R7, P1, P3, P4)."""

import itertools
from datetime import UTC, datetime
from random import Random

import hypothesis.strategies as st
import msgspec
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tocsin.errors import BrokerError, PublishTimeout, QueueNotFound
from tocsin.proto import wire
from tocsin.proto.publish_lane import (
    BACKOFF_S_MAX,
    LIMITED_S_MAX,
    BatchTicket,
    Bounds,
    Lane,
    Receipt,
)

FOREVER = float("inf")


class Sent(msgspec.Struct):
    """A publish frame as a broker reads it."""

    ref: int
    sequence: int
    resolved: int
    messages: list[str]


class Harness:
    """A lane with what a test needs around it."""

    def __init__(self, bounds: Bounds | None = None, first_sequence: int = 0) -> None:
        self.lane = Lane("orders", rng=Random(1), bounds=bounds, first_sequence=first_sequence)
        self.refs = itertools.count(1)
        self.tickets: list[BatchTicket] = []

    def add(self, text: str, deadline: float = FOREVER) -> BatchTicket:
        """Return one message of one ticket."""
        ticket = BatchTicket(1, lambda _: None)
        self.tickets.append(ticket)
        self.lane.add(wire.encode(text), ticket, 0, deadline)
        return ticket

    def take(self, now: float = 0.0) -> list[Sent]:
        """Return what would be sent."""
        return [
            msgspec.json.decode(frame, type=Sent) for _, frame in self.lane.take(self.refs, now=now)
        ]


def receipts(sent: Sent, *outcomes: wire.PublishAnswer) -> wire.Ok:
    return wire.Ok(ref=sent.ref, receipts=list(outcomes))


def refusal(code: str, retry: bool = True) -> wire.AnswerBody:
    return wire.AnswerBody(code, "", retry)


def test_what_is_put_off_is_counted_once_by_its_reason() -> None:
    """Those that wait behind a refused one count with it; what is sent again does not."""
    harness = Harness()
    for text in "abc":
        harness.add(text)
    (sent,) = harness.take()
    behind = refusal("out_of_sequence")
    harness.lane.on_answer(receipts(sent, [0, 0], refusal("overloaded"), behind), now=0.0)
    assert harness.lane.deferred == {"overloaded": 2}
    for later in (10.0, 20.0):
        (again,) = harness.take(later)
        whole = wire.AnswerBody("rate_limited", "", True).exception()
        harness.lane.on_refusal(again.ref, whole, now=later)
    assert harness.lane.deferred == {"overloaded": 2}
    (again,) = harness.take(100.0)
    harness.lane.on_answer(receipts(again, [0, 1], [0, 2]), now=100.0)
    harness.add("d")
    (again,) = harness.take(100.0)
    harness.lane.on_refusal(
        again.ref, wire.AnswerBody("rate_limited", "", True).exception(), now=100.0
    )
    assert harness.lane.deferred == {"overloaded": 2, "rate_limited": 1}


def test_what_is_published_in_one_turn_travels_in_one_frame() -> None:
    harness = Harness()
    for text in "abc":
        harness.add(text)
    (sent,) = harness.take()
    assert (sent.sequence, sent.messages) == (0, ["a", "b", "c"])


def test_numbers_and_what_is_resolved_begin_at_the_first_sequence() -> None:
    """R6: and the bound of what is in flight counts from there."""
    first = 1_763_726_400_000_000
    harness = Harness(Bounds(in_flight_max=3), first_sequence=first)
    assert (harness.lane.room(), harness.lane.resolved) == (3, first)
    tickets = [harness.add(text) for text in "ab"]
    (sent,) = harness.take()
    assert (sent.sequence, sent.resolved, harness.lane.room()) == (first, first, 1)
    harness.lane.check()
    harness.lane.on_answer(receipts(sent, [0, 0], [0, 1]), now=0.0)
    assert all(isinstance(ticket.outcomes[0], Receipt) for ticket in tickets)
    harness.add("c")
    (sent,) = harness.take()
    assert (sent.sequence, sent.resolved, harness.lane.room()) == (first + 2, first + 2, 2)
    harness.lane.check()


def test_frames_keep_to_the_welcome_and_to_a_size() -> None:
    harness = Harness(Bounds(messages_per_publish_max=2))
    for text in ("a", "b", "c"):
        harness.add(text)
    assert [sent.messages for sent in harness.take()] == [["a", "b"], ["c"]]
    large = "x" * 200_000
    for text in (large, large):
        harness.add(text)
    assert [sent.sequence for sent in harness.take()] == [3, 4]


def test_a_receipt_names_place_and_durability() -> None:
    harness = Harness()
    ticket = harness.add("a")
    (sent,) = harness.take()
    answer = wire.Ok(
        ref=sent.ref,
        receipts=[[4, 120, True]],
        durability=wire.Durability("all", 3),
        id_prefix="q-1-",
    )
    harness.lane.on_answer(answer, now=0.0)
    assert ticket.outcomes == [Receipt("q-1-4-120", 4, 120, True, wire.Durability("all", 3))]
    assert harness.lane.resolved == 1


def test_the_receipt_of_a_scheduled_message_has_a_ticket_and_a_time() -> None:
    harness = Harness()
    nameless, named, early = (harness.add(text) for text in "abc")
    (sent,) = harness.take()
    ticket = wire.AnswerBody(partition=4, ticket="q-1-4-t7", due_unix_ms=1_764_000_000_001)
    again = wire.AnswerBody(partition=4, ticket="q-1-4-t2", duplicate=True)
    answer = wire.Ok(
        ref=sent.ref,
        receipts=[ticket, again, [4, 120]],
        durability=wire.Durability("all", 3),
        id_prefix="q-1-",
    )
    harness.lane.on_answer(answer, now=0.0)
    first, second, third = (receipt_of(one) for one in (nameless, named, early))
    assert (first.id, first.partition, first.offset) == ("q-1-4-t7", 4, None)
    assert first.due == datetime(2025, 11, 24, 16, 0, 0, 1000, tzinfo=UTC)
    assert (first.is_scheduled, first.duplicate) == (True, False)
    assert (second.ticket, second.due, second.duplicate) == ("q-1-4-t2", None, True)
    assert (third.is_scheduled, third.ticket, third.due) == (False, None, None)
    assert b"ticket" not in msgspec.json.encode(third)
    assert harness.lane.resolved == 3


def receipt_of(ticket: BatchTicket) -> Receipt:
    """Return the only outcome of a publish."""
    (outcome,) = ticket.outcomes
    assert isinstance(outcome, Receipt)
    return outcome


def test_an_answer_without_meaning_is_asked_for_again() -> None:
    harness = Harness()
    ticket = harness.add("a")
    (sent,) = harness.take()
    harness.lane.on_answer(receipts(sent, wire.AnswerBody()), now=0.0)
    assert ticket.outcomes == [None]
    (again,) = harness.take(100.0)
    assert again.sequence == sent.sequence


def test_a_final_refusal_ends_only_its_message() -> None:
    harness = Harness()
    first, second = harness.add("a"), harness.add("b")
    (sent,) = harness.take()
    harness.lane.on_answer(receipts(sent, refusal("message_too_large", False), [0, 0]), now=0.0)
    assert isinstance(first.outcomes[0], BrokerError)
    assert isinstance(second.outcomes[0], Receipt)
    assert harness.lane.next_deadline() is None


def test_what_waits_for_an_earlier_message_is_counted_with_it_whichever_answer_comes_first() -> (
    None
):
    """A whole frame is refused at once, the one before it when what it stored is durable."""
    harness = Harness(Bounds(messages_per_publish_max=2))
    for text in "abcd":
        harness.add(text)
    first, second = harness.take()
    harness.lane.on_refusal(second.ref, BrokerError("out_of_sequence", retry=True), now=0.0)
    assert harness.lane.deferred == {}
    harness.lane.on_answer(receipts(first, [0, 0], refusal("rate_limited")), now=0.0)
    assert harness.lane.deferred == {"rate_limited": 3}


def test_a_refused_frame_ends_all_its_messages() -> None:
    harness = Harness()
    ticket = harness.add("a")
    (sent,) = harness.take()
    harness.lane.on_refusal(sent.ref, QueueNotFound("queue_not_found"), now=0.0)
    assert isinstance(ticket.outcomes[0], QueueNotFound)


def test_nothing_new_is_sent_before_the_refused_is_sent_again() -> None:
    """R7: the refused one first, what came behind it behind it, and only then what is new."""
    harness = Harness()
    for text in "abc":
        harness.add(text)
    (first,) = harness.take()
    harness.add("d")
    (second,) = harness.take()
    harness.lane.on_answer(
        receipts(first, [0, 0], refusal("queue_full"), refusal("out_of_sequence")), now=0.0
    )
    harness.add("e")
    assert harness.take(now=100.0) == []  # "d" is still in flight
    harness.lane.on_answer(receipts(second, refusal("out_of_sequence")), now=100.0)
    assert harness.take(now=0.0) == []  # the backoff
    again = harness.take(now=100.0)
    assert [(sent.sequence, sent.messages) for sent in again] == [(1, ["b", "c", "d", "e"])]
    assert again[0].resolved == 1


def test_backoff_grows_and_is_bounded_and_the_brokers_advice_counts() -> None:
    harness = Harness()
    harness.add("a")
    now, pauses = 0.0, []
    for _ in range(12):
        (sent,) = harness.take(now)
        harness.lane.on_answer(receipts(sent, refusal("overloaded")), now=now)
        due = harness.lane.next_deadline()
        assert due is not None
        pauses.append(due - now)
        now = due
    assert pauses[0] < 0.1
    assert 0.5 * BACKOFF_S_MAX <= pauses[-1] <= 1.5 * BACKOFF_S_MAX
    (sent,) = harness.take(now)
    advice = wire.AnswerBody("overloaded", "", True, 60.0)
    harness.lane.on_answer(receipts(sent, advice), now=now)
    assert harness.lane.next_deadline() == now + 60.0


def limited(after_s: float) -> BrokerError:
    return BrokerError("rate_limited", retry=True, retry_after_s=after_s)


def test_over_a_limit_one_frame_at_a_time_goes_when_the_broker_has_said() -> None:
    harness = Harness(Bounds(messages_per_publish_max=2))
    for text in "abcdef":
        harness.add(text)
    first, second, third = harness.take()
    lane = harness.lane
    lane.on_refusal(first.ref, limited(2.0), now=0.0)
    for sent in (second, third):
        lane.on_refusal(sent.ref, BrokerError("out_of_sequence", retry=True), now=0.0)
    harness.add("g")
    due = lane.next_deadline()
    assert due is not None
    assert 2.0 <= due <= 2.2  # never sooner, and not all at once
    assert harness.take(1.99) == []
    (sent,) = harness.take(due)
    assert (sent.sequence, sent.messages) == (0, ["a", "b"])
    assert harness.take(due) == []
    lane.on_answer(receipts(sent, [0, 0], [0, 1]), now=due)
    (sent,) = harness.take(due)
    assert (sent.sequence, sent.messages) == (2, ["c", "d"])
    lane.on_refusal(sent.ref, limited(1.0), now=due)
    again = lane.next_deadline()
    assert again is not None
    assert due + 1.0 <= again <= due + 1.1 + 1e-9  # it had gone well in between
    for expected in (["c", "d"], ["e", "f"], ["g"]):
        (sent,) = harness.take(again)
        assert sent.messages == expected
        lane.on_answer(receipts(sent, *([0, 0] for _ in expected)), now=again)
    assert lane.unanswered == 0
    for text in "hijk":
        harness.add(text)
    assert len(harness.take(again)) == 2  # as ever


def test_what_is_over_a_limit_in_a_frame_comes_again_in_frames_of_what_passes_at_once() -> None:
    harness = Harness()
    for text in "abcdefgh":
        harness.add(text)
    (sent,) = harness.take()
    over = wire.AnswerBody("rate_limited", "", True, 2.0)
    harness.lane.on_answer(receipts(sent, [0, 0], [0, 1], [0, 2], *[over] * 5), now=0.0)
    due = harness.lane.next_deadline()
    assert due is not None
    assert 2.0 <= due <= 2.2
    (sent,) = harness.take(due)
    assert (sent.sequence, sent.messages) == (3, ["d", "e", "f"])
    assert harness.take(due) == []
    harness.lane.on_answer(receipts(sent, [0, 3], [0, 4], [0, 5]), now=due)
    (sent,) = harness.take(due)
    assert (sent.sequence, sent.messages) == (6, ["g", "h"])
    harness.lane.check()


def test_who_comes_in_time_and_is_refused_asks_for_less_and_later() -> None:
    """Others were faster: small frames get through where large ones never would."""
    harness = Harness()
    for _ in range(8):
        harness.add("a")
    now, sizes, pauses = 0.0, [], []
    for _ in range(6):
        (sent,) = harness.take(now)
        sizes.append(len(sent.messages))
        harness.lane.on_refusal(sent.ref, limited(1.0), now=now)
        due = harness.lane.next_deadline()
        assert due is not None
        pauses.append(due - now)
        now = due
    assert sizes == [8, 8, 4, 2, 1, 1]
    assert pauses[0] <= 1.1
    assert 1.8 <= pauses[-1] <= 2.4
    (sent,) = harness.take(now)
    harness.lane.on_refusal(sent.ref, limited(1e9), now=now)
    due = harness.lane.next_deadline()
    assert due is not None
    assert due - now <= LIMITED_S_MAX + 1.5 * BACKOFF_S_MAX


def test_a_lost_connection_sends_everything_again_at_once_in_order() -> None:
    harness = Harness()
    for text in "abc":
        harness.add(text)
    harness.take()
    harness.lane.on_disconnect()
    harness.add("d")
    (sent,) = harness.take()
    assert (sent.sequence, sent.messages) == (0, ["a", "b", "c", "d"])


def test_an_answer_of_an_earlier_connection_says_nothing() -> None:
    harness = Harness()
    ticket = harness.add("a")
    (sent,) = harness.take()
    harness.lane.on_disconnect()
    harness.lane.on_answer(receipts(sent, [0, 0]), now=0.0)
    assert ticket.outcomes == [None]


def test_a_late_message_is_given_up_and_says_why() -> None:
    harness = Harness()
    late, waiting = harness.add("a", deadline=5.0), harness.add("b", deadline=50.0)
    (sent,) = harness.take()
    harness.lane.on_answer(
        receipts(sent, refusal("queue_full"), refusal("out_of_sequence")), now=0.0
    )
    harness.lane.expire(now=5.0)
    outcome = late.outcomes[0]
    assert isinstance(outcome, PublishTimeout)
    assert outcome.last is not None
    assert outcome.last.code == "queue_full"
    assert waiting.outcomes == [None]
    (sent,) = harness.take(now=5.0)
    assert (sent.sequence, sent.resolved) == (1, 1)


def test_there_is_room_for_as_many_as_the_broker_keeps_apart() -> None:
    """R6: sequences between resolved and the newest are bounded, P9: so is memory."""
    harness = Harness(Bounds(in_flight_max=2))
    harness.add("a")
    harness.add("b")
    assert harness.lane.room() == 0
    (sent,) = harness.take()
    harness.lane.on_answer(receipts(sent, refusal("unknown"), [0, 1]), now=0.0)
    assert harness.lane.room() == 0  # the oldest one counts, not their number
    (sent,) = harness.take(now=1.0)
    harness.lane.on_answer(receipts(sent, [0, 2]), now=1.0)
    assert harness.lane.room() == 2


class WeakBroker:
    """Partitions with dedup and R7 in its weakest form: what stands behind the lowest refused
    sequence is refused; how many of those there were is forgotten."""

    def __init__(self) -> None:
        self.logs: dict[int, list[int]] = {0: [], 1: []}
        self.holes: dict[int, int] = {}
        self.hole: int | None = None
        """The first frame that was over a limit: what stands behind it is refused whole."""

    def limit(self, sent: Sent, is_over: bool) -> BrokerError | None:
        """Why the whole frame is refused."""
        if self.hole is not None and sent.resolved > self.hole:
            self.hole = None
        if self.hole is not None and sent.sequence > self.hole:
            return BrokerError("out_of_sequence", retry=True)
        if is_over:
            self.hole = sent.sequence
            return BrokerError("rate_limited", retry=True, retry_after_s=0.5)
        self.hole = None
        return None

    def process(self, sent: Sent, plan: list[str]) -> list[wire.PublishAnswer]:
        """Answers for a frame; `plan` says what goes wrong, message by message."""
        answers: list[wire.PublishAnswer] = []
        for place, text in enumerate(sent.messages):
            sequence = sent.sequence + place
            partition = int(text.split()[0]) % 2
            log, hole = self.logs[partition], self.holes.get(partition)
            if hole is not None and sent.resolved > hole:
                del self.holes[partition]
                hole = None
            wrong = plan[place % len(plan)] if plan else "store"
            if hole is not None and sequence > hole:
                answers.append(refusal("out_of_sequence"))
                continue
            if hole == sequence:
                del self.holes[partition]
            if sequence in log:
                answers.append([partition, log.index(sequence), True])
                continue
            if text.endswith("bad"):
                answers.append(refusal("message_too_large", False))
                continue
            if wrong in ("store", "stored but unknown"):
                log.append(sequence)
            if wrong == "store":
                answers.append([partition, len(log) - 1])
            else:
                self.holes[partition] = sequence
                answers.append(refusal("queue_full" if wrong == "refuse" else "unknown"))
        return answers


PLANS = st.lists(
    st.sampled_from(["store", "store", "store", "refuse", "unknown", "stored but unknown"]),
    max_size=6,
)


class LaneMachine(RuleBasedStateMachine):
    """A lane, a wire with frames under way in both directions, and a weak broker."""

    def __init__(self) -> None:
        super().__init__()
        self.harness = Harness(Bounds(messages_per_publish_max=4, in_flight_max=20))
        self.broker = WeakBroker()
        self.out: list[Sent] = []
        self.back: list[tuple[Sent, wire.Ok | BrokerError]] = []
        self.now = 0.0
        self.keys: list[int] = []

    @rule(key=st.integers(0, 3), count=st.integers(1, 5), patient=st.booleans(), bad=st.booleans())
    def publish(self, key: int, count: int, patient: bool, bad: bool) -> None:
        for _ in range(min(count, self.harness.lane.room())):
            text = f"{key} bad" if bad and count == 1 else f"{key}"
            self.harness.add(text, FOREVER if patient else self.now + 5.0)
            self.keys.append(key)

    @rule()
    def send(self) -> None:
        self.out += self.harness.take(self.now)

    @precondition(lambda self: self.out)
    @rule(plan=PLANS, is_over=st.booleans())
    def process(self, plan: list[str], is_over: bool) -> None:
        sent = self.out.pop(0)
        refused = self.broker.limit(sent, is_over)
        answer = refused or receipts(sent, *self.broker.process(sent, plan))
        self.back.append((sent, answer))

    @precondition(lambda self: self.back)
    @rule()
    def answer(self) -> None:
        sent, answer = self.back.pop(0)
        if isinstance(answer, BrokerError):
            self.harness.lane.on_refusal(sent.ref, answer, now=self.now)
        else:
            self.harness.lane.on_answer(answer, now=self.now)

    @rule()
    def break_connection(self) -> None:
        self.out.clear()
        self.back.clear()
        self.harness.lane.on_disconnect()

    @rule(seconds=st.sampled_from([0.01, 1.0, 7.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.harness.lane.expire(now=self.now)

    @invariant()
    def holds(self) -> None:
        self.harness.lane.check()
        for log in self.broker.logs.values():
            assert len(log) == len(set(log)), "P4: stored twice"
            for key in range(4):
                stored = [sequence for sequence in log if self.keys[sequence] == key]
                assert stored == sorted(stored), "P3: a message of a key has overtaken another"

    def teardown(self) -> None:
        for _ in range(50):
            if not self.harness.lane.unanswered:
                break
            self.now += 10.0
            self.out += self.harness.take(self.now)
            while self.out:
                self.process([], is_over=False)
            while self.back:
                self.answer()
            self.harness.lane.check()
        assert self.harness.lane.unanswered == 0, "P1: a message without an outcome"
        assert self.harness.lane.resolved == len(self.keys)
        for sequence, ticket in enumerate(self.harness.tickets):
            outcome = ticket.outcomes[0]
            assert outcome is not None
            if isinstance(outcome, Receipt):
                assert outcome.offset is not None
                assert self.broker.logs[outcome.partition][outcome.offset] == sequence, "P1"
            elif not isinstance(outcome, PublishTimeout):
                assert all(sequence not in log for log in self.broker.logs.values()), "P2"


LaneMachine.TestCase.settings = settings(max_examples=1000, stateful_step_count=30)
TestLane = LaneMachine.TestCase
