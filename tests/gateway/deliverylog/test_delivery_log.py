"""The loop's side of the delivery log: clocks, what is handed to the writer and when, and that
nobody ever waits for it."""

import asyncio
from array import array
from typing import Any

import msgspec
import pytest

from gateway.delivery.mover import moved_origins
from gateway.deliverylog import deliveries
from gateway.deliverylog.counts import CERTIFIED, DISPATCHED, SETTLED, SPANS
from gateway.deliverylog.deliveries import SETTLED_US, LoggedPlace
from gateway.deliverylog.lines import (
    CertifiedLine,
    ClockSteppedLine,
    DispatchedLine,
    SettledLine,
    SettlementOutcome,
    messages_of,
)
from gateway.deliverylog.log import (
    CHUNK_BYTES_MAX,
    LINE_MESSAGES_MAX,
    LOOK_US,
    LOOK_US_MAX,
    RUN_US,
    STEP_US_MIN,
    CommittedOrigins,
    CommitTimes,
    DeliveryLog,
    DispatchedSpan,
    LogClock,
    OriginTracker,
    PublishOrigin,
)
from gateway.models import Transport
from gateway.rest.routes.messages import origin_of_request
from gateway.wire.frames import Publish
from metadata.catalog import ANYBODY, Queue, QueueSettings
from push import limits
from push.due import DueMessage
from push.message import Message
from push.places import Partition
from push.record import Header
from push.storage_port import Appended, NotStored, Scheduled, Stored
from tests.histories.logged import Kept
from tests.histories.logged import decoded as handed

QUEUE = Queue(
    queue_id="q1", name="orders", tenant="t", holder="h", created_unix_ms=0,
    settings=QueueSettings(), ring_epoch=1, members=(0,), hash_key=bytes(16),
)  # fmt: skip
WALL_US = 1_763_726_400_000_000


class Hands:
    """Clocks that stand until they are moved."""

    def __init__(self) -> None:
        self.now_us = 1000
        self.wall_us = WALL_US

    def move(self, by_us: int) -> None:
        """Both go on."""
        self.now_us += by_us
        self.wall_us += by_us


class Session:
    """Whoever is given something."""

    session_id = "s1"
    principal = ANYBODY
    transport: Transport | None = "websocket"


def made() -> tuple[DeliveryLog, Kept, Hands]:
    """A log that is on, inside the loop."""
    hands, sink = Hands(), Kept()
    log = DeliveryLog(now_ns=lambda: hands.now_us * 1000, wall_us=lambda: hands.wall_us)
    log.begin(sink, "00000000000000aa")
    return log, sink, hands


def give(place: LoggedPlace, *offsets: int, **more: Any) -> int:
    """Return one run for each."""
    said: Any = {"attempt": 1, "cause": "none", "certified_us": 1000, "published_unix_ms": 7}
    runs = [(0, offset, 1) for offset in offsets]
    return place.dispatch(runs, len(runs), **{**said, **more})


def read(log: DeliveryLog, *sessions: str, certified_us: int | None = None) -> None:
    """Two messages, over WebSockets."""
    span = DispatchedSpan(QUEUE, log.now_ns() // 1000, 7, 1, "none", certified_us, "websocket")
    span.sessions, span.runs, span.messages = sessions, [(0, 4, 2)], 2
    log.add_dispatch(span)


def lines_of(log: DeliveryLog, sink: Kept) -> list[Any]:
    """Everything that has a line by now."""
    log._hand_over()
    return handed(sink)


# --- Clocks --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step_us", "took_us", "seen_us"),
    [
        (STEP_US_MIN, 0, STEP_US_MIN),
        (STEP_US_MIN - 1, 0, 0),
        (-STEP_US_MIN, LOOK_US_MAX, -STEP_US_MIN),
        (10**12, LOOK_US_MAX + 1, 0),
    ],
)
def test_a_step_is_a_step_where_both_clocks_were_read_at_one_moment(
    step_us: int, took_us: int, seen_us: int
) -> None:
    """R3. On both sides of both bounds."""
    clock = LogClock(now_us=50, wall_us=1050)
    assert clock.look(60, 1060 + step_us, 60 + took_us) == seen_us
    assert clock.unix_us(60) == 1060 + seen_us
    assert clock.stepped_us == seen_us


async def test_a_clock_step_changes_no_duration_and_is_logged() -> None:
    """R3: the wall clock goes a day on between two lines; both say by how much they differ."""
    log, sink, hands = made()
    place = LoggedPlace(log, QUEUE, "g", Session())
    give(place, 1)
    log.on_flush()
    log._hand_over()
    hands.move(LOOK_US)
    hands.wall_us += 86_400_000_000
    give(place, 2)
    hands.move(5)
    log.on_flush()
    first, step, second = lines_of(log, sink)
    assert isinstance(step, ClockSteppedLine)
    assert (step.step_us, step.stepped_us) == (86_400_000_000, 86_400_000_000)
    assert isinstance(first, DispatchedLine)
    assert isinstance(second, DispatchedLine)
    assert second.written_unix_us == WALL_US + LOOK_US + 5 + 86_400_000_000
    exact = (second.dispatched_unix_us - second.stepped_us) - first.dispatched_unix_us
    assert exact == LOOK_US


async def test_what_a_client_produced_is_told_by_the_gateways_clock() -> None:
    """By its offset, which it says once, or anew; a step of the gateway's clock changes neither
    the moment nor what comes later."""
    log, sink, hands = made()
    sender = OriginTracker()

    def line(**more: Any) -> CertifiedLine:
        frame = Publish(ref=1, queue="orders", messages=[Message(key="k")], **more)
        origin = sender.origin(log, Session(), QUEUE, frame)
        log.add_unknown(origin, 1)
        found = lines_of(log, sink)[-1]
        assert isinstance(found, CertifiedLine)
        return found

    before = line(produced_unix_us=5)
    assert (before.produced_unix_us, before.clock_offset_us) == (5, None)
    at_us = WALL_US - 300  # of the client, whose clock is 1 s ahead
    said = line(produced_unix_us=at_us + 1_000_000, clock_offset_us=-1_000_000)
    assert (said.produced_unix_us, said.clock_offset_us) == (at_us, -1_000_000)
    hands.move(LOOK_US)
    hands.wall_us += 7_000_000
    log._hand_over()
    stepped = line(produced_unix_us=at_us + 1_000_000)
    assert stepped.stepped_us == 7_000_000
    assert stepped.produced_unix_us == at_us + 7_000_000
    anew = line(produced_unix_us=at_us + 9_000_000, clock_offset_us=-2_000_000)
    assert (anew.produced_unix_us, anew.clock_offset_us) == (at_us + 7_000_000, -2_000_000)
    assert line().produced_unix_us is None
    with_time = Message(key="k", sent_unix_ms=9)
    origin = sender.origin(
        log, Session(), QUEUE, Publish(ref=1, queue="orders", messages=[with_time])
    )
    assert (origin.produced_us, origin.clock_offset_us) == (9000, None)


# --- Publishes -----------------------------------------------------------------------------------


async def test_frames_of_one_moment_have_one_origin() -> None:
    """On both sides of each bound: time, queue, size, what a frame says of itself."""
    log, _, hands = made()
    sender, other = OriginTracker(), msgspec.structs.replace(QUEUE, queue_id="q2")

    def origin(queue: Queue = QUEUE, count: int = 1, **more: Any) -> PublishOrigin:
        messages = [Message(key="k", **more)] * count
        frame = Publish(ref=1, queue="orders", messages=messages)
        return sender.origin(log, Session(), queue, frame)

    first = origin()
    hands.move(RUN_US)
    assert origin(count=LINE_MESSAGES_MAX - 1) is first
    full = origin()
    assert full is not first
    hands.move(RUN_US + 1)
    late = origin()
    assert late is not full
    assert origin(other) is not late
    traced = origin(headers={"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"})
    assert traced.trace == "a" * 32
    assert origin() is not traced


class Answered:
    """A publish."""

    def __init__(self, origin: PublishOrigin | None) -> None:
        self.origin = origin


def header(hashes: list[int]) -> Header:
    """Of messages of 10 bytes with these key hashes."""
    empty = array("Q")
    sizes = array("I", [10] * len(hashes))
    return Header(
        tenant=0, record_id=bytes(16), published_unix_ms=0, ring_epoch=1, sizes=sizes,
        key_hashes=array("Q", hashes), producers=[], producer_indexes=array("H"), sequences=empty,
        digests=[], expires_unix_ms=empty, deliver_at_unix_ms=empty, priorities=b"",
    )  # fmt: skip


async def test_a_record_of_several_publishes_is_logged_by_their_origins() -> None:
    """What is refused is nowhere, what was there already only as that; keys and bytes are those of
    what is new."""
    log, sink, _ = made()
    first, second = (log.internal_origin(QUEUE, 3) for _ in range(2))
    placed = CommittedOrigins(CommitTimes(1, 2), is_late=False)
    runs = [(Answered(first), [0, 1], 0), (Answered(None), [0], 0), (Answered(second), range(3), 0)]
    outcomes = (
        Stored(8), Stored(3, duplicate=True), Stored(9), NotStored("queue_full"), Stored(10),
        Stored(4, duplicate=True),
    )  # fmt: skip
    placed.add(runs, 5, Appended(8, 3, 11, 1, outcomes, (1, 3, 5)), header([1, 2, 3, 4, 5, 6]))
    log.add_commit(placed)
    one, two = lines_of(log, sink)
    assert isinstance(one, CertifiedLine)
    assert isinstance(two, CertifiedLine)
    assert (one.runs, one.duplicate_runs, one.bytes) == ([(5, 8, 1)], [(5, 3, 1)], 10)
    assert (two.runs, two.duplicate_runs, two.duplicates) == ([(5, 10, 1)], [(5, 4, 1)], 1)
    assert [array("Q", line.keys or b"").tolist() for line in (one, two)] == [[1], [5]]


async def test_a_record_of_several_new_publishes_is_logged_by_their_origins() -> None:
    """Publishes that share an origin are one run of it."""
    log, sink, _ = made()
    first, second = (log.internal_origin(QUEUE, 3) for _ in range(2))
    placed = CommittedOrigins(CommitTimes(1, 2), is_late=False)
    runs = [
        (Answered(first), [0, 1], 20), (Answered(first), [4], 11), (Answered(None), [0], 99),
        (Answered(second), [2, 5], 22),
    ]  # fmt: skip
    placed.add(runs, 5, Appended(8, 6, 14, 1), header([1, 2, 3, 4, 5, 6]))
    placed.add([(Answered(second), [0], 7)], 6, Appended(0, 1, 1, 1), header([9]))
    log.add_commit(placed)
    one, two = lines_of(log, sink)
    assert isinstance(one, CertifiedLine)
    assert isinstance(two, CertifiedLine)
    assert (one.runs, one.bytes) == ([(5, 8, 3)], 31)
    assert (two.runs, two.bytes) == ([(5, 12, 2), (6, 0, 1)], 29)
    assert [array("Q", line.keys or b"").tolist() for line in (one, two)] == [[1, 2, 3], [5, 6, 9]]


async def test_what_nobody_knows_of_a_frame_is_one_line() -> None:
    """Of a frame over sixteen partitions, say, or of a thousand frames of one moment."""
    log, sink, _ = made()
    first, second = (log.internal_origin(QUEUE, 16) for _ in range(2))
    assert first is not None
    assert second is not None
    for _ in range(16):
        first.count_unknown(1)
        second.count_unknown(2)
    assert [line.messages for line in lines_of(log, sink)] == [16, 32]


async def test_what_was_given_up_and_is_stored_after_all_is_late() -> None:
    log, sink, _ = made()
    origin = origin_of_request(log, QUEUE, "p", [Message(key="k")], None)
    assert origin is not None
    origin.count_unknown(1)
    placed = CommittedOrigins(CommitTimes(1, 2), is_late=True)
    placed.add([(Answered(origin), [0], 10)], 0, Appended(0, 1, 1, 1), header([7]))
    log.add_commit(placed)
    unknown, late = lines_of(log, sink)
    assert isinstance(unknown, CertifiedLine)
    assert isinstance(late, CertifiedLine)
    assert (unknown.outcome, unknown.messages, unknown.runs) == ("unknown", 1, [])
    assert unknown.certified_unix_us is None
    assert (late.outcome, late.runs, late.transport, late.producer) == (
        "late", [(0, 0, 1)], "http", "p",
    )  # fmt: skip


async def test_what_is_scheduled_has_a_line_without_places() -> None:
    """R32: the publish says how much; a duplicate is not counted again, and what is stored at once
    has its own line."""
    log, sink, _ = made()
    origin = origin_of_request(log, QUEUE, "p", [Message(key="k")] * 3, None)
    placed = CommittedOrigins(CommitTimes(1, 2), is_late=False)
    outcomes = (Scheduled(0), Scheduled(1), Scheduled(0, duplicate=True))
    later = Appended(8, 0, 8, 1, outcomes, ())
    placed.add([(Answered(origin), range(3), 0)], 5, later, header([1, 2, 3]))
    placed.add([(Answered(origin), [3], 10)], 5, Appended(8, 1, 9, 1), header([1]))
    log.add_commit(placed)
    scheduled, stored = lines_of(log, sink)
    assert isinstance(scheduled, CertifiedLine)
    assert isinstance(stored, CertifiedLine)
    assert (scheduled.outcome, scheduled.messages, scheduled.bytes) == ("scheduled", 2, 20)
    assert (scheduled.runs, scheduled.keys, scheduled.producer) == ([], None, "p")
    assert (stored.outcome, stored.runs, stored.bytes) == ("certified", [(5, 8, 1)], 10)
    assert sink.counts[CERTIFIED] == 1


async def test_what_comes_when_it_is_due_is_logged_by_its_due_times() -> None:
    """On both sides of both bounds: 10 ms, and a hundredth of the lateness."""
    log, sink, hands = made()
    hands.move(10_000_000)
    now_ms = (WALL_US + 10_000_000) // 1000
    before_ms = (5000, 4951, 4950, 4949, 20, 10, 9)
    messages = [
        DueMessage(Partition("q1", 5), n, 0, now_ms - ms, 7, 40 + n, 0, bytes(32), b"x" * 10)
        for n, ms in enumerate(before_ms)
    ]
    stages = CommitTimes(hands.now_us - 300, hands.now_us)
    log.add_commit(moved_origins(log, QUEUE, messages, 100, stages))
    lines = lines_of(log, sink)
    assert [(line.due_unix_us, line.runs) for line in lines] == [
        ((now_ms - 5000) * 1000, [(5, 100, 3)]),
        ((now_ms - 4949) * 1000, [(5, 103, 1)]),
        ((now_ms - 20) * 1000, [(5, 104, 2)]),
        ((now_ms - 9) * 1000, [(5, 106, 1)]),
    ]
    assert [array("Q", line.keys).tolist() for line in lines] == [
        [40, 41, 42],
        [43],
        [44, 45],
        [46],
    ]
    assert {(line.transport, line.producer, line.asked_unix_us) for line in lines} == {
        ("internal", None, WALL_US + 10_000_000 - 300)
    }
    assert sink.counts[CERTIFIED] == 7


# --- What is given and settled -------------------------------------------------------------------


async def test_what_goes_out_in_one_go_is_one_line() -> None:
    """Until it is written, and for each of what makes it another."""
    log, sink, hands = made()
    place = LoggedPlace(log, QUEUE, "g", Session())
    give(place, 1)
    hands.move(100)
    give(place, 2, 5)
    give(place, 3, attempt=2)
    give(place, 4, attempt=2, cause="lease")
    give(place, 6, attempt=2, cause="lease", certified_us=None)
    log.on_flush()
    give(place, 7, attempt=2, cause="lease", certified_us=None)
    log.on_flush()
    give(place, 8, attempt=2, cause="lease", certified_us=None)
    log.on_flush()
    runs = [[first for _, first, _ in line.runs] for line in lines_of(log, sink)]
    assert runs == [[1, 2, 5], [3], [4], [6], [7], [8]]
    assert sink.counts[DISPATCHED] == 8


async def test_a_long_poll_has_what_it_is_given_when_it_takes_it() -> None:
    """And where nobody takes it, it was never written."""
    log, sink, hands = made()
    session = Session()
    session.transport = "long-poll"
    place = LoggedPlace(log, QUEUE, "g", session)
    give(place, 1)
    log.on_flush()
    assert lines_of(log, sink) == []
    hands.move(2_000_000)
    log.on_take(session.session_id)
    give(place, 2)
    log.on_leave(session.session_id)
    taken, left = lines_of(log, sink)
    assert isinstance(taken, DispatchedLine)
    assert isinstance(left, DispatchedLine)
    assert taken.transport == "long_poll"
    assert taken.written_unix_us == taken.dispatched_unix_us + 2_000_000
    assert left.written_unix_us is None


async def test_a_full_socket_has_what_it_is_given_when_it_takes_it() -> None:
    """A part of it may be on its way already: it counts at once, and once. What the socket takes
    before and behind that is written when it is."""
    log, sink, hands = made()
    place = LoggedPlace(log, QUEUE, "g", Session())
    give(place, 1)
    log.on_flush()
    log.on_full("s1")
    give(place, 2, 3)
    log.on_flush()
    assert sink.counts[DISPATCHED] == 3
    hands.move(2_000_000)
    log.on_take("s1")
    give(place, 4)
    log.on_full("s1")
    log.on_flush()
    log.on_leave("s1")
    give(place, 5)
    log.on_flush()
    lines = lines_of(log, sink)
    waited_us = [
        line.written_unix_us and line.written_unix_us - line.dispatched_unix_us for line in lines
    ]
    assert [messages_of(line.runs) for line in lines] == [1, 2, 1, 1]
    assert waited_us == [0, 2_000_000, None, 0]
    assert sink.counts[DISPATCHED] == 5


@pytest.mark.parametrize("transport", ["websocket", "long-poll"])
@pytest.mark.parametrize("outcome", ["expired", "returned", "acked"])
async def test_what_ends_while_its_line_is_held_has_that_line_first(
    transport: Transport, outcome: SettlementOutcome
) -> None:
    """A lease ends while the socket is full, or before a poll has come: the log says that it was
    given, and then that it ended, also when the process is killed meanwhile. What else is held
    stays so."""
    log, sink, hands = made()
    session = Session()
    session.transport = transport
    place = LoggedPlace(log, QUEUE, "g", session)
    given_us: list[int] = []
    for offset in (1, 2):
        log.on_full("s1")
        given_us.append(give(place, offset))
        log.on_flush()
        hands.move(1_000)
    place.settle(outcome, [0, given_us[0], 1, 1], 1)
    place.settle("dead_lettered", [0, None, 7, 7], 1)
    (line,) = [line for line in lines_of(log, sink) if isinstance(line, DispatchedLine)]
    assert (line.runs, line.written_unix_us) == ([(0, 1, 1)], None)
    kinds = [type(line) for line in lines_of(log, sink)]
    assert kinds.index(DispatchedLine) < kinds.index(SettledLine)
    assert sink.counts[DISPATCHED] == (1 if transport == "long-poll" else 2)
    log.on_take("s1")
    *_, last = [line for line in lines_of(log, sink) if isinstance(line, DispatchedLine)]
    assert (last.runs, last.written_unix_us) == ([(0, 2, 1)], last.dispatched_unix_us + 1_000)
    assert sink.counts[DISPATCHED] == 2


async def test_of_a_fan_out_each_socket_that_is_full_or_gone_has_its_own_line() -> None:
    log, sink, hands = made()
    read(log, "a", "b", "c", "d", certified_us=1000)
    log.on_full("b")
    log.on_gone("c")
    log.on_flush()
    hands.move(300)
    log.on_take("b")
    found = {(*line.sessions, *filter(None, [line.session])): line for line in lines_of(log, sink)}
    assert set(found) == {("a", "d"), ("b",), ("c",)}
    assert [found[name].recipients for name in found] == [1, 2, 1]
    for names, written_us in ((("a", "d"), 0), (("b",), 300), (("c",), None)):
        line = found[names]
        assert (line.runs, line.cause, line.certified_unix_us) == ([(0, 4, 2)], "none", WALL_US)
        assert line.written_unix_us == (None if written_us is None else WALL_US + written_us)
    assert sink.counts[DISPATCHED] == 8


async def test_what_is_given_to_a_session_without_a_transport_is_not_written() -> None:
    """At most once: it was settled for a client that has gone since."""
    log, sink, _ = made()
    session = Session()
    session.transport = None
    give(LoggedPlace(log, QUEUE, "g", session), 1)
    log.on_flush()
    (line,) = lines_of(log, sink)
    assert (line.transport, line.written_unix_us) == (None, None)


async def test_what_is_settled_at_one_time_is_one_line_for_each_outcome() -> None:
    log, sink, hands = made()
    place = LoggedPlace(log, QUEUE, "g", Session())
    place.settle("acked", [0, 1000, 1, 2], 2)
    hands.move(SETTLED_US)
    place.settle("acked", [1, None, 5, 5], 1)
    place.settle("nacked", [0, None, 3, 3], 1)
    place.settle("acked", [0, None, 4, 4], 1)
    hands.move(SETTLED_US + 1)
    place.settle("acked", [0, None, 6, 6], 1)
    log._hand_over()
    lines = [line for line in lines_of(log, sink) if isinstance(line, SettledLine)]
    assert [(line.outcome, line.runs) for line in lines] == [
        ("acked", [(0, 1, 2), (1, 5, 1)]), ("nacked", [(0, 3, 1)]), ("acked", [(0, 4, 1)]),
        ("acked", [(0, 6, 1)]),
    ]  # fmt: skip
    assert lines[0].pushes == [[0, WALL_US, 1, 2], [1, None, 5, 5]]
    assert lines[1].pushes == [[0, None, 3, 3]]
    assert sink.counts[SETTLED] == 6


# --- To the writer -------------------------------------------------------------------------------


async def test_a_line_of_settled_messages_ends_at_a_bound_of_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The one that reaches the bound still belongs to it."""
    log, sink, _ = made()
    place = LoggedPlace(log, QUEUE, "g", Session())
    push = b"[0,null,1,1]"
    monkeypatch.setattr(deliveries, "PUSHES_BYTES_MAX", 2 * len(push))
    for _ in range(3):
        place.settle("acked", [0, None, 1, 1], 1)
    monkeypatch.setattr(deliveries, "PUSHES_BYTES_MAX", len(push) + 1)
    for _ in range(2):
        place.settle("acked", [0, None, 1, 1], 1)
    log._hand_over()
    lines = [line for line in lines_of(log, sink) if isinstance(line, SettledLine)]
    assert [len(line.pushes) for line in lines] == [2, 2, 1]


async def test_what_the_writer_has_no_room_for_is_dropped_and_told() -> None:
    """P9: nobody waits, nothing grows; and what is missing is exactly what was dropped."""
    log, sink, _ = made()
    place = LoggedPlace(log, QUEUE, "g", Session())
    sink.waiting_bytes = limits.LOG_WAITING_BYTES_MAX
    for offset in range(3):
        give(place, offset)
        log.on_flush()
        log._hand_over()
    assert sink.chunks == []
    sink.waiting_bytes = 0
    log._hand_over()
    (chunk,) = sink.chunks
    assert chunk.lines == []
    assert chunk.lost is not None
    assert (chunk.lost.reason, chunk.lost.counts) == ("full", [3, 0, 3, 0])
    assert [sink.counts[kind] for kind in (SPANS, DISPATCHED)] == [3, 3]


async def test_a_fan_out_that_is_lost_counts_for_every_reader() -> None:
    log, sink, _ = made()
    sink.waiting_bytes = limits.LOG_WAITING_BYTES_MAX
    read(log, "a", "b", "c")
    log.on_flush()
    log._hand_over()
    sink.waiting_bytes = 0
    log._hand_over()
    (chunk,) = sink.chunks
    assert chunk.lost is not None
    assert (chunk.lost.counts[DISPATCHED], sink.counts[DISPATCHED]) == (6, 6)


async def test_much_at_once_does_not_wait_for_its_time() -> None:
    log, sink, _ = made()
    while not sink.chunks:
        read(log, "a")
        log.on_flush()
    (chunk,) = sink.chunks
    assert CHUNK_BYTES_MAX <= chunk.bytes < CHUNK_BYTES_MAX + 1000
    assert chunk.bytes == sum(len(line) + 1 for line in chunk.lines)


async def test_spans_that_nobody_flushes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """P9."""
    monkeypatch.setattr(limits, "LOG_SPANS_UNWRITTEN_MAX", 5)
    log, sink, _ = made()
    place = LoggedPlace(log, QUEUE, "g", Session())
    for offset in range(6):
        give(place, offset, attempt=offset + 1)
        assert len(log._unwritten) <= 5
    assert {line.written_unix_us for line in lines_of(log, sink)} == {None}


async def test_a_stop_writes_what_waits_and_then_nothing_is_logged() -> None:
    """P14."""
    log, sink, _ = made()
    session = Session()
    place = LoggedPlace(log, QUEUE, "g", session)
    give(place, 1)
    session.transport = "long-poll"
    give(place, 2, attempt=2)
    place.settle("acked", [0, None, 1, 1], 1)
    await log.stop()
    assert sink.is_stopped
    assert not log.is_on
    assert [type(line) for line in lines_of(log, sink)] == [
        DispatchedLine,
        DispatchedLine,
        SettledLine,
    ]
    assert log.internal_origin(QUEUE, 1) is None
    await log.stop()


async def test_a_log_that_is_off_does_nothing() -> None:
    log = DeliveryLog()
    assert log.internal_origin(QUEUE, 1) is None
    assert origin_of_request(log, QUEUE, "p", [Message(key="k")], None) is None
    assert (log.clock_unix_us(), log.status()) == (None, None)
    await log.stop()
    await asyncio.sleep(0)
