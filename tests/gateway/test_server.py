"""The process: how it starts, what it says when it cannot, how it ends (P14, R31)."""

import asyncio
import json
import logging
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from click.testing import CliRunner
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from gateway.broker import Broker
from gateway.cli.serve import serve, start_line
from gateway.config import Config
from gateway.server import OnFatal, Server
from gateway.settings import SETTINGS
from gateway.wire import frames
from gateway.wire.protocol import SendPing, SessionProtocol
from loadtests.trials.credentials.bad_credentials import AUDIENCE, Issuer
from push.errors import Refused
from runtime import process as logs
from runtime.listener import StartError, bind
from runtime.process import EXIT_FATAL, raise_files_limit
from tests.gateway.conftest import never
from tests.gateway.plain_tokens import record, text


async def whole(config: Config, on_fatal: OnFatal) -> Broker:
    return await Broker.open(config, on_fatal=on_fatal)


def config_of(tmp_path: Path, **settings: Any) -> Config:
    return Config(data_dir=tmp_path / "data", port=0, **settings)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    """A server on a free port."""
    opened = await Server.open(config_of(tmp_path, drain_s=4), whole, on_fatal=never)
    yield opened
    await opened.stop()


async def test_a_started_server_answers_on_its_port_and_its_socket(server: Server) -> None:
    async with httpx2.AsyncClient(base_url=server.url) as http:
        assert (await http.get("/readyz")).json() == {"ready": True, "not_ready": []}
    assert (server.config.data_dir / "admin.sock").is_socket()


async def test_caches_of_identities_are_among_those_that_status_shows(tmp_path: Path) -> None:
    """Of a JWT and an API token, each brought three times, all but the first are hits; what is
    wrong is never one."""
    issuer, keys, now = Issuer(), tmp_path / "jwks.json", time.time()
    keys.write_bytes(issuer.jwks("EdDSA"))
    config = config_of(tmp_path, jwt_keys=str(keys), jwt_audience=AUDIENCE)
    server = await Server.open(config, whole, on_fatal=never)
    # Rights that no other test has: what is kept of them is this process's.
    mine = record(rights=("read:of-test-server",))
    await server.broker.metadata.tokens.create(mine)
    jwt = issuer.token(now, tocsin_rights=["read:of-test-server"])

    async def caches() -> dict[str, tuple[int, int]]:
        shown: Any = (await server.broker.describe())["caches"]
        return {name: (one["hits"], one["misses"]) for name, one in shown.items()}

    before = await caches()
    async with httpx2.AsyncClient(base_url=server.url) as http:
        for token, status in ((jwt, 200), (text(), 200), (jwt[:-2], 401)):
            headers = {"Authorization": f"Bearer {token}"}
            for _ in range(3):
                answer = await http.get("/v1/queues", headers=headers)
                assert answer.status_code == status
    after = await caches()
    await server.stop()
    grown = {
        name: tuple(b - a for a, b in zip(before[name], after[name], strict=True))
        for name in ("jwts", "rights_of_jwts", "rights_of_tokens")
    }
    assert grown["jwts"] == (2, 1 + 3)
    assert grown["rights_of_jwts"] == (0, 1)
    assert grown["rights_of_tokens"] == (3, 0)  # `create` has looked at them before


@pytest.mark.parametrize("heartbeat_s", [1.0, 20.0, 60.0])
async def test_a_client_that_never_pongs_is_closed_after_two_heartbeats(
    tmp_path: Path, heartbeat_s: float
) -> None:
    """The setting holds for the ping and, as long again, for what comes back."""
    config = config_of(tmp_path, heartbeat_s=heartbeat_s)
    server = await Server.open(config, whole, on_fatal=never)
    session = SessionProtocol(server.connections.services.timing, now=0.0)
    session.receive(b'{"type": "hello"}', now=0.0)
    assert session.expire(now=heartbeat_s - 0.1) is None
    assert session.expire(now=heartbeat_s) == SendPing()
    assert session.expire(now=2 * heartbeat_s - 0.1) is None
    assert session.expire(now=2 * heartbeat_s) == frames.HEARTBEAT
    await server.stop()


async def test_a_stopped_server_leaves_neither_port_nor_socket(tmp_path: Path) -> None:
    server = await Server.open(config_of(tmp_path), whole, on_fatal=never)
    await server.stop()
    async with httpx2.AsyncClient(base_url=server.url) as http:
        with pytest.raises(httpx2.ConnectError):
            await http.get("/healthz")
    assert not (server.config.data_dir / "admin.sock").exists()
    again = await Server.open(config_of(tmp_path), whole, on_fatal=never)
    await again.stop()


async def test_a_taken_port_is_reported_before_anything_is_opened(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config = Config(data_dir=tmp_path / "data", port=taken.getsockname()[1])
        with pytest.raises(
            StartError, match=r"used by another process\. Stop that process, or choose"
        ):
            await Server.open(config, whole, on_fatal=never)
    assert not config.data_dir.exists()


async def test_a_data_folder_in_use_is_reported(tmp_path: Path) -> None:
    server = await Server.open(config_of(tmp_path), whole, on_fatal=never)
    with pytest.raises(StartError, match="The broker cannot start"):
        await Server.open(config_of(tmp_path), whole, on_fatal=never)
    # The second one has not touched the first one's socket.
    assert (server.config.data_dir / "admin.sock").is_socket()
    await server.stop()


@pytest.mark.parametrize(
    ("host", "sentence"),
    [("192.0.2.1", "no address of this machine"), ("no-such-host.invalid", "is no address")],
)
def test_a_wrong_address_is_reported(host: str, sentence: str) -> None:
    with pytest.raises(StartError, match=sentence):
        bind(host, 0)


async def test_a_broker_that_cannot_start_frees_the_port(tmp_path: Path) -> None:
    ports = []

    async def failing(config: Config, on_fatal: OnFatal) -> Broker:
        raise Refused("storage_unavailable", "the disk is not there")

    with socket.create_server(("127.0.0.1", 0)) as free:
        ports.append(free.getsockname()[1])
    for _ in range(2):  # the second time, the port is free again
        with pytest.raises(StartError, match="the disk is not there"):
            await Server.open(Config(data_dir=tmp_path, port=ports[0]), failing, on_fatal=never)


async def test_a_start_that_fails_late_closes_what_was_open(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    (config.data_dir / "admin.sock" / "x").mkdir(parents=True)  # cannot be replaced
    with pytest.raises(StartError, match="cannot start"):
        await Server.open(config, whole, on_fatal=never)
    await (await whole(config, never)).stop()  # the data folder is in use no longer


# --- Draining ----------------------------------------------------------------------------------


async def test_a_drain_sends_sessions_elsewhere(server: Server) -> None:
    """P14: told when to come back, then closed with a code that says to come back."""
    url = server.url.replace("http", "ws") + "/v1/ws"
    async with connect(url, subprotocols=[Subprotocol("tocsin.v1")], compression=None) as ws:
        await ws.send('{"type":"hello"}')
        assert json.loads(await ws.recv())["type"] == "welcome"
        draining = asyncio.create_task(server.drain())
        advice = json.loads(await ws.recv())
        assert advice["type"] == "drain"
        assert advice["reconnect_after_s"] >= 0
        with pytest.raises(ConnectionClosed) as closed:
            await ws.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 4000
        await draining


async def test_balancers_hear_of_a_drain_before_the_port_is_closed(tmp_path: Path) -> None:
    """P14: in between, whoever still comes is served as ever."""
    config = config_of(tmp_path, drain_s=1, drain_notice_s=60)
    server = await Server.open(config, whole, on_fatal=never)
    draining = asyncio.create_task(server.drain())
    async with asyncio.timeout(10):
        while await ask(server, "/readyz") != 503:
            pass
    assert await ask(server, "/healthz") == 200
    assert await ask(server, "/v1/queues") == 200
    assert not server.connections.is_draining
    draining.cancel()
    await asyncio.wait((draining,))
    await server.stop()


async def ask(server: Server, path: str) -> int:
    """The status of an answer over a connection of its own."""
    async with httpx2.AsyncClient(base_url=server.url) as http:
        return (await http.get(path)).status_code


async def test_a_drain_answers_waiting_pulls_and_takes_no_connection(server: Server) -> None:
    async with (
        httpx2.AsyncClient(base_url=server.url) as http,
        httpx2.AsyncClient(base_url=server.url) as late,
    ):
        await http.put("/v1/queues/q", json={"partitions": 1})
        pull = asyncio.create_task(
            http.post("/v1/queues/q/groups/g/pull", json={"wait_s": 30}, timeout=30)
        )
        async with asyncio.timeout(10):
            while (await late.get("/v1/queues/q/groups/g")).json().get("members") != ["pulls"]:
                pass
        await late.get("/v1/queues/q/groups/g")
        await server.drain()
        answer = await pull
        assert answer.json() == {"messages": []}
        assert answer.headers["connection"] == "close"
        async with httpx2.AsyncClient(base_url=server.url) as new:
            with pytest.raises(httpx2.ConnectError):
                await new.get("/healthz")


async def test_a_drain_ends_in_time_whatever_hangs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Hanging(Broker):
        async def drain(self) -> None:
            await asyncio.Event().wait()

    async def hanging(config: Config, on_fatal: OnFatal) -> Broker:
        return await Hanging.open(config, on_fatal=on_fatal)

    server = await Server.open(config_of(tmp_path, drain_s=1), hanging, on_fatal=never)
    loop = asyncio.get_running_loop()
    began = loop.time()
    await server.drain()
    await server.stop()
    assert loop.time() - began < 3
    assert "not complete" in caplog.text


# --- The process -------------------------------------------------------------------------------


class Process:
    """`tocsin serve` in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def line(self) -> str:
        assert self.process.stdout is not None
        async with asyncio.timeout(20):
            return (await self.process.stdout.readline()).decode()

    async def log(self, part: str) -> None:
        """Wait until a line of the log holds this."""
        assert self.process.stderr is not None
        async with asyncio.timeout(20):
            async for line in self.process.stderr:
                if part in line.decode():
                    return
        raise AssertionError(f"it ended without saying {part}")

    async def ends(self) -> tuple[int, str]:
        """(exit code, what is left of stderr)."""
        async with asyncio.timeout(20):
            _, errors = await self.process.communicate()
        assert self.process.returncode is not None
        return self.process.returncode, errors.decode()


@pytest.fixture
async def spawn(tmp_path: Path) -> AsyncIterator[Any]:
    """Starts processes and ends what is left of them."""
    started: list[Process] = []

    async def make(code: str, *arguments: str, **environ: str) -> Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            code,
            *arguments,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": os.pathsep.join(("", *filter(None, sys.path))),
                "TOCSIN_DATA_DIR": str(tmp_path / "data"),
                "TOCSIN_PORT": "0",
                "XDG_CONFIG_HOME": str(tmp_path / "config"),
                **environ,
            },
        )
        started.append(Process(process))
        return started[-1]

    yield make
    for one in started:
        if one.process.returncode is None:
            one.process.kill()
            await one.process.communicate()


SERVE = "from gateway.cli.serve import serve; serve()"
HELD = """
import asyncio, os, sys, threading
from pathlib import Path
from gateway import server
from runtime import process as logs
from gateway.broker import Broker
from gateway.config import Config

async def build(config, on_fatal):
    if sys.argv[1] == "slow":
        print("opening", flush=True)
        await asyncio.Event().wait()
    if sys.argv[1] == "fatal":
        threading.Timer(0.3, on_fatal, ["the commit's outcome is not known"]).start()
    return await Broker.open(config, on_fatal=on_fatal)

logs.configure("info", as_json=False)
config = Config(data_dir=Path(os.environ["TOCSIN_DATA_DIR"]), port=0, drain_notice_s=60)
sys.exit(server.run(config, build, announce=lambda s: print(s.url, flush=True)))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_the_first_signal_ends_it_in_order(spawn: Any, number: int) -> None:
    """P14: exit code 0; what was acknowledged is there at the next start."""
    broker = await spawn(SERVE, "--json")
    url = json.loads(await broker.line())["url"]
    async with httpx2.AsyncClient(base_url=url) as http:
        await http.put("/v1/queues/q", json={"partitions": 1})
        sent = await http.post("/v1/queues/q/messages", json={"messages": [{"body": "kept"}]})
        assert sent.status_code == 200
    broker.process.send_signal(number)
    assert (await broker.ends())[0] == 0
    again = await spawn(SERVE, "--json")
    url = json.loads(await again.line())["url"]
    async with httpx2.AsyncClient(base_url=url) as http:
        pulled = await http.post("/v1/queues/q/groups/g/pull", json={"wait_s": 10}, timeout=20)
        assert [message["body"] for message in pulled.json()["messages"]] == ["kept"]


async def test_a_browsers_access_outlives_a_restart_and_not_the_token(spawn: Any) -> None:
    """P11. The pages are there, and lead to where one gets in."""
    header = ""
    for token, status in (("one-token", 200), ("one-token", 200), ("another", 401)):
        broker = await spawn(SERVE, "--json", TOCSIN_TOKEN=token)
        url = json.loads(await broker.line())["url"]
        async with httpx2.AsyncClient(base_url=url) as http:
            assert (await http.get("/")).headers["location"] == "/demo"
            if not header:
                bearer = {"authorization": f"Bearer {token}"}
                ticket = (await http.post("/v1/tickets", headers=bearer)).json()["ticket"]
                entered = await http.post("/v1/access", json={"ticket": ticket})
                header = entered.headers["set-cookie"].partition(";")[0]
        async with httpx2.AsyncClient(base_url=url, headers={"cookie": header}) as http:
            assert (await http.get("/v1/queues")).status_code == status
        broker.process.send_signal(signal.SIGTERM)
        code, errors = await broker.ends()
        assert code == 0
        assert "tocsin.pages" in errors
        assert token not in errors


async def test_the_second_signal_ends_it_at_once(spawn: Any) -> None:
    broker = await spawn(HELD, "")
    await broker.line()
    broker.process.send_signal(signal.SIGTERM)
    await broker.log("going down")
    broker.process.send_signal(signal.SIGTERM)
    assert (await broker.ends())[0] == 128 + signal.SIGTERM


async def test_a_signal_breaks_a_long_start_off(spawn: Any) -> None:
    broker = await spawn(HELD, "slow")
    assert await broker.line() == "opening\n"
    broker.process.send_signal(signal.SIGTERM)
    assert await broker.ends() == (0, "")


async def test_a_storage_that_cannot_go_on_ends_the_process_at_once(spawn: Any) -> None:
    """R31: after an unknown commit the process stops and starts from the file."""
    broker = await spawn(HELD, "fatal")
    code, errors = await broker.ends()
    assert code == EXIT_FATAL == 70
    assert "the commit's outcome is not known" in errors
    assert "good-bye" not in errors


async def test_what_cannot_start_says_why_in_a_sentence(spawn: Any, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for environ, part in (
            ({"TOCSIN_PORT": str(taken.getsockname()[1])}, "is used by another process"),
            ({"TOCSIN_PORT": "http"}, "TOCSIN_PORT is 'http'; it must be a whole number"),
            ({"TOCSIN_HOST": "0.0.0.0"}, "set TOCSIN_TOKEN"),
            ({"TOCSIN_HOST": "0.0.0.0", "TOCSIN_TOKEN": "t" * 20}, "to accept that tokens"),
            ({"TOCSIN_DATA_DIR": str(tmp_path / "file" / "x")}, "Not a directory"),
        ):
            broker = await spawn(SERVE, **environ)
            code, errors = await broker.ends()
            assert code == 1, errors
            assert errors.startswith("Error: "), errors
            assert part in errors
            assert "Traceback" not in errors


async def test_an_unknown_variable_is_warned_of(spawn: Any) -> None:
    broker = await spawn(SERVE, TOCSIN_PROT="1")
    assert (await broker.line()).startswith("Tocsin listens on http://127.0.0.1:")
    await broker.log("TOCSIN_PROT is no setting of Tocsin and has no effect; did you mean")


def test_the_help_names_every_setting() -> None:
    text = " ".join(CliRunner().invoke(serve, ["--help"], terminal_width=200).output.split())
    for setting in SETTINGS:
        assert setting.flag in text or not setting.has_flag
        assert setting.variable in text
    assert "Examples:" in text


def test_the_start_line_says_who_may_come_and_what_a_receipt_means(tmp_path: Path) -> None:
    line = start_line("http://127.0.0.1:1", Config(data_dir=tmp_path), as_json=False)
    for part in ("http://127.0.0.1:1", "this machine only", str(tmp_path), "fsync"):
        assert part in line
    told = json.loads(start_line("u", Config(data_dir=tmp_path, token="t" * 20), as_json=True))
    assert told["token"] is True
    assert "t" * 20 not in str(told)
    assert told["durability"] == "fsync"


def test_the_start_line_of_a_broker_over_redis_speaks_of_every_copy(tmp_path: Path) -> None:
    """[The JSON said `fsync` where the sentence said that every copy is on disk.]"""
    config = Config(data_dir=tmp_path, storage="redis://store:6379")
    assert "when every copy is on disk" in start_line("u", config, as_json=False)
    assert json.loads(start_line("u", config, as_json=True))["durability"] == "all"


def test_the_files_limit_is_raised_to_what_is_allowed() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
        assert raise_files_limit() == hard
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_log_line_for_machines_is_one_object() -> None:
    formatter = logs.JsonLines()
    try:
        raise ZeroDivisionError("by zero")
    except ZeroDivisionError:
        record = logging.LogRecord(
            "tocsin.x", logging.ERROR, "", 0, "it %s\nbroke", ("really",), sys.exc_info()
        )
    line = formatter.format(record)
    assert "\n" not in line
    fields = json.loads(line)
    assert fields["level"] == "error"
    assert fields["logger"] == "tocsin.x"
    assert fields["message"] == "it really\nbroke"
    assert "ZeroDivisionError: by zero" in fields["traceback"]
