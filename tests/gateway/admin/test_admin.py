"""The admin socket and its commands: for this machine's operator alone, names asked for twice."""

import asyncio
import os
import stat
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gateway.admin import client as admin
from gateway.admin.client import AdminError, socket_path
from gateway.admin.server import SOCKET_PATH_BYTES_MAX, AdminSocket
from gateway.broker import Broker
from gateway.cli.serve import admin as admin_command
from gateway.config import Config
from gateway.models import BackupProgress
from metadata.catalog import ANYBODY, Principal, QueueSettings
from tests.gateway.conftest import never
from tests.histories.house import House, message
from tests.histories.test_scheduling import outcomes


@pytest.fixture
async def data_dir(broker: Broker, tmp_path: Path) -> AsyncIterator[Path]:
    """A data folder with a broker's admin socket, and in the broker the queue `orders`."""
    await broker.create_queue(ANYBODY, "orders", QueueSettings(partitions=1))
    socket = AdminSocket(tmp_path, broker)
    await socket.start()
    yield tmp_path
    await socket.stop()


def names(broker: Broker) -> list[str]:
    return [queue.name for queue in broker.metadata.list_queues(ANYBODY)]


async def run(*arguments: str, stdin: str = "") -> Result:
    """A command, in a thread: the socket is answered by this loop."""
    invoke: Callable[..., Result] = CliRunner().invoke
    return await asyncio.to_thread(invoke, admin_command, arguments, input=stdin)


async def test_a_queue_is_deleted_when_both_names_match(data_dir: Path, broker: Broker) -> None:
    answer = await asyncio.to_thread(admin.delete_queue, data_dir, "orders", "orders")
    assert answer["deleted"] == "orders"
    assert names(broker) == []


async def test_what_goes_with_a_queue_is_told_before_and_after(house: House) -> None:
    """And written down."""
    queue = await house.queue()
    await house.group(queue)
    await house.publish(queue, [message(number) for number in range(29)])
    await outcomes(house, message("in an hour", delay_s=3600))
    socket = AdminSocket(house.folder, house.broker)
    await socket.start()
    try:
        asked = await asyncio.to_thread(admin.delete_queue, house.folder, "orders", None)
        assert asked == {"messages": 30, "groups": 1}
        arguments = ("delete-queue", "orders", "--data-dir", str(house.folder))
        refused = await run(*arguments)
        assert (refused.exit_code, "30 messages and 1 group" in refused.output) == (2, True)
        done = await run(*arguments, "--yes")
        assert done.stdout == "Deleted orders with 30 messages and 1 group.\n"
    finally:
        await socket.stop()


async def test_a_queue_stays_when_the_names_differ(data_dir: Path, broker: Broker) -> None:
    """The broker asks twice too, not only the command."""
    with pytest.raises(AdminError, match="not the same name"):
        await asyncio.to_thread(admin.delete_queue, data_dir, "orders", "order")
    assert names(broker) == ["orders"]


async def test_a_queue_is_deleted_of_the_tenant_that_is_named(
    data_dir: Path, broker: Broker
) -> None:
    other = Principal("somebody", "blue")
    await broker.create_queue(other, "letters", QueueSettings())
    arguments = ("letters", "--yes", "--data-dir", str(data_dir))
    assert (await run("delete-queue", *arguments, "--tenant", "blue")).exit_code == 0
    assert "letters" not in [queue.name for queue in broker.metadata.list_queues(other)]
    assert names(broker) == ["orders"]


async def test_an_unknown_queue_is_reported(data_dir: Path) -> None:
    with pytest.raises(AdminError, match="queue_not_found"):
        await asyncio.to_thread(admin.delete_queue, data_dir, "other", "other")


async def test_the_status_is_the_brokers(data_dir: Path, broker: Broker) -> None:
    answer: dict[str, Any] = await asyncio.to_thread(admin.status, data_dir)
    assert set(answer) == set(await broker.describe())


async def test_the_socket_is_for_its_owner_alone(data_dir: Path) -> None:
    """P11."""
    mode = (data_dir / "admin.sock").stat().st_mode
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600


async def test_a_dead_brokers_socket_is_replaced(data_dir: Path, broker: Broker) -> None:
    second = AdminSocket(data_dir, broker)  # as after a kill -9: the file is there, nobody listens
    await second.start()
    assert "queue_not_found" in str(await error_of(data_dir))
    await second.stop()


async def error_of(data_dir: Path) -> AdminError:
    with pytest.raises(AdminError) as caught:
        await asyncio.to_thread(admin.delete_queue, data_dir, "none", "none")
    return caught.value


async def test_without_a_broker_a_command_says_so(tmp_path: Path) -> None:
    assert str(await error_of(tmp_path)).startswith(f"No broker runs on {tmp_path}")


async def test_a_long_path_gets_a_socket_elsewhere_and_leaves_nothing(
    broker: Broker, tmp_path: Path
) -> None:
    deep = tmp_path / ("x" * 100) / ("y" * 100)
    deep.mkdir(parents=True)
    socket = AdminSocket(deep, broker)
    await socket.start()
    place = socket_path(deep)
    assert len(os.fsencode(place)) <= SOCKET_PATH_BYTES_MAX
    assert place.parent.parent == Path(tempfile.gettempdir())
    assert stat.S_IMODE(place.parent.stat().st_mode) == 0o700
    assert "queue_not_found" in str(await error_of(deep))
    await socket.stop()
    assert not place.parent.exists()
    assert list(deep.iterdir()) == []


async def test_what_is_unknown_or_wrong_has_its_problem(data_dir: Path) -> None:
    for method, path, body, code in (
        ("GET", "/nowhere", None, "not_found"),
        ("GET", "/delete-queue", None, "method_not_allowed"),
        ("POST", "/delete-queue", {}, "invalid_request"),
        ("POST", "/delete-queue", {"queue": "a", "confirm": "a", "x": 1}, "invalid_request"),
    ):
        with pytest.raises(AdminError, match=code):
            await asyncio.to_thread(admin._ask, data_dir, method, path, body)


class Copying(Broker):
    """A broker whose backup has come half way and stays there."""

    broken_off: asyncio.Event

    async def backup(self, folder: Path, progress: BackupProgress) -> dict[str, object]:
        progress("copied", 1, 2)
        self.broken_off = asyncio.Event()
        try:
            await asyncio.Event().wait()
        finally:
            self.broken_off.set()
        return {}


@pytest.fixture
async def copying(tmp_path: Path) -> AsyncIterator[Copying]:
    made = await Copying.open(Config(data_dir=tmp_path / "data"), on_fatal=never)
    assert isinstance(made, Copying)
    yield made
    await made.stop()


async def test_a_backup_reports_its_progress_and_ends_when_its_caller_does(
    copying: Copying, tmp_path: Path
) -> None:
    socket = AdminSocket(tmp_path, copying)
    await socket.start()

    class Enough(Exception):
        pass

    def progress(*told: object) -> None:
        assert told == ("copied", 1, 2)
        raise Enough  # as a Ctrl-C would

    with pytest.raises(Enough):
        await asyncio.to_thread(admin.backup, tmp_path, tmp_path / "backup", progress)
    async with asyncio.timeout(5):
        await copying.broken_off.wait()
    await socket.stop()


async def test_a_backup_that_ends_with_its_broker_is_reported(
    copying: Copying, tmp_path: Path
) -> None:
    """P14: a stop does not wait for it."""
    socket = AdminSocket(tmp_path, copying)
    await socket.start()
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()

    def progress(*_told: object) -> None:
        loop.call_soon_threadsafe(begun.set)

    asking = asyncio.create_task(
        asyncio.to_thread(admin.backup, tmp_path, tmp_path / "backup", progress)
    )
    await begun.wait()
    await socket.stop()
    with pytest.raises(AdminError, match="draining: the broker is going down"):
        await asking


# --- The commands ------------------------------------------------------------------------------


async def test_the_command_deletes_with_the_name_given_twice(
    data_dir: Path, broker: Broker
) -> None:
    result = await run("delete-queue", "orders", "--yes", "--data-dir", str(data_dir))
    assert (result.exit_code, result.stdout) == (
        0,
        "Deleted orders with 0 messages and 0 groups.\n",
    )
    assert names(broker) == []


async def test_the_command_asks_for_the_name_on_a_terminal(
    data_dir: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda _: True, raising=False)
    arguments = ("delete-queue", "orders", "--data-dir", str(data_dir))
    wrong = await run(*arguments, stdin="order\n")
    assert wrong.exit_code == 1
    assert "Nothing was done" in wrong.output
    assert "deletes the queue orders with 0 messages and 0 groups, for good" in wrong.output
    assert names(broker) == ["orders"]
    right = await run(*arguments, stdin="orders\n")
    assert right.exit_code == 0, right.output
    assert names(broker) == []


async def test_without_a_terminal_the_command_wants_yes(data_dir: Path, broker: Broker) -> None:
    result = await run("delete-queue", "orders", "--data-dir", str(data_dir), stdin="orders\n")
    assert result.exit_code == 2
    assert "--yes" in result.output
    assert names(broker) == ["orders"]


async def test_the_data_folder_comes_from_the_environment(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOCSIN_DATA_DIR", str(data_dir))
    monkeypatch.setenv("TOCSIN_PORT", "not a number")  # which is no business of this command
    assert (await run("status")).exit_code == 0
    assert (await run("status", "--json")).stdout.startswith("{")


async def test_a_command_that_failed_says_why_in_a_sentence(tmp_path: Path) -> None:
    result = await run("status", "--data-dir", str(tmp_path))
    assert result.exit_code == 1
    assert result.output.startswith("Error: No broker runs on ")


async def test_every_answer_names_the_broker(broker: Broker, tmp_path: Path) -> None:
    """On stderr, so that what a script reads is the answer alone."""
    socket = AdminSocket(tmp_path, broker, url="http://127.0.0.1:18080")
    await socket.start()
    try:
        for arguments in (("status",), ("partitions",)):
            result = await run(*arguments, "--json", "--data-dir", str(tmp_path))
            assert result.stderr == f"Broker http://127.0.0.1:18080 on {tmp_path}.\n"
    finally:
        await socket.stop()


@pytest.mark.parametrize(
    "case",
    [
        ("http://127.0.0.1:18080", "http://127.0.0.1:18080", True),
        ("http://127.0.0.1:18080", "http://localhost:18080/", True),
        ("http://0.0.0.0:18080", "http://127.0.0.1:18080", True),
        ("http://127.0.0.1:18080", "http://127.0.0.1:18081", False),
        ("http://0.0.0.0:18080", "http://192.0.2.7:18080", False),
        ("http://127.0.0.1:18080", "https://broker.invalid:18080", False),
        ("https://127.0.0.1:443", "https://127.0.0.1", True),
    ],
)
async def test_a_broker_that_is_not_the_one_of_the_environment_is_not_touched(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: tuple[str, str, bool]
) -> None:  # fmt: skip
    """TOCSIN_URL names one, the data folder another: which is meant is asked, unless a flag says
    it."""
    listens, wanted, is_meant = case
    await broker.create_queue(ANYBODY, "orders", QueueSettings(partitions=1))
    monkeypatch.setenv("TOCSIN_URL", wanted)
    monkeypatch.setenv("TOCSIN_DATA_DIR", str(tmp_path))
    socket = AdminSocket(tmp_path, broker, url=listens)
    await socket.start()
    try:
        result = await run("delete-queue", "orders", "--yes")
        assert (result.exit_code, names(broker)) == ((0, []) if is_meant else (2, ["orders"]))
        if not is_meant:
            assert wanted in result.stderr
            assert listens in result.stderr
            told = await run("delete-queue", "orders", "--yes", "--data-dir", str(tmp_path))
            assert (told.exit_code, names(broker)) == (0, [])
    finally:
        await socket.stop()


async def test_the_status_has_times_and_durations_as_people_write_them(data_dir: Path) -> None:
    told = (await run("status", "--data-dir", str(data_dir))).stdout
    assert not {"{", "[", "None", "True", "False", "unix ms"} & set(told)
    assert "unix_ms" not in told
