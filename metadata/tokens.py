"""API tokens and certificates: how they are written, kept and judged. Pure.

    tcs_k3v9x2ma_0fJq…Zk1mXw3
        │        │     └ 6 letters of checksum: a typo or a false find is noticed without a look-up
        │        └ the secret: 24 letters, 142 random bits
        └ the id: public, is shown in lists, names the record

Of a token only its SHA-256 is kept, because 142 random bits need no slow hash (ASVS 5.0, 11.4.2 is
about passwords). A record of the kind `certificate` has no secret: the name of a client certificate
that TLS has verified stands for one.
"""

import hmac
import re
import zlib
from collections.abc import Callable, Iterable
from functools import lru_cache
from hashlib import sha256
from typing import Final, Literal

import msgspec

from metadata.catalog import Principal
from metadata.rights import Rights, RightsError, parse_rights
from push import limits
from push.errors import Refused
from push.places import check_name

MARK: Final = "tcs_"
ID_ALPHABET: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
ID_LETTERS: Final = 8
SECRET_ALPHABET: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
SECRET_LETTERS: Final = 24
CHECK_LETTERS: Final = 6
"""Number of letters of the checksum; 62^6 is more than the 2^32 of a CRC-32."""
CERTIFICATE_CHARS_MAX: Final = 256
RESERVED: Final = frozenset({"operator", "administrator", "anybody", "broker"})
"""Names of the broker's own principals, which no token may have. With another user of such a name
the audit trail would be wrong."""
_FORM: Final = re.compile(
    f"{MARK}([{ID_ALPHABET}]{{{ID_LETTERS}}})_[0-9A-Za-z]{{{SECRET_LETTERS + CHECK_LETTERS}}}"
)
_NOBODY: Final = sha256(b"nobody").digest()

Kind = Literal["token", "certificate"]


class TokenRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The stored part of a token, or of a certificate's name that stands for one."""

    token_id: str
    kind: Kind
    name: str
    """Name of the principal; two tokens of one name are one principal."""
    tenant: str
    rights: tuple[str, ...]
    """Rights in the form of metadata.rights."""
    created_unix_ms: int
    expires_unix_ms: int | None = None
    """End of validity; None if it is valid until it is revoked."""
    last_used_unix_ms: int | None = None
    """Time of last use, which may be up to an hour too early; None if never."""
    digest: bytes = b""
    """SHA-256 of the whole token; empty for a certificate."""
    certificate: str | None = None
    limits: str = ""
    """Limits of its own, as they are written; empty if only its principal's count. The gateway,
    which enforces limits, defines their form."""

    @property
    def principal(self) -> Principal:
        """The principal that the token admits."""
        return Principal(self.name, self.tenant)

    @property
    def credential(self) -> str:
        """Name of the token without any secret. Sessions that the token admitted end when it is
        revoked."""
        return credential_of(self.token_id)

    def lasts_s(self, *, wall: float) -> float | None:
        """Return its remaining seconds, infinity for no end; None if it has expired."""
        if self.expires_unix_ms is None:
            return float("inf")
        left_s = self.expires_unix_ms / 1000 - wall
        return left_s if left_s > 0 else None


def credential_of(token_id: str) -> str:
    return f"token:{token_id}"


def checksum(text: str) -> str:
    """Return the checksum that ends a token whose other part is `text`."""
    number, letters = zlib.crc32(text.encode()), ""
    for _ in range(CHECK_LETTERS):
        number, digit = divmod(number, len(SECRET_ALPHABET))
        letters = SECRET_ALPHABET[digit] + letters
    return letters


def write_token(token_id: str, secret: str) -> str:
    """Return the whole token."""
    text = f"{MARK}{token_id}_{secret}"
    return text + checksum(text)


def digest_of(text: str) -> bytes:
    """Return the stored digest of a token."""
    return sha256(text.encode("utf-8", "surrogatepass")).digest()


def is_ours(text: str) -> bool:
    """Whether the text claims to be an API token."""
    return text.startswith(MARK)


def id_of(text: str) -> str | None:
    """Return the id in a token; None if it is none, or mistyped."""
    match = _FORM.fullmatch(text)
    if match is None or checksum(text[:-CHECK_LETTERS]) != text[-CHECK_LETTERS:]:
        return None
    return match[1]


def judge(
    text: str, find: Callable[[str], TokenRecord | None], *, wall: float
) -> TokenRecord | None:
    """Return the record of a token that is valid at `wall` (unix seconds); None if it is not. An
    unknown id takes as long as a wrong secret, because something is always compared, and in
    constant time."""
    token_id = id_of(text)
    record = find(token_id) if token_id is not None else None
    kept = record.digest if record is not None and record.kind == "token" else _NOBODY
    is_right = hmac.compare_digest(digest_of(text), kept)
    if not is_right or record is None or record.lasts_s(wall=wall) is None:
        return None
    return record


def why_not(
    text: str,
    find: Callable[[str], TokenRecord | None],
    revoked: Callable[[str], bool],
    *,
    wall: float,
) -> tuple[str, str | None]:
    """Return why `judge` refuses a token: a word, and the name of its credential; None if the token
    is perhaps not genuine. `revoked`: says whether the token of an id is known to have been
    revoked."""
    token_id = id_of(text)
    if token_id is None:
        return "form", None
    record = find(token_id)
    if record is None:
        return ("revoked", credential_of(token_id)) if revoked(token_id) else ("unknown", None)
    if record.kind != "token" or not hmac.compare_digest(digest_of(text), record.digest):
        return "secret", None
    return ("expired" if record.lasts_s(wall=wall) is None else "limits"), record.credential


def judge_certificate(found: Iterable[TokenRecord], *, wall: float) -> TokenRecord | None:
    """Return the newest of these records of a verified certificate that is valid at `wall` (unix
    seconds); None if none is."""
    good = [one for one in found if one.lasts_s(wall=wall) is not None]
    return max(good, key=lambda one: (one.created_unix_ms, one.token_id), default=None)


def check_record(record: TokenRecord) -> None:
    """Raise Refused if a record is wrong: invalid_name, or invalid_request with a reason."""
    check_name(record.name, "the principal's name")
    check_name(record.tenant, "the tenant's name")
    if record.name in RESERVED:
        raise Refused("invalid_name", f"{record.name!r} is the broker's own: choose another name")
    if not record.rights:
        raise Refused("invalid_request", "a token needs at least one right")
    try:
        rights_of(record.rights)
    except RightsError as error:
        raise Refused("invalid_request", str(error)) from None
    if record.expires_unix_ms is not None and record.expires_unix_ms <= record.created_unix_ms:
        raise Refused("invalid_request", "the token would expire before it begins")
    certificate = record.certificate
    if (record.kind == "certificate") is not (certificate is not None):
        raise Refused("invalid_request", "a certificate's name is for the kind certificate")
    if certificate is not None and not 1 <= len(certificate) <= CERTIFICATE_CHARS_MAX:
        raise Refused(
            "invalid_request", f"a certificate's name has 1 to {CERTIFICATE_CHARS_MAX} characters"
        )


@lru_cache(maxsize=limits.TOKENS_MAX)
def rights_of(texts: tuple[str, ...]) -> Rights:
    """Return the rights, one object for all that have the same. Raises RightsError."""
    return parse_rights(texts)


class TokenIndex:
    """The records in memory, by id and by certificate."""

    def __init__(self, records: Iterable[TokenRecord] = ()) -> None:
        self._by_id: dict[str, TokenRecord] = {}
        self._by_certificate: dict[str, dict[str, TokenRecord]] = {}
        for record in records:
            self.put(record)

    def __len__(self) -> int:
        return len(self._by_id)

    def find(self, token_id: str) -> TokenRecord | None:
        """Return the token's record; None if it was revoked or never existed."""
        return self._by_id.get(token_id)

    def of_certificate(self, certificate: str) -> list[TokenRecord]:
        """Return the records for client certificates of this name."""
        return list(self._by_certificate.get(certificate, {}).values())

    def listed(self) -> list[TokenRecord]:
        """Return all records, by tenant, name and age."""
        return sorted(
            self._by_id.values(), key=lambda r: (r.tenant, r.name, r.created_unix_ms, r.token_id)
        )

    def put(self, record: TokenRecord) -> None:
        """Add a record, or replace the one of its id."""
        self._by_id[record.token_id] = record
        if record.certificate is not None:
            self._by_certificate.setdefault(record.certificate, {})[record.token_id] = record

    def remove(self, record: TokenRecord) -> None:
        """Remove a record. Nothing happens if it is not in the index."""
        self._by_id.pop(record.token_id, None)
        if record.certificate is not None:
            left = self._by_certificate.get(record.certificate, {})
            left.pop(record.token_id, None)
            if not left:
                self._by_certificate.pop(record.certificate, None)
