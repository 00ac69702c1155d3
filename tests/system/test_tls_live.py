"""A broker process with TLS, and the SDK and the command over it."""

import asyncio
import os
import re
import signal
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import tocsin
import tocsin.blocking
from click.testing import CliRunner
from tocsin.cli.main import cli
from tocsin.proto.connect_policy import Transport
from websockets.asyncio.client import connect
from websockets.typing import Subprotocol

from loadtests.server import Process, Server
from tests.authority import Authority, Pair
from tests.system.talk import UNEXPECTED

IDLE = 200
IDLE_BYTES_MAX = 64 * 1024
"""The most memory of an idle connection, of which TLS is half (measured:
docs/benchmarks/tuning.md). A read buffer that stays would be 256 KiB."""


class Broker(NamedTuple):
    """A broker, and the authority of its certificate."""

    server: Server
    authority: Authority
    pair: Pair

    @property
    def url(self) -> str:
        return self.server.url

    @property
    def trusted(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.authority.ca)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("tls")
    authority = Authority(folder)
    pair = authority.issue("broker")
    settings = authority.settings(pair) | {"TOCSIN_AUTO_CREATE": "yes"}
    server = Server(folder / "data", settings=settings, ca=authority.ca)
    with server:
        yield Broker(server, authority, pair)
        server.stop()
    log = server.log_path.read_bytes()
    assert not UNEXPECTED.search(log), log.decode(errors="replace")
    assert b"Tocsin listens on https://127.0.0.1:" in log


@pytest.mark.parametrize("transport", ["websocket", "long-poll"])
async def test_everything_goes_over_tls(broker: Broker, transport: Transport) -> None:
    queue = f"over-{transport}"
    async with tocsin.connect(broker.url, ssl=broker.trusted, transport=transport) as client:
        assert client.transport == transport
        await client.create_queue(queue, partitions=2, message_bytes_max=1_048_576)
        large = "x" * 1_000_000
        receipts = await client.publish_many(
            queue, [{"body": large, "key": "k"}, *({"body": n, "key": "k"} for n in range(200))]
        )
        assert len(receipts) == 201
        async with client.subscribe(queue, group="g") as messages:
            bodies = []
            async for message in messages:
                bodies.append(message.body)
                await message.ack(confirm=len(bodies) == 201)
                if len(bodies) == 201:
                    break
        assert bodies == [large, *range(200)]
        await client.publish(queue, "pulled", key="k")
        (pulled,) = await client.pull(queue, "g", wait_s=10)
        assert pulled.body == "pulled"
        assert (await client.ack_receipts(queue, "g", [pulled.receipt])).settled == 1


def test_the_command_trusts_the_authority_of_the_environment(broker: Broker) -> None:
    environ = {"TOCSIN_URL": broker.url, "TOCSIN_CA_FILE": str(broker.authority.ca)}
    for arguments in (
        ["queue", "create", "by-command"],
        ["publish", "by-command", "1", "--key", "k"],
        ["queue", "list"],
    ):
        done = CliRunner().invoke(cli, arguments, env=environ)
        assert done.exit_code == 0, done.output
    assert "by-command" in done.output


@pytest.mark.usefixtures("broken_handshakes")
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.parametrize("arguments", [["queue", "list"], ["publish", "q", "1"]])
def test_an_unknown_authority_is_reported_with_what_to_do(
    broker: Broker, arguments: list[str]
) -> None:
    done = CliRunner().invoke(cli, arguments, env={"TOCSIN_URL": broker.url})
    assert done.exit_code == 1
    assert re.search("unable to get local issuer|self-signed certificate", done.output)
    assert "TOCSIN_CA_FILE" in done.output
    assert "not permitted" not in done.output  # the text that error number 1 would have elsewhere


@pytest.mark.parametrize("arguments", [["queue", "list"], ["publish", "q", "1"]])
def test_plain_words_to_it_are_told_too(broker: Broker, arguments: list[str]) -> None:
    url = broker.url.replace("https://", "http://")
    done = CliRunner().invoke(cli, arguments, env={"TOCSIN_URL": url})
    assert done.exit_code == 1
    assert done.output.startswith("Error: ")
    assert re.search("cannot reach a Tocsin broker|is not a Tocsin broker", done.output)


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        ({"TOCSIN_CA_FILE": "/absent.pem"}, "TOCSIN_CA_FILE is '/absent.pem': No such file"),
        ({"TOCSIN_CA_FILE": __file__}, "no certificate in PEM form"),
        ({"TOCSIN_CERT_FILE": "/absent.pem"}, "TOCSIN_CERT_FILE is '/absent.pem' and"),
        ({"TOCSIN_CERT_FILE": __file__}, "no pair in PEM form"),
        ({"TOCSIN_KEY_FILE": "/k.pem"}, "TOCSIN_KEY_FILE is set and TOCSIN_CERT_FILE is not"),
    ],
)
def test_wrong_files_of_a_client_are_named(
    broker: Broker, variables: dict[str, str], sentence: str
) -> None:
    for arguments in (["queue", "list"], ["publish", "q", "1"]):
        done = CliRunner().invoke(cli, arguments, env={"TOCSIN_URL": broker.url, **variables})
        assert done.exit_code == 2
        assert sentence in " ".join(done.output.split())


def test_a_context_for_a_url_without_tls_is_a_mistake(broker: Broker) -> None:
    with pytest.raises(ValueError, match="ssl needs an https:// URL"):
        tocsin.connect("http://127.0.0.1:1", ssl=broker.trusted)


def test_a_client_shows_its_certificate(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOCSIN_CA_FILE", str(broker.authority.ca))
    good = Authority.issue(broker.authority, "good-client")
    foreign = Authority(tmp_path, "foreign").issue("foreign-client")
    for shown, is_let_in in ((good, True), (foreign, False)):
        monkeypatch.setenv("TOCSIN_CERT_FILE", str(shown.cert))
        monkeypatch.setenv("TOCSIN_KEY_FILE", str(shown.key))
        if is_let_in:
            with tocsin.blocking.connect(broker.url) as client:
                client.publish("shown", 1)
        else:
            with pytest.raises(tocsin.CannotConnect):
                tocsin.blocking.connect(broker.url, connect_timeout_s=5)


async def test_a_hangup_renews_the_certificate_and_no_session_notices(broker: Broker) -> None:
    async with tocsin.connect(broker.url, ssl=broker.trusted) as client:
        session = client.session_id
        before = await serial(broker)
        broker.pair.replace(broker.authority.issue("renewed"))
        os.kill(broker.server.pid, signal.SIGHUP)
        async with asyncio.timeout(10):
            while await serial(broker) == before:
                pass
        await client.publish("renewed", 1)
        assert client.is_connected
        assert client.session_id == session


async def serial(broker: Broker) -> str:
    """Return the serial number of the certificate on a new connection."""
    _, writer = await asyncio.open_connection("localhost", broker.server.port, ssl=broker.trusted)
    certificate = writer.get_extra_info("ssl_object").getpeercert()
    writer.close()
    await writer.wait_closed()
    return str(certificate["serialNumber"])


async def test_an_idle_connection_costs_little(broker: Broker) -> None:
    """P9."""
    process, context = Process(broker.server.pid), broker.trusted
    url = f"wss://localhost:{broker.server.port}/v1/ws"

    async def opened() -> object:
        socket = await connect(
            url, ssl=context, subprotocols=[Subprotocol("tocsin.v1")], compression=None
        )
        await socket.send('{"type":"hello"}')
        await socket.recv()
        return socket

    sockets = [await opened() for _ in range(20)]  # the first ones allocate more
    before = process.rss_bytes()
    for _ in range(0, IDLE, 20):
        sockets += await asyncio.gather(*(opened() for _ in range(20)))
    each = (process.rss_bytes() - before) / IDLE
    print(f"an idle session over TLS costs {each / 1024:.1f} KiB")  # noqa: T201
    assert each < IDLE_BYTES_MAX
    await asyncio.gather(*(socket.close() for socket in sockets))  # type: ignore[attr-defined]
