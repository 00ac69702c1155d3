"""API tokens in memory: metadata.port.Tokens, and what tests make of it."""

from collections.abc import Callable

import msgspec

from metadata.rights import VERBS
from metadata.tokens import TokenIndex, TokenRecord, check_record, digest_of, write_token
from push.errors import Refused

SECRET = "SecretSecretSecretSecret"


class PlainTokens:
    """See the module."""

    def __init__(self) -> None:
        self.index = TokenIndex()
        self.used: list[tuple[str, int]] = []
        self.listeners: list[Callable[[TokenRecord], None]] = []
        self.is_known = True

    def find(self, token_id: str) -> TokenRecord | None:
        return self.index.find(token_id)

    def of_certificate(self, certificate: str) -> list[TokenRecord]:
        return self.index.of_certificate(certificate)

    def listed(self) -> list[TokenRecord]:
        return self.index.listed()

    async def create(self, record: TokenRecord) -> None:
        self.put(record)

    def put(self, record: TokenRecord) -> None:
        """As create, at once."""
        check_record(record)
        self.index.put(record)

    async def revoke(self, token_id: str) -> TokenRecord:
        return self.drop(token_id)

    def drop(self, token_id: str) -> TokenRecord:
        """As revoke, at once."""
        record = self.find(token_id)
        if record is None:
            raise Refused("not_found")
        self.index.remove(record)
        for listener in self.listeners:
            listener(record)
        return record

    def note_used(self, token_id: str, *, unix_ms: int) -> None:
        self.used.append((token_id, unix_ms))

    def on_revoked(self, listener: Callable[[TokenRecord], None]) -> None:
        self.listeners.append(listener)


def record(
    token_id: str = "abcdefgh",
    name: str = "billing",
    *rights: str,
    ends: float | None = None,
    **fields: object,
) -> TokenRecord:
    """Return that of the token `text(token_id)`. `ends`: unix seconds."""
    made = TokenRecord(
        token_id=token_id,
        kind="token",
        name=name,
        tenant="default",
        rights=rights or (f"{','.join(VERBS)}:*",),
        created_unix_ms=1,
        expires_unix_ms=None if ends is None else int(ends * 1000),
        digest=digest_of(text(token_id)),
    )
    return msgspec.structs.replace(made, **fields)


def text(token_id: str = "abcdefgh") -> str:
    """The token."""
    return write_token(token_id, SECRET)
