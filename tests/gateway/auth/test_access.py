"""Tickets and cookies (P11): pure, with literal times; then over HTTP, WebSocket and long poll."""

import asyncio
import base64
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from gateway.auth.auth import LET_IN, OPERATOR, OPERATORS, Authenticator
from gateway.auth.browser import ACCESS_S, TICKET_S, Cookies, Pass, Tickets, set_cookie
from gateway.models import Admission
from gateway.net.connections import Connections
from gateway.net.handshake import answer_handshake
from gateway.net.longpoll import LongPolls
from gateway.rest.app import Application
from gateway.session.directory import SessionServices
from gateway.wire import frames
from gateway.wire.protocol import SessionProtocol, Timing
from metadata.catalog import Principal
from push import limits
from push.errors import Refused
from runtime.addresses import ClientAddress
from tests.gateway.asgi import client_of
from tests.gateway.plain_metadata import broker_in_memory
from tests.gateway.raw_sockets import HANDSHAKE, Gateway, connect, request, serve
from tests.gateway.rest.test_rest import check_problem
from tests.histories.house import House

Http = httpx2.AsyncClient
TOKEN = "s3cret-and-long-enough"
WALL = 1_763_690_400.0
LOCKED = Authenticator(TOKEN, ["https://app.example"])
OPEN = Authenticator(None)
HOST = "127.0.0.1:8080"
OURS = f"http://{HOST}"


def cookies(lasts_s: float) -> Admission:
    """Return what the operator's cookie gives."""
    return Admission(OPERATOR, lasts_s, is_cookie=True)


def cookie(auth: Authenticator = LOCKED, wall: float = WALL) -> str:
    """A `Cookie` header that admits from `wall` on."""
    return f"{auth.cookie_name}={auth.cookie_for(OPERATORS, wall=wall)}"


# --- Tickets ------------------------------------------------------------------------------------


IN = Admission(Principal("billing"), credential="token:abcdefgh")


def test_a_ticket_is_good_once() -> None:
    tickets = Tickets()
    tickets.add("t-1", IN, now=100.0)
    tickets.add("t-2", IN, now=100.0)
    assert tickets.use("t-1", now=101.0) == IN
    assert tickets.use("t-1", now=101.0) is None
    assert tickets.use("t-2", now=101.0) == IN


def test_a_ticket_is_good_for_thirty_seconds() -> None:
    tickets = Tickets()
    tickets.add("early", IN, now=100.0)
    tickets.add("late", IN, now=100.5)
    assert tickets.use("late", now=130.4) == IN
    tickets.add("again", IN, now=100.5)
    assert tickets.use("early", now=130.0) is None
    assert tickets.use("again", now=130.5) is None
    tickets.check()
    assert len(tickets) == 0


@pytest.mark.parametrize("ticket", ["", "t", "t-11", "T-1", "t-1 ", "\x00", "\ud800", "t" * 10_000])
def test_another_ticket_is_none_and_is_not_repeated(ticket: str) -> None:
    tickets = Tickets()
    tickets.add("t-1", IN, now=100.0)
    assert tickets.use(ticket, now=100.0) is None
    assert tickets.use("t-1", now=100.0) == IN


def test_the_number_of_waiting_tickets_is_bounded() -> None:
    """P9: on both sides of the bound."""
    tickets = Tickets()

    def fill(name: str, count: int) -> None:
        """This many of this principal, and no more."""
        who = Admission(Principal(name))
        for number in range(count):
            tickets.add(f"{name}-{number}", who, now=100.0 + len(tickets) / 1000)
        with pytest.raises(Refused) as refused:
            tickets.add("more", who, now=120.0)
        assert refused.value.code.name == "too_many"

    # However many one principal makes, others can make as many as would have been left to them.
    room = limits.TICKETS_MAX
    while room > 1:
        fill(f"p{room}", room - room // 2)
        room //= 2
    fill("last", 1)
    assert len(tickets) == limits.TICKETS_MAX
    with pytest.raises(Refused) as refused:
        tickets.add("more", IN, now=120.0)
    assert refused.value.retry_after_s == 10.0  # when the first one is over
    assert tickets.use("more", now=120.0) is None
    assert tickets.use("p1000-7", now=120.0) == Admission(Principal("p1000"))
    tickets.add("one", IN, now=120.0)
    with pytest.raises(Refused):
        tickets.add("two", IN, now=120.0)
    tickets.add("later", Admission(Principal("other")), now=130.0)
    tickets.check()


# --- Cookies ------------------------------------------------------------------------------------

COOKIES = Cookies(TOKEN.encode())
SAID = Pass("operator")


def lasts_s(header: str | None, wall: float, made: Cookies = COOKIES) -> float | None:
    """For how long the best of the cookies admits."""
    found = list(made.passes(header, wall=wall))
    assert all(said == SAID for _, said in found)
    return max((left_s for left_s, _ in found), default=None)


def test_a_cookie_admits_for_twelve_hours() -> None:
    header = f"{COOKIES.name}={COOKIES.make(SAID, wall=WALL)}"
    assert lasts_s(header, WALL) == ACCESS_S == 12 * 3600
    assert lasts_s(header, WALL + ACCESS_S - 1) == 1
    assert lasts_s(header, WALL + ACCESS_S) is None
    assert lasts_s(header, WALL + 10 * ACCESS_S) is None


def test_a_clock_that_was_set_back_prolongs_nothing_beyond_its_length() -> None:
    header = f"{COOKIES.name}={COOKIES.make(SAID, wall=WALL)}"
    assert lasts_s(header, WALL - 1e6) == ACCESS_S


def test_a_cookie_outlives_a_restart_and_not_its_token() -> None:
    header = f"{COOKIES.name}={COOKIES.make(SAID, wall=WALL)}"
    assert lasts_s(header, WALL, Cookies(TOKEN.encode())) == ACCESS_S
    other = Cookies(b"another token")
    assert other.name != COOKIES.name  # two brokers of a host do not take each other's place
    assert lasts_s(header, WALL, other) is None
    forged = header.replace(COOKIES.name, other.name)
    assert lasts_s(forged, WALL, other) is None


def test_the_cookie_tells_nothing_of_the_token() -> None:
    value = COOKIES.make(SAID, wall=WALL)
    assert re.fullmatch(r"2\.1763733600\.[\w-]+\.[\w-]{43}", value)
    assert TOKEN not in value
    assert base64.b64encode(TOKEN.encode()).decode().rstrip("=") not in value


@pytest.mark.parametrize(
    "change",
    [
        lambda value: value.replace("2.1763733600", "2.1763733601"),
        lambda value: value.replace("2.1763733600", "2.999999999999"),
        lambda value: value.replace("2.1763733600", "1.1763733600"),
        lambda value: value.replace("2.1763733600", "2.01763733600"),
        lambda value: value.replace("2.1763733600", "2.١٧٦٣٧٣٣٦٠٠"),
        lambda value: value[:-1],
        lambda value: value + "A",
        lambda value: value[:-2] + ("AA" if not value.endswith("AA") else "BB"),
        lambda value: value.rpartition(".")[0] + "." + "A" * 43,
        lambda value: value.rpartition(".")[0] + ".",
        lambda value: f'"{value}"',
        lambda value: "",
        lambda value: "1",
        lambda value: "." * 100,
        lambda value: "1." + "9" * 5000 + "." + "A" * 43,
    ],
)
def test_another_value_is_no_cookie(change: Any) -> None:
    header = f"{COOKIES.name}={change(COOKIES.make(SAID, wall=WALL))}"
    assert lasts_s(header, WALL) is None


@pytest.mark.parametrize("header", [None, "", ";", "=", "a=b; c", "tocsin-access=1", "\ud800=1"])
def test_other_cookies_are_not_looked_at(header: str | None) -> None:
    assert lasts_s(header, WALL) is None


def test_the_cookie_is_found_among_others_of_its_name() -> None:
    """What serves another port of this host may set some, with a longer path: they come first."""
    own = f"{COOKIES.name}={COOKIES.make(SAID, wall=WALL)}"
    older = f"{COOKIES.name}={COOKIES.make(SAID, wall=WALL - 3600)}"
    for header in (f"a=b; {own}", f"{own};a=b", f"{COOKIES.name}=x; {own}; {COOKIES.name}=y"):
        assert lasts_s(header, WALL) == ACCESS_S
    assert lasts_s(f"{older}; {own}; {older}", WALL) == ACCESS_S


def test_no_script_and_no_other_site_has_the_cookie() -> None:
    parts = "Path=/; Max-Age=43200; HttpOnly; SameSite=Strict"
    assert set_cookie("n", "v", is_secure=False) == f"n=v; {parts}"
    assert set_cookie("n", "v", is_secure=True) == f"n=v; {parts}; Secure"
    assert set_cookie("n", "", is_secure=False).startswith("n=; Path=/; Max-Age=0; HttpOnly;")


# --- Who may use a cookie from where -------------------------------------------------------------


@pytest.mark.parametrize("is_read", [True, False])
@pytest.mark.parametrize("origin", [OURS, "https://app.example"])
def test_a_cookie_is_the_operator_from_our_pages(is_read: bool, origin: str) -> None:
    headers = {"host": HOST, "origin": origin, "cookie": cookie()}
    admission = LOCKED.authenticate(headers, is_read=is_read, wall=WALL + 100)
    assert admission == cookies(ACCESS_S - 100)


@pytest.mark.parametrize("is_read", [True, False])
@pytest.mark.parametrize(
    "origin",
    ["http://127.0.0.1:3000", "http://localhost:8080", "https://evil.example", "null", ""],
)
def test_a_cookie_is_nothing_to_a_page_of_another_origin(is_read: bool, origin: str) -> None:
    """Another port of this host is the same site to the browser, so the cookie comes along."""
    with pytest.raises(Refused) as refused:
        LOCKED.authenticate(
            {"host": HOST, "origin": origin, "cookie": cookie()}, is_read=is_read, wall=WALL
        )
    assert refused.value.code.name == "origin_refused"


@pytest.mark.parametrize(
    ("site", "admits"),
    [(None, True), ("same-origin", True), ("none", True), ("same-site", False),
     ("cross-site", False), ("", False)],
)  # fmt: skip
def test_without_an_origin_a_cookie_reads_for_our_pages_alone(
    site: str | None, admits: bool
) -> None:
    """A browser sends no Origin with a GET of the same origin, nor with an image of any."""
    headers = {"host": HOST, "cookie": cookie()}
    if site is not None:
        headers["sec-fetch-site"] = site
    if admits:
        assert LOCKED.authenticate(headers, is_read=True, wall=WALL) == cookies(ACCESS_S)
    else:
        with pytest.raises(Refused) as refused:
            LOCKED.authenticate(headers, is_read=True, wall=WALL)
        assert refused.value.code.name == "origin_refused"
    with pytest.raises(Refused) as refused:  # and changes nothing whatever it says
        LOCKED.authenticate(headers, is_read=False, wall=WALL)
    assert refused.value.code.name == "origin_refused"


def test_a_cookie_that_is_over_is_no_credential() -> None:
    headers = {"host": HOST, "origin": OURS, "cookie": cookie()}
    assert LOCKED.authenticate(headers, is_read=True, wall=WALL + ACCESS_S) is None
    assert LOCKED.authenticate({"host": HOST}, is_read=True, wall=WALL) is None


def test_a_token_needs_no_cookie_and_lasts() -> None:
    headers = {"host": HOST, "authorization": f"Bearer {TOKEN}", "cookie": "nonsense"}
    assert LOCKED.authenticate(headers, is_read=False, wall=WALL) == Admission(OPERATOR)
    with pytest.raises(Refused):  # a wrong token is not made up for by a cookie
        LOCKED.authenticate(
            {**headers, "authorization": "Bearer wrong", "cookie": cookie(), "origin": OURS},
            is_read=True, wall=WALL,
        )  # fmt: skip


def test_an_open_broker_looks_at_no_cookie() -> None:
    headers = {"host": HOST, "cookie": cookie()}
    assert OPEN.authenticate(headers, is_read=False, wall=WALL) == LET_IN
    with pytest.raises(Refused):
        OPEN.authenticate({"host": "evil.example"}, is_read=True, wall=WALL)


# --- The right of a session ends ----------------------------------------------------------------

TIMING = Timing(hello_timeout_s=10, heartbeat_s=20, heartbeat_timeout_s=20)


def test_a_session_ends_with_its_right_whatever_it_says() -> None:
    session = SessionProtocol(TIMING, now=0.0, right_ends=50.0)
    assert session.next_deadline() == 10.0
    session.receive(b'{"type":"hello"}', now=1.0)
    assert session.next_deadline() == 21.0
    session.receive(b'{"type":"ping"}', now=45.0)
    assert session.next_deadline() == 50.0  # before the heartbeat of 65
    assert session.expire(now=49.9) is None
    assert session.expire(now=50.0) == frames.UNAUTHORIZED
    assert session.next_deadline() is None
    assert session.receive(b'{"type":"ping"}', now=50.0) == []


def test_a_right_that_ended_before_hello_ends_that_too() -> None:
    session = SessionProtocol(TIMING, now=0.0, right_ends=5.0)
    assert session.next_deadline() == 5.0
    assert session.expire(now=5.0) == frames.UNAUTHORIZED


def test_who_comes_back_brings_its_right_along() -> None:
    session = SessionProtocol(TIMING, now=0.0, right_ends=5.0)
    session.receive(b'{"type":"hello"}', now=1.0)
    session.reattach(now=4.0, right_ends=10.0)
    assert session.expire(now=9.9) is None
    assert session.expire(now=10.0) == frames.UNAUTHORIZED


# --- Over HTTP ----------------------------------------------------------------------------------


class Wall:
    """Unix seconds, moved by the test."""

    now = WALL

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def wall() -> Wall:
    return Wall()


@pytest.fixture
def application(wall: Wall) -> Application:
    return Application(broker_in_memory(), Authenticator(TOKEN, ["https://app.example"]), wall=wall)


@pytest.fixture
async def http(application: Application) -> AsyncIterator[Http]:
    """A browser: it keeps cookies, and says where its requests come from."""
    async with client_of(application, origin=OURS) as client:
        yield client


async def ticket_of(application: Application) -> str:
    async with client_of(application, authorization=f"Bearer {TOKEN}") as http:
        answer = await http.post("/v1/tickets")
    assert answer.status_code == 200, answer.text
    assert answer.json()["expires_unix_ms"] == int((WALL + TICKET_S) * 1000)
    ticket: str = answer.json()["ticket"]
    assert len(base64.urlsafe_b64decode(ticket.removeprefix("tct_"))) * 8 >= 128
    return ticket


async def test_a_ticket_lets_a_browser_in(application: Application, http: Http) -> None:
    check_problem(await http.get("/v1/access"), "unauthorized")
    answer = await http.post("/v1/access", json={"ticket": await ticket_of(application)})
    expected = {"principal": "operator", "expires_unix_ms": int((WALL + ACCESS_S) * 1000)}
    assert (answer.status_code, answer.json()) == (200, expected)
    given = answer.headers["set-cookie"]
    assert given.endswith("; Path=/; Max-Age=43200; HttpOnly; SameSite=Strict")
    assert (await http.get("/v1/access")).json() == expected
    assert (await http.put("/v1/queues/orders")).status_code == 201
    async with client_of(application, cookie=given.partition(";")[0]) as page:
        assert (await page.get("/v1/queues/orders")).status_code == 200
        check_problem(await page.put("/v1/queues/orders"), "origin_refused")


async def test_a_used_ticket_and_an_old_one_are_refused(
    application: Application, http: Http
) -> None:
    ticket = await ticket_of(application)
    assert (await http.post("/v1/access", json={"ticket": ticket})).status_code == 200
    old = "an-old-one"
    application.auth.add_ticket(old, OPERATORS, now=asyncio.get_running_loop().time() - TICKET_S)
    async with client_of(application, origin=OURS) as other:
        for wrong in (ticket, old, "", "wrong", "\x00"):
            answer = await other.post("/v1/access", json={"ticket": wrong})
            assert "tocsin ticket" in check_problem(answer, "unauthorized")["detail"]
            assert "set-cookie" not in answer.headers
        assert ticket not in (await other.post("/v1/access", json={"ticket": ticket})).text


async def test_the_token_lets_a_browser_in_and_a_wrong_one_does_not(
    application: Application, http: Http
) -> None:
    wrong = await http.post("/v1/access", headers={"authorization": "Bearer wrong"})
    check_problem(wrong, "unauthorized")
    admission = await http.post("/v1/access", headers={"authorization": f"Bearer {TOKEN}"})
    assert admission.json()["principal"] == "operator"
    assert (await http.get("/v1/queues")).status_code == 200


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "unauthorized"),
        (b"{}", "unauthorized"),
        (b'{"ticket":null}', "unauthorized"),
        (b'{"ticket":7}', "invalid_request"),
        (b'{"ticket":"x","more":1}', "invalid_request"),
        (b"[]", "invalid_request"),
        (b"{", "invalid_json"),
        (b'{"ticket":"\xff"}', "invalid_json"),
        (b'{"ticket":"\\ud800"}', "invalid_json"),
        (b'{"ticket":"' + b"x" * (limits.ACCESS_REQUEST_BYTES_MAX - 13) + b'"}', "unauthorized"),
        (b'{"ticket":"' + b"x" * (limits.ACCESS_REQUEST_BYTES_MAX - 12) + b'"}',
         "request_too_large"),
    ],
)  # fmt: skip
async def test_what_is_no_ticket_is_told(http: Http, body: bytes, code: str) -> None:
    """P12, and P9: anybody may send this."""
    check_problem(await http.post("/v1/access", content=body), code)


async def test_a_foreign_page_lets_nobody_in_or_out(application: Application) -> None:
    ticket = await ticket_of(application)
    async with client_of(application, origin="http://127.0.0.1:3000", cookie=cookie()) as http:
        check_problem(await http.post("/v1/access", json={"ticket": ticket}), "origin_refused")
        check_problem(await http.delete("/v1/access"), "origin_refused")
        check_problem(await http.get("/v1/access"), "origin_refused")
        check_problem(await http.post("/v1/tickets"), "origin_refused")
    async with client_of(application, origin=OURS) as http:  # and has not used it up
        assert (await http.post("/v1/access", json={"ticket": ticket})).status_code == 200


async def test_a_browser_signs_out(application: Application, http: Http) -> None:
    await http.post("/v1/access", json={"ticket": await ticket_of(application)})
    answer = await http.delete("/v1/access")
    assert answer.status_code == 204
    assert "Max-Age=0" in answer.headers["set-cookie"]
    check_problem(await http.get("/v1/access"), "unauthorized")
    assert (await http.delete("/v1/access")).status_code == 204  # out is out


async def test_access_ends_after_twelve_hours(
    application: Application, http: Http, wall: Wall
) -> None:
    await http.post("/v1/access", json={"ticket": await ticket_of(application)})
    wall.now += ACCESS_S - 1
    assert (await http.get("/v1/queues")).status_code == 200
    wall.now += 1
    check_problem(await http.get("/v1/queues"), "unauthorized")
    check_problem(await http.get("/v1/access"), "unauthorized")


async def test_a_cookie_makes_no_tickets(application: Application, http: Http) -> None:
    """Or access would never end."""
    await http.post("/v1/access", json={"ticket": await ticket_of(application)})
    check_problem(await http.post("/v1/tickets"), "forbidden")
    again = await http.post("/v1/access", json={})
    check_problem(again, "unauthorized")


async def test_tickets_are_bounded_and_say_when(application: Application) -> None:
    now = asyncio.get_running_loop().time()
    for number in range(limits.TICKETS_MAX):
        one = Admission(Principal(f"p{number}"), credential="token:abcdefgh")
        application.auth.add_ticket(f"t-{number}", one, now=now)
    async with client_of(application, authorization=f"Bearer {TOKEN}") as http:
        answer = await http.post("/v1/tickets")
    check_problem(answer, "too_many")
    assert 0 < int(answer.headers["retry-after"]) <= TICKET_S


@pytest.mark.parametrize(
    ("headers", "is_secure"),
    [
        ({"origin": OURS}, False),
        ({}, False),
        ({"origin": "https://127.0.0.1:8080"}, True),
        ({"x-forwarded-proto": "https"}, False),  # anybody can say that: see test_tls.py
    ],
)
async def test_behind_tls_the_cookie_never_leaves_it(
    application: Application, headers: dict[str, str], is_secure: bool
) -> None:
    async with client_of(application, **headers) as http:
        ticket = await ticket_of(application)
        entered = await http.post("/v1/access", json={"ticket": ticket})
        left = await http.delete("/v1/access")
    for answer in (entered, left):
        assert answer.headers["set-cookie"].endswith("; Secure") == is_secure


async def test_an_open_broker_wants_nothing() -> None:
    async with client_of(Application(broker_in_memory(), OPEN), origin=OURS) as http:
        anybody = {"principal": "anybody", "expires_unix_ms": None}
        for answer in (
            await http.get("/v1/access"),
            await http.post("/v1/access"),
            await http.post("/v1/access", json={"ticket": "whatever"}),
        ):
            assert (answer.status_code, answer.json()) == (200, anybody)
            assert "set-cookie" not in answer.headers
        assert (await http.post("/v1/tickets")).json() == {"ticket": None, "expires_unix_ms": None}
        assert (await http.delete("/v1/access")).status_code == 204
    async with client_of(Application(broker_in_memory(), OPEN), host="evil.example") as http:
        for method in ("GET", "POST", "DELETE"):
            check_problem(await http.request(method, "/v1/access"), "origin_refused")


# --- Over sessions -------------------------------------------------------------------------------


@pytest.fixture
async def gateway(wall: Wall) -> AsyncIterator[Gateway]:
    async with serve(Connections(SessionServices(broker_in_memory(), LOCKED, wall=wall))) as made:
        yield made


async def test_a_cookie_opens_a_websocket_without_a_token_in_hello(gateway: Gateway) -> None:
    wire = await connect(gateway, Cookie=cookie(), Origin=f"http://127.0.0.1:{gateway.port}")
    await wire.send({"type": "hello"})
    assert (await wire.receive())["type"] == "welcome"
    await wire.close()


@pytest.mark.parametrize("origin", ["http://127.0.0.1:3000", "https://evil.example", "null", None])
async def test_a_foreign_page_opens_no_websocket_with_the_cookie(
    gateway: Gateway, origin: str | None
) -> None:
    headers = {"Host": f"127.0.0.1:{gateway.port}", **HANDSHAKE, "Cookie": cookie()}
    if origin is not None:
        headers["Origin"] = origin
    wire, status, _, body = await request(gateway.port, headers, "/v1/ws")
    assert status == 403
    assert b"origin_refused" in body
    await wire.close()


async def test_a_cookie_that_is_over_leaves_the_token_owed(gateway: Gateway, wall: Wall) -> None:
    wall.now += ACCESS_S
    origin = f"http://127.0.0.1:{gateway.port}"
    wire = await connect(gateway, Cookie=cookie(), Origin=origin)
    await wire.send({"type": "hello"})
    assert (await wire.closed())[0] == 4401
    await wire.close()
    wire = await connect(gateway, Cookie=cookie(), Origin=origin)
    await wire.send({"type": "hello", "token": TOKEN})
    assert (await wire.receive())["type"] == "welcome"
    await wire.close()


async def test_a_session_ends_with_the_cookie_it_was_opened_with(
    gateway: Gateway, wall: Wall
) -> None:
    """P11."""
    wall.now += ACCESS_S - 0.4  # a busy machine takes its time for what comes before
    loop = asyncio.get_running_loop()
    began = loop.time()
    wire = await connect(gateway, Cookie=cookie(), Origin=f"http://127.0.0.1:{gateway.port}")
    await wire.send({"type": "hello"})
    assert (await wire.receive())["type"] == "welcome"
    assert await wire.closed() == (4401, frames.UNAUTHORIZED.reason)
    assert 0.3 <= loop.time() - began < 5
    await wire.close()


async def test_a_token_in_hello_goes_on_where_the_cookie_ends(gateway: Gateway, wall: Wall) -> None:
    wall.now += ACCESS_S - 0.05
    wire = await connect(gateway, Cookie=cookie(), Origin=f"http://127.0.0.1:{gateway.port}")
    await wire.send({"type": "hello", "token": TOKEN})
    assert (await wire.receive())["type"] == "welcome"
    (connection,) = list(gateway.connections)
    ends: Any = connection
    assert ends._session._protocol.right_ends == float("inf")
    await wire.close()


def test_a_handshake_says_for_how_long() -> None:
    lines = {"Host": HOST, **HANDSHAKE, "Origin": OURS, "Cookie": cookie()}
    text = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    data = f"GET /v1/ws HTTP/1.1\r\n{text}\r\n".encode()
    assert answer_handshake(data, LOCKED, now=0, wall=WALL + 60).admission == cookies(ACCESS_S - 60)
    assert answer_handshake(data, LOCKED, now=0, wall=WALL + ACCESS_S).admission is None
    assert answer_handshake(data, OPEN, now=0, wall=WALL).admission == LET_IN


async def test_over_tls_a_page_without_it_is_foreign(application: Application) -> None:
    """It has the host's cookies, and somebody on the way may have written it."""
    over_tls = ClientAddress("192.0.2.1", True)
    ticket = "tct_1"
    LOCKED.tickets.add(ticket, OPERATORS, now=0)
    for credential in (
        {"Cookie": cookie()},
        {"Sec-WebSocket-Protocol": f"tocsin.v1, tocsin.ticket.{ticket}"},
    ):
        for origin, is_accepted in ((OURS, False), (f"https://{HOST}", True)):
            lines = {"Host": HOST, **HANDSHAKE, "Origin": origin, **credential}
            text = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
            data = f"GET /v1/ws HTTP/1.1\r\n{text}\r\n".encode()
            made = answer_handshake(data, LOCKED, now=0, wall=WALL, peer=over_tls)
            assert made.is_accepted is is_accepted, made
            code = None if made.error is None else made.error.code.name
            assert code == (None if is_accepted else "origin_refused")

    transport = httpx2.ASGITransport(app=application)
    async with httpx2.AsyncClient(transport=transport, base_url=f"https://{HOST}") as http:
        for headers in ({"Origin": OURS, "Cookie": cookie()}, {"Origin": OURS}):
            check_problem(await http.post("/v1/access", headers=headers), "origin_refused")
            check_problem(await http.delete("/v1/access", headers=headers), "origin_refused")
            check_problem(await http.post("/v1/sessions", headers=headers), "origin_refused")
        ours = {"Origin": f"https://{HOST}", "Cookie": cookie()}
        assert (await http.get("/v1/access", headers=ours)).status_code == 200


async def test_a_long_poll_that_waits_ends_with_its_cookie(house: House, wall: Wall) -> None:
    """P11: its request was admitted, and what it waits for would come too late."""
    connections = Connections(SessionServices(house.broker, LOCKED))
    application = Application(house.broker, LOCKED, LongPolls(connections), wall=wall)
    async with client_of(application, origin=OURS, cookie=cookie()) as http:
        wall.now += ACCESS_S - 0.1
        opened = await http.post("/v1/sessions", json={"type": "hello"})
        assert opened.status_code == 201, opened.text
        path = f"/v1/sessions/{opened.json()['session']}/frames"
        async with asyncio.timeout(5):
            last = await http.get(path, params={"after": "1", "wait_s": "30"})
        assert last.json()["close"]["code"] == 4401
        wall.now += 1
        check_problem(await http.get(path, params={"after": "1"}), "unauthorized")
    connections.deadlines.close()


async def test_a_pull_waits_no_longer_than_its_cookie(house: House, wall: Wall) -> None:
    """P11."""
    await house.queue()
    application = Application(house.broker, LOCKED, wall=wall)
    async with client_of(application, origin=OURS, cookie=cookie()) as http:
        wall.now += ACCESS_S - 0.1
        async with asyncio.timeout(5):
            pulled = await http.post("/v1/queues/orders/groups/g/pull", json={"wait_s": 30})
    assert pulled.json() == {"messages": []}
