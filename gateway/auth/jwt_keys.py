"""The keys under which JWTs are believed: a JWK set (RFC 7517), read strictly. Pure.

A key is for one algorithm, which its type says: what a token's header says of itself only has to
agree. So no public RSA key is ever taken for the secret of an HMAC.

    OKP Ed25519     EdDSA (RFC 8037)
    EC P-256        ES256 (RFC 7518, 3.4)
    RSA             RS256 (3.3), 2048 bits at least
    oct             HS256 (3.2), 256 bits at least
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Collection, Mapping
from hashlib import sha256
from typing import Any, Final, NamedTuple

import jwt
import msgspec

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
"""Of each type those that make the key, in the order of RFC 7638, 3.2. What else a key has, its
private part or a certificate, is not looked at."""


class KeysError(ValueError):
    """The text is no set of keys that could be used. The sentence says why."""


class Key(NamedTuple):
    """One that tokens may be signed with."""

    kid: str | None
    algorithm: str
    material: Any
    """As jwt.decode takes it."""
    credential: str
    """Names it without any secret: what it has admitted ends when it is gone."""


class Keys(NamedTuple):
    """Those that count, by `kid`; None: one that has none."""

    by_kid: Mapping[str | None, Key]
    skipped: tuple[str, ...] = ()
    """Sentences about those that do not."""


NO_KEYS: Final = Keys({})


def parse_keys(data: bytes, algorithms: Collection[str]) -> Keys:
    """The keys of a JWK set that are for one of these algorithms.

    Raises:
        KeysError: it is no JWK set, or larger than a set may be. One without any key that counts
            is none of that.
    """
    if len(data) > KEYS_BYTES_MAX:
        raise KeysError(f"it has more than {KEYS_BYTES_MAX} bytes")
    try:
        found = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise KeysError("it is no JSON") from None
    keys = found.get("keys") if isinstance(found, dict) else None
    if not isinstance(keys, list) or not all(isinstance(one, dict) for one in keys):
        raise KeysError('it is no JWK set: {"keys": [{"kty": …}, …]}')
    if len(keys) > KEYS_MAX:
        raise KeysError(f"it has more than {KEYS_MAX} keys")
    by_kid: dict[str | None, Key] = {}
    skipped: list[str] = []
    for place, one in enumerate(keys, 1):
        try:
            key = _parse_key(one, algorithms)
            if key.kid in by_kid:
                raise KeysError("another one before it has this kid, or has none as well")
            by_kid[key.kid] = key
        except KeysError as error:
            skipped.append(f"key {place} does not count: {error}")
    return Keys(by_kid, tuple(skipped))


def _parse_key(one: dict[str, Any], algorithms: Collection[str]) -> Key:
    kid = one.get("kid")
    if kid is not None and not (isinstance(kid, str) and 1 <= len(kid) <= KID_CHARS_MAX):
        raise KeysError(f"its kid is no text of 1 to {KID_CHARS_MAX} characters")
    if one.get("use", "sig") != "sig":
        raise KeysError("it is not for signatures (use)")
    operations = one.get("key_ops", ["verify"])
    if not isinstance(operations, list) or "verify" not in operations:
        raise KeysError("it is not for verifying (key_ops)")
    algorithm = _algorithm_of(one)
    if one.get("alg", algorithm) != algorithm:
        raise KeysError(f"its alg is not {algorithm}, which is what its type is for")
    if algorithm not in algorithms:
        raise KeysError(f"{algorithm} is not among the algorithms that are allowed")
    members = {name: one.get(name) for name in _MEMBERS[one["kty"]]}
    if not all(isinstance(value, str) for value in members.values()):
        raise KeysError(f"a key of the type {one['kty']} has {', '.join(members)}, all texts")
    return Key(kid, algorithm, _material(members, algorithm), _credential(members))


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
                raise KeysError(f"a secret has at least {8 * _SECRET_BYTES_MIN} bits")
            return secret
        material = jwt.PyJWK(members, algorithm).key
    except (jwt.PyJWTError, ValueError, TypeError) as error:
        if isinstance(error, KeysError):
            raise
        raise KeysError("it is no key of its type") from None
    if algorithm == "RS256" and material.key_size < _RSA_BITS_MIN:
        raise KeysError(f"an RSA key has at least {_RSA_BITS_MIN} bits")
    return material


def _credential(members: dict[str, Any]) -> str:
    """By the thumbprint of RFC 7638: a key that is exchanged under its kid is another one."""
    digest = sha256(msgspec.json.encode(members)).digest()
    return f"jwt:{urlsafe_b64encode(digest).decode()[:22]}"
