"""JSON Web Tokens: the keys that count, the rights of a token, and the source of the keys.

**Keys** are a JWK set (RFC 7517), read strictly. The type of a key decides its only algorithm, and
a token's header must agree with it. So no public RSA key is ever taken for the secret of an HMAC.

    OKP Ed25519     EdDSA (RFC 8037)
    EC P-256        ES256 (RFC 7518, 3.4)
    RSA             RS256 (3.3), 2048 bits at least
    oct             HS256 (3.2), 256 bits at least

**Tokens** are verified strictly (RFC 8725, ASVS 5.0 V9). The signature must be made with a
configured key, by the one algorithm that this key is for; `kid` only finds it in the map of keys.
Keys, certificates and addresses in a header are ignored, and a header that marks a member as
critical is refused. `exp`, `aud` and `sub` are required. `exp` has no leeway, because a leeway
would only move the end; `nbf` has one. A client presents the same token with each of thousands of
requests, so the verifier remembers what it gave until the token ends or the keys change.

**The source** of keys is a file or an https address. A task reads it repeatedly, a file every
FILE_EVERY_S and an address every `refresh_s`. Requests never wait for it. It reads an address
sooner when a token names an unknown key, but not more often than every UNKNOWN_EVERY_S, so that a
client with made-up kids cannot make this broker ask all the time. If the source cannot be read,
the keys stay as they are, for STALE_S at most.
"""

import asyncio
import codecs
import http.client
import logging
import os
import re
import ssl
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from hashlib import sha256
from math import isfinite
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import jwt
import msgspec

from gateway.counters import FunctionHitRate, HitRate, HitRateSource
from gateway.models import Admission
from metadata.catalog import Principal
from metadata.rights import Rights, RightsError, fill_in, parse_rights
from metadata.tokens import RESERVED
from push import limits
from push.places import NAME

ALGORITHMS: Final = ("EdDSA", "ES256", "RS256", "HS256")
KEYS_MAX: Final = 100
KEYS_BYTES_MAX: Final = 256 * 1024
KID_CHARS_MAX: Final = 256
_RSA_BITS_MIN: Final = 2048
_SECRET_BYTES_MIN: Final = 32
_MEMBERS: Final = {
    "OKP": ("crv", "kty", "x"),
    "EC": ("crv", "kty", "x", "y"),
    "RSA": ("e", "kty", "n"),
    "oct": ("k", "kty"),
}
"""Members that make a key of each type, in the order of RFC 7638, 3.2. Other members, such as the
private part or a certificate, are ignored."""


LEEWAY_S: Final = 10.0
"""Seconds before its `nbf` from which on a token is good, because the issuer's clock may be ahead
of ours."""
SUBJECT_CHARS_MAX: Final = 256
_FORM: Final = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
_TYPES: Final = frozenset({"jwt", "at+jwt", "application/jwt", "application/at+jwt"})
"""Accepted values of `typ` (RFC 7519, 5.1 and RFC 9068, 2.1), in lower case. A token for another
purpose has another one."""
_OPTIONS: Final[Any] = {
    "require": ["exp", "aud", "sub"],
    "verify_exp": False,  # the three times are judged here, by the clock that the caller passes
    "verify_nbf": False,
    "verify_iat": False,
    "enforce_minimum_key_length": True,
}
_WHY: Final[Mapping[type[Exception], str]] = {
    jwt.InvalidSignatureError: "signature",
    jwt.InvalidAudienceError: "audience",
    jwt.InvalidIssuerError: "issuer",
    jwt.MissingRequiredClaimError: "claims",
    jwt.InvalidKeyError: "key",
}
FILE_EVERY_S: Final = 1.0
UNKNOWN_EVERY_S: Final = 10.0
FETCH_S: Final = 5.0
"""Longest time in seconds of one reading of the keys from an address, and of each wait within
it."""
STALE_S: Final = 86_400.0
"""Seconds for which keys count after they could be read last. An attacker that keeps us from the
address must not keep alive a key that its owner has withdrawn."""
HTTPS: Final = "https://"
logger = logging.getLogger("tocsin.auth")


# --- Keys -------------------------------------------------------------------------------------


class KeysError(ValueError):
    """Error of a text that is no usable set of keys. The sentence says why."""


class JwtKey(NamedTuple):
    """A key that tokens may be signed with."""

    kid: str | None
    algorithm: str
    material: Any
    """Key in the form of jwt.decode."""
    credential: str
    """Name of the key, without any secret. Sessions that it has admitted end when the key does not
    count any more."""


class JwtKeys(NamedTuple):
    """The keys that count, by `kid`; under None the key without a `kid`."""

    by_kid: Mapping[str | None, JwtKey]
    skipped: tuple[str, ...] = ()
    """Sentences about keys that do not count."""


NO_KEYS: Final = JwtKeys({})


def parse_keys(data: bytes, algorithms: Collection[str]) -> JwtKeys:
    """Return the keys of a JWK set that are for one of these algorithms. A set without any such key
    is no error.

    Raises:
        KeysError: it is no JWK set, or larger than a set may be.
    """
    if len(data) > KEYS_BYTES_MAX:
        raise KeysError(f"it has more than {KEYS_BYTES_MAX} bytes")
    try:
        found = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise KeysError("it is not JSON") from None
    keys = found.get("keys") if isinstance(found, dict) else None
    if not isinstance(keys, list) or not all(isinstance(one, dict) for one in keys):
        raise KeysError('it is no JWK set, such as {"keys": [{"kty": …}, …]}')
    if len(keys) > KEYS_MAX:
        raise KeysError(f"it has more than {KEYS_MAX} keys")
    by_kid: dict[str | None, JwtKey] = {}
    skipped: list[str] = []
    for place, one in enumerate(keys, 1):
        try:
            key = _parse_key(one, algorithms)
            if key.kid in by_kid:
                raise KeysError("an earlier key has the same kid, or has no kid either")
            by_kid[key.kid] = key
        except KeysError as error:
            skipped.append(f"key {place} does not count: {error}")
    return JwtKeys(by_kid, tuple(skipped))


def _parse_key(one: dict[str, Any], algorithms: Collection[str]) -> JwtKey:
    kid = one.get("kid")
    if kid is not None and not (isinstance(kid, str) and 1 <= len(kid) <= KID_CHARS_MAX):
        raise KeysError(f"its kid must be a text of 1 to {KID_CHARS_MAX} characters")
    if one.get("use", "sig") != "sig":
        raise KeysError("it is not for signatures (use)")
    operations = one.get("key_ops", ["verify"])
    if not isinstance(operations, list) or "verify" not in operations:
        raise KeysError("it is not for verifying (key_ops)")
    algorithm = _algorithm_of(one)
    if one.get("alg", algorithm) != algorithm:
        raise KeysError(f"its alg must be {algorithm}, the algorithm of its type")
    if algorithm not in algorithms:
        raise KeysError(f"{algorithm} is not among the allowed algorithms")
    members = {name: one.get(name) for name in _MEMBERS[one["kty"]]}
    if not all(isinstance(value, str) for value in members.values()):
        raise KeysError(f"a key of type {one['kty']} needs {', '.join(members)}, all texts")
    return JwtKey(kid, algorithm, _material(members, algorithm), _credential(members))


def _algorithm_of(one: dict[str, Any]) -> str:
    match one.get("kty"), one.get("crv"):
        case "OKP", "Ed25519":
            return "EdDSA"
        case "EC", "P-256":
            return "ES256"
        case "RSA", _:
            return "RS256"
        case "oct", _:
            return "HS256"
    raise KeysError("its type is none of OKP Ed25519, EC P-256, RSA and oct")


def _material(members: dict[str, Any], algorithm: str) -> Any:
    try:
        if algorithm == "HS256":
            secret = urlsafe_b64decode(members["k"] + "=" * (-len(members["k"]) % 4))
            if len(secret) < _SECRET_BYTES_MIN:
                raise KeysError(f"a secret needs at least {8 * _SECRET_BYTES_MIN} bits")
            return secret
        material = jwt.PyJWK(members, algorithm).key
    except (jwt.PyJWTError, ValueError, TypeError) as error:
        if isinstance(error, KeysError):
            raise
        raise KeysError("its members are no valid key of its type") from None
    if algorithm == "RS256" and material.key_size < _RSA_BITS_MIN:
        raise KeysError(f"an RSA key needs at least {_RSA_BITS_MIN} bits")
    return material


def _credential(members: dict[str, Any]) -> str:
    """Name a key by the thumbprint of RFC 7638, so that another key under the same kid has another
    name."""
    digest = sha256(msgspec.json.encode(members)).digest()
    return f"jwt:{urlsafe_b64encode(digest).decode()[:22]}"


# --- Tokens -----------------------------------------------------------------------------------


class JwtTerms(NamedTuple):
    """Claims that a token must have, and those from which its rights are read."""

    audience: str
    """Value that must be in the claim `aud`, by which a token is meant for this broker."""
    issuer: str | None = None
    templates: tuple[str, ...] = ()
    """Rights of every holder, as metadata.rights.fill_in takes them."""
    rights_claim: str = "tocsin_rights"
    """Name of the claim with a list of further rights, which a token need not have."""
    tenant_claim: str = "tocsin_tenant"


class JwtRefused(Exception):
    """Refusal of a token. `why` is a word for the audit trail and the log, the text a sentence for
    the log at its lowest level. The client gets neither."""

    def __init__(self, why: str, text: str) -> None:
        self.why = why
        super().__init__(text)


class _VerifiedJwt(NamedTuple):
    begins: float
    ends: float
    admission: Admission


class _Signatures(jwt.PyJWS):
    """Signatures with a faster decoder. PyJWT checks each letter of a part in Python, which takes
    twice as long as the signature of 7 KB of claims, and shows an attacker who measures that it
    came that far. PyJWT calls this private method. If a later version calls another one, decoding
    is slow again, and no less strict."""

    @staticmethod
    def _decode_base64url_segment(segment: bytes, name: str) -> bytes:
        """Decode base64url without padding (RFC 7515, 2), and refuse any other spelling of it."""
        try:
            decoded = urlsafe_b64decode(segment + b"=" * (-len(segment) % 4))
        except ValueError as error:
            raise jwt.DecodeError(f"Invalid {name} padding") from error
        if urlsafe_b64encode(decoded).rstrip(b"=") != segment:
            raise jwt.DecodeError(f"Invalid {name} padding")
        return decoded


class _Decoder(jwt.PyJWT):
    """Decoder of PyJWT that uses `_Signatures`."""

    def __init__(self) -> None:
        super().__init__()
        self._jws = _SIGNATURES


_SIGNATURES: Final = _Signatures()
_DECODER: Final = _Decoder()


class JwtVerifier:
    """Verify JWTs, and remember those that were good. `on_unknown_key` is called when a token names
    an unknown key, for example one that has just been made. It must not wait."""

    def __init__(self, terms: JwtTerms, on_unknown_key: Callable[[], None] | None = None) -> None:
        self._terms = terms
        self._on_unknown_key = on_unknown_key
        self._keys: JwtKeys = NO_KEYS
        self._credentials: frozenset[str] = frozenset()
        self._kept: OrderedDict[bytes, _VerifiedJwt] = OrderedDict()
        self.hit_rate = HitRate()
        """Hit rate of the remembered tokens. A hit saves the check of a signature."""

    @property
    def hit_rates(self) -> dict[str, HitRateSource]:
        """Hit rates of tokens and rights that are remembered here, by name."""
        return {"jwts": self.hit_rate, "rights_of_jwts": FunctionHitRate(_rights_of)}

    def put_keys(self, keys: JwtKeys) -> frozenset[str]:
        """Let only these keys count from now on. Returns the credentials that have ended; the
        caller ends the sessions that they admitted."""
        before = self._credentials
        self._keys = keys
        self._credentials = frozenset(key.credential for key in keys.by_kid.values())
        self._kept.clear()
        return before - self._credentials

    def trusts(self, credential: str) -> bool:
        """Whether the key that has this name as a credential counts."""
        return credential in self._credentials

    def admission_of(self, text: str, *, wall: float) -> Admission | None:
        """Return the admission that a token gives at `wall` (unix seconds); None: it gives none."""
        found = self.verify(text, wall=wall)
        return None if isinstance(found, str) else found

    def verify(self, text: str, *, wall: float) -> Admission | str:
        """Return the admission that a token gives at `wall` (unix seconds), or a word for the
        reason why it gives none."""
        digest = sha256(text.encode("utf-8", "surrogatepass")).digest()
        kept = self._kept.get(digest)
        if kept is not None:
            self.hit_rate.hits += 1
            self._kept.move_to_end(digest)
        else:
            self.hit_rate.misses += 1
            try:
                kept = self._verified(text)
            except JwtRefused as wrong:
                logger.debug("a JWT is not believed: %s", wrong)
                return wrong.why
            if len(self._kept) >= limits.JWTS_KEPT_MAX:
                self._kept.popitem(last=False)
            self._kept[digest] = kept
        if not kept.begins <= wall < kept.ends:
            return "expired" if wall >= kept.ends else "not_yet"
        return kept.admission._replace(lasts_s=kept.ends - wall)

    def _verified(self, text: str) -> _VerifiedJwt:
        if len(text) > limits.JWT_BYTES_MAX or not _FORM.fullmatch(text):
            raise JwtRefused("form", "it does not have the form of a JWT, or is too long")
        head, _, _ = text.partition(".")
        try:
            # Only the first part is read here. The others are read once, below.
            header = _SIGNATURES.get_unverified_header(f"{head}..")
        except (jwt.PyJWTError, ValueError, RecursionError) as error:
            raise JwtRefused("form", f"its header is invalid: {error}") from None
        key = self._key_of(header)
        try:
            claims = _DECODER.decode(
                text,
                key.material,
                algorithms=[key.algorithm],
                audience=self._terms.audience,
                issuer=self._terms.issuer,
                options=_OPTIONS,
            )
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as error:
            raise JwtRefused(_refusal_code(error), str(error)) from None
        ends, begins = _time(claims, "exp"), _time(claims, "nbf", 0.0) - LEEWAY_S
        principal = Principal(_subject(claims), self._tenant(claims))
        rights = self._rights(claims)
        return _VerifiedJwt(
            begins, ends, Admission(principal, rights=rights, credential=key.credential)
        )

    def _key_of(self, header: Mapping[str, Any]) -> JwtKey:
        if "crit" in header or "b64" in header:
            raise JwtRefused("critical", "its header marks a member as critical (crit, b64)")
        type_of = header.get("typ", "JWT")
        if not isinstance(type_of, str) or type_of.lower() not in _TYPES:
            raise JwtRefused("purpose", "it is for another purpose (typ)")
        kid = header.get("kid")
        key = self._keys.by_kid.get(kid) if kid is None or isinstance(kid, str) else None
        if key is None:
            if self._on_unknown_key is not None:
                self._on_unknown_key()
            raise JwtRefused("key", "its key is not known (kid)")
        if header.get("alg") != key.algorithm:
            raise JwtRefused("algorithm", f"its key is for {key.algorithm} (alg)")
        return key

    def _tenant(self, claims: Mapping[str, Any]) -> str:
        tenant = claims.get(self._terms.tenant_claim, "default")
        if not isinstance(tenant, str) or not NAME.fullmatch(tenant):
            raise JwtRefused("tenant", "the claim with the tenant is not a valid name")
        return tenant

    def _rights(self, claims: Mapping[str, Any]) -> Rights:
        more = claims.get(self._terms.rights_claim, [])
        if not isinstance(more, list) or not all(isinstance(one, str) for one in more):
            raise JwtRefused("rights", "the claim with the rights is not a list of texts")
        texts: list[str] = []
        for template in self._terms.templates:
            try:
                texts.append(fill_in(template, claims))
            except RightsError as error:  # a holder without the claim does not get this right
                logger.debug("%s", error)
        try:
            return _rights_of((*texts, *more))
        except RightsError as error:
            raise JwtRefused("rights", str(error)) from None


def _refusal_code(error: Exception) -> str:
    for kind, why in _WHY.items():
        if isinstance(error, kind):
            return why
    return "form"


@lru_cache(maxsize=1024)
def _rights_of(texts: tuple[str, ...]) -> Rights:
    return parse_rights(texts)


def _subject(claims: Mapping[str, Any]) -> str:
    subject = claims["sub"]
    if not isinstance(subject, str) or not 1 <= len(subject) <= SUBJECT_CHARS_MAX:
        raise JwtRefused(
            "subject", f"its subject is not a text of 1 to {SUBJECT_CHARS_MAX} characters"
        )
    if subject in RESERVED or not subject.isprintable():
        what = "its subject is a name that the broker reserves, or has control characters"
        raise JwtRefused("subject", what)
    return subject


def _time(claims: Mapping[str, Any], name: str, absent: float | None = None) -> float:
    """Return a claim in unix seconds (NumericDate of RFC 7519, 2)."""
    value = claims.get(name, absent)
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e12:
        raise JwtRefused("claims", f"its {name} is not a time")
    if not isfinite(value):
        raise JwtRefused("claims", f"its {name} is not a time")
    return float(value)


# --- Where keys are read ----------------------------------------------------------------------


class JwksSource:
    """Read `location`, a path or an https address, repeatedly. `changed` is called with the keys
    whenever they have changed, and with NO_KEYS if they could not be read for STALE_S."""

    def __init__(
        self,
        location: str,
        algorithms: tuple[str, ...],
        changed: Callable[[JwtKeys], None],
        *,
        refresh_s: float,
    ) -> None:
        self._location = location
        self._algorithms = algorithms
        self._changed = changed
        self._is_remote = location.startswith(HTTPS)
        self._every_s = refresh_s if self._is_remote else FILE_EVERY_S
        self._last: bytes | None = None
        self._read_at = self._tried_at = float("-inf")
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read the keys once, then start the task that reads them repeatedly. If an address does
        not answer, the broker starts nevertheless, and the task asks again.

        Raises:
            KeysError: the file cannot be read, or has no key that counts.
        """
        try:
            keys = await self._read()
        except (OSError, KeysError, http.client.HTTPException) as error:
            if not self._is_remote:
                raise KeysError(f"{self._location}: {error}") from None
            logger.warning("no keys for JWTs yet, from %s: %s", self._location, error)
        else:
            if keys is not None and not keys.by_kid and not self._is_remote:
                why = "; ".join(keys.skipped) or "its set is empty"
                raise KeysError(f"{self._location} has no key that counts: {why}")
            self._put(keys)
        self._task = asyncio.get_running_loop().create_task(self._run(), name="tocsin-jwks")

    def want(self) -> None:
        """Have an address read soon, but not within UNKNOWN_EVERY_S of the last reading, because a
        token names an unknown key. Never waits."""
        self._wanted.set()

    async def stop(self) -> None:
        """Stop reading. If it was not started, nothing happens."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    async def _run(self) -> None:
        while True:
            await self._pause()
            try:
                self._put(await self._read())
            except Exception as error:  # whatever it reads; if the task died, keys would never end
                logger.warning(
                    "the keys for JWTs cannot be read from %s, and stay as they are: %s",
                    self._location,
                    error,
                )
                if time.monotonic() - self._read_at > STALE_S and self._last is not None:
                    logger.error(
                        "the keys for JWTs could not be read for a day, so no JWT counts until "
                        "they can be read"
                    )
                    self._last = None
                    self._changed(NO_KEYS)

    async def _pause(self) -> None:
        """Wait until it is time to read again."""
        if not self._is_remote:
            await asyncio.sleep(FILE_EVERY_S)
            return
        every_s = self._every_s if self._last is not None else min(UNKNOWN_EVERY_S, self._every_s)
        await asyncio.sleep(max(0.0, min(UNKNOWN_EVERY_S, every_s)))
        left_s = self._tried_at + every_s - time.monotonic()
        if left_s > 0:
            try:
                async with asyncio.timeout(left_s):
                    await self._wanted.wait()
            except TimeoutError:
                pass

    async def _read(self) -> JwtKeys | None:
        """Read the keys; None: they have not changed."""
        self._wanted.clear()
        self._tried_at = time.monotonic()
        if self._is_remote:
            async with asyncio.timeout(2 * FETCH_S):
                data = await asyncio.to_thread(fetch, self._location)
        else:
            data = await asyncio.to_thread(_read_file, Path(self._location))
        keys = parse_keys(data, self._algorithms) if data != self._last else None
        self._read_at = time.monotonic()
        self._last = data
        return keys

    def _put(self, keys: JwtKeys | None) -> None:
        if keys is None:
            return
        logger.info("%d keys for JWTs from %s", len(keys.by_kid), self._location)
        for sentence in keys.skipped:
            logger.warning("%s: %s", self._location, sentence)
        self._changed(keys)


def _read_file(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(KEYS_BYTES_MAX + 1).removeprefix(codecs.BOM_UTF8)


def fetch(url: str) -> bytes:
    """Fetch an https address, at most KEYS_BYTES_MAX + 1 bytes of it, within about FETCH_S.
    Certificates are checked. A redirection is not followed, because keys come only from the address
    that the operator has configured.

    Raises:
        OSError, http.client.HTTPException: it does not answer, or not with 200.
    """
    deadline = time.monotonic() + FETCH_S
    parts = urlsplit(url)
    path = parts.path or "/"
    connection = http.client.HTTPSConnection(
        parts.hostname or "", parts.port, timeout=FETCH_S, context=ssl.create_default_context()
    )
    try:
        query = f"?{parts.query}" if parts.query else ""
        connection.request("GET", path + query, headers={"Accept": "application/json"})
        response = connection.getresponse()
        if response.status != http.HTTPStatus.OK:
            raise OSError(f"it answers {response.status}")
        data = b""
        while len(data) <= KEYS_BYTES_MAX:
            if time.monotonic() > deadline:
                raise TimeoutError(os.strerror(110))
            part = response.read1(65_536)
            if not part:
                break
            data += part
        return data
    finally:
        connection.close()
