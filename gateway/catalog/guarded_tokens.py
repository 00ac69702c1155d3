"""API tokens behind the guard of the metadata: whom they admit is known from memory; making and
revoking one is done within the deadline, or `metadata_unavailable`."""

from collections.abc import Callable

from gateway.catalog.guarded_calls import GuardedCalls
from metadata.client import Metadata
from metadata.tokens import TokenRecord
from push import limits


class GuardedTokens:
    """`metadata.client.Tokens` around those of another metadata."""

    def __init__(self, inner: Metadata, calls: GuardedCalls) -> None:
        self._inner = inner
        self._calls = calls

    @property
    def is_known(self) -> bool:
        """See Tokens."""
        return self._inner.tokens.is_known

    def find(self, token_id: str) -> TokenRecord | None:
        """See Tokens."""
        return self._inner.tokens.find(token_id)

    def of_certificate(self, certificate: str) -> list[TokenRecord]:
        """See Tokens."""
        return self._inner.tokens.of_certificate(certificate)

    def listed(self) -> list[TokenRecord]:
        """See Tokens."""
        return self._inner.tokens.listed()

    async def create(self, record: TokenRecord) -> None:
        """See Tokens. Raises Unavailable or Refused: metadata_unavailable."""
        await self._calls.run(
            "change", lambda: self._inner.tokens.create(record), limits.METADATA_DEADLINE_S
        )

    async def revoke(self, token_id: str) -> TokenRecord:
        """See Tokens, and create."""
        return await self._calls.run(
            "change", lambda: self._inner.tokens.revoke(token_id), limits.METADATA_DEADLINE_S
        )

    def note_used(self, token_id: str, *, unix_ms: int) -> None:
        """See Tokens."""
        self._inner.tokens.note_used(token_id, unix_ms=unix_ms)

    def on_revoked(self, listener: Callable[[TokenRecord], None]) -> None:
        """See Tokens."""
        self._inner.tokens.on_revoked(listener)
