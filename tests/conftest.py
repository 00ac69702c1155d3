"""What every test needs, and the broker process that many have."""

import asyncio
import atexit
import gc
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from loadtests.server import Server
from tests.memory import in_memory
from tests.servers.binaries import Binary, ServerMissing, binaries
from tests.storage.standing import Pool

# pytest-asyncio asks for the current event loop before it sets its own. Asked for the first time,
# asyncio makes one that nobody closes, and whichever test runs when it is collected would fail.
asyncio.set_event_loop(None)

# Brokers of tests make their master keys here and not in the home of who runs the tests; and what
# killed processes had in their temporary folders goes with it.
os.environ["XDG_CONFIG_HOME"] = os.environ["TMPDIR"] = tempfile.mkdtemp(prefix="tocsin-tests-")
atexit.register(shutil.rmtree, os.environ["XDG_CONFIG_HOME"], ignore_errors=True)

# No test may fail because the machine is busy: Hypothesis judges no example by its seconds.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")

LONG = (
    "spark", "system", "browser", "javascript", "loadtests", "push", "histories", "contract",
    "servers", "clients",
)  # fmt: skip
"""Folders with tests that last, the longest first."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What lasts begins first, so that no process is left with it when the others have done."""

    def rank(item: pytest.Item) -> int:
        folder = item.path.relative_to(Path(__file__).parent).parts[0]
        return LONG.index(folder) if folder in LONG else len(LONG)

    items.sort(key=rank)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that wants `redis_binary`, or a fixture that does, runs with each that is here."""
    if "redis_binary" not in metafunc.fixturenames:
        return
    here: Sequence[Binary | ServerMissing]
    try:
        here = binaries()
    except ServerMissing as error:
        here = [error]
    ids = [one.engine if isinstance(one, Binary) else "none" for one in here]
    metafunc.parametrize("redis_binary", here, ids=ids, indirect=True, scope="session")


@pytest.fixture(scope="session")
def redis_binary(request: pytest.FixtureRequest) -> Binary:
    """A Valkey or Redis server that is here. Where there is none, what wants one fails."""
    if isinstance(request.param, ServerMissing):
        raise request.param
    assert isinstance(request.param, Binary)
    return request.param


@pytest.fixture(scope="session")
def servers() -> Iterator[Pool]:
    """Redis and Valkey servers that stand for many tests, which empty them."""
    with in_memory() as folder, pytest.MonkeyPatch.context() as patch:
        # Nobody is cut off there; the machine is busy.
        patch.setattr("storage.redis.cluster.NODE_S", 30.0)
        patch.setattr("storage.redis.discovery.SENTINEL_S", 30.0)
        pool = Pool(folder)
        yield pool
        pool.close()


@pytest.fixture
def broken_handshakes() -> Iterator[None]:
    """For tests whose TLS handshakes fail: the HTTP library leaves the sockets of such to the
    collector. It comes around here, and not in whichever test runs next."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A broker process of the test's own, which may be killed and started again."""
    with Server(tmp_path / "data", level="warning") as server:
        yield server
