"""Set-up of all tests, and the broker process that many of them use."""

import asyncio
import atexit
import gc
import logging
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

# pytest-asyncio asks for the current event loop before it sets its own. On the first request,
# asyncio makes a loop that is never closed, and the test that runs when it is collected would fail.
asyncio.set_event_loop(None)

# Brokers of tests make their master keys here and not in the user's home. Leftovers of killed
# processes in their temporary folders are removed with it.
os.environ["XDG_CONFIG_HOME"] = os.environ["TMPDIR"] = tempfile.mkdtemp(prefix="tocsin-tests-")
atexit.register(shutil.rmtree, os.environ["XDG_CONFIG_HOME"], ignore_errors=True)

# No test may fail because the machine is busy: Hypothesis judges no example by its seconds.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")


@pytest.fixture(autouse=True)
def loggers_stay_as_they_are() -> Iterator[None]:
    """Fail a test that leaves the broker's loggers changed: a later one of the same process would
    find no records."""
    before = _loggers()
    yield
    after = _loggers()
    if after != before:
        for name, (level, disabled, propagate) in before.items():
            logger = logging.getLogger(name)
            logger.setLevel(level)
            logger.disabled, logger.propagate = disabled, propagate
        pytest.fail(f"loggers are left changed: {sorted(after.items() - before.items())}")


def _loggers() -> dict[str, tuple[int, bool, bool]]:
    """Return name → (level, is disabled, propagates) of the loggers that records pass on their way
    to a test."""
    loggers = [logging.getLogger(), logging.getLogger("tocsin")]
    return {one.name: (one.level, one.disabled, one.propagate) for one in loggers}


LONG = (
    "spark", "system", "browser", "javascript", "loadtests", "push", "histories", "contract",
    "servers", "clients",
)  # fmt: skip
"""Folders with long tests, the longest first."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin long tests first, so that no process is left with one when the others have ended."""

    def rank(item: pytest.Item) -> int:
        folder = item.path.relative_to(Path(__file__).parent).parts[0]
        return LONG.index(folder) if folder in LONG else len(LONG)

    items.sort(key=rank)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that needs `redis_binary`, directly or by a fixture, with each installed
    server."""
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
    """An installed Valkey or Redis server. Without one, tests that need it fail."""
    if isinstance(request.param, ServerMissing):
        raise request.param
    assert isinstance(request.param, Binary)
    return request.param


@pytest.fixture(scope="session", autouse=True)
def busy_servers_are_not_dead() -> Iterator[None]:
    """Give nodes and Sentinels more time to reply, and the metadata service's nodes to read: the
    machine may stand still for seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("storage.redis.cluster.NODE_S", 30.0)
        patch.setattr("storage.redis.discovery.SENTINEL_S", 30.0)
        patch.setattr("metadata.service.node.CUT_OFF_S", 30.0)
        patch.setattr("metadata.service.node.READ_S", 30.0)
        yield


@pytest.fixture(scope="session")
def servers() -> Iterator[Pool]:
    """Redis and Valkey servers that run for many tests, which empty them."""
    with in_memory() as folder:
        pool = Pool(folder)
        yield pool
        pool.close()


@pytest.fixture
def broken_handshakes() -> Iterator[None]:
    """Collect the sockets of failed TLS handshakes. The HTTP library leaves them to the collector,
    which would otherwise report them in whichever test runs next."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A broker process of the test's own, which may be killed and started again."""
    with Server(tmp_path / "data", level="warning") as server:
        yield server
