"""API tokens and certificates at the gateway (P11), and the commands that make and revoke them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from gateway.accounting.writer import AccountingWriter
from gateway.admin import client as admin
from gateway.admin.server import AdminSocket, token_routes
from gateway.auth.auth import LET_IN, Authenticator
from gateway.broker import Broker
from gateway.cli.serve import admin as admin_command
from gateway.limits.spec import NONE, parse_limits
from gateway.models import DETAIL, Admission
from metadata.catalog import Principal
from metadata.rights import ALL_RIGHTS, parse_rights
from metadata.tokens import write_token
from push.errors import Refused
from tests.gateway.plain_tokens import PlainTokens, record, text

WALL = 1_763_690_400.0
HOST = {"host": "broker.example"}


def auth_of(
    *records: object, token: str | None = "s3cret", required: bool = False
) -> Authenticator:
    tokens = PlainTokens()
    for one in records:
        tokens.put(one)  # type: ignore[arg-type]
    return Authenticator(token, tokens=tokens, is_required=required)


def refused(auth: Authenticator, **headers: str) -> str:
    with pytest.raises(Refused) as error:
        auth.authenticate_without_cookie({**HOST, **headers}, wall=WALL)
    assert error.value.code.name == "unauthorized"
    return error.value.detail


def bearer(token_id: str = "abcdefgh") -> dict[str, str]:
    return {**HOST, "authorization": f"Bearer {text(token_id)}"}


def test_a_token_gives_what_its_record_says() -> None:
    auth = auth_of(record("abcdefgh", "billing", "consume:orders", ends=WALL + 60))
    assert auth.authenticate_without_cookie(bearer(), wall=WALL) == Admission(
        Principal("billing"), 60, parse_rights(["consume:orders"]), "token:abcdefgh"
    )
    assert refused(auth, authorization=f"Bearer {text('bbbbbbbb')}") == DETAIL
    with pytest.raises(Refused):
        auth.authenticate_without_cookie(bearer(), wall=WALL + 60)


def test_a_token_has_limits_of_its_own_by_whatever_way_it_comes_in() -> None:
    said = "messages=1000/s,sessions=2"
    auth = auth_of(
        record("abcdefgh", limits=said),
        record("bbbbbbbb"),
        record("cccccccc", kind="certificate", digest=b"", certificate="m.example", limits=said),
    )
    mine = auth.check_token(text(), wall=WALL)
    assert mine.limits == parse_limits(said) != NONE
    assert auth.check_token(text("bbbbbbbb"), wall=WALL).limits == NONE
    auth.add_ticket("tct_1", mine, now=100.0)
    cookie = auth.cookie_for(mine, wall=WALL)
    headers = {
        **HOST,
        "cookie": f"{auth.cookie_name}={cookie}",
        "origin": "https://broker.example",
    }
    for other in (
        auth.check_ticket("tct_1", now=100.0, wall=WALL),
        auth.authenticate(headers, is_read=True, wall=WALL),
        auth.authenticate_without_cookie(HOST, wall=WALL, certificate="m.example"),
    ):
        assert other is not None
        assert other.limits is mine.limits


def test_a_token_whose_limits_nobody_understands_admits_nobody() -> None:
    """A newer version has written it: it is not taken for one without limits."""
    auth = auth_of(record("abcdefgh", limits="teleports=1/s"))
    assert refused(auth, authorization=f"Bearer {text()}") == DETAIL


def test_two_tokens_of_one_name_are_one_principal() -> None:
    """How one is rotated."""
    auth = auth_of(record("abcdefgh"), record("bbbbbbbb"))
    one, other = (
        auth.authenticate_without_cookie(bearer(i), wall=WALL) for i in ("abcdefgh", "bbbbbbbb")
    )
    assert one is not None
    assert other is not None
    assert one.principal == other.principal
    assert one.credential != other.credential


def test_a_token_that_was_used_is_noted() -> None:
    auth = auth_of(record())
    auth.authenticate_without_cookie(bearer(), wall=WALL)
    tokens = auth._tokens
    assert isinstance(tokens, PlainTokens)
    assert tokens.used == [("abcdefgh", int(WALL * 1000))]
    refused(auth, authorization=f"Bearer {write_token('abcdefgh', 'x' * 24)}")
    assert len(tokens.used) == 1


@pytest.mark.parametrize("required", [True, False])
def test_without_a_token_of_the_broker_credentials_are_wanted_where_it_is_said(
    required: bool,
) -> None:
    auth = auth_of(record(), token=None, required=required)
    assert auth.is_open is not required
    if required:
        admission = auth.authenticate_without_cookie(bearer(), wall=WALL)
        assert admission is not None
        assert admission.principal == Principal("billing")
        assert admission.rights == ALL_RIGHTS
        assert auth.authenticate_without_cookie(HOST, wall=WALL) is None
        assert refused(auth, authorization="Bearer x") == DETAIL
    else:
        assert (
            auth.authenticate_without_cookie({**bearer(), "host": "localhost"}, wall=WALL) == LET_IN
        )


def test_a_certificate_is_its_principal_and_a_token_goes_before_it() -> None:
    auth = auth_of(record(), record("cccccccc", "meter-7", kind="certificate", certificate="cn"))
    by_certificate = auth.authenticate_without_cookie(HOST, wall=WALL, certificate="cn")
    assert by_certificate is not None
    assert by_certificate.principal == Principal("meter-7")
    assert by_certificate.credential == "token:cccccccc"
    by_token = auth.authenticate_without_cookie(bearer(), wall=WALL, certificate="cn")
    assert by_token is not None
    assert by_token.principal == Principal("billing")
    assert auth.authenticate_without_cookie(HOST, wall=WALL, certificate="other") is None
    with pytest.raises(Refused):  # a wrong token is not made up for by a certificate
        auth.authenticate_without_cookie(
            {**HOST, "authorization": "Bearer x"}, wall=WALL, certificate="cn"
        )


def test_a_browser_shows_its_certificate_to_our_pages_alone() -> None:
    """It does so by itself, as with a cookie."""
    auth = auth_of(record(kind="certificate", certificate="cn"))
    own = {**HOST, "origin": "https://broker.example"}
    assert auth.authenticate_without_cookie(own, wall=WALL, certificate="cn") is not None
    with pytest.raises(Refused) as error:
        auth.authenticate_without_cookie(
            {**HOST, "origin": "https://evil.example"}, wall=WALL, certificate="cn"
        )
    assert error.value.code.name == "origin_refused"
    for site, admits in (("same-origin", True), ("none", True), ("cross-site", False)):
        admission = auth.authenticate_without_cookie(
            {**HOST, "sec-fetch-site": site}, wall=WALL, certificate="cn"
        )
        assert (admission is not None) is admits


def test_a_cookie_gives_what_the_token_of_its_maker_gives_now() -> None:
    auth = auth_of(record("abcdefgh", "billing", "read:orders", ends=WALL + 600))
    made_by = auth.check_token(text(), wall=WALL)
    cookie = f"{auth.cookie_name}={auth.cookie_for(made_by, wall=WALL)}"
    headers = {**HOST, "origin": "https://broker.example", "cookie": cookie}
    found = auth.authenticate(headers, is_read=False, wall=WALL + 100)
    assert found == made_by._replace(lasts_s=500, is_cookie=True)
    assert auth.authenticate(headers, is_read=False, wall=WALL + 600) is None
    tokens = auth._tokens
    assert isinstance(tokens, PlainTokens)
    tokens.drop("abcdefgh")
    assert auth.authenticate(headers, is_read=False, wall=WALL + 100) is None


def test_a_ticket_gives_what_the_token_of_its_maker_gives_as_long_as_that() -> None:
    auth = auth_of(record("abcdefgh", "billing", "read:orders", ends=WALL + 600))
    made_by = auth.check_token(text(), wall=WALL)
    for ticket in ("tct_1", "tct_2"):
        auth.add_ticket(ticket, made_by, now=100.0)
    assert auth.check_hello("tct_1", now=110.0, wall=WALL + 10) == made_by._replace(lasts_s=590)
    tokens = auth._tokens
    assert isinstance(tokens, PlainTokens)
    tokens.drop("abcdefgh")
    for ticket in ("tct_1", "tct_2"):
        with pytest.raises(Refused, match="no valid credentials"):
            auth.check_hello(ticket, now=110.0, wall=WALL + 10)


def test_a_ticket_ends_with_its_maker() -> None:
    auth = auth_of(record("abcdefgh", ends=WALL + 5))
    auth.add_ticket("tct_1", auth.check_token(text(), wall=WALL), now=100.0)
    with pytest.raises(Refused):
        auth.check_ticket("tct_1", now=105.0, wall=WALL + 5)


# --- Commands -----------------------------------------------------------------------------------


class Admin:
    """An admin socket with tokens, and its command."""

    def __init__(self, data_dir: Path, broker: Broker, required: bool) -> None:
        self.tokens = PlainTokens()
        self.auth = Authenticator(None, tokens=self.tokens, is_required=required)
        self.data_dir = data_dir
        routes = token_routes(self.tokens, self.auth, lambda: WALL, AccountingWriter().audit)
        self.socket = AdminSocket(data_dir, broker, routes)

    async def run(self, *arguments: str) -> Result:
        """`tocsin admin token …`, in a thread: the socket is answered by this loop."""
        invoke: Callable[..., Result] = CliRunner().invoke
        words = ("token", *arguments, "--data-dir", str(self.data_dir))
        return await asyncio.to_thread(invoke, admin_command, words)


@pytest.fixture(params=[True, False])
async def operator(
    request: pytest.FixtureRequest, broker: Broker, tmp_path: Path
) -> AsyncIterator[Admin]:
    made = Admin(tmp_path, broker, request.param)
    await made.socket.start()
    yield made
    await made.socket.stop()


async def test_a_token_is_made_shown_once_and_revoked(operator: Admin) -> None:
    made = await operator.run("create", "billing", "--right", "consume:orders", "--expires", "2h")
    assert made.exit_code == 0, made.output
    token = made.stdout.strip()
    (kept,) = operator.tokens.listed()
    assert (kept.name, kept.rights, kept.lasts_s(wall=WALL)) == (
        "billing", ("consume:orders",), 7200,
    )  # fmt: skip
    assert ("Warning" in made.stderr) is operator.auth.is_open
    if not operator.auth.is_open:
        assert operator.auth.check_token(token, wall=WALL).principal == Principal("billing")
    listed = await operator.run("list")
    assert kept.token_id in listed.output
    assert "at most" not in listed.output
    for told in (listed, await operator.run("list", "--json")):
        assert token not in told.output
        assert "digest" not in told.output
    revoked = await operator.run("revoke", kept.token_id)
    assert revoked.stdout == f"Revoked {kept.token_id} of billing.\n"
    assert operator.tokens.listed() == []
    again = await operator.run("revoke", kept.token_id)
    assert again.exit_code == 1
    assert "not_found" in again.output


async def test_a_certificate_is_mapped_and_no_token_is_made(operator: Admin) -> None:
    made = await operator.run(
        "create", "meter-7", "--right", "publish:readings", "--certificate", "meter-7.example",
        "--tenant", "acme", "--limits", "messages=50/s+2k", "--json",
    )  # fmt: skip
    told = msgspec.json.decode(made.stdout)
    assert (told["token"], told["certificate"]) == (None, "meter-7.example")
    (kept,) = operator.tokens.of_certificate("meter-7.example")
    assert (kept.principal, kept.limits) == (Principal("meter-7", "acme"), "messages=50/s+2k")
    assert "certificate meter-7.example, at most messages=50/s+2k, until" in (
        (await operator.run("list")).output
    )


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["create", "a"], "--right"),
        (["create", "a", "--right", "fly:moon"], "is no right"),
        (["create", "a", "--right", "read:x", "--expires", "soon"], "for '--expires'"),
        (["create", "a", "--right", "read:x", "--expires", "0d"], "for '--expires'"),
        (
            ["create", "a", "--right", "read:x", "--limits", "messages=soon"],
            "which is no rate: write for example 1000/s",
        ),
        (["create", "a", "--right", "read:x", "--limits", "failures=1/s"], "one of connections"),
        (["create", "operator", "--right", "read:x"], "invalid_name"),
        (["create", "a b", "--right", "read:x"], "invalid_name"),
        (["revoke", "nothing"], "not_found"),
    ],
)
async def test_what_cannot_be_is_said(
    broker: Broker, tmp_path: Path, arguments: list[str], told: str
) -> None:
    operator = Admin(tmp_path, broker, True)
    await operator.socket.start()
    result = await operator.run(*arguments)
    await operator.socket.stop()
    assert result.exit_code != 0
    assert told in result.output
    assert operator.tokens.listed() == []


async def test_the_socket_judges_too(broker: Broker, tmp_path: Path) -> None:
    operator = Admin(tmp_path, broker, True)
    await operator.socket.start()
    wrong: list[dict[str, object]] = [
        {"name": "a", "rights": []}, {"name": "a", "rights": ["x"]}, {"rights": ["read:x"]},
        {"name": "a", "rights": ["read:x"], "limits": "x"},
    ]  # fmt: skip
    for wanted in wrong:
        with pytest.raises(admin.AdminError, match="invalid_request"):
            await asyncio.to_thread(admin.create_token, tmp_path, wanted)
    await operator.socket.stop()
