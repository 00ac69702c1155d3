"""Publishes that arrive in one read, and are published as one."""

from collections.abc import AsyncIterator
from typing import Any, Never

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.limits.limiter import Limiter
from gateway.limits.spec import OF_PRINCIPAL, parse_limits
from gateway.wire import frames
from gateway.wire.coalesce import CoalescedPublish, coalesce
from gateway.wire.protocol import Effect
from metadata.catalog import ANYBODY
from push import limits
from push.message import Message
from tests.gateway.plain_metadata import MemoryBroker, running
from tests.gateway.session.test_session import Socket, publish, settle, until

BODY = msgspec.Raw(b"1")


def frame(
    ref: int, count: int = 1, sequence: int | None = None, resolved: int = 0, queue: str = "q"
) -> frames.Publish:
    messages = [Message(key=f"k{ref}", body=BODY) for _ in range(count)]
    return frames.Publish(ref, queue, messages, sequence, resolved)


def parts(effects: list[Effect]) -> list[list[int]]:
    """The refs of what goes together."""
    return [
        [one.ref for one in effect.frames]
        if isinstance(effect, CoalescedPublish)
        else [effect.ref or 0]
        for effect in coalesce(effects)
        if isinstance(effect, CoalescedPublish | frames.Publish | frames.Ping)
    ]


def test_publishes_that_follow_each_other_are_one() -> None:
    first, second, third = frame(1, 2, 10, 5), frame(2, 1, 12, 5), frame(3, 3, 13, 8)
    (one,) = coalesce([first, second, third])
    assert isinstance(one, CoalescedPublish)
    assert (one.whole.sequence, one.whole.resolved, one.whole.queue) == (10, 8, "q")
    assert one.whole.messages == [*first.messages, *second.messages, *third.messages]
    assert list(one.frames) == [first, second, third]


def test_publishes_without_sequences_are_joined_too() -> None:
    assert parts([frame(1), frame(2), frame(3)]) == [[1, 2, 3]]


def test_one_alone_is_as_it_was() -> None:
    effects: list[Effect] = [frame(1)]
    assert coalesce(effects) is effects
    assert coalesce([frame(1), frames.Ping(2)]) == [frame(1), frames.Ping(2)]


@pytest.mark.parametrize(
    "second",
    [
        frame(2, 1, 1, queue="other"),
        frame(2, 1, 2),  # a gap in front of it
        frame(2, 1, 0),  # said again
        frame(2, 1, None),
        frame(2, 1, 1, 1),  # what it says is answered reaches one that goes with it
    ],
)
def test_what_is_not_the_same_publish_is_another_one(second: frames.Publish) -> None:
    assert parts([frame(1, 1, 0), second]) == [[1], [2]]


def test_what_says_less_is_answered_than_the_one_before_is_another_one() -> None:
    """R6."""
    assert parts([frame(1, 1, 9, 5), frame(2, 1, 10, 4)]) == [[1], [2]]
    assert parts([frame(1, 1, 9, 5), frame(2, 1, 10, 5)]) == [[1, 2]]


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize(
    "alone",
    [
        frames.Publish(1, "q", [Message(body=BODY)], produced_unix_us=7),
        frames.Publish(1, "q", [Message(body=BODY)], clock_offset_us=7),
        frames.Publish(1, "q", [Message(body=BODY, headers={"traceparent": "x"})]),
        frames.Publish(1, "q", [Message(body=BODY, sent_unix_ms=7)]),
    ],
)
def test_what_says_when_it_was_produced_or_is_traced_stays_alone(
    alone: frames.Publish, which: int
) -> None:
    """The delivery log has one time, and one trace, of each publish."""
    assert len(parts([frame(1), alone] if which else [alone, frame(1)])) == 2


def test_together_they_are_no_more_than_one_publish_may_have() -> None:
    most = limits.MESSAGES_PER_PUBLISH_MAX
    assert parts([frame(1, most - 1), frame(2)]) == [[1, 2]]
    assert parts([frame(1, most), frame(2)]) == [[1], [2]]


def test_who_has_too_much_in_flight_is_told_so_of_what_is_too_much() -> None:
    most = limits.IN_FLIGHT_PER_PRODUCER_MAX
    assert parts([frame(1, 1, most - 2), frame(2, 1, most - 1)]) == [[1, 2]]
    assert parts([frame(1, 1, most - 1), frame(2, 1, most)]) == [[1], [2]]


@st.composite
def sent_effects(draw: st.DrawFn) -> list[Effect]:
    """Publishes of one session, most of them following each other, and pings."""
    effects: list[Effect] = []
    sequence = 0
    for ref in range(draw(st.integers(0, 12))):
        if draw(st.integers(0, 5)) == 0:
            effects.append(frames.Ping(ref))
            continue
        count = draw(st.integers(1, 3))
        sequence += draw(st.sampled_from([0, 0, 0, 0, 1]))
        queue = draw(st.sampled_from(["q", "q", "q", "r"]))
        effects.append(frame(ref, count, sequence, draw(st.integers(0, sequence)), queue))
        sequence += count
    return effects


@given(sent_effects())
def test_nothing_is_lost_and_every_sequence_is_as_it_was(effects: list[Effect]) -> None:
    """R5, R6: judged message by message, against the frames one by one."""
    said: list[Effect] = []
    for one in coalesce(effects):
        if not isinstance(one, CoalescedPublish):
            said.append(one)
            continue
        said += one.frames
        assert len(one.frames) > 1
        assert one.whole.sequence is not None
        place = one.whole.sequence
        messages = iter(one.whole.messages)
        for each in one.frames:
            assert (each.queue, each.sequence) == (one.whole.queue, place)
            assert each.resolved <= one.whole.resolved <= one.whole.sequence
            assert all(next(messages) is message for message in each.messages)
            place += len(each.messages)
        assert next(messages, None) is None
    assert said == effects


# --- Publishing ---------------------------------------------------------------------------------


@pytest.fixture
async def broker() -> AsyncIterator[MemoryBroker]:
    async with running(MemoryBroker()) as made:
        await made.add_queue("q", message_bytes_max=100)
        yield made


@pytest.fixture
async def socket(broker: MemoryBroker) -> AsyncIterator[Socket]:
    made = Socket(broker)
    made.say({"type": "hello", "producer": "p"})
    made.answers()
    yield made
    made.session.end()


def hear(socket: Socket, *values: object) -> None:
    """In a message each, all of them read at once."""
    socket.session.receive(*map(msgspec.json.encode, values), now=0)


async def answers_to(socket: Socket, *values: object) -> list[dict[str, Any]]:
    """Return what they are answered, once all of them are."""
    hear(socket, *values)
    await until(lambda: len(socket.sent) >= len(values))
    return socket.answers()


async def test_each_frame_has_an_answer_of_its_own(socket: Socket, broker: MemoryBroker) -> None:
    """R5: with its own messages' receipts and errors, in order."""
    one, two, three = await answers_to(
        socket,
        publish(1, 1, "x" * 200, sequence=0),
        publish(2, 2, sequence=2),
        publish(3, 3, 4, sequence=3),
    )
    assert len(broker.submitted) == 1
    assert [answer["ref"] for answer in (one, two, three)] == [1, 2, 3]
    assert one["receipts"][0] == [0, 0]
    assert one["receipts"][1]["code"] == "message_too_large"
    assert two["receipts"] == [[0, 1]]
    assert three["receipts"] == [[0, 2], [0, 3]]
    assert one["id_prefix"] == three["id_prefix"]
    assert one["durability"] == three["durability"]


async def test_together_they_are_answered_as_one_by_one() -> None:
    said = [publish(ref, *range(ref % 3 + 1), queue=queue) for ref, queue in enumerate("qqqrqqrr")]
    answers = []
    for at_once in (True, False):
        async with running(MemoryBroker()) as broker:
            await broker.add_queue("q")
            await broker.add_queue("r")
            socket = Socket(broker)
            socket.say({"type": "hello"})
            socket.answers()
            for part in [said] if at_once else [[one] for one in said]:
                hear(socket, *part)
            await until(lambda socket=socket: len(socket.sent) == len(said))  # type: ignore[misc]
            answers.append({answer["ref"]: answer["receipts"] for answer in socket.answers()})
            assert len(broker.submitted) == (4 if at_once else len(said))
            socket.session.end()
    assert answers[0] == answers[1]


async def test_frames_whose_answers_wait_are_waited_for_each(
    socket: Socket, broker: MemoryBroker
) -> None:
    """P14: a session that drains ends when the last of them has been answered."""
    held = broker.messages.held = []
    hear(socket, publish(1, 1), publish(2, 2))
    socket.session.drain(1.0)
    await settle()
    assert socket.close_code is None
    (commit,) = held
    commit.set()
    await settle()
    assert [one["ref"] for one in socket.answers()[1:]] == [1, 2]
    assert socket.close_code == frames.DRAINING


async def test_who_is_charged_is_charged_for_all_of_them(broker: MemoryBroker) -> None:
    """At once where they fit; no more and no less than one by one."""
    limiter = Limiter(parse_limits("messages=1/s+2000,in_flight=1000", OF_PRINCIPAL))
    socket = Socket(broker, limiter=limiter)
    socket.say({"type": "hello"})
    socket.answers()
    broker.messages.stall("append")
    hear(socket, publish(1, *range(400)), publish(2, *range(400)))
    assert len(broker.submitted) == 1
    hear(socket, publish(3, *range(50)), publish(4, *range(50)))
    assert len(broker.submitted) == 2
    hear(socket, publish(5, *range(90)), publish(6, *range(20)))
    assert [(one["ref"], one["code"]) for one in socket.answers()] == [(6, "too_many_in_flight")]
    broker.messages.well()
    await until(lambda: len(socket.sent) == 5)
    assert [(one["ref"], one["type"]) for one in socket.answers()] == [
        (ref, "ok") for ref in range(1, 6)
    ]
    answers = await answers_to(socket, publish(7, *range(980)), publish(8, *range(20)))
    answers += await answers_to(socket, publish(9, *range(10)), publish(10, 10))
    assert [(one["ref"], one["type"]) for one in by_ref(answers)] == [
        (7, "ok"),
        (8, "ok"),
        (9, "ok"),
        (10, "error"),
    ]
    assert len(broker.submitted) == 5
    socket.session.end()


def by_ref(answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A refusal needs no commit, and comes sooner."""
    return sorted(answers, key=lambda answer: int(answer["ref"]))


async def test_more_than_a_burst_of_bytes_is_not_charged_as_one(broker: MemoryBroker) -> None:
    """One that is larger is charged a burst; three that are not would be, too, for three."""
    limiter = Limiter(parse_limits(f"bytes=1/s+{limits.FRAME_BYTES_MAX}", OF_PRINCIPAL))
    socket = Socket(broker, limiter=limiter)
    socket.say({"type": "hello"})
    socket.answers()
    mebibyte = ["x" * 250_000] * 4
    answers = await answers_to(socket, *(publish(ref, *mebibyte) for ref in range(3)))
    types = [(answer["ref"], answer["type"]) for answer in by_ref(answers)]
    assert types == [(0, "ok"), (1, "ok"), (2, "error")]
    socket.session.end()


async def test_where_not_all_fit_they_are_charged_frame_by_frame(broker: MemoryBroker) -> None:
    """A limit that is reached refuses what is over it, and not what fits."""
    limiter = Limiter(parse_limits("messages=1/s+1000", OF_PRINCIPAL))
    socket = Socket(broker, limiter=limiter)
    socket.say({"type": "hello"})
    socket.answers()
    await answers_to(socket, publish(0, 0))
    answers = await answers_to(socket, publish(1, *range(997)), publish(2, 2), publish(3, 3, 4))
    types = [(answer["ref"], answer["type"]) for answer in by_ref(answers)]
    assert types == [(1, "ok"), (2, "ok"), (3, "error")]
    socket.session.end()


async def test_a_sequence_without_a_producer_is_refused_in_each(broker: MemoryBroker) -> None:
    socket = Socket(broker)
    socket.say({"type": "hello"})
    socket.answers()
    hear(socket, publish(1, 1, sequence=0), publish(2, 2, sequence=1))
    codes = [(answer["ref"], answer["code"]) for answer in socket.answers()]
    assert codes == [(1, "invalid_request"), (2, "invalid_request")]
    socket.session.end()


async def test_of_a_queue_that_is_not_there_each_hears(socket: Socket) -> None:
    answers = await answers_to(socket, publish(1, 1, queue="none"), publish(2, 2, queue="none"))
    codes = [(answer["ref"], answer["code"]) for answer in answers]
    assert codes == [(1, "queue_not_found"), (2, "queue_not_found")]


async def test_a_bug_is_answered_to_each(
    socket: Socket, broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P12."""

    def fail(_: object) -> Never:
        raise RuntimeError("never foreseen")

    with monkeypatch.context() as broken:
        broken.setattr(broker.publisher, "submit", fail)
        hear(socket, publish(1, 1), publish(2, 2))
    codes = [(answer["ref"], answer["code"]) for answer in socket.answers()]
    assert codes == [(1, "internal"), (2, "internal")]
    (answer,) = await answers_to(socket, publish(3, 3))
    assert answer["type"] == "ok"


async def test_to_several_clusters_they_go_one_by_one(
    socket: Socket, broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One may be away, and what goes to the others is not to wait for it."""
    queue = msgspec.structs.replace(broker.find_queue(ANYBODY, "q"), clusters=("north", "south"))
    monkeypatch.setattr(broker.metadata, "find_queue", lambda *_: queue)
    answers = await answers_to(socket, publish(1, 1), publish(2, 2))
    assert len(broker.submitted) == 2
    assert [answer["ref"] for answer in answers] == [1, 2]


def test_receipts_are_an_ok_like_any_other() -> None:
    prefix, durability = 'q"-1-', {"level": "all", "copies": 2}
    receipts: list[object] = [(0, 7), (1, 2, True), frames.code_fields("unknown")]
    end = frames.receipts_end(prefix, durability)
    same = frames.ok(5, receipts=receipts, id_prefix=prefix, durability=durability)
    assert frames.receipts(5, receipts, end) == same
