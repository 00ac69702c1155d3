"""JWTs (P11): which keys count, what a token gives, what is remembered of it, and for how long. The
thousands that give nothing are in test_bad_credentials."""

import asyncio
import http.server
import json
import ssl
import string
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed448, rsa
from hypothesis import given
from hypothesis import strategies as st

from gateway.auth import jwt as jwks_source
from gateway.auth import jwt as jwts
from gateway.auth.auth import Authenticator
from gateway.auth.jwt import (
    ALGORITHMS,
    KEYS_BYTES_MAX,
    KEYS_MAX,
    LEEWAY_S,
    JwksSource,
    JwtKeys,
    JwtTerms,
    JwtVerifier,
    KeysError,
    fetch,
    parse_keys,
)
from gateway.config import Config, ConfigError, load
from gateway.models import Admission
from gateway.server import credentials_of
from loadtests.trials.credentials.bad_credentials import (
    AUDIENCE,
    ISSUER,
    KIDS,
    Issuer,
    to_text,
    unsigned,
)
from metadata.catalog import Principal
from metadata.rights import parse_rights
from push import limits
from push.errors import Refused
from tests.authority import Authority
from tests.gateway.plain_metadata import PlainMetadata

WALL: Final = 1_763_690_400.0
TERMS: Final = JwtTerms(AUDIENCE, ISSUER, ("read:feed:{sub}", "publish:{team}.*"))


@cache
def issuer() -> Issuer:
    return Issuer()


def judge(*algorithms: str, terms: JwtTerms = TERMS) -> JwtVerifier:
    made = JwtVerifier(terms)
    made.put_keys(parse_keys(issuer().jwks(*algorithms), ALGORITHMS))
    return made


# --- Keys -----------------------------------------------------------------------------------------


def parsed(*keys: dict[str, Any], algorithms: tuple[str, ...] = ALGORITHMS) -> JwtKeys:
    return parse_keys(json.dumps({"keys": keys}).encode(), algorithms)


@pytest.mark.parametrize("algorithm", KIDS)
def test_a_key_is_for_the_one_algorithm_of_its_type(algorithm: str) -> None:
    keys = parsed(issuer().jwk(algorithm))
    assert keys.by_kid[KIDS[algorithm]].algorithm == algorithm
    others = tuple(one for one in ALGORITHMS if one != algorithm)
    assert parsed(issuer().jwk(algorithm), algorithms=others).by_kid == {}
    assert parsed({**issuer().jwk(algorithm), "alg": others[0]}).by_kid == {}
    assert parsed({**issuer().jwk(algorithm), "alg": algorithm}).by_kid == keys.by_kid


def key_of(private: Any, make: Any) -> dict[str, Any]:
    made: dict[str, Any] = make.to_jwk(private.public_key(), as_dict=True)
    return {**made, "kid": "k"}


def weak() -> Iterator[dict[str, Any]]:
    from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

    yield key_of(rsa.generate_private_key(public_exponent=65537, key_size=1024), RSAAlgorithm)
    yield key_of(ec.generate_private_key(ec.SECP384R1()), ECAlgorithm)
    yield key_of(ec.generate_private_key(ec.SECP256K1()), ECAlgorithm)
    yield key_of(ed448.Ed448PrivateKey.generate(), OKPAlgorithm)
    yield {"kty": "oct", "k": to_text(b"x" * 31), "kid": "k"}
    good = issuer().jwk("EdDSA")
    yield {**good, "use": "enc"}
    yield {**good, "key_ops": ["sign"]}
    yield {**good, "key_ops": "verify"}
    yield {**good, "key_ops": None}
    yield {**good, "key_ops": 7}
    yield {**good, "kid": 7}
    yield {**good, "kid": ""}
    yield {**good, "kid": "x" * 257}
    yield {**good, "x": "AAAA"}
    yield {**good, "x": 7}
    yield {"kty": "none"}
    yield {}


def test_a_weak_or_odd_key_does_not_count_and_the_others_do() -> None:
    for one in weak():
        keys = parsed(one, issuer().jwk("ES256"))
        assert list(keys.by_kid) == [KIDS["ES256"]], one
        assert len(keys.skipped) == 1


def test_a_secret_of_256_bits_counts() -> None:
    assert parsed({"kty": "oct", "k": to_text(b"x" * 32)}).by_kid[None].algorithm == "HS256"


def test_the_private_part_of_a_key_is_not_looked_at() -> None:
    with_private = {**issuer().jwk("EdDSA"), "d": "AAAA", "x5c": ["x"], "x5u": "https://e.example"}
    assert parsed(with_private).by_kid["ed-1"].credential == (
        parsed(issuer().jwk("EdDSA")).by_kid["ed-1"].credential
    )


def test_of_two_keys_of_a_kid_the_first_counts() -> None:
    other = {**Issuer().jwk("EdDSA")}
    keys = parsed(issuer().jwk("EdDSA"), other)
    assert keys.by_kid == parsed(issuer().jwk("EdDSA")).by_kid
    assert len(keys.skipped) == 1


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"keys":{}}', b'{"keys":[7]}', b"\xff", b"[" * 5000]
)
def test_what_is_no_set_of_keys_is_refused(data: bytes) -> None:
    with pytest.raises(KeysError):
        parse_keys(data, ALGORITHMS)


def test_a_set_of_keys_is_bounded() -> None:
    """P9, on both sides."""
    keys = [{**issuer().jwk("EdDSA"), "kid": str(number)} for number in range(KEYS_MAX)]
    assert len(parsed(*keys).by_kid) == KEYS_MAX
    with pytest.raises(KeysError):
        parsed(*keys, {})
    data = issuer().jwks("EdDSA")
    assert parse_keys(data.ljust(KEYS_BYTES_MAX), ALGORITHMS).by_kid
    with pytest.raises(KeysError):
        parse_keys(data.ljust(KEYS_BYTES_MAX + 1), ALGORITHMS)


# --- What a token gives ---------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", KIDS)
def test_a_token_gives_what_its_issuer_says(algorithm: str) -> None:
    jwts = judge()
    token = issuer().token(
        WALL, algorithm, team="shop", tocsin_tenant="acme", tocsin_rights=["consume:orders"]
    )
    found = jwts.admission_of(token, wall=WALL)
    assert found is not None
    assert found.principal == Principal("user-7", "acme")
    assert found.rights == parse_rights(["read:feed:user-7", "publish:shop.*", "consume:orders"])
    assert found.lasts_s == 600
    assert jwts.trusts(found.credential)
    assert judge().admission_of(issuer().token(WALL), wall=WALL) == Admission(
        Principal("user-7"), 600, parse_rights(["read:feed:user-7"]),
        parsed(issuer().jwk("EdDSA")).by_kid["ed-1"].credential,
    )  # fmt: skip


def test_a_claim_is_no_pattern() -> None:
    """Who calls himself * reads the key * alone."""
    found = judge().admission_of(issuer().token(WALL, sub="*", team="*"), wall=WALL)
    assert found is not None
    keys = found.rights.keys("read", "feed")
    assert keys is not None
    assert keys.allow("*")
    assert not keys.allow("user-7")
    assert found.rights.keys("publish", "shop.orders") is None
    assert found.rights.keys("publish", "*.orders") is not None


def test_a_claim_with_a_blank_is_not_the_one_without() -> None:
    """Who registers as `shop ` at the issuer publishes nothing for the shop, and a cookie can be
    made of whatever a token gives."""
    auth = Authenticator(None, jwts=judge())
    for team in ("shop ", " shop", "\ud800"):
        found = auth.check_token(issuer().token(WALL, team=team), wall=WALL)
        assert found.rights == parse_rights(["read:feed:user-7"])
        assert auth.cookie_for(found, wall=WALL)
    for right in ("read:\ud800", "read:feed:\ud800"):
        with pytest.raises(Refused):
            auth.check_token(issuer().token(WALL, tocsin_rights=[right]), wall=WALL)


def test_claims_have_the_names_that_are_configured() -> None:
    terms = JwtTerms(
        AUDIENCE, None, (), rights_claim="https://x.example/rights", tenant_claim="org"
    )
    claims = issuer().claims(
        WALL, iss="whoever", org="acme", tocsin_tenant="other", tocsin_rights=["read:*"]
    )
    token = issuer().signed({**claims, "https://x.example/rights": ["read:feed"]}, "EdDSA", {})
    found = judge(terms=terms).admission_of(token, wall=WALL)
    assert found is not None
    assert (found.principal.tenant, found.rights) == ("acme", parse_rights(["read:feed"]))


def test_several_audiences_and_types_are_taken() -> None:
    for more in ({"aud": ["x", AUDIENCE]}, {"aud": AUDIENCE}):
        assert judge().admission_of(issuer().token(WALL, **more), wall=WALL) is not None
    for typ in ("JWT", "jwt", "at+jwt", "application/at+JWT"):
        assert (
            judge().admission_of(issuer().token(WALL, headers={"typ": typ}), wall=WALL) is not None
        )


def test_times_on_both_sides() -> None:
    jwts, token = judge(), issuer().token(WALL, exp=WALL + 60, nbf=WALL + 30)
    for wall, good in (
        (WALL + 30 - LEEWAY_S - 0.01, False), (WALL + 30 - LEEWAY_S, True),
        (WALL + 59.99, True), (WALL + 60, False), (WALL + 61, False),
    ):  # fmt: skip
        assert (jwts.admission_of(token, wall=wall) is not None) is good, wall
        assert (judge().admission_of(token, wall=wall) is not None) is good, wall
    assert LEEWAY_S <= 30


def test_a_token_is_bounded() -> None:
    """On both sides: what fills it up is a claim of no meaning."""
    empty = len(issuer().token(WALL, more=""))
    room = (limits.JWT_BYTES_MAX - empty) * 3 // 4
    sizes = {}
    for size in range(room - 6, room + 6):
        token = issuer().token(WALL, more="x" * size)
        sizes[len(token)] = judge().admission_of(token, wall=WALL) is not None
    assert any(sizes.values())
    assert all(good is (size <= limits.JWT_BYTES_MAX) for size, good in sizes.items())
    assert max(sizes) > limits.JWT_BYTES_MAX


@given(st.text(string.ascii_letters + string.digits + "-_", min_size=1, max_size=20))
def test_a_part_is_read_as_pyjwt_reads_it(part: str) -> None:
    """Faster, and no less strictly: one spelling of each."""

    def read(signatures: type[jwt.PyJWS]) -> bytes | None:
        try:
            return signatures._decode_base64url_segment(part.encode(), "payload")
        except jwt.DecodeError:
            return None

    assert read(jwts._Signatures) == read(jwt.PyJWS)


def test_another_spelling_of_a_signature_is_none() -> None:
    """86 letters are 64 bytes and four bits, which nobody signed."""
    text = issuer().token(WALL, "EdDSA")
    assert judge("EdDSA").admission_of(text, wall=WALL) is not None
    spare = {text[:-1] + letter for letter in "AQgw"} - {text}
    others = {text[:-1] + chr(ord(text[-1]) + n) for n in (1, 2, 3)}
    assert [one for one in spare | others if judge("EdDSA").admission_of(one, wall=WALL)] == []


def test_a_token_without_kid_is_of_the_key_without_one() -> None:
    bare = {name: value for name, value in issuer().jwk("EdDSA").items() if name != "kid"}
    jwts = JwtVerifier(TERMS)
    begun = unsigned({"alg": "EdDSA"}, issuer().claims(WALL)).rstrip(".")
    token = f"{begun}.{to_text(issuer().keys['EdDSA'].sign(begun.encode()))}"
    signed = issuer().signed(issuer().claims(WALL), "EdDSA", {})
    jwts.put_keys(parsed(issuer().jwk("EdDSA")))
    assert jwts.admission_of(token, wall=WALL) is None
    jwts.put_keys(parsed(bare))
    assert jwts.admission_of(token, wall=WALL) is not None
    assert jwts.admission_of(signed, wall=WALL) is None


# --- What is remembered ---------------------------------------------------------------------------


def test_what_a_token_gave_is_remembered_until_it_ends_or_the_keys_change() -> None:
    jwts = judge()
    token = issuer().token(WALL)
    for passed in range(5):
        found = jwts.admission_of(token, wall=WALL + passed)
        assert found is not None
        assert found.lasts_s == 600 - passed
    assert (jwts.hit_rate.hits, jwts.hit_rate.misses) == (4, 1)
    assert jwts.admission_of(token, wall=WALL + 600) is None
    assert jwts.put_keys(parse_keys(issuer().jwks("ES256"), ALGORITHMS)) == frozenset(
        parsed(issuer().jwk(one)).by_kid[KIDS[one]].credential
        for one in ("EdDSA", "RS256", "HS256")
    )
    assert jwts.admission_of(token, wall=WALL) is None
    assert jwts.admission_of(issuer().token(WALL, "ES256"), wall=WALL) is not None


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """P9; and what gives nothing is not remembered."""
    monkeypatch.setattr(limits, "JWTS_KEPT_MAX", 3)
    jwts = judge()
    tokens = [issuer().token(WALL, jti=str(number)) for number in range(4)]
    for token in (*tokens, tokens[3], tokens[1]):
        assert jwts.admission_of(token, wall=WALL) is not None
        assert jwts.admission_of(token[:-1], wall=WALL) is None
    assert (len(jwts._kept), jwts.hit_rate.hits) == (3, 2)
    jwts.admission_of(tokens[0], wall=WALL)
    assert jwts.hit_rate.hits == 2


def test_a_key_that_is_exchanged_under_its_kid_is_another_one() -> None:
    jwts = judge("EdDSA")
    before = jwts.admission_of(issuer().token(WALL), wall=WALL)
    assert before is not None
    assert jwts.put_keys(parsed(Issuer().jwk("EdDSA"))) == {before.credential}
    assert not jwts.trusts(before.credential)


def test_only_an_unknown_kid_asks_for_fresh_keys() -> None:
    asked: list[None] = []
    jwts = JwtVerifier(TERMS, lambda: asked.append(None))
    jwts.put_keys(parse_keys(issuer().jwks(), ALGORITHMS))
    for token in (issuer().token(WALL), issuer().token(WALL, aud="x"), "x", "a.b.c"):
        jwts.admission_of(token, wall=WALL)
    assert asked == []
    jwts.admission_of(issuer().token(WALL, headers={"kid": "new"}), wall=WALL)
    assert asked == [None]


# --- Where keys come from -------------------------------------------------------------------------


class Source:
    """A source, and what it has told."""

    def __init__(self, location: str, refresh_s: float = 1.0) -> None:
        self.told: asyncio.Queue[JwtKeys] = asyncio.Queue()
        self.source = JwksSource(location, ALGORITHMS, self.told.put_nowait, refresh_s=refresh_s)

    async def next(self) -> set[str | None]:
        """The kids of the next set."""
        async with asyncio.timeout(10):
            return set((await self.told.get()).by_kid)


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred times faster."""
    for name in ("FILE_EVERY_S", "UNKNOWN_EVERY_S"):
        monkeypatch.setattr(jwks_source, name, getattr(jwks_source, name) / 100)


def replace(path: Path, data: bytes) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_bytes(data)
    fresh.replace(path)


async def test_a_file_that_changes_is_found_and_what_is_broken_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = asyncio.Event()

    def parse(data: bytes, algorithms: tuple[str, ...]) -> JwtKeys:
        try:
            return parse_keys(data, algorithms)
        except KeysError:
            broken.set()
            raise

    monkeypatch.setattr(jwks_source, "parse_keys", parse)
    path = tmp_path / "jwks.json"
    replace(path, issuer().jwks("EdDSA", "ES256"))
    one = Source(str(path))
    await one.source.start()
    assert await one.next() == {"ed-1", "ec-1"}
    replace(path, b"half a fi")
    async with asyncio.timeout(10):
        await broken.wait()
    replace(path, issuer().jwks("ES256"))
    assert await one.next() == {"ec-1"}
    await one.source.stop()


@pytest.mark.parametrize("data", [None, b"{}", b'{"keys":[]}', b'{"keys":[{"kty":"x"}]}'])
async def test_without_keys_a_file_is_no_start(tmp_path: Path, data: bytes | None) -> None:
    path = tmp_path / "jwks.json"
    if data is not None:
        replace(path, data)
    with pytest.raises(KeysError, match=r"jwks\.json"):
        await Source(str(path)).source.start()


class Server(http.server.ThreadingHTTPServer):
    """The issuer's address."""

    answer = (200, b"")
    location = ""
    asked = 0


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.asked += 1
        status, body = self.server.answer
        self.send_response(status)
        if self.server.location:
            self.send_header("Location", self.server.location)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        return None


@contextmanager
def address(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Server, str]]:
    """One with TLS, whose authority is trusted."""
    authority = Authority(folder)
    pair = authority.issue("localhost")
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.ca))
    server = Server(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.cert, pair.key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server, f"https://localhost:{server.server_address[1]}/jwks.json"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


async def test_an_address_is_read_again_and_sooner_for_an_unknown_kid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with address(tmp_path, monkeypatch) as (server, url):
        server.answer = (200, issuer().jwks("EdDSA"))
        one = Source(url, refresh_s=3600)
        await one.source.start()
        assert await one.next() == {"ed-1"}
        server.answer = (200, issuer().jwks("EdDSA", "ES256"))
        one.source.want()
        assert await one.next() == {"ed-1", "ec-1"}
        assert server.asked == 2
        await one.source.stop()


async def test_an_address_that_does_not_answer_yet_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with address(tmp_path, monkeypatch) as (server, url):
        server.answer = (503, b"")
        one = Source(url, refresh_s=3600)
        await one.source.start()
        server.answer = (200, issuer().jwks("EdDSA"))
        assert await one.next() == {"ed-1"}
        await one.source.stop()


async def test_keys_that_cannot_be_read_for_a_day_count_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with address(tmp_path, monkeypatch) as (server, url):
        server.answer = (200, issuer().jwks("EdDSA"))
        one = Source(url, refresh_s=0.01)
        await one.source.start()
        assert await one.next() == {"ed-1"}
        monkeypatch.setattr(jwks_source, "STALE_S", 0.0)
        server.answer = (500, b"")
        assert await one.next() == set()
        await one.source.stop()


def test_an_address_is_bounded_and_leads_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with address(tmp_path, monkeypatch) as (server, url):
        server.answer = (200, b"x" * (2 * KEYS_BYTES_MAX))
        data = fetch(url)
        assert KEYS_BYTES_MAX < len(data) <= KEYS_BYTES_MAX + 65_536
        server.answer, server.location = (302, b""), f"{url}?elsewhere"
        with pytest.raises(OSError, match="302"):
            fetch(url)
        assert server.asked == 2
        monkeypatch.delenv("SSL_CERT_FILE")
        with pytest.raises(ssl.SSLCertVerificationError):
            fetch(url)


async def test_a_key_that_leaves_ends_what_it_has_let_in(tmp_path: Path) -> None:
    """P11."""
    path = tmp_path / "jwks.json"
    replace(path, issuer().jwks("EdDSA", "ES256"))
    config = Config(data_dir=tmp_path, jwt_keys=str(path), jwt_audience=AUDIENCE)
    made = credentials_of(config, PlainMetadata())
    await made.start()
    ended: asyncio.Queue[str] = asyncio.Queue()

    class Standing:
        def __init__(self, name: str) -> None:
            self.name = name

        def revoked(self) -> None:
            ended.put_nowait(self.name)

    for algorithm in ("EdDSA", "ES256"):
        admission = made.auth.check_token(issuer().token(WALL, algorithm), wall=WALL)
        made.auth.track(admission.credential, Standing(algorithm))
    replace(path, issuer().jwks("ES256"))
    async with asyncio.timeout(5):
        assert await ended.get() == "EdDSA"
    assert ended.empty()
    await made.stop()


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        ({"TOCSIN_JWT_KEYS": "/k"}, "TOCSIN_JWT_AUDIENCE is not"),
        ({"TOCSIN_JWT_AUDIENCE": "a"}, "TOCSIN_JWT_KEYS is not"),
        ({"TOCSIN_JWT_ALGORITHMS": "none"}, "TOCSIN_JWT_ALGORITHMS"),
        ({"TOCSIN_JWT_ALGORITHMS": "ES256,HS512"}, "TOCSIN_JWT_ALGORITHMS"),
        ({"TOCSIN_JWT_ALGORITHMS": ""}, "TOCSIN_JWT_ALGORITHMS"),
        ({"TOCSIN_JWT_RIGHTS": "read"}, "TOCSIN_JWT_RIGHTS"),
        ({"TOCSIN_JWT_RIGHTS": " "}, "TOCSIN_JWT_RIGHTS"),
        ({"TOCSIN_JWT_RIGHTS": "read:feed:\\{sub}"}, "TOCSIN_JWT_RIGHTS"),
        ({"TOCSIN_JWT_KEYS": "https://user:x@h/k"}, "TOCSIN_JWT_KEYS"),
        ({"TOCSIN_JWT_KEYS": "https://"}, "TOCSIN_JWT_KEYS"),
        ({"TOCSIN_JWT_REFRESH_S": "0"}, "TOCSIN_JWT_REFRESH_S"),
    ],
)
def test_settings_that_cannot_be_are_said(environ: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        load({"TOCSIN_DATA_DIR": "/tmp/t", **environ})


def test_settings() -> None:
    config, _ = load(
        {
            "TOCSIN_DATA_DIR": "/tmp/t",
            "TOCSIN_HOST": "0.0.0.0",
            "TOCSIN_PLAIN": "1",
            "TOCSIN_JWT_KEYS": "https://issuer.example/jwks",
            "TOCSIN_JWT_AUDIENCE": "tocsin",
            "TOCSIN_JWT_RIGHTS": "read:feed:{sub} publish,consume:{team}.*",
        }
    )
    assert config.needs_credentials
    assert config.jwt_rights == ("read:feed:{sub}", "publish,consume:{team}.*")
    assert config.jwt_algorithms == ("EdDSA", "ES256", "RS256")
