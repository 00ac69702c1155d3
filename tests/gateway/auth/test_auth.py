"""Who gets in (P11): tokens, Host and Origin."""

import pytest
from websockets.datastructures import Headers

from gateway.auth.auth import LET_IN, OPERATOR, Authenticator, bearer_token
from gateway.models import Admission
from push.errors import Refused

OPEN = Authenticator(None, ["https://app.example/"])
LOCKED = Authenticator("s3cret", ["https://app.example"])
WALL = 1_763_690_400.0


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:8080",
        "localhost:9999",
        "127.0.0.1:8080",
        "127.8.8.8",
        "[::1]",
        "[::1]:8080",
    ],
)
def test_without_a_token_loopback_hosts_are_anybody(host: str) -> None:
    assert OPEN.authenticate_without_cookie({"host": host}, wall=WALL) == LET_IN


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8080",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "10.0.0.1",
        "[::2]:8080",
        "0.0.0.0",
        "127.1",
        "user@localhost",
        "localhost:80:80",
        "localhost evil",
        "",
        None,
    ],
)
def test_a_rebound_name_is_refused(host: str | None) -> None:
    headers = {} if host is None else {"host": host}
    with pytest.raises(Refused) as refused:
        OPEN.authenticate_without_cookie(headers, wall=WALL)
    assert refused.value.code.name == "origin_refused"
    assert "TOCSIN_TOKEN" in refused.value.detail


@pytest.mark.parametrize(
    ("origin", "host", "allowed"),
    [
        ("http://localhost:8080", "localhost:8080", True),
        ("http://LOCALHOST:8080", "localhost:8080", True),
        ("http://localhost", "localhost:80", True),
        ("https://localhost", "localhost", True),
        ("https://localhost:443", "localhost", True),
        ("http://[::1]:8080", "[::1]:8080", True),
        ("https://app.example", "localhost:8080", True),
        ("https://APP.example", "localhost:8080", True),
        ("http://app.example", "localhost:8080", False),
        ("https://app.example:444", "localhost:8080", False),
        ("http://localhost:8081", "localhost:8080", False),
        ("http://127.0.0.1:8080", "localhost:8080", False),
        ("https://evil.example", "localhost:8080", False),
        ("null", "localhost:8080", False),
        ("file://", "localhost:8080", False),
        ("http://localhost:8080/path", "localhost:8080", False),
        ("", "localhost:8080", False),
    ],
)
def test_a_page_is_served_to_itself_and_to_whom_is_listed(
    origin: str, host: str, allowed: bool
) -> None:
    headers = {"host": host, "origin": origin}
    if allowed:
        assert OPEN.authenticate_without_cookie(headers, wall=WALL) == LET_IN
        assert LOCKED.authenticate_without_cookie(headers, wall=WALL) is None
    else:
        for auth in (OPEN, LOCKED):
            with pytest.raises(Refused) as refused:
                auth.authenticate_without_cookie(headers, wall=WALL)
            assert refused.value.code.name == "origin_refused"


def test_behind_a_proxy_the_page_of_the_public_name_is_same_origin() -> None:
    headers = {"host": "broker.example", "origin": "https://broker.example"}
    assert LOCKED.authenticate_without_cookie(headers, wall=WALL) is None


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        ("https://broker.example", True),
        ("HTTPS://broker.example:443", True),
        ("http://broker.example", False),
        ("http://broker.example:443", False),
        ("http://broker.example:80", False),
        ("http://app.example", True),
    ],
)
def test_over_tls_a_page_that_anybody_on_the_way_could_have_written_is_foreign(
    origin: str, allowed: bool
) -> None:
    auth = Authenticator("s3cret", ["http://app.example"])
    headers = {"host": "broker.example", "origin": origin}
    if allowed:
        assert auth.authenticate_without_cookie(headers, wall=WALL, is_tls=True) is None
    else:
        with pytest.raises(Refused) as refused:
            auth.authenticate_without_cookie(headers, wall=WALL, is_tls=True)
        assert refused.value.code.name == "origin_refused"


def test_the_right_token_is_the_operator_from_anywhere() -> None:
    headers = {
        "host": "broker.example",
        "origin": "https://elsewhere.example",
        "authorization": "Bearer s3cret",
    }
    assert LOCKED.authenticate_without_cookie(headers, wall=WALL) == Admission(OPERATOR)
    assert LOCKED.authenticate_without_cookie(
        {**headers, "authorization": "bearer  s3cret "}, wall=WALL
    ) == Admission(OPERATOR)


@pytest.mark.parametrize(
    "header",
    [
        "Bearer s3cre",
        "Bearer s3crett",
        "Bearer S3CRET",
        "Bearer sécret",
        "Basic s3cret",
        "Bearer",
        "",
    ],
)
def test_a_wrong_token_is_refused_and_not_repeated(header: str) -> None:
    with pytest.raises(Refused) as refused:
        LOCKED.authenticate_without_cookie(
            {"host": "localhost", "authorization": header}, wall=WALL
        )
    assert refused.value.code.name == "unauthorized"
    assert "3cr" not in str(refused.value)


def test_a_token_that_is_still_owed_is_asked_for() -> None:
    assert LOCKED.authenticate_without_cookie({"host": "broker.example"}, wall=WALL) is None
    with pytest.raises(Refused) as refused:
        LOCKED.check_token(None, wall=WALL)
    assert refused.value.code.name == "unauthorized"
    assert LOCKED.check_token("s3cret", wall=WALL) == Admission(OPERATOR)


def test_an_open_broker_takes_whatever_token_a_client_is_configured_with() -> None:
    assert OPEN.check_token("anything", wall=WALL) == LET_IN
    assert (
        OPEN.authenticate_without_cookie(
            {"host": "localhost", "authorization": "Bearer anything"}, wall=WALL
        )
        == LET_IN
    )
    with pytest.raises(Refused):  # it proves nothing, so the origin still counts
        OPEN.authenticate_without_cookie(
            {"host": "evil.example", "authorization": "Bearer anything"}, wall=WALL
        )


def test_an_empty_token_setting_is_no_token() -> None:
    assert Authenticator("").authenticate_without_cookie({"host": "localhost"}, wall=WALL) == LET_IN


@pytest.mark.parametrize("name", ["Host", "Origin", "Authorization"])
def test_repeated_headers_are_refused(name: str) -> None:
    headers = Headers([("Host", "localhost")])
    headers[name] = "localhost"
    headers[name] = "Bearer s3cret"
    with pytest.raises(Refused):
        OPEN.authenticate_without_cookie(headers, wall=WALL)


def test_no_authorization_header_is_no_token() -> None:
    assert bearer_token({}) is None
