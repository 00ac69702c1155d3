"""The entrants: each broker's set-up, the meaning of its confirmations, and its scenarios."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from loadtests.bench import adapter
from loadtests.bench.adapter import Adapter
from loadtests.bench.command import version_of
from loadtests.peers import programs, servers
from loadtests.peers.clients import Bodies
from loadtests.peers.medians import OFFERED, SPREAD
from loadtests.peers.nats import Nats
from loadtests.peers.stomp import Stomp
from loadtests.peers.streams import Streams

SHARING: Final = ("single", "batch", *OFFERED)
READING: Final = ("fanout", "idle")
SYNCED_IN_FLIGHT: Final = 400
"""The messages under way of a NATS that syncs each of them by itself. It takes in all that has
arrived before it pushes or confirms any, so more only wait."""


@dataclass(frozen=True)
class Running:
    """Servers that run for one measurement."""

    adapter: Adapter
    pids: tuple[int, ...]
    """The processes that were started, each in a session of its own."""


@dataclass(frozen=True)
class Entrant:
    """A broker in one of its configurations."""

    name: str
    title: str
    transport: str
    durability: str
    """The configured durability of a message when it is confirmed."""
    ordering: str
    """The way in which a key stays in order between publisher and consumer."""
    batch: str
    """A text for the table: how a producer of this entrant sends a hundred messages that wait."""
    reader: str
    """The kind of each of many readers."""
    scenarios: tuple[str, ...]
    version: Callable[[], str]
    """Returns the version of this broker. Raises Missing, with the reason, if it is not
    installed."""
    open: Callable[[Path], AbstractContextManager[Running]]
    """Starts the broker on an empty folder, and ends it at the end of the block. Raises Missing,
    ServerFailed."""
    in_flight_max: int | None = None
    """A lower bound for messages under way than the scenarios have; None: theirs."""


def _tocsin_version() -> str:
    return f"Tocsin {version_of('tocsin-server')}"


@contextmanager
def _tocsin(folder: Path) -> Iterator[Running]:
    with servers.tocsin(folder) as server:
        yield Running(adapter.Tocsin(server.url, None), (server.pid,))


def _tocsin_on_redis_version() -> str:
    return f"{_tocsin_version()} over {programs.redis()}"


@contextmanager
def _tocsin_on_redis(folder: Path) -> Iterator[Running]:
    with servers.redis(folder, programs.redis()) as (port, pid):
        url = f"redis://127.0.0.1:{port}"
        servers.provision(url)
        with servers.tocsin(folder, url) as server:
            yield Running(adapter.Tocsin(server.url, None), (server.pid, pid))


def _nats_version() -> str:
    return str(programs.nats())


def _nats_sync_version() -> str:
    return str(programs.nats_sync())


def _nats(
    *, sync_always: bool = False, stored: bool = True
) -> Callable[[Path], AbstractContextManager[Running]]:
    @contextmanager
    def opened(folder: Path) -> Iterator[Running]:
        program = programs.nats()
        with servers.nats_server(folder, program, sync_always=sync_always) as (url, pid):
            yield Running(Nats(url, Bodies(), Random(1), stored=stored), (pid,))

    return opened


def _rabbit_version() -> str:
    return str(programs.rabbit())


@contextmanager
def _rabbit(folder: Path) -> Iterator[Running]:
    found, user, password = programs.rabbit(), "bench", "bench"
    with servers.rabbit(folder, found, user, password) as (url, *pids):
        yield Running(Stomp(url, user, password, Bodies(), Random(1)), tuple(pids))


def _redis_version() -> str:
    return str(programs.redis())


@contextmanager
def _streams(folder: Path) -> Iterator[Running]:
    with servers.redis(folder, programs.redis()) as (port, pid):
        yield Running(Streams(port, Bodies(), Random(1)), (pid,))


_PIPELINED: Final = "has no batches: 100 messages one behind the other in one write"
_TOCSIN_READER: Final = "a reader of the stored queue"
_ENCRYPTED: Final = "encrypted at rest"

ENTRANTS: Final = (
    Entrant(
        "tocsin",
        "Tocsin",
        "WebSocket",
        f"fsync before each receipt (SQLite, synchronous=FULL); {_ENCRYPTED}",
        "16 partitions by key, shared out by the broker",
        "one frame of 100",
        _TOCSIN_READER,
        (*SHARING, *SPREAD, *READING),
        _tocsin_version,
        _tocsin,
    ),
    Entrant(
        "tocsin-redis",
        "Tocsin over Redis",
        "WebSocket",
        f"fsync before each receipt (appendfsync always; one server, no replica); {_ENCRYPTED}",
        "16 partitions by key, shared out by the broker",
        "one frame of 100",
        _TOCSIN_READER,
        (*SHARING, *READING),
        _tocsin_on_redis_version,
        _tocsin_on_redis,
    ),
    Entrant(
        "nats",
        "NATS JetStream",
        "WebSocket",
        "confirmed before it is synced (file store; fsync every 2 min)",
        "16 partitions by subject mapping, a push consumer each",
        _PIPELINED,
        "a consumer of the stored stream in memory, without acknowledgements",
        (*SHARING, *READING),
        _nats_version,
        _nats(),
    ),
    Entrant(
        "nats-sync",
        "NATS JetStream, synced",
        "WebSocket",
        "fsync before each confirmation (sync_interval: always)",
        "16 partitions by subject mapping, a push consumer each",
        f"{_PIPELINED}; at most {SYNCED_IN_FLIGHT} in flight, because it syncs one by one",
        "a consumer of the stored stream in memory, without acknowledgements",
        (*SHARING, *READING),
        _nats_sync_version,
        _nats(sync_always=True),
        SYNCED_IN_FLIGHT,
    ),
    Entrant(
        "nats-core",
        "NATS, subject only",
        "WebSocket",
        "not stored before it is given (each reader once or never)",
        "one subject",
        _PIPELINED,
        "a subscription to the subject: what it misses is gone",
        READING,
        _nats_version,
        _nats(stored=False),
    ),
    Entrant(
        "rabbitmq",
        "RabbitMQ quorum queues",
        "WebSocket (Web-STOMP)",
        "fsync before each confirmation (Raft log; one node). Readers: queues in memory",
        "16 quorum queues behind a consistent-hash exchange, a consumer each",
        _PIPELINED,
        "a queue of its own in memory behind a fanout exchange",
        (*SHARING, *READING),
        _rabbit_version,
        _rabbit,
    ),
    Entrant(
        "redis-streams",
        "Redis Streams",
        "TCP: it has no WebSocket",
        "fsync before each confirmation (appendfsync always; one server)",
        "16 streams by the clients' hash of the key, a consumer of the group each",
        _PIPELINED,
        "XREAD that waits",
        (*SHARING, *READING),
        _redis_version,
        _streams,
    ),
)
