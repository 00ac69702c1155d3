"""Both transports of the mix carry a session to a real broker and back, and end as they say."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtests.mix.calls import Gone, Http
from loadtests.mix.consumers import Consumer, Reader
from loadtests.mix.coordination import Phase
from loadtests.mix.judge import judge
from loadtests.mix.plan import Plan, role_of
from loadtests.mix.process_context import NS, ProcessContext
from loadtests.mix.publishers import RestPublisher, SocketPublisher
from loadtests.mix.transports import MakeTransport, Poll, Socket
from loadtests.server import Server, free_port

WAYS = pytest.mark.parametrize("way", [Socket, Poll], ids=["websocket", "long poll"])


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with Server(tmp_path_factory.mktemp("broker") / "data", level="warning") as server:
        yield server.url


def context(url: str, run: str) -> ProcessContext:
    counts = {"websocket": 1, "rest": 1, "worker": 1, "reader": 1}
    made = ProcessContext(Plan(run, [url], counts, 1, 1000.0, 5.0, 0.0, 256, 1, 0), 0)
    made.enter(Phase("measure", 0))
    http = Http(url, None)
    for queue in made.plan.all_queues:
        http.call("PUT", f"/v1/queues/{queue}", {"partitions": 4, "retention_s": 60})
        http.call("PUT", f"/v1/queues/{queue}/groups/{role_of(queue)}", {})
    http.close()
    return made


@WAYS
def test_what_is_published_either_way_is_consumed_in_order_and_once(
    way: MakeTransport, url: str
) -> None:
    made = context(url, way.__name__.lower())
    consumer = Consumer(made, "worker", way, nack_chance=0.1)
    readers = [Reader(made) for _ in range(3)]
    publishers: list[SocketPublisher | RestPublisher] = [SocketPublisher(made), RestPublisher(made)]
    consumer.turn(0.1)
    for reader in readers:
        reader.turn(0.1)
    for _ in range(20):
        for publisher in publishers:
            publisher.turn()
    made.enter(Phase("drain", 0))
    for _ in range(300):
        consumer.turn(0.1)
        if made.ledger.counts["settled"] == made.ledger.counts["certified"]:
            break
    quiet_ns = 2 * NS
    while made.now_ns() - made.given_at_ns < quiet_ns:
        for reader in readers:
            reader.turn(0.1)
    outcome = judge([made.ledger], drained=True)
    assert outcome.ok, str(outcome)
    assert outcome.counts["certified"] >= 40
    consumer.close()
    for one in [*readers, *publishers]:
        one.close()


@WAYS
def test_nobody_there_is_gone(way: MakeTransport) -> None:
    with pytest.raises(Gone):
        way(f"http://127.0.0.1:{free_port()}", None).open({"type": "hello", "client": "c"})


@WAYS
def test_a_hello_that_is_refused_is_gone_with_the_brokers_words(
    way: MakeTransport, url: str
) -> None:
    with pytest.raises(Gone, match=r"invalid|hello|400"):
        way(url, None).open({"type": "hello", "client": "c", "linger_s": -1})


@WAYS
def test_nothing_to_hear_is_nothing_in_time(way: MakeTransport, url: str) -> None:
    transport = way(url, None)
    transport.open({"type": "hello", "client": "c"})
    assert transport.receive(0.05) == []
    transport.send([{"type": "ping", "ref": 1}, {"type": "ping", "ref": 2}])
    found = transport.receive(5.0)
    while len(found) < 2:
        found += transport.receive(5.0)
    assert [(frame.type, frame.ref) for frame in found] == [("pong", 1), ("pong", 2)]
    transport.close()
    with pytest.raises(Gone):
        transport.receive(0.05)
    transport.cut()


def test_a_session_that_the_broker_ends_is_gone(tmp_path: Path) -> None:
    with Server(tmp_path / "data", level="warning") as server:
        transport = Socket(server.url, None)
        transport.open({"type": "hello", "client": "c"})
        server.kill()
        with pytest.raises(Gone):
            transport.receive(5.0)
        transport.close()
