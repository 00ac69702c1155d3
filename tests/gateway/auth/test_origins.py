"""Web origins: as they are configured, and as browsers write them."""

import httpx2
import pytest

from gateway.auth.auth import LET_IN, Authenticator
from gateway.auth.origins import configured_origin
from gateway.broker import Broker
from gateway.config import load
from gateway.rest.app import Application
from push.errors import Refused
from tests.gateway.asgi import client_of

WAYS = [
    ("https://app.example:443", "https://app.example"),
    ("https://app.example:0443", "https://app.example"),
    ("https://app.example:00443", "https://app.example"),
    ("http://app.example:80", "http://app.example"),
    ("http://app.example:443", "http://app.example:443"),
    ("https://app.example:08443", "https://app.example:8443"),
    ("HTTPS://APP.Example", "https://app.example"),
    ("http://[0:0:0:0:0:0:0:1]:3000", "http://[::1]:3000"),
    ("http://[2001:DB8::0A]", "http://[2001:db8::a]"),
    ("http://[::ffff:192.0.2.1]", "http://[::ffff:c000:201]"),
    ("http://127.0.0.1:3000", "http://127.0.0.1:3000"),
    ("https://xn--bcher-kva.example", "https://xn--bcher-kva.example"),
]


@pytest.mark.parametrize(("written", "sent"), WAYS)
async def test_an_origin_counts_however_its_operator_writes_it(
    written: str, sent: str, broker: Broker
) -> None:
    """For HTTP, for its preflights, and for WebSockets, which ask the same Auth."""
    config, _ = load({"HOME": "/tmp", "TOCSIN_ORIGINS": written})
    (configured,) = config.origins
    assert configured == configured_origin(written) == sent
    headers = {"host": "localhost:8080", "origin": sent}
    assert Authenticator(None, [written]).authenticate_without_cookie(headers, wall=0) == LET_IN
    for origins in ([written], [configured]):
        application = Application(broker, Authenticator(None, origins), origins=origins)
        async with client_of(application) as http:
            asked = {"Origin": sent, "Access-Control-Request-Method": "PUT"}
            answer = await http.options("/v1/queues/orders", headers=asked)
            assert answer.headers["access-control-allow-origin"] == sent
            answer = await http.get("/v1/queues", headers={"Origin": sent})
            assert answer.status_code == 200
            assert answer.headers["access-control-allow-origin"] == sent


@pytest.mark.parametrize(
    ("origin", "host", "is_tls", "told"),
    [
        # A proxy that names itself, or its upstream, or forgets the port.
        ("https://app.example", "10.0.0.5:8080", False, ("https://app.example", "10.0.0.5:8080")),
        ("https://app.example", "tocsin_upstream", True, ("$http_host", "tocsin_upstream")),
        (
            "https://app.example:8443",
            "app.example",
            True,
            ("https://app.example:8443", "$http_host"),
        ),
        ("https://app.example", None, False, ("https://app.example", "says nothing")),
        ("https://app.example.", "app.example", True, ("https://app.example.", "app.example")),
        ("https://evil.example", "app.example", True, ("TOCSIN_ORIGINS=https://evil.example",)),
        ("http://app.example", "app.example", True, ("http://app.example", "https://app.example")),
        ("null", "app.example", True, ("null", "web server")),
        ("file://", "app.example", True, ("file://", "web server")),
    ],
)
def test_whoever_is_refused_learns_what_was_seen_and_what_to_set(
    origin: str, host: str | None, is_tls: bool, told: tuple[str, ...]
) -> None:
    headers = {"origin": origin} | ({"host": host} if host is not None else {})
    with pytest.raises(Refused) as refused:
        Authenticator("s3cret").authenticate_without_cookie(headers, wall=0, is_tls=is_tls)
    assert refused.value.code.name == "origin_refused"
    for part in told:
        assert part in refused.value.detail, refused.value.detail


def test_a_broker_without_a_token_says_which_name_it_was_asked_by() -> None:
    """nginx names its upstream unless it is told not to."""
    with pytest.raises(Refused, match="tocsin_upstream") as refused:
        Authenticator(None).authenticate_without_cookie({"host": "tocsin_upstream"}, wall=0)
    assert "TOCSIN_TOKEN" in refused.value.detail


def test_a_long_name_is_not_repeated_whole() -> None:
    for headers in ({"host": "h" * 9000}, {"host": "localhost", "origin": "http://" + "o" * 9000}):
        with pytest.raises(Refused) as refused:
            Authenticator(None).authenticate_without_cookie(headers, wall=0)
        assert len(refused.value.detail) < 800


async def test_the_page_of_a_proxy_that_passes_its_name_on_is_the_brokers_own(
    broker: Broker,
) -> None:
    transport = httpx2.ASGITransport(app=Application(broker, Authenticator("s3cret")))
    async with httpx2.AsyncClient(transport=transport, base_url="http://app.example") as http:
        answer = await http.get("/v1/access", headers={"Origin": "https://app.example"})
        assert answer.json()["code"] == "unauthorized"
        foreign = {"Origin": "https://app.example", "Host": "upstream"}
        answer = await http.get("/v1/access", headers=foreign)
        assert answer.json()["code"] == "origin_refused"
