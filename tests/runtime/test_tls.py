"""TLS of the gateway's own, over real sockets and on uvloop, whose TLS is not asyncio's."""

import asyncio
import functools
import logging
import os
import re
import signal
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from starlette.types import Receive, Scope, Send
from websockets.frames import Opcode

from gateway.auth.auth import Authenticator
from gateway.config import Config
from gateway.net.connections import Connections
from gateway.net.websocket import websocket_class
from gateway.server import Server, _reload_on_hangup
from gateway.session.directory import SessionServices
from push import limits
from runtime import tls as tls_module
from runtime.addresses import NO_PROXIES, Addresses, ClientAddress, client_address, parse_networks
from runtime.http1 import http_class
from runtime.listener import Listener, StartError, bind
from runtime.tls import CertificateFiles, Tls
from tests.authority import Authority, Pair, write_key
from tests.gateway.conftest import never
from tests.gateway.plain_metadata import broker_in_memory
from tests.gateway.raw_sockets import HANDSHAKE, Wire, response
from tests.gateway.test_server import whole

WAIT_S = 10.0
SHORT_S = 0.2
BROKEN_FRAME = b"\xf1\x80"
"""With reserved bits."""


def on_uvloop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """The test, on the shipped event loop."""

    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(test(*arguments, **named))

    return run


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def pair(authority: Authority) -> Pair:
    return authority.issue("broker")


def trusting(authority: Authority, shown: Pair | None = None) -> ssl.SSLContext:
    """A client that trusts this authority, and shows this certificate."""
    context = ssl.create_default_context(cafile=authority.ca)
    if shown is not None:
        context.load_cert_chain(*shown)
    return context


async def where(scope: Scope, receive: Receive, send: Send) -> None:
    """An application that tells where a request comes from."""
    body = msgspec.json.encode(client_address(scope))
    head = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": head})
    await send({"type": "http.response.body", "body": body})


class Gateway(NamedTuple):
    """What serves TLS here."""

    connections: Connections
    port: int
    tls: Tls
    wires: list[Wire]
    """To be closed."""

    async def dial(self, context: ssl.SSLContext, *data: bytes) -> Wire:
        """A connection over TLS that says this."""
        streams = await asyncio.open_connection("localhost", self.port, ssl=context)
        wire = Wire(*streams)
        self.wires.append(wire)
        wire.writer.write(b"".join(data))
        return wire

    async def dial_plainly(self, *data: bytes) -> Wire:
        """A connection that says this, and no TLS."""
        wire = Wire(*await asyncio.open_connection("127.0.0.1", self.port))
        self.wires.append(wire)
        wire.writer.write(b"".join(data))
        return wire

    async def ask(self, context: ssl.SSLContext, *headers: str) -> ClientAddress:
        """Where a request comes from."""
        wire = await self.dial(context, request_of("/", *headers))
        _, _, body = await response(wire)
        await wire.close()
        return ClientAddress(*msgspec.json.decode(body))

    async def open_socket(self, context: ssl.SSLContext, *headers: str) -> Wire:
        """A WebSocket with a session."""
        lines = [f"{name}: {text}" for name, text in HANDSHAKE.items()]
        wire = await self.dial(context, request_of("/v1/ws", *lines, *headers))
        status, _, _ = await response(wire)
        assert status == 101
        await wire.send({"type": "hello"})
        assert (await wire.receive())["type"] == "welcome"
        return wire


def request_of(target: str, *headers: str) -> bytes:
    lines = [f"GET {target} HTTP/1.1"]
    if not any(header.lower().startswith("host:") for header in headers):
        lines.append("Host: localhost")
    return "\r\n".join([*lines, *headers, "", ""]).encode()


@asynccontextmanager
async def serving(
    pair: Pair, client_ca: Path | None = None, addresses: Addresses = NO_PROXIES
) -> AsyncIterator[Gateway]:
    """The shipped listener, with the shipped protocol classes, on a free port."""
    connections = Connections(
        SessionServices(broker_in_memory(), Authenticator(None)), addresses=addresses
    )
    tls = Tls(CertificateFiles(*pair, client_ca))
    bound = bind("127.0.0.1", 0)
    port = bound.getsockname()[1]
    websockets = websocket_class(connections)
    websockets.close_timeout_s = SHORT_S
    listener = Listener(where, bound, http=http_class(addresses), ws=websockets, tls=tls.context)
    await listener.start()
    try:
        gateway = Gateway(connections, port, tls, [])
        yield gateway
    finally:
        for wire in gateway.wires:
            wire.writer.transport.abort()
        for _ in range(10):  # uvloop does not close while a socket has an end to be told
            await asyncio.sleep(0)
        await end(listener)
        connections.deadlines.close()


async def end(listener: Listener) -> None:
    """Without uvicorn's naps."""
    listener.close()
    assert listener._serving is not None
    listener._serving.cancel()
    await asyncio.wait((listener._serving,))


def name_of(wire: Wire) -> str:
    """The common name of the certificate that the broker has shown."""
    subject = wire.writer.get_extra_info("ssl_object").getpeercert()["subject"]
    return str(dict(part[0] for part in subject)["commonName"])


# --- The files ------------------------------------------------------------------------------------


def missing(authority: Authority, pair: Pair) -> CertificateFiles:
    return CertificateFiles(pair.cert.with_name("absent.crt"), pair.key)


def key_missing(authority: Authority, pair: Pair) -> CertificateFiles:
    return CertificateFiles(pair.cert, pair.key.with_name("absent.key"))


def a_folder(authority: Authority, pair: Pair) -> CertificateFiles:
    return CertificateFiles(pair.cert.parent, pair.key)


def no_pem(authority: Authority, pair: Pair) -> CertificateFiles:
    pair.cert.write_text("not a certificate")
    return CertificateFiles(*pair)


def no_key(authority: Authority, pair: Pair) -> CertificateFiles:
    pair.key.write_text("not a key")
    return CertificateFiles(*pair)


def mismatched(authority: Authority, pair: Pair) -> CertificateFiles:
    return CertificateFiles(pair.cert, authority.issue("other").key)


def with_passphrase(authority: Authority, pair: Pair) -> CertificateFiles:
    key = ec.generate_private_key(ec.SECP256R1())
    write_key(pair.key, key, serialization.BestAvailableEncryption(b"secret"))
    return CertificateFiles(*pair)


def expired(authority: Authority, pair: Pair) -> CertificateFiles:
    return CertificateFiles(*authority.issue("old", ends=timedelta(seconds=-1)))


def not_yet(authority: Authority, pair: Pair) -> CertificateFiles:
    return CertificateFiles(*authority.issue("young", begins=timedelta(hours=1)))


def ca_missing(authority: Authority, pair: Pair) -> CertificateFiles:
    return CertificateFiles(*pair, pair.cert.with_name("absent.pem"))


def ca_empty(authority: Authority, pair: Pair) -> CertificateFiles:
    return CertificateFiles(*pair, pair.key)


BROKEN = [
    (missing, r"TOCSIN_TLS_CERT is .*absent.crt, which cannot be read: No such file"),
    (key_missing, r"TOCSIN_TLS_KEY is .*absent.key, which cannot be read: No such file"),
    (a_folder, r"TOCSIN_TLS_CERT is .*, which cannot be read: Is a directory"),
    (no_pem, r"TOCSIN_TLS_CERT is .*broker.crt, which holds no certificate in PEM form"),
    (no_key, r"TOCSIN_TLS_KEY is .*broker.key, which cannot be used with the certificate in "),
    (mismatched, r"TOCSIN_TLS_KEY is .*other.key, which is not the key of the certificate in "),
    (with_passphrase, r"TOCSIN_TLS_KEY is .*broker.key, which needs a passphrase"),
    (expired, r"TOCSIN_TLS_CERT is .*old.crt, whose certificate ended on "),
    (not_yet, r"TOCSIN_TLS_CERT is .*young.crt, whose certificate begins on .*\. Check the clock"),
    (ca_missing, r"TOCSIN_TLS_CLIENT_CA is .*absent.pem, which cannot be read: No such file"),
    (ca_empty, r"TOCSIN_TLS_CLIENT_CA is .*broker.key, which holds no certificate in PEM form"),
]


@pytest.mark.parametrize(("breaking", "sentence"), BROKEN)
@on_uvloop
async def test_wrong_files_stop_the_start_with_a_sentence(
    breaking: Callable[[Authority, Pair], CertificateFiles],
    sentence: str,
    authority: Authority,
    pair: Pair,
    tmp_path: Path,
) -> None:
    files = breaking(authority, pair)
    config = Config(
        data_dir=tmp_path / "data", port=0,
        tls_cert=files.cert, tls_key=files.key, tls_client_ca=files.client_ca,
    )  # fmt: skip
    with pytest.raises(StartError) as caught:
        await (await Server.open(config, whole, on_fatal=never)).stop()
    assert re.match(sentence, str(caught.value)), caught.value
    assert str(caught.value)[-1] in ".?"
    assert "\n" not in str(caught.value)
    assert not config.data_dir.exists()


@pytest.mark.parametrize(("breaking", "sentence"), BROKEN)
@on_uvloop
async def test_wrong_new_files_are_told_once_and_the_pair_before_goes_on(
    breaking: Callable[[Authority, Pair], CertificateFiles],
    sentence: str,
    authority: Authority,
    pair: Pair,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving(pair, authority.ca) as gateway:
        broken = breaking(authority, authority.issue("broker"))
        gateway.tls._files = broken._replace(client_ca=broken.client_ca or authority.ca)
        for _ in range(2):
            await gateway.tls.look()
        assert [record.levelname for record in caplog.records] == ["ERROR"]
        assert re.match(sentence, caplog.messages[0])
        assert caplog.messages[0].endswith("The former certificate stays in use.")
        assert (await gateway.ask(trusting(authority))).is_tls


# --- A new certificate ----------------------------------------------------------------------------


@on_uvloop
async def test_new_files_are_served_and_sessions_stay(
    authority: Authority, pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tocsin.tls")
    async with serving(pair) as gateway:
        context = trusting(authority)
        before = await gateway.open_socket(context)
        assert name_of(before) == "broker"
        await gateway.tls.look()
        assert caplog.messages == []  # nothing has changed
        pair.replace(authority.issue("renewed"))
        await gateway.tls.look()
        after = await gateway.open_socket(context)
        assert name_of(after) == "renewed"
        for wire in (before, after):
            await wire.send_frame(Opcode.PING, b"still?")
            assert await wire.read() == (Opcode.PONG, b"still?")
        assert len(gateway.connections) == 2
        assert len(caplog.messages) == 1
        assert "is now in use" in caplog.messages[0]


async def until_served(gateway: Gateway, context: ssl.SSLContext, name: str) -> None:
    async with asyncio.timeout(WAIT_S):
        while True:
            wire = await gateway.dial(context)
            found = name_of(wire)
            await wire.close()
            if found == name:
                return


@on_uvloop
async def test_new_files_are_found(
    authority: Authority, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_module, "LOOK_S", 0.01)
    async with serving(pair) as gateway:
        watching = asyncio.create_task(gateway.tls.watch())
        pair.replace(authority.issue("renewed"))
        await until_served(gateway, trusting(authority), "renewed")
        watching.cancel()


@on_uvloop
async def test_a_hangup_takes_them_at_once(authority: Authority, pair: Pair) -> None:
    async with serving(pair) as gateway:
        _reload_on_hangup(gateway.tls)
        try:
            pair.replace(authority.issue("renewed"))
            os.kill(os.getpid(), signal.SIGHUP)
            await until_served(gateway, trusting(authority), "renewed")
        finally:
            asyncio.get_running_loop().remove_signal_handler(signal.SIGHUP)


@on_uvloop
async def test_a_new_authority_of_clients_counts_from_now_on(
    authority: Authority, pair: Pair, tmp_path: Path
) -> None:
    other = Authority(tmp_path, "other")
    shown = other.issue("client")
    ca = tmp_path / "clients.pem"
    ca.write_bytes(authority.ca.read_bytes())
    async with serving(pair, ca) as gateway:
        with pytest.raises((OSError, asyncio.IncompleteReadError)):
            await gateway.ask(trusting(authority, shown))
        ca.write_bytes(other.ca.read_bytes())
        await gateway.tls.look()
        assert (await gateway.ask(trusting(authority, shown))).certificate_name == "localhost"


@on_uvloop
async def test_the_demo_takes_the_certificate_it_started_with_and_no_other(
    authority: Authority, pair: Pair
) -> None:
    """By any name: nobody issues certificates for 127.0.0.1."""
    pinned = tls_module.pinning(authority.issue("demo", x509.DNSName("public.example")).cert)
    async with serving(authority.issue("demo2", x509.DNSName("public.example"))) as gateway:
        with pytest.raises(ssl.SSLCertVerificationError):
            await gateway.dial(pinned)
        assert (await gateway.ask(tls_module.pinning(gateway.tls._files.cert))).is_tls


# --- What is spoken -------------------------------------------------------------------------------


def speaking(
    authority: Authority, version: ssl.TLSVersion, ciphers: str = "ALL:@SECLEVEL=0"
) -> ssl.SSLContext:
    context = trusting(authority)
    context.set_ciphers(ciphers)
    is_old = version < ssl.TLSVersion.TLSv1_2
    with pytest.warns(DeprecationWarning, match="TLSv1") if is_old else nullcontext():
        context.minimum_version = context.maximum_version = version
    return context


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@on_uvloop
async def test_tls_is_new_and_forward_secret(
    version: ssl.TLSVersion, authority: Authority, pair: Pair
) -> None:
    async with serving(pair) as gateway:
        wire = await gateway.dial(speaking(authority, version))
        tls = wire.writer.get_extra_info("ssl_object")
        cipher, _, bits = tls.cipher()
        assert re.search("GCM|CHACHA20", cipher)
        assert cipher.startswith(("ECDHE-", "TLS_"))
        assert bits >= 128
        assert tls.compression() is None
        await wire.close()


@pytest.mark.parametrize(
    ("version", "ciphers"),
    [
        (ssl.TLSVersion.TLSv1, "ALL:@SECLEVEL=0"),
        (ssl.TLSVersion.TLSv1_1, "ALL:@SECLEVEL=0"),
        (ssl.TLSVersion.TLSv1_2, "ECDHE-ECDSA-AES128-SHA256"),  # CBC
        (ssl.TLSVersion.TLSv1_2, "ECDHE-ECDSA-AES256-SHA"),
        (ssl.TLSVersion.TLSv1_2, "AES128-GCM-SHA256"),  # no forward secrecy
    ],
)
@on_uvloop
async def test_what_is_old_is_refused(
    version: ssl.TLSVersion, ciphers: str, authority: Authority, pair: Pair
) -> None:
    async with serving(pair) as gateway:
        with pytest.raises(OSError):  # asyncio's servers send no alert, they hang up
            await gateway.dial(speaking(authority, version, ciphers))
        assert (await gateway.ask(trusting(authority))).is_tls


@on_uvloop
async def test_plain_words_on_the_port_of_tls_end_at_once_and_quietly(
    authority: Authority, pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(pair) as gateway:
        wire = await gateway.dial_plainly(request_of("/"))
        async with asyncio.timeout(WAIT_S):
            assert await wire.ended() == b""
        await wire.close()
        assert (await gateway.ask(trusting(authority))).is_tls
        assert [record for record in caplog.records if record.levelno > logging.INFO] == []


@on_uvloop
async def test_a_handshake_that_takes_its_time_is_ended(
    authority: Authority, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P9: who connects and says nothing, or half of a first word, holds nothing for long."""
    monkeypatch.setattr(limits, "TLS_HANDSHAKE_TIMEOUT_S", SHORT_S)
    async with serving(pair) as gateway:
        patient = await gateway.open_socket(trusting(authority))
        for words in (b"", b"\x16\x03\x01\x02\x00\x01\x00"):
            wire = await gateway.dial_plainly(words)
            async with asyncio.timeout(WAIT_S):
                assert await wire.ended() == b""
            await wire.close()
        await patient.send_frame(Opcode.PING, b"")
        assert await patient.read() == (Opcode.PONG, b"")


# --- The end of a connection ----------------------------------------------------------------------


@on_uvloop
async def test_the_close_frame_arrives_though_tls_cannot_half_close(
    authority: Authority, pair: Pair
) -> None:
    """Unread input must not reset the socket over the close frame's head."""
    async with serving(pair) as gateway:
        wire = await gateway.open_socket(trusting(authority))
        wire.writer.write(BROKEN_FRAME + bytes(100_000))
        assert (await wire.closed())[0] == 1002
        assert await wire.ended() == b""
        await wire.close()


@on_uvloop
async def test_who_does_not_close_is_cut_off(authority: Authority, pair: Pair) -> None:
    async with serving(pair) as gateway:
        wire = await gateway.open_socket(trusting(authority))
        (connection,) = list(gateway.connections)
        lost = asyncio.Event()
        ending = type(connection).connection_lost  # type: ignore[attr-defined]

        def connection_lost(self: Any, error: Exception | None) -> None:
            ending(self, error)
            lost.set()

        type(connection).connection_lost = connection_lost  # type: ignore[attr-defined]
        wire.stop_reading()
        wire.writer.write(BROKEN_FRAME)
        async with asyncio.timeout(WAIT_S):
            await lost.wait()
        await wire.close()


@on_uvloop
async def test_a_refused_request_is_answered_before_the_end(
    authority: Authority, pair: Pair
) -> None:
    async with serving(pair) as gateway:
        wire = await gateway.dial(trusting(authority), b"NONSENSE\r\n\r\n" + b"x" * 50_000)
        status, _, body = await response(wire)
        assert (status, msgspec.json.decode(body)["code"]) == (400, "invalid_request")
        assert await wire.ended() == b""
        await wire.close()


# --- Who is there ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("alternatives", "name"),
    [
        ([x509.UniformResourceIdentifier("spiffe://a/b"), x509.DNSName("a.b")], "spiffe://a/b"),
        ([x509.RFC822Name("a@b"), x509.DNSName("a.b")], "a.b"),
        ([x509.RFC822Name("a@b")], "a@b"),
        ([x509.RegisteredID(x509.ObjectIdentifier("1.2.3"))], "sensor"),
    ],
)
@on_uvloop
async def test_a_verified_certificate_has_a_name(
    alternatives: list[x509.GeneralName], name: str, authority: Authority, pair: Pair
) -> None:
    async with serving(pair, authority.ca) as gateway:
        context = trusting(authority, authority.issue("sensor", *alternatives))
        here = ClientAddress("127.0.0.1", True, name)
        assert await gateway.ask(context) == here
        await gateway.open_socket(context)
        (connection,) = list(gateway.connections)
        assert connection.address == here  # type: ignore[attr-defined]


@on_uvloop
async def test_a_client_may_come_without_one(authority: Authority, pair: Pair) -> None:
    async with serving(pair, authority.ca) as gateway:
        here = await gateway.ask(trusting(authority))
        assert here == ClientAddress("127.0.0.1", True, None)


@on_uvloop
async def test_nobody_is_asked_for_one_where_no_authority_is_named(
    authority: Authority, pair: Pair
) -> None:
    async with serving(pair) as gateway:
        context = trusting(authority, authority.issue("sensor"))
        assert (await gateway.ask(context)).certificate_name is None


@on_uvloop
async def test_another_authoritys_certificate_or_an_old_one_lets_nobody_in(
    authority: Authority, pair: Pair, tmp_path: Path
) -> None:
    """P11."""
    foreign = Authority(tmp_path, "foreign").issue("intruder")
    old = authority.issue("old", ends=timedelta(seconds=-1))
    async with serving(pair, authority.ca) as gateway:
        for shown in (foreign, old):
            # In TLS 1.3 a client believes that it is through before it hears of the refusal.
            with pytest.raises((OSError, asyncio.IncompleteReadError)):
                await gateway.ask(trusting(authority, shown))
        with pytest.raises(OSError):  # where the certificate would be read on the way
            await gateway.dial(speaking(authority, ssl.TLSVersion.TLSv1_2))
        assert len(gateway.connections) == 0


FORWARDED = ("X-Forwarded-For: 1.1.1.1, 198.51.100.4", "X-Forwarded-Proto: http", "X-Name: sensor")


@on_uvloop
async def test_a_trusted_proxy_tells_who_is_behind_it(authority: Authority, pair: Pair) -> None:
    addresses = Addresses(parse_networks("127.0.0.1"), certificate_header="X-Name")
    async with serving(pair, addresses=addresses) as gateway:
        context = trusting(authority)
        behind = ClientAddress("198.51.100.4", False, "sensor")
        assert await gateway.ask(context, *FORWARDED) == behind
        assert await gateway.ask(context) == ClientAddress("127.0.0.1", True)
        await gateway.open_socket(context, *FORWARDED)
        (connection,) = list(gateway.connections)
        assert connection.address == behind  # type: ignore[attr-defined]


@on_uvloop
async def test_of_others_nothing_is_believed(authority: Authority, pair: Pair) -> None:
    async with serving(pair, addresses=Addresses(parse_networks("10.0.0.0/8"))) as gateway:
        context = trusting(authority)
        here = ClientAddress("127.0.0.1", True)
        assert await gateway.ask(context, *FORWARDED) == here
        await gateway.open_socket(context, *FORWARDED)
        (connection,) = list(gateway.connections)
        assert connection.address == here  # type: ignore[attr-defined]


class Abroad(Addresses):
    """Everybody comes from another machine."""

    def may_enter(self, peer: ClientAddress) -> bool:
        return super().may_enter(peer._replace(text="203.0.113.7"))


@pytest.mark.parametrize("target", ["/v1/queues", "/healthz", "/v1/ws"])
@on_uvloop
async def test_without_tls_other_machines_are_told_to_use_it(
    target: str, authority: Authority, pair: Pair
) -> None:
    addresses = Abroad(is_plain_allowed=False)
    connections = Connections(
        SessionServices(broker_in_memory(), Authenticator(None)), addresses=addresses
    )
    bound = bind("127.0.0.1", 0)
    port = bound.getsockname()[1]
    listener = Listener(where, bound, http=http_class(addresses), ws=websocket_class(connections))
    await listener.start()
    try:
        async with asyncio.timeout(WAIT_S):
            wire = Wire(*await asyncio.open_connection("127.0.0.1", port))
            lines = [f"{name}: {text}" for name, text in HANDSHAKE.items()]
            wire.writer.write(request_of(target, *lines))
            status, _, body = await response(wire)
            assert (status, msgspec.json.decode(body)["code"]) == (403, "forbidden")
            assert "https:// and wss://" in msgspec.json.decode(body)["detail"]
            assert await wire.ended() == b""
            await wire.close()
    finally:
        await end(listener)
    async with serving(pair, addresses=addresses) as gateway:
        assert (await gateway.ask(trusting(authority))).is_tls
