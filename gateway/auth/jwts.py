"""JWTs: what their issuer says about who presents them. Pure: keys, tokens and `wall` in.

Judged strictly (RFC 8725, ASVS 5.0 V9). The signature must be made with a key that is configured,
by the one algorithm that key is for; `kid` only finds it in the map of keys. What a header brings
with it, a key, a certificate or the address of one, is not looked at, and what it calls critical
is refused. `exp`, `aud` and `sub` must be there. `exp` is taken to the letter: who came with a
token is gone when it ends, so that a leeway would only move the end; `nbf` has one.

Whoever sends a thousand requests presents one token: what it gave is remembered, until it ends or
the keys change.
"""

import logging
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import lru_cache
from hashlib import sha256
from math import isfinite
from typing import Any, Final, NamedTuple

import jwt

from gateway.admission import Admission
from gateway.auth.jwt_keys import NO_KEYS, Key, Keys
from gateway.hit_rate import FunctionHitRate, HitRate, Shown
from metadata.catalog import NAME, Principal
from metadata.rights import Rights, RightsError, fill_in, parse_rights
from metadata.tokens import RESERVED
from push import limits

LEEWAY_S: Final = 10.0
"""How far the issuer's clock may be ahead of ours."""
SUBJECT_CHARS_MAX: Final = 256
_FORM: Final = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
_TYPES: Final = frozenset({"jwt", "at+jwt", "application/jwt", "application/at+jwt"})
"""RFC 7519, 5.1 and RFC 9068, 2.1; a token for another purpose says so here."""
_OPTIONS: Final[Any] = {
    "require": ["exp", "aud", "sub"],
    "verify_exp": False,  # the three times are judged here, by the clock that we are given
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
logger = logging.getLogger("tocsin.auth")


class Terms(NamedTuple):
    """What is believed of a token that is signed by a key of ours."""

    audience: str
    """One of its `aud`s: it is meant for this broker."""
    issuer: str | None = None
    templates: tuple[str, ...] = ()
    """Rights of every holder, as metadata.rights.fill_in takes them."""
    rights_claim: str = "tocsin_rights"
    """The claim with a list of further rights, as they are written."""
    tenant_claim: str = "tocsin_tenant"


class Wrong(Exception):
    """A token that is not believed. `why` is a word for the audit trail and the log, the text a
    sentence for the log at its lowest level; neither is for whoever presents it."""

    def __init__(self, why: str, text: str) -> None:
        self.why = why
        super().__init__(text)


class _Kept(NamedTuple):
    begins: float
    ends: float
    admission: Admission


class _Signatures(jwt.PyJWS):
    """PyJWT looks at each letter of a part in Python: of 7 KB of claims that takes twice as long
    as their signature, and tells who measures that it came that far. It asks this method of
    its own; were it to ask another one day, it would be slow again, and no less strict."""

    @staticmethod
    def _decode_base64url_segment(segment: bytes, name: str) -> bytes:
        """RFC 7515, 2: what it is of, if these are the letters for it and no others."""
        try:
            decoded = urlsafe_b64decode(segment + b"=" * (-len(segment) % 4))
        except ValueError as error:
            raise jwt.DecodeError(f"Invalid {name} padding") from error
        if urlsafe_b64encode(decoded).rstrip(b"=") != segment:
            raise jwt.DecodeError(f"Invalid {name} padding")
        return decoded


class _Decoder(jwt.PyJWT):
    """PyJWT's, with the signatures above."""

    def __init__(self) -> None:
        super().__init__()
        self._jws = _SIGNATURES


_SIGNATURES: Final = _Signatures()
_DECODER: Final = _Decoder()


class Jwts:
    """Judges. `unknown`: called when a token names a key that is not known, as one that has just
    been made; it must not wait."""

    def __init__(self, terms: Terms, unknown: Callable[[], None] = lambda: None) -> None:
        self._terms = terms
        self._unknown = unknown
        self._keys: Keys = NO_KEYS
        self._credentials: frozenset[str] = frozenset()
        self._kept: OrderedDict[bytes, _Kept] = OrderedDict()
        self.hit_rate = HitRate()
        """Of what is remembered: a hit costs no signature."""

    @property
    def hit_rates(self) -> dict[str, Shown]:
        """Of what is kept here, by its name."""
        return {"jwts": self.hit_rate, "rights_of_jwts": FunctionHitRate(_rights_of)}

    def put_keys(self, keys: Keys) -> frozenset[str]:
        """From now on these count. Returns the credentials that have ended: what they have
        admitted is to end."""
        before = self._credentials
        self._keys = keys
        self._credentials = frozenset(key.credential for key in keys.by_kid.values())
        self._kept.clear()
        return before - self._credentials

    def trusts(self, credential: str) -> bool:
        """Whether the key behind this credential counts."""
        return credential in self._credentials

    def judge(self, text: str, *, wall: float) -> Admission | None:
        """What a token gives at `wall` (unix seconds); None: nothing."""
        verdict = self.verdict(text, wall=wall)
        return None if isinstance(verdict, str) else verdict

    def verdict(self, text: str, *, wall: float) -> Admission | str:
        """What a token gives at `wall` (unix seconds); a text: nothing, and this word says why."""
        digest = sha256(text.encode("utf-8", "surrogatepass")).digest()
        kept = self._kept.get(digest)
        if kept is not None:
            self.hit_rate.hits += 1
            self._kept.move_to_end(digest)
        else:
            self.hit_rate.misses += 1
            try:
                kept = self._verified(text)
            except Wrong as wrong:
                logger.debug("a JWT is not believed: %s", wrong)
                return wrong.why
            if len(self._kept) >= limits.JWTS_KEPT_MAX:
                self._kept.popitem(last=False)
            self._kept[digest] = kept
        if not kept.begins <= wall < kept.ends:
            return "expired" if wall >= kept.ends else "not_yet"
        return kept.admission._replace(lasts_s=kept.ends - wall)

    def _verified(self, text: str) -> _Kept:
        if len(text) > limits.JWT_BYTES_MAX or not _FORM.fullmatch(text):
            raise Wrong("form", "it has not the form of one, or is too long")
        head, _, _ = text.partition(".")
        try:
            # Of the first part alone: the others are read below, once.
            header = _SIGNATURES.get_unverified_header(f"{head}..")
        except (jwt.PyJWTError, ValueError, RecursionError) as error:
            raise Wrong("form", f"its header: {error}") from None
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
            raise Wrong(_why_of(error), str(error)) from None
        ends, begins = _time(claims, "exp"), _time(claims, "nbf", 0.0) - LEEWAY_S
        principal = Principal(_subject(claims), self._tenant(claims))
        rights = self._rights(claims)
        return _Kept(begins, ends, Admission(principal, rights=rights, credential=key.credential))

    def _key_of(self, header: Mapping[str, Any]) -> Key:
        if "crit" in header or "b64" in header:
            raise Wrong("critical", "its header calls something critical")
        type_of = header.get("typ", "JWT")
        if not isinstance(type_of, str) or type_of.lower() not in _TYPES:
            raise Wrong("purpose", "it is for another purpose (typ)")
        kid = header.get("kid")
        key = self._keys.by_kid.get(kid) if kid is None or isinstance(kid, str) else None
        if key is None:
            self._unknown()
            raise Wrong("key", "its key is not known (kid)")
        if header.get("alg") != key.algorithm:
            raise Wrong("algorithm", f"its key is for {key.algorithm} (alg)")
        return key

    def _tenant(self, claims: Mapping[str, Any]) -> str:
        tenant = claims.get(self._terms.tenant_claim, "default")
        if not isinstance(tenant, str) or not NAME.fullmatch(tenant):
            raise Wrong("tenant", "the claim with the tenant is no name")
        return tenant

    def _rights(self, claims: Mapping[str, Any]) -> Rights:
        more = claims.get(self._terms.rights_claim, [])
        if not isinstance(more, list) or not all(isinstance(one, str) for one in more):
            raise Wrong("rights", "the claim with the rights is no list of texts")
        texts: list[str] = []
        for template in self._terms.templates:
            try:
                texts.append(fill_in(template, claims))
            except RightsError as error:  # a holder without the claim has not this right
                logger.debug("%s", error)
        try:
            return _rights_of((*texts, *more))
        except RightsError as error:
            raise Wrong("rights", str(error)) from None


def _why_of(error: Exception) -> str:
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
        raise Wrong("subject", f"its subject is no text of 1 to {SUBJECT_CHARS_MAX} characters")
    if subject in RESERVED or not subject.isprintable():
        what = "its subject is a name of the broker's own, or has control characters"
        raise Wrong("subject", what)
    return subject


def _time(claims: Mapping[str, Any], name: str, absent: float | None = None) -> float:
    """Unix seconds (RFC 7519, 2: NumericDate)."""
    value = claims.get(name, absent)
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e12:
        raise Wrong("claims", f"its {name} is no time")
    if not isfinite(value):
        raise Wrong("claims", f"its {name} is no time")
    return float(value)
