"""Client certificates mapped to principals, at a broker process, over its own TLS (P11)."""

import asyncio
import json
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import tocsin
from click.testing import CliRunner
from cryptography import x509
from tocsin.proto.connect_policy import Transport

from gateway.cli.serve import admin
from loadtests.server import Server
from tests.authority import Authority, Pair
from tests.system.talk import UNEXPECTED

METER = "meter-7.example"
TOKEN = "operator-of-the-tests-0123456789"
ENDS_WITHIN_S = 5.0


class Broker(NamedTuple):
    """A broker, and the authority of its certificate and its clients' certificates."""

    server: Server
    authority: Authority

    def shows(self, name: str | None) -> ssl.SSLContext:
        """Return a client's TLS context, with a certificate of this name; None for no
        certificate."""
        context = ssl.create_default_context(cafile=self.authority.ca)
        if name is not None:
            pair: Pair = self.authority.issue(name, x509.DNSName(name))
            context.load_cert_chain(*pair)
        return context

    def connect(
        self, name: str | None, transport: Transport, token: str | None = None
    ) -> tocsin.Client:
        context = self.shows(name)
        return tocsin.connect(self.server.url, ssl=context, transport=transport, token=token)

    def token(self, *words: str) -> Any:
        """Return the answer of `tocsin admin token …`."""
        where = ("--data-dir", str(self.server.data_dir), "--json")
        done = CliRunner().invoke(admin, ["token", *words, *where])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    def map(self, certificate: str) -> str:
        """Map a certificate to meter-7, which publishes readings; return the mapping's id."""
        rights = ("--right", "publish,manage:readings.*", "--certificate", certificate)
        made = self.token("create", "meter-7", *rights)
        assert made["token"] is None
        return str(made["token_id"])


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("certificates")
    authority = Authority(folder)
    pair = authority.issue("broker")
    settings = authority.settings(pair) | {"TOCSIN_TOKEN": TOKEN}
    server = Server(folder / "data", settings=settings, ca=authority.ca)
    with server:
        made = Broker(server, authority)
        made.map(METER)
        yield made
        server.stop()
    log = server.log_path.read_bytes()
    assert not UNEXPECTED.search(log), log.decode(errors="replace")


@pytest.mark.parametrize("transport", ["websocket", "long-poll"])
async def test_a_certificate_is_let_in_without_a_token_as_what_it_stands_for(
    broker: Broker, transport: Transport
) -> None:
    queue = f"readings.{transport}"
    async with broker.connect(METER, transport) as client:
        assert client.transport == transport
        await client.create_queue(queue, partitions=1)
        await client.publish(queue, 7, key="k")
        with pytest.raises(tocsin.BrokerError, match="forbidden"):
            await client.publish("orders", 7, key="k")
        with pytest.raises(tocsin.BrokerError, match="forbidden"):
            await client.pull(queue, "g")
        assert (await client.queue(queue))["holder"] == "meter-7"
    async with broker.connect(METER, transport, TOKEN) as client:  # it wins
        (pulled,) = await client.pull(queue, "g", wait_s=10)
        assert pulled.body == 7


@pytest.mark.parametrize("name", [None, "other-meter.example", f"x.{METER}", f"{METER}.example"])
@pytest.mark.parametrize("transport", ["websocket", "long-poll"])
async def test_nobody_is_let_in_by_none_or_one_that_stands_for_nobody(
    broker: Broker, transport: Transport, name: str | None
) -> None:
    with pytest.raises(tocsin.Unauthorized):
        await broker.connect(name, transport).__aenter__()


ENDS: Final[dict[Transport, tuple[type[tocsin.TocsinError], ...]]] = {
    "websocket": (tocsin.SessionEnded,),
    "long-poll": (tocsin.SessionEnded, tocsin.Unauthorized),
}
"""Errors of a publish after the end. By long poll each publish is a request of its own. A publish
after the revocation, but before the poll has reported the session's end, is refused."""


@pytest.mark.parametrize("transport", ["websocket", "long-poll"])
async def test_what_it_stood_for_is_revoked_and_its_sessions_end(
    broker: Broker, transport: Transport
) -> None:
    name = f"{transport}.example"
    token_id = broker.map(name)

    async def work(client: tocsin.Client) -> None:
        while True:
            await client.publish("readings.ends", 1)

    async with broker.connect(name, transport) as client:
        await client.create_queue("readings.ends", partitions=1)
        working = asyncio.create_task(work(client))
        began = time.monotonic()
        await asyncio.to_thread(broker.token, "revoke", token_id)
        with pytest.raises(ENDS[transport], match=r"4501|unauthorized"):
            await asyncio.wait_for(working, 2 * ENDS_WITHIN_S)
        assert time.monotonic() - began <= ENDS_WITHIN_S
    with pytest.raises(tocsin.Unauthorized):
        await broker.connect(name, transport).__aenter__()


@pytest.mark.usefixtures("broken_handshakes")
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
async def test_one_of_another_authority_gets_no_connection(broker: Broker, tmp_path: Path) -> None:
    """The certificate has the right name, but is not accepted."""
    context = broker.shows(None)
    context.load_cert_chain(*Authority(tmp_path, "foreign").issue("foreign", x509.DNSName(METER)))
    with pytest.raises(tocsin.CannotConnect):
        await tocsin.connect(broker.server.url, ssl=context, connect_timeout_s=2).__aenter__()
