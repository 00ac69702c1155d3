"""Nobody gets in with wrong credentials (P11): thousands of them, each wrong in its own way, over
every way in; and whoever tries learns the same, whatever is wrong."""

import re
from collections.abc import Callable, Iterator
from functools import cache
from math import inf
from typing import Final

import msgspec
import pytest
from starlette.types import Message

from gateway.auth.auth import OPERATORS, Authenticator
from gateway.auth.jwt import ALGORITHMS, JwtTerms, JwtVerifier, parse_keys
from gateway.models import Admission, Transport
from gateway.net.connections import Connections
from gateway.net.handshake import TICKET, answer_handshake
from gateway.net.longpoll import LongPolls
from gateway.rest.app import Application
from gateway.session.directory import SessionServices
from gateway.session.session import Session
from gateway.wire.frames import Close
from loadtests.trials.credentials.bad_credentials import (
    AUDIENCE,
    ISSUER,
    KIDS,
    Bad,
    Issuer,
    bad_credentials,
)
from runtime.addresses import UNKNOWN
from tests.gateway.plain_metadata import broker_in_memory
from tests.gateway.plain_tokens import PlainTokens, record, text
from tests.gateway.raw_sockets import HANDSHAKE

WALL: Final = 1_763_690_400.0
NOW: Final = 1000.0
TOKEN: Final = "operator-0123456789abcdef"
HOST: Final = "broker.example"
USED: Final = [f"tct_{number:032}" for number in range(20)]
WAITING: Final = "tct_" + "w" * 32
Answer = tuple[object, ...]


def auth_of(issuer: Issuer) -> Authenticator:
    """A broker with credentials of every kind."""
    tokens = PlainTokens()
    tokens.put(record())
    tokens.put(record("expiredd", ends=WALL - 1))
    jwts = JwtVerifier(JwtTerms(AUDIENCE, ISSUER, ("read:feed:{sub}",)))
    jwts.put_keys(parse_keys(issuer.jwks(), ALGORITHMS))
    auth = Authenticator(TOKEN, tokens=tokens, jwts=jwts, secret=b"secret")
    for ticket in USED:
        auth.add_ticket(ticket, OPERATORS, now=NOW - 1)
        assert auth.tickets.use(ticket, now=NOW - 1) == OPERATORS
    return auth


@cache
def issuer() -> Issuer:
    return Issuer()


@cache
def bad() -> list[Bad]:
    found = bad_credentials(issuer(), WALL, token=TOKEN, api_token=text(), tickets=USED)
    expired = Bad("expired", text("expiredd"))
    return [*found, expired]


def good() -> list[str]:
    return [TOKEN, text(), *(issuer().token(WALL, algorithm) for algorithm in KIDS)]


def test_there_are_two_thousand_and_no_two_are_the_same() -> None:
    assert len({one.text for one in bad()}) == len(bad()) >= 2000
    assert {
        "alg none", "key confusion", "wrong audience", "wrong issuer", "expired", "crit",
        "not yet valid", "made-up kid", "embedded key", "truncated", "flipped bit",
        "ticket replayed", "wrong secret", "unknown token", "other purpose", "over-long",
    } <= {one.kind for one in bad()}  # fmt: skip


# --- Ways in: each says whether somebody got in, and what they were told ------------------------


def header_of(credential: str) -> bytes | None:
    """A header's value with it; None: no header can have it."""
    value = f"Bearer {credential}".encode("utf-8", "surrogatepass")
    return None if re.search(rb"[\x00-\x08\x0a-\x1f\x7f]", value) else value


class Http:
    """The application, without a client between."""

    def __init__(self, auth: Authenticator) -> None:
        around = SessionServices(broker_in_memory(), auth, wall=lambda: WALL)
        connections = Connections(around)
        self.application = Application(
            broker_in_memory(), auth, LongPolls(connections), wall=lambda: WALL
        )

    async def ask(
        self, method: str, path: str, headers: list[tuple[bytes, bytes]], body: bytes = b""
    ) -> tuple[int, bytes]:
        """The answer's status and body."""
        scope = {
            "type": "http", "method": method, "path": path, "raw_path": path.encode(),
            "query_string": b"", "headers": [(b"host", HOST.encode()), *headers],
        }  # fmt: skip
        said: list[Message] = []

        async def receive() -> Message:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Message) -> None:
            said.append(message)

        await self.application(scope, receive, send)
        return said[0]["status"], b"".join(message.get("body", b"") for message in said[1:])


class Outlet:
    """A WebSocket without the socket: keeps what it is told."""

    transport: Transport | None = "websocket"
    unsent_bytes = 0
    has_room = True
    until_unix_ms: int | None = None
    address = UNKNOWN

    def __init__(self, auth: Authenticator, admission: Admission | None = None) -> None:
        self.sent: list[bytes] = []
        self.closed: Close | None = None
        around = SessionServices(broker_in_memory(), auth, wall=lambda: WALL)
        self.session = Session(around, self, "s-1", admission, now=NOW)

    def send(self, frame: bytes) -> None:
        self.sent.append(frame)

    def close(self, close: Close) -> None:
        self.closed = close
        self.session.end()

    def writable(self) -> bool:
        return True

    def ping(self) -> None:
        return None

    pause_reading = resume_reading = taken_bytes = ping
    is_in_transit = False

    def lease_start(self, given_at: float) -> float | None:
        return given_at

    def on_named(self, given_at: float) -> None:
        return None

    def adopt(self, session: Session) -> None:
        return None

    def detach(self, close: Close) -> None:
        return None


def _handshake(auth: Authenticator, name: str, value: bytes) -> Answer:
    lines = {"Host": HOST, **HANDSHAKE}
    lines.pop(name, None)
    text_of = "".join(f"{one}: {said}\r\n" for one, said in lines.items()).encode()
    data = b"GET /v1/ws HTTP/1.1\r\n%b%b: %b\r\n\r\n" % (text_of, name.encode(), value)
    made = answer_handshake(data, auth, now=NOW, wall=WALL)
    head, _, body = made.response.partition(b"\r\n\r\n")
    return made.is_accepted and made.admission is not None, head.partition(b"\r\n")[0], body


def by_websocket_header(auth: Authenticator, credential: str) -> Answer | None:
    value = header_of(credential)
    return None if value is None else _handshake(auth, "Authorization", value)


def by_subprotocol(auth: Authenticator, credential: str) -> Answer | None:
    if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", credential):  # RFC 9110, 5.6.2
        return None
    offered = f"tocsin.v1, {TICKET}{credential}".encode()
    return _handshake(auth, "Sec-WebSocket-Protocol", offered)


def by_hello(auth: Authenticator, credential: str) -> Answer:
    outlet = Outlet(auth)
    hello = msgspec.json.encode(
        {"type": "hello", "token": credential.encode("utf-8", "replace").decode()}
    )
    outlet.session.receive(hello, now=NOW)
    return outlet.session.is_welcome, outlet.closed, tuple(outlet.sent)


def by_auth_frame(auth: Authenticator, credential: str) -> Answer:
    outlet = Outlet(auth, auth.check_token(TOKEN, wall=WALL))
    outlet.session.receive(b'{"type":"hello"}', now=NOW)
    outlet.sent.clear()
    before = outlet.session.admission
    frame = {"type": "auth", "ref": 1, "token": credential.encode("utf-8", "replace").decode()}
    outlet.session.receive(msgspec.json.encode(frame), now=NOW)
    assert outlet.session.admission is before
    return b'"ok"' in outlet.sent[0], outlet.closed, tuple(outlet.sent)


SYNCHRONOUS: Final[dict[str, Callable[[Authenticator, str], Answer | None]]] = {
    "websocket-header": by_websocket_header,
    "subprotocol": by_subprotocol,
    "hello": by_hello,
    "auth-frame": by_auth_frame,
}


@pytest.mark.parametrize("way", SYNCHRONOUS)
def test_no_credential_gets_in_and_all_get_one_answer(way: str) -> None:
    auth, told, tried = auth_of(issuer()), dict[Answer, Bad](), 0
    for one in bad():
        answer = SYNCHRONOUS[way](auth, one.text)
        if answer is not None:
            assert answer[0] is False, (one.kind, one.text[:200])
            told.setdefault(answer, one)
            tried += 1
            assert one.text not in repr(answer) or len(one.text) < 12
    assert len(told) == 1, {answer: one.kind for answer, one in told.items()}
    assert tried >= 1900


@pytest.mark.parametrize("way", SYNCHRONOUS)
def test_whoever_has_good_ones_gets_in(way: str) -> None:
    """The way is open: it is not for nothing that nobody gets in."""
    auth = auth_of(issuer())
    if way == "subprotocol":
        auth.add_ticket(WAITING, OPERATORS, now=NOW)
        answer = by_subprotocol(auth, WAITING)
        assert answer is not None
        assert answer[0] is True
        assert WAITING.encode() not in repr(answer).encode()
        return
    for credential in good() if way != "auth-frame" else [TOKEN]:
        answer = SYNCHRONOUS[way](auth, credential)
        assert answer is not None
        assert answer[0] is True, (credential, answer)


Request = tuple[str, str, list[tuple[bytes, bytes]], bytes]


def rest(credential: str) -> Request | None:
    value = header_of(credential)
    return None if value is None else ("GET", "/v1/queues", [(b"authorization", value)], b"")


def long_poll(credential: str) -> Request | None:
    value = header_of(credential)
    hello = b'{"type":"hello"}'
    return None if value is None else ("POST", "/v1/sessions", [(b"authorization", value)], hello)


def several_headers(credential: str) -> Request | None:
    """A good one beside it."""
    value = header_of(credential)
    headers = [(b"authorization", f"Bearer {TOKEN}".encode())]
    return (
        None if value is None else ("GET", "/v1/queues", [*headers, (b"authorization", value)], b"")
    )


def cookie(credential: str) -> Request | None:
    value = header_of(credential)
    if value is None:
        return None
    pair = auth_of(issuer()).cookies.name.encode() + b"=" + value.removeprefix(b"Bearer ")
    headers = [(b"cookie", pair), (b"origin", f"https://{HOST}".encode())]
    return "GET", "/v1/queues", headers, b""


def ticket(credential: str) -> Request | None:
    body = msgspec.json.encode({"ticket": credential.encode("utf-8", "replace").decode()})
    return ("POST", "/v1/access", [], body) if len(body) <= 1024 else None


REQUESTS: Final[dict[str, Callable[[str], Request | None]]] = {
    "rest": rest, "long-poll": long_poll, "several-headers": several_headers, "ticket": ticket,
}  # fmt: skip


@pytest.mark.parametrize("way", REQUESTS)
async def test_no_request_gets_in_and_all_get_one_answer(way: str) -> None:
    http, told, tried = Http(auth_of(issuer())), dict[tuple[int, bytes], Bad](), 0
    for one in bad():
        request = REQUESTS[way](one.text)
        if request is not None:
            answer = await http.ask(*request)
            told.setdefault(answer, one)
            tried += 1
    assert [status for status, _ in told] == [401], {a: one.kind for a, one in told.items()}
    assert tried >= 1900


def bad_cookies(auth: Authenticator) -> Iterator[str]:
    """Wrong ones besides the wrong ones."""
    value = auth.cookie_for(OPERATORS, wall=WALL)
    for place in range(len(value)):
        yield value[:place]
        yield value[:place] + ("A" if value[place] != "A" else "B") + value[place + 1 :]
    other = Authenticator("another token", secret=b"secret")
    yield other.cookie_for(OPERATORS, wall=WALL)
    other = Authenticator(TOKEN, secret=b"another secret")
    yield other.cookie_for(OPERATORS, wall=WALL)
    yield auth.cookie_for(OPERATORS, wall=WALL - 12 * 3600)
    gone = Admission(OPERATORS.principal, inf, OPERATORS.rights, "token:revokedd")
    yield auth.cookie_for(gone, wall=WALL)
    yield auth.cookie_for(gone._replace(credential="jwt:gone"), wall=WALL)
    yield auth.cookie_for(gone._replace(credential="anybody"), wall=WALL)


async def test_no_cookie_gets_in_and_all_get_one_answer() -> None:
    auth = auth_of(issuer())
    http, name = Http(auth), auth.cookie_name.encode()
    texts = {*bad_cookies(auth), *(one.text for one in bad())}
    told: dict[tuple[int, bytes], str] = {}
    tried = 0
    origin = (b"origin", f"https://{HOST}".encode())
    for one in texts:
        value = header_of(one)
        if value is not None:
            headers = [(b"cookie", name + b"=" + value.removeprefix(b"Bearer ")), origin]
            told.setdefault(await http.ask("GET", "/v1/queues", headers), one)
            tried += 1
    assert [status for status, _ in told] == [401], told
    assert tried >= 2100
    value = auth.cookie_for(OPERATORS, wall=WALL).encode()
    headers = [(b"cookie", name + b"=" + value), origin]
    assert (await http.ask("GET", "/v1/queues", headers))[0] == 200


async def test_good_requests_get_in_and_wrong_origins_do_not() -> None:
    """A wrong Origin is told the same whether or not the cookie with it is good."""
    auth = auth_of(issuer())
    http = Http(auth)
    for credential in good():
        request = rest(credential)
        assert request is not None
        assert (await http.ask(*request))[0] == 200
    name = auth.cookie_name.encode()
    cookies = [auth.cookie_for(OPERATORS, wall=WALL), "wrong", ""]
    for origin in ("https://evil.example", "null", "", "https://broker.example.evil.example",
                   "https://broker.example:444", "file://", "https://broker.example/"):  # fmt: skip
        told = set()
        for value in cookies:
            headers = [(b"cookie", name + b"=" + value.encode()), (b"origin", origin.encode())]
            told.add(await http.ask("GET", "/v1/queues", headers))
        assert [status for status, _ in told] == [403]


def test_a_ticket_is_used_up_by_its_first_use_over_any_way() -> None:
    auth = auth_of(issuer())
    for use, again in ((by_subprotocol, by_hello), (by_hello, by_subprotocol)):
        auth.add_ticket(WAITING, OPERATORS, now=NOW)
        first, second = use(auth, WAITING), again(auth, WAITING)
        assert first is not None
        assert second is not None
        assert (first[0], second[0]) == (True, False)
