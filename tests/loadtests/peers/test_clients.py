"""The clients of other brokers do the scenarios' work, each message once, over servers that check
what they say; and what a server refuses ends the measurement with its words."""

from collections.abc import AsyncIterator, Awaitable, Callable
from random import Random

import pytest

from loadtests.bench import load_run, scenarios
from loadtests.bench.adapter import Adapter
from loadtests.bench.load_run import Bench, Figures, LoadRun, quiet
from loadtests.bench.scenarios import fanout5k, open_loop, single
from loadtests.clients.load import LoadFailed
from loadtests.histogram import Histogram
from loadtests.peers.clients import Bodies
from loadtests.peers.nats import Nats
from loadtests.peers.stomp import Stomp
from tests.loadtests.peers.fake_nats import FakeNats
from tests.loadtests.peers.fake_rabbit import FakeRabbit

READERS = 5


async def by_ten(bench: Bench) -> Figures:
    """As batch100, with less in flight: these servers are slow."""
    async with quiet(LoadRun(bench, "batch100", 10, 500)) as load:
        await load.open()
        count, elapsed, _ = await load.run(bench.seconds, "by ten")
        latency = Histogram()
        latency.add(load.latency)
        await load.drain()
        return load.note(Figures(count / elapsed, latency))


async def on_schedule(bench: Bench) -> Figures:
    """As open1k."""
    return await open_loop(bench, rate=500)


SHARING: list[Callable[[Bench], Awaitable[Figures]]] = [single, by_ten, on_schedule]


@pytest.fixture(autouse=True)
def warms_up_shortly(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (load_run, scenarios):
        monkeypatch.setattr(module, "WARM_UP_S", 0.1)


@pytest.fixture
async def nats() -> AsyncIterator[FakeNats]:
    async with FakeNats().serving() as server:
        yield server
        assert server.wrong == []


@pytest.fixture
async def rabbit() -> AsyncIterator[FakeRabbit]:
    async with FakeRabbit().serving() as server:
        yield server
        assert server.wrong == []


def bench(adapter: Adapter) -> Bench:
    return Bench("", None, None, 0.3, 0, READERS, lambda _: None, speaks=adapter)


def nats_dialect(server: FakeNats, *, stored: bool = True) -> Nats:
    return Nats(server.url, Bodies(), Random(1), stored=stored)


def rabbit_dialect(server: FakeRabbit, password: str = "secret") -> Stomp:
    return Stomp(server.url, "bench", password, Bodies(), Random(1))


@pytest.mark.parametrize("scenario", SHARING)
async def test_nats_is_given_and_acknowledges_each_message_once(
    nats: FakeNats, scenario: Callable[[Bench], Awaitable[Figures]]
) -> None:
    figures = await scenario(bench(nats_dialect(nats)))
    assert nats.published > 0
    assert len(nats.acknowledged) == nats.published
    assert figures.messages_per_s
    assert figures.latency is not None
    assert figures.latency.count > 0
    assert figures.more["redelivered"] == 0


@pytest.mark.parametrize("scenario", SHARING)
async def test_rabbit_is_given_and_acknowledges_each_message_once(
    rabbit: FakeRabbit, scenario: Callable[[Bench], Awaitable[Figures]]
) -> None:
    figures = await scenario(bench(rabbit_dialect(rabbit)))
    assert rabbit.published > 0
    assert len(rabbit.acknowledged) == rabbit.published
    assert figures.messages_per_s
    assert figures.latency is not None
    assert figures.latency.count > 0


@pytest.mark.parametrize("stored", [True, False])
async def test_every_reader_of_nats_is_given_each_message(nats: FakeNats, stored: bool) -> None:
    figures = await fanout5k(bench(nats_dialect(nats, stored=stored)))
    assert figures.latency is not None
    assert figures.latency.count == READERS * int(str(figures.more["published"]))


async def test_every_reader_of_rabbit_is_given_each_message(rabbit: FakeRabbit) -> None:
    figures = await fanout5k(bench(rabbit_dialect(rabbit)))
    assert figures.latency is not None
    assert figures.latency.count == READERS * int(str(figures.more["published"]))


async def test_a_refused_message_of_nats_ends_it_with_the_server_s_words(nats: FakeNats) -> None:
    nats.refusing = b'{"error":{"code":503,"description":"insufficient resources"}}'
    with pytest.raises(LoadFailed, match="insufficient resources"):
        await single(bench(nats_dialect(nats)))


async def test_a_refused_message_of_rabbit_ends_it_with_the_broker_s_words(
    rabbit: FakeRabbit,
) -> None:
    rabbit.refusing = True
    with pytest.raises(LoadFailed, match="no exchange"):
        await single(bench(rabbit_dialect(rabbit)))


async def test_who_is_not_let_in_is_told(rabbit: FakeRabbit) -> None:
    with pytest.raises(LoadFailed, match="Access refused"):
        await single(bench(rabbit_dialect(rabbit, "wrong")))


async def test_what_jetstream_does_not_do_is_told(nats: FakeNats) -> None:
    client = await nats_dialect(nats).producer("p", "single", 1)
    try:
        with pytest.raises(LoadFailed, match="404"):
            await client.ask("$JS.API.NOTHING.x")
    finally:
        client.close()
