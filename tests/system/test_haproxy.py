"""The shipped configuration of HAProxy, in front of a broker: what it passes, and what not."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import httpx2
import pytest
import tocsin
from tocsin.proto.connect_policy import Transport
from websockets.asyncio.client import connect
from websockets.typing import Subprotocol

from gateway.broker import Broker
from gateway.config import Config
from gateway.server import OnFatal, Server
from loadtests.server import free_port
from runtime.addresses import ClientAddress
from tests.authority import Authority
from tests.gateway.conftest import never
from tests.layout.tree import ROOT
from tests.servers.balancing import AS_ITS_OWN_USER, may_be_itself
from tests.servers.programs import needed

TOKEN = "a-token-of-24-characters"
WAIT_S = 10.0
HERE = "127.0.0.2"
"""The clients' address: the broker trusts 127.0.0.1 only, which is HAProxy."""
SPOOFED = {
    "X-Forwarded-For": "6.6.6.6",
    "X-Forwarded-Proto": "http",
    "Forwarded": "for=6.6.6.6;proto=http",
}


class Behind(NamedTuple):
    """A broker behind HAProxy, and their addresses."""

    server: Server
    url: str
    port: int
    trusted: ssl.SSLContext
    log: socket.socket
    """The socket that HAProxy logs to."""

    async def logged(self, until: str) -> str:
        """Return its log up to the line with this text."""
        logged = ""
        async with asyncio.timeout(WAIT_S):
            while until not in logged:
                data = await asyncio.get_running_loop().sock_recv(self.log, 65536)
                logged += data.decode()
        return logged

    def addresses(self) -> list[ClientAddress]:
        """Return the clients' addresses of the open sessions."""
        found = list(self.server.connections)
        return [one.address for one in found]  # type: ignore[attr-defined]


def configuration(folder: Path, broker: int, port: int, log: int) -> Path:
    """Write the shipped configuration with ports of our own and a shorter wait for slow headers;
    return its path."""
    text = (ROOT / "deploy/haproxy/haproxy.cfg").read_text()
    changes = {
        "log /dev/log local0": f"log 127.0.0.1:{log} local0",
        "bind :443": f"bind 127.0.0.1:{port}",
        "/etc/haproxy/tocsin.pem alpn": f"{folder / 'tocsin.pem'} alpn",
        "server broker 127.0.0.1:8080": f"server broker 127.0.0.1:{broker}",
        "timeout http-request 10s": "timeout http-request 500ms",
        "maxconn 100000": "maxconn 200",
    }
    if not may_be_itself():
        changes |= {AS_ITS_OWN_USER: ""}
    for before, after in changes.items():
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    path = folder / "haproxy.cfg"
    path.write_text(text)
    return path


@asynccontextmanager
async def proxied(folder: Path) -> AsyncIterator[Behind]:
    """Run a broker behind HAProxy."""
    executable = needed("haproxy")
    authority = Authority(folder)
    pair = authority.issue("proxy")
    (folder / "tocsin.pem").write_bytes(pair.cert.read_bytes() + pair.key.read_bytes())

    async def build(config: Config, on_fatal: OnFatal) -> Broker:
        return await Broker.open(config, on_fatal=on_fatal)

    config = Config(
        data_dir=folder / "data", port=0, token=TOKEN, trusted_proxies=("127.0.0.1/32",), drain_s=1
    )
    server = await Server.open(config, build, on_fatal=never)
    port = free_port()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as log:
        log.bind(("127.0.0.1", 0))
        log.setblocking(False)
        path = configuration(folder, server._port, port, log.getsockname()[1])
        process = await asyncio.create_subprocess_exec(
            executable, "-db", "-q", "-f", path, stdin=asyncio.subprocess.DEVNULL
        )
        trusted = ssl.create_default_context(cafile=authority.ca)
        behind = Behind(server, f"https://localhost:{port}", port, trusted, log)
        try:
            await until_ready(behind, process)
            yield behind
        finally:
            process.kill()
            await process.wait()
            await server.stop()


async def until_ready(behind: Behind, process: asyncio.subprocess.Process) -> None:
    async with asyncio.timeout(WAIT_S), http_to(behind) as http:
        while True:
            assert process.returncode is None, "HAProxy has ended"
            try:
                if (await http.get("/readyz")).status_code == 200:
                    return
            except httpx2.TransportError:  # it does not listen yet
                await asyncio.sleep(0.02)


def http_to(behind: Behind, **headers: str) -> httpx2.AsyncClient:
    transport = httpx2.AsyncHTTPTransport(verify=behind.trusted, local_address=HERE)
    return httpx2.AsyncClient(base_url=behind.url, transport=transport, headers=headers)


@pytest.mark.parametrize("transport", ["websocket", "long-poll"])
async def test_everything_comes_through(tmp_path: Path, transport: Transport) -> None:
    async with (
        proxied(tmp_path) as behind,
        tocsin.connect(behind.url, ssl=behind.trusted, token=TOKEN, transport=transport) as client,
    ):
        assert client.transport == transport
        await client.create_queue("orders", partitions=2, message_bytes_max=1_048_576)
        large = "x" * 1_000_000
        await client.publish("orders", large, key="k")
        await client.publish_many("orders", [{"body": n, "key": "k"} for n in range(100)])
        bodies = []
        async with client.subscribe("orders", group="g") as messages:
            async for message in messages:
                bodies.append(message.body)
                await message.ack(confirm=len(bodies) == 101)
                if len(bodies) == 101:
                    break
        assert bodies == [large, *range(100)]
        assert [one.is_tls for one in behind.addresses()] == [True]


async def test_nobody_is_believed_who_he_says_he_is(tmp_path: Path) -> None:
    """Over a WebSocket, a long poll, and for a browser's cookie."""
    here = ClientAddress(HERE, True)
    async with proxied(tmp_path) as behind:
        socket_url = f"wss://localhost:{behind.port}/v1/ws"
        headers = {"Authorization": f"Bearer {TOKEN}", **SPOOFED}
        async with connect(
            socket_url, ssl=behind.trusted, additional_headers=headers,
            subprotocols=[Subprotocol("tocsin.v1")], local_addr=(HERE, 0),
        ) as opened:  # fmt: skip
            await opened.send('{"type":"hello"}')
            assert "welcome" in str(await opened.recv())
            assert behind.addresses() == [here]
        async with http_to(behind, **headers) as http:
            answer = await http.post("/v1/sessions", content=b'{"type":"hello"}')
            assert answer.status_code == 201
            assert here in behind.addresses()
            entered = await http.post("/v1/access")
            assert entered.headers["set-cookie"].endswith("; Secure")
            assert entered.headers["strict-transport-security"] == "max-age=31536000"


async def test_what_is_logged_holds_no_token(tmp_path: Path) -> None:
    async with proxied(tmp_path) as behind:
        async with http_to(behind, authorization=f"Bearer {TOKEN}", cookie="c=secret") as http:
            assert (await http.get("/v1/queues?after=secret")).status_code == 200
        logged = await behind.logged("GET /v1/queues")
        assert HERE in logged
        assert TOKEN not in logged
        assert "secret" not in logged


async def test_a_slow_header_and_old_tls_are_refused(tmp_path: Path) -> None:
    async with proxied(tmp_path) as behind:
        reader, writer = await asyncio.open_connection("localhost", behind.port, ssl=behind.trusted)
        writer.write(b"GET /v1/queues HTTP/1.1\r\nHost: loc")
        async with asyncio.timeout(WAIT_S):
            assert (await reader.read()).startswith(b"HTTP/1.1 408 ")
        writer.close()
        old = ssl.create_default_context(cafile=tmp_path / "authority.pem")
        old.set_ciphers("ALL:@SECLEVEL=0")
        with pytest.warns(DeprecationWarning, match="TLSv1"):
            old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises(ssl.SSLError):
            await asyncio.open_connection("localhost", behind.port, ssl=old)
        reader, writer = await asyncio.open_connection("127.0.0.1", behind.port)
        writer.write(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        async with asyncio.timeout(WAIT_S):
            assert b"200" not in await reader.read()
        writer.close()
