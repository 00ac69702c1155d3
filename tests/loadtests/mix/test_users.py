"""What users say and note, turn by turn, against a broker that says what a test has it say."""

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import msgspec
import pytest

from loadtests.mix.calls import Frame, Gone, decode, encode
from loadtests.mix.consumers import LEAVE_NS, Consumer, Reader
from loadtests.mix.coordination import Phase
from loadtests.mix.ledger import Stamp, stamp_body
from loadtests.mix.plan import Plan, manned
from loadtests.mix.process_context import NS, ProcessContext
from loadtests.mix.publishers import SocketPublisher
from loadtests.mix.sessions import PAUSE_S, PAUSE_S_MAX
from loadtests.mix.users import DAY, Day, Storm

COUNTS = {"websocket": 1, "worker": 1, "reader": 1, "storm": 1, "day": 1}


class World:
    """A clock that stands unless a user sleeps or waits."""

    def __init__(self) -> None:
        self.at_ns = 1_000 * NS
        self.lines: list[Line] = []
        self.is_down = False
        """Nobody can connect."""
        self.answers: Callable[[Line, dict[str, Any]], list[object]] = answer_ok
        plan = Plan("r", ["http://b"], COUNTS, 1, 100.0, 60.0, 0.0, 256, 1, self.at_ns)
        self.counted: list[tuple[str, str, int | None, str]] = []
        """What Locust would show: kind, name, how long it took, why it failed."""
        self.context = ProcessContext(
            plan, 0, told=self.told, now_ns=lambda: self.at_ns, sleep=self.sleep
        )
        self.context.enter(Phase("measure", self.at_ns))

    def sleep(self, seconds: float) -> None:
        self.at_ns += int(seconds * NS)

    def told(self, kind: str, name: str, took_ns: int | None, size: int, error: str = "") -> None:
        self.counted.append((kind, name, took_ns, error))

    def counts(self) -> Counter[tuple[str, str]]:
        """By kind, and why it failed."""
        return Counter((kind, error) for kind, _, _, error in self.counted)

    def line(self, url: str, token: str | None) -> "Line":
        self.lines.append(Line(self))
        return self.lines[-1]

    @property
    def said(self) -> list[dict[str, Any]]:
        """Over all connections."""
        return [frame for line in self.lines for frame in line.said]

    def spoke(self, kind: str) -> list[dict[str, Any]]:
        return [frame for frame in self.said if frame["type"] == kind]


class Line:
    """A connection, as Transport has it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.said: list[dict[str, Any]] = []
        self.coming: list[Frame] = []
        self.is_gone = False

    def open(self, hello: dict[str, object]) -> Frame:
        if self._world.is_down:
            raise Gone("127.0.0.1:1 refused", "refused")
        self.said.append(dict(hello))
        return Frame("welcome")

    def send(self, frames: Sequence[object]) -> None:
        if self.is_gone:
            raise Gone("cut")
        for frame in frames:
            said = msgspec.json.decode(encode(frame))
            self.said.append(said)
            self.comes(*self._world.answers(self, said))

    def comes(self, *frames: object) -> None:
        self.coming += [one for frame in frames for one in decode(encode(frame))]

    def receive(self, timeout_s: float) -> list[Frame]:
        if self.is_gone:
            raise Gone("cut")
        if not self.coming:
            self._world.sleep(timeout_s)
        found, self.coming = self.coming, []
        return found

    def close(self) -> None:
        self.is_gone = True

    def cut(self) -> None:
        self.is_gone = True


def answer_ok(line: Line, said: dict[str, Any]) -> list[object]:
    """Return what a broker in peace says."""
    if "ref" not in said:
        return []
    ok: dict[str, object] = {"type": "ok", "ref": said["ref"]}
    if said["type"] == "publish":
        ok["receipts"] = [[0, 0] for _ in said["messages"]]
    elif said["type"] == "subscribe" and "keys" in said:
        ok |= {"queue_id": "q1", "positions": [{"partition": 0, "generation": 3, "from": 0}]}
    return [ok]


@pytest.fixture
def world() -> World:
    return World()


def stamp(number: int, key: str = "k0001") -> Stamp:
    return Stamp(f"websocket-9.0/{key}", number, 1_000 * NS)


def push(*numbers: int, offset: int = 0, push: int = 1, key: str = "k0001") -> dict[str, object]:
    """Of messages with these numbers in their line, at consecutive offsets."""
    messages = [
        {"key": key, "body": msgspec.Raw(stamp_body(stamp(number, key), 256))} for number in numbers
    ]
    return {"type": "push", "subscription": 1, "partition": 0, "epoch": 1, "push": push,
            "offset": offset, "messages": messages}  # fmt: skip


def consumer(world: World, nack_chance: float = 0.0) -> tuple[Consumer, Line]:
    user = Consumer(world.context, "worker", world.line, nack_chance=nack_chance)
    user.turn(0.0)
    return user, world.lines[-1]


def settled(world: World) -> list[int]:
    """The numbers of the first line that the group has settled."""
    (one,) = (s for s in world.context.ledger.subscribers.values() if s.queue.endswith("worker-0"))
    return list(one.lines["websocket-9.0/k0001"].settled)


# --- consumers


def test_a_consumer_acks_all_that_it_was_given_and_grants_anew_for_it(world: World) -> None:
    user, line = consumer(world)
    numbers = range(1, 101)
    line.comes(push(*numbers))
    user.turn()
    user.turn()
    assert settled(world) == list(numbers)
    named = sorted(range_ for frame in world.spoke("ack") for range_ in frame["deliveries"][0][3:])
    assert (named[0], named[-1]) == (0, 99)
    assert len(world.spoke("ack")) == 2
    assert [frame["granted"] for frame in world.spoke("credit")] == [300]
    assert not world.context.ledger.violations


def test_what_is_stale_is_not_settled_and_may_come_again(world: World) -> None:
    user, line = consumer(world)
    world.answers = lambda line, said: [
        {"type": "ok", "ref": said["ref"], "settled": 0, "stale": said["deliveries"]}
    ] if said["type"] == "ack" else []  # fmt: skip
    line.comes(push(1, 2))
    user.turn()
    user.turn()
    world.answers = answer_ok
    line.comes(push(1, 2, push=2))
    user.turn()
    user.turn()
    assert settled(world) == [1, 2]
    assert world.context.ledger.counts["given again"] == 2
    assert not world.context.ledger.violations


def test_a_broker_that_gives_what_is_settled_is_found(world: World) -> None:
    user, line = consumer(world)
    for number in (1, 2):
        line.comes(push(1, push=number))
        user.turn()
        user.turn()
    # Given again after its ack, and settled a second time.
    assert world.context.ledger.violations == {"repeated": 1, "settled_twice": 1}


def test_behind_a_message_that_it_returns_a_consumer_settles_nothing_of_the_key(
    world: World,
) -> None:
    user, line = consumer(world, nack_chance=1.0)
    world.answers = lambda line, said: []
    line.comes(push(1, 2))
    user.turn()
    line.comes(push(3, offset=2, push=2), push(1, offset=9, push=3, key="k0002"))
    user.turn()
    assert [frame["deliveries"] for frame in world.spoke("nack")] == [
        [[0, 1, 1, 0, 0]], [[0, 1, 3, 9, 9]]
    ]  # fmt: skip
    assert world.spoke("ack") == []
    world.answers = answer_ok
    user._nack_chance = 0.0
    line.comes({"type": "revoked", "subscription": 1, "deliveries": [[0, 1, 1, 1, 1],
                                                                     [0, 1, 2, 2, 2]]})  # fmt: skip
    line.comes(*({"type": "ok", "ref": frame["ref"]} for frame in world.spoke("nack")))
    line.comes(push(1, 2, 3, push=4))
    user.turn()
    user.turn()
    assert settled(world) == [1, 2, 3]
    assert not world.context.ledger.violations


def test_what_it_returned_may_come_again_before_the_answer_and_opens_its_key(
    world: World,
) -> None:
    user, line = consumer(world, nack_chance=1.0)
    world.answers = lambda line, said: []
    line.comes(push(1))
    user.turn()
    user._nack_chance, world.answers = 0.0, answer_ok
    line.comes(push(1, 2, push=2))
    line.comes({"type": "ok", "ref": world.spoke("nack")[0]["ref"]})
    user.turn()
    user.turn()
    assert settled(world) == [1, 2]
    assert user._stream.held == 0
    assert not world.context.ledger.violations


@pytest.mark.parametrize("counts", [True, False])
def test_what_was_revoked_under_its_ack_may_come_again_or_have_counted(
    world: World, counts: bool
) -> None:
    user, line = consumer(world)
    world.answers = lambda line, said: []
    line.comes(push(1))
    user.turn()
    (ack,) = world.spoke("ack")
    line.comes({"type": "revoked", "subscription": 1, "deliveries": ack["deliveries"]})
    world.answers = answer_ok
    if not counts:
        line.comes(push(1, push=2))
    stale = [] if counts else ack["deliveries"]
    line.comes({"type": "ok", "ref": ack["ref"], "settled": int(counts), "stale": stale})
    user.turn()
    user.turn()
    assert settled(world) == [1]
    assert user._stream.held == 0
    assert not world.context.ledger.violations


def test_a_lost_connection_is_opened_anew_and_what_it_held_may_come_again(world: World) -> None:
    user, line = consumer(world)
    world.answers = lambda line, said: answer_ok(line, said) if said["type"] != "ack" else []
    line.comes(push(1, 2))
    user.turn()
    line.cut()
    user.turn()
    user.turn()
    world.answers = answer_ok
    world.lines[-1].comes(push(1, 2, push=7))
    user.turn()
    user.turn()
    assert len(world.lines) == 2
    assert settled(world) == [1, 2]
    ledger = world.context.ledger
    assert (ledger.counts["sockets lost"], ledger.counts["given again"]) == (1, 2)
    assert ledger.latencies["comeback worker"].count == 1
    assert not ledger.violations


def test_an_ack_that_was_refused_is_said_again_and_an_unknown_one_is_over(world: World) -> None:
    user, line = consumer(world)
    codes = iter(["overloaded", "unknown"])

    def refused(line: Line, said: dict[str, Any]) -> list[object]:
        return [{"type": "error", "ref": said["ref"], "code": next(codes), "retry": True}]

    world.answers = refused
    line.comes(push(1))
    for _ in range(3):
        user.turn()
    assert len(world.spoke("ack")) == 2
    assert settled(world) == []
    world.answers = answer_ok
    line.comes(push(1, push=2))
    user.turn()
    user.turn()
    assert settled(world) == [1]
    assert not world.context.ledger.violations


def test_who_is_slow_takes_its_time_over_each_message(world: World) -> None:
    user = Consumer(world.context, "worker", world.line, work_s=0.25, nack_chance=0.0)
    user.turn(0.0)
    began_ns = world.at_ns
    world.lines[-1].comes(push(1, 2, 3, 4))
    user.turn()
    assert world.at_ns - began_ns == NS


def test_each_message_is_counted_once_when_it_is_given_settled_or_returned(world: World) -> None:
    user, line = consumer(world)
    line.comes(push(1, 2, 3))
    user.turn()
    user.turn()
    user._nack_chance = 1.0
    line.comes(push(4, offset=3, push=2))
    user.turn()
    user.turn()
    assert world.counts() == {("open", ""): 1, ("delivery", ""): 4, ("settle", ""): 3,
                              ("nack", ""): 1}  # fmt: skip
    ledger = world.context.ledger
    assert (ledger.counts["given"], ledger.counts["settled"], ledger.counts["nacked"]) == (4, 3, 1)


def test_what_is_stale_is_no_settlement_and_no_failure(world: World) -> None:
    user, line = consumer(world)
    world.answers = lambda line, said: [
        {"type": "ok", "ref": said["ref"], "settled": 0, "stale": said["deliveries"]}
    ] if said["type"] == "ack" else []  # fmt: skip
    line.comes(push(1, 2))
    user.turn()
    user.turn()
    assert world.counts() == {("open", ""): 1, ("delivery", ""): 2}


def test_what_waited_for_the_first_consumer_says_nothing_of_the_brokers_latency(
    world: World,
) -> None:
    user, line = consumer(world)
    world.sleep(3.0)
    due_ns = (world.at_ns - 4 * NS, world.at_ns)
    bodies = [stamp_body(Stamp(f"p{at}/k0001", 1, at), 256) for at in due_ns]
    messages = [{"key": "k0001", "body": msgspec.Raw(body)} for body in bodies]
    line.comes(push(1, 2) | {"messages": messages})
    world.sleep(1.0)
    user.turn()
    took = [took_ns for kind, _, took_ns, _ in world.counted if kind == "delivery"]
    assert took == [None, NS]
    assert world.context.ledger.latencies["delivery worker"].count == 1


def test_a_lost_session_and_each_attempt_in_vain_is_a_failure_and_the_pauses_grow(
    world: World,
) -> None:
    user, line = consumer(world)
    line.cut()
    world.is_down = True
    slept = []
    for _ in range(40):
        began_ns = world.at_ns
        user.turn()
        slept.append((world.at_ns - began_ns) / NS)
    assert world.counts() == {("open", ""): 1, ("session", "cut"): 1, ("open", "refused"): 39}
    assert slept[0] <= PAUSE_S[1]
    assert PAUSE_S[1] < max(slept[2:]) <= PAUSE_S_MAX
    world.is_down = False
    user.turn()
    assert world.counts()["open", ""] == 2


def test_a_consumer_that_leaves_hears_the_answers_to_its_acks(world: World) -> None:
    user, line = consumer(world)
    line.comes(push(1, 2))
    user.turn()
    assert settled(world) == []
    user.close()
    assert settled(world) == [1, 2]
    assert line.is_gone


def test_a_consumer_that_leaves_begins_nothing_new_and_does_not_wait_for_ever(
    world: World,
) -> None:
    user, line = consumer(world)
    world.answers = lambda line, said: []
    line.comes(push(1))
    user.turn()
    line.comes(push(2, offset=1, push=2))
    began_ns = world.at_ns
    user.close()
    assert len(world.spoke("ack")) == 1
    assert world.counts()["delivery", ""] == 2
    assert world.at_ns - began_ns <= 2 * LEAVE_NS


# --- readers


def read_push(*numbers: int, key: str, next_offset: int) -> dict[str, object]:
    return push(*numbers, key=key) | {"next": next_offset, "offsets": [0] * len(numbers)}


def test_a_reader_goes_on_by_its_position_and_is_given_nothing_twice(world: World) -> None:
    user = Reader(world.context, transport=world.line)
    user.turn(0.0)
    (subscribed,) = world.spoke("subscribe")
    assert subscribed["start"] == "earliest"
    (key,) = subscribed["keys"]
    world.lines[-1].comes(read_push(1, 2, key=key, next_offset=40))
    world.lines[-1].comes({"type": "push", "subscription": 1, "positions": {"1": [1, 9]},
                           "messages": []})  # fmt: skip
    user.turn()
    world.lines[-1].cut()
    user.turn()
    user.turn()
    position = world.spoke("subscribe")[-1]["position"]
    assert position == {"queue_id": "q1", "ring_epoch": 1,
                        "partitions": {"0": [3, 40], "1": [1, 9]}}  # fmt: skip
    world.lines[-1].comes(read_push(2, key=key, next_offset=41))
    user.turn()
    assert world.context.ledger.violations == {"repeated": 1}


# --- publishers


def certified(world: World) -> int:
    return world.context.ledger.counts["certified"]


def publisher(world: World) -> SocketPublisher:
    user = SocketPublisher(world.context, world.line)
    world.sleep(10 * world.context.plan.interval_s)  # several are due
    return user


@pytest.mark.parametrize("code", ["overloaded", "unknown", "out_of_sequence"])
def test_what_was_not_stored_is_sent_again_under_its_sequence(world: World, code: str) -> None:
    refusals = iter([True, True, False])

    def sometimes(line: Line, said: dict[str, Any]) -> list[object]:
        if next(refusals, False):
            receipts = [{"code": code, "detail": "", "retry": True}] * len(said["messages"])
            return [{"type": "ok", "ref": said["ref"], "receipts": receipts}]
        return answer_ok(line, said)

    world.answers = sometimes
    user = publisher(world)
    user.turn()
    sent = world.spoke("publish")
    assert [(one["sequence"], one["messages"]) for one in sent[1:]] == [
        (0, sent[0]["messages"])
    ] * 2
    assert len({one["ref"] for one in sent}) == 3
    assert certified(world) == len(sent[0]["messages"])
    assert world.context.unanswered == 0
    user.turn()
    assert world.spoke("publish")[-1]["sequence"] == len(sent[0]["messages"])


def test_what_had_no_answer_is_sent_again_over_another_socket(world: World) -> None:
    def silent(line: Line, said: dict[str, Any]) -> list[object]:
        if len(world.lines) == 1:
            line.cut()
        return answer_ok(line, said)

    world.answers = silent
    publisher(world).turn()
    first, second = world.spoke("publish")
    assert (first["sequence"], first["messages"]) == (second["sequence"], second["messages"])
    hellos = world.spoke("hello")
    assert hellos[0]["producer"] == hellos[1]["producer"]
    assert certified(world) == len(first["messages"])


def test_what_is_refused_for_good_is_not_sent_again(world: World) -> None:
    world.answers = lambda line, said: [
        {"type": "error", "ref": said["ref"], "code": "message_too_large", "retry": False}
    ]
    publisher(world).turn()
    ledger = world.context.ledger
    assert len(world.spoke("publish")) == 1
    assert ledger.counts["refused"] == len(world.spoke("publish")[0]["messages"])
    assert ledger.counts["certified"] == 0


def test_behind_what_is_refused_for_good_the_rest_goes_on(world: World) -> None:
    """Nothing behind it can be stored before it is given up: `resolved` goes over it (R6, R7)."""

    def middle(line: Line, said: dict[str, Any]) -> list[object]:
        if said["sequence"] > 0 or said["type"] != "publish" or len(said["messages"]) < 3:
            return answer_ok(line, said)
        bad = {"code": "message_too_large", "detail": "", "retry": False}
        behind = {"code": "out_of_sequence", "detail": "", "retry": True}
        receipts = [[0, 0], bad] + [behind] * (len(said["messages"]) - 2)
        return [{"type": "ok", "ref": said["ref"], "receipts": receipts}]

    user = publisher(world)
    batch = user.batch()
    while len(batch.messages) < 3:
        batch = user.batch()
    world.answers = middle
    user.publish(batch)
    first, second = world.spoke("publish")
    assert (second["sequence"], second["resolved"]) == (2, 2)
    assert second["messages"] == first["messages"][2:]
    ledger = world.context.ledger
    assert (ledger.counts["refused"], certified(world)) == (1, len(batch.messages) - 1)
    assert world.context.unanswered == 0


def test_latency_counts_from_when_a_message_was_due(world: World) -> None:
    user = SocketPublisher(world.context, world.line)
    world.sleep(user.due_in_s() + 3.0)
    user.turn()
    assert world.context.ledger.latencies["receipt websocket"].percentile(0) >= 3 * NS


def test_each_message_of_a_publish_is_counted_with_its_answer(world: World) -> None:
    refusals = iter(["overloaded", ""])

    def sometimes(line: Line, said: dict[str, Any]) -> list[object]:
        code = next(refusals, "")
        if said["type"] != "publish" or not code:
            return answer_ok(line, said)
        receipts = [{"code": code, "detail": "", "retry": True}] * len(said["messages"])
        return [{"type": "ok", "ref": said["ref"], "receipts": receipts}]

    world.answers = sometimes
    user = publisher(world)
    user.turn()
    many = len(world.spoke("publish")[0]["messages"])
    assert world.counts() == {("open", ""): 1, ("publish", "overloaded"): many,
                              ("publish", ""): many}  # fmt: skip
    due = world.context.ledger.latencies["receipt websocket"]
    took = [took_ns for kind, _, took_ns, why in world.counted if kind == "publish" and not why]
    assert max(one for one in took if one is not None) == due.maximum


def test_a_publish_that_nobody_answers_is_a_failure_of_each_of_its_messages(
    world: World,
) -> None:
    user = publisher(world)
    world.is_down = True
    naps = iter(range(3))

    def sleep(seconds: float) -> None:
        world.at_ns += int(seconds * NS)
        world.is_down = next(naps, None) is not None

    world.context.sleep = sleep
    user.turn()
    many = len(world.spoke("publish")[0]["messages"])
    assert world.counts()["publish", "refused"] == 4 * many
    assert world.counts()["publish", ""] == many


def test_a_publisher_that_is_ended_in_a_publish_leaves_nothing_unanswered(world: World) -> None:
    class Ended(BaseException):
        pass

    def ended(line: Line, said: dict[str, Any]) -> list[object]:
        raise Ended

    world.answers = ended
    with pytest.raises(Ended):
        publisher(world).turn()
    assert world.context.unanswered == 0


def test_publishers_publish_to_the_queues_of_the_users_that_are_there(world: World) -> None:
    user = publisher(world)
    world.context.plan = manned(world.context.plan, {"websocket": 1, "slow": 1})
    assert {user.batch().queue for _ in range(9)} == {"load.r.slow-0"}
    world.context.plan = manned(world.context.plan, {"websocket": 1})
    assert {user.batch().queue for _ in range(9)} == {"load.r.worker-0"}
    assert world.context.queue("poller") == "load.r.poller-0"


def test_when_publishing_is_over_nothing_new_is_published(world: World) -> None:
    user = publisher(world)
    world.context.enter(Phase("drain", world.at_ns))
    user.turn()
    assert world.spoke("publish") == []


def test_each_key_is_once_in_a_publish_and_numbered_in_its_line(world: World) -> None:
    user = publisher(world)
    numbers: dict[tuple[str, str], int] = {}
    for _ in range(200):
        batch = user.batch()
        assert len({one.line for one in batch.messages}) == len(batch.messages)
        for one in batch.messages:
            assert one.number == numbers.get((batch.queue, one.line), 0) + 1
            numbers[batch.queue, one.line] = one.number


# --- habits


def test_a_storm_cuts_at_instants_that_all_share_and_is_back(world: World) -> None:
    user = Storm(world.context, world.line)
    user.turn()
    assert len(world.lines) == 1
    world.sleep(world.context.plan.storm_every_s)
    user.turn()
    user.turn()
    ledger = world.context.ledger
    assert world.lines[0].is_gone
    assert len(world.lines) == 2
    assert (ledger.counts["sockets cut"], ledger.counts["sockets lost"]) == (1, 0)
    assert ledger.latencies["comeback storm"].count == 1


def test_a_day_has_its_parts_and_who_is_needed_at_its_end_works(world: World) -> None:
    user = Day(world.context, world.line)
    world.context.random = Random(1)
    seen: list[str] = []
    for _ in range(400):
        part = user.part()
        if not seen or seen[-1] != part:
            seen.append(part)
        world.sleep(world.context.plan.day_s / 200)
    assert set(seen) == set(DAY)
    assert set(DAY) == {"sleep", "publish", "work", "read"}
    world.context.enter(Phase("drain", world.at_ns))
    assert user.part() == "work"
    user.turn()
    assert world.spoke("subscribe")[-1]["group"] == "day"
