"""The API tokens of one catalog: in memory, each change durable first.

A shell around `metadata.tokens`; its writes take their turn with all others of the catalog.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from metadata.backend import RunChange, Store
from metadata.tokens import TokenIndex, TokenRecord, check_record
from push.errors import Refused, TocsinError
from push.limits import METADATA_STALE_S, TOKENS_MAX

USED_EVERY_MS: Final = 3_600_000
"""Resolution of `last_used_unix_ms`; a token in constant use costs one write an hour."""
_LOG: Final = logging.getLogger("metadata.token_book")
RevokedListener = Callable[[TokenRecord], None]


class TokenStore:
    """`metadata.port.Tokens` over the catalog's store. `run_change` runs a change after the others
    that wait."""

    def __init__(self, store: Store, records: list[TokenRecord], *, run_change: RunChange) -> None:
        self._store = store
        self._index = TokenIndex(records)
        self._run_change = run_change
        self._listeners: list[RevokedListener] = []
        self._notes: set[asyncio.Task[None]] = set()

    @property
    def is_known(self) -> bool:
        return self._store.age_s < METADATA_STALE_S

    def doubt(self) -> None:
        """Call the listeners of `on_revoked` for every token, because nobody can say any more which
        are revoked. The records stay."""
        _LOG.error(
            "nobody has told for %g s which tokens are revoked: none counts here until "
            "somebody does",
            METADATA_STALE_S,
        )
        for record in self._index.listed():
            self._tell(record)

    def find(self, token_id: str) -> TokenRecord | None:
        return self._index.find(token_id)

    def of_certificate(self, certificate: str) -> list[TokenRecord]:
        return self._index.of_certificate(certificate)

    def listed(self) -> list[TokenRecord]:
        return self._index.listed()

    def on_revoked(self, listener: RevokedListener) -> None:
        self._listeners.append(listener)

    async def create(self, record: TokenRecord) -> None:
        check_record(record)
        await self._run_change(self._create, record)

    async def _create(self, record: TokenRecord) -> None:
        if len(self._index) >= TOKENS_MAX:
            raise Refused("limit_reached", f"at most {TOKENS_MAX} tokens: revoke what is not used")
        if self._index.find(record.token_id) is not None:
            raise Refused("too_many", f"there is a token {record.token_id} already")
        await self._store.put_token(record)
        self._index.put(record)

    async def revoke(self, token_id: str) -> TokenRecord:
        revoked: TokenRecord = await self._run_change(self._revoke, token_id)
        return revoked

    async def _revoke(self, token_id: str) -> TokenRecord:
        record = self._index.find(token_id)
        if record is None:
            raise Refused(
                "not_found", f"no token {token_id!r}: `tocsin admin token list` shows their ids"
            )
        await self._store.drop_token(token_id)
        self._end(record)
        return record

    def learn(self, records: Iterable[TokenRecord], gone: Iterable[str]) -> None:
        """Take over changes of others: these records, and the revoked ids `gone`. Listeners are
        notified as if they were made here."""
        for record in map(self._index.find, gone):
            if record is not None:
                self._end(record)
        for record in records:
            self._index.put(record)

    def _end(self, record: TokenRecord) -> None:
        self._index.remove(record)
        self._tell(record)

    def _tell(self, record: TokenRecord) -> None:
        for listener in self._listeners:
            try:
                listener(record)
            except Exception:
                _LOG.exception("a listener failed on the end of token %s", record.token_id)

    def note_used(self, token_id: str, *, unix_ms: int) -> None:
        record = self._index.find(token_id)
        if record is None or unix_ms - (record.last_used_unix_ms or 0) < USED_EVERY_MS:
            return
        used = msgspec.structs.replace(record, last_used_unix_ms=unix_ms)
        self._index.put(used)  # at once, so that the next one finds nothing to be done
        task = asyncio.get_running_loop().create_task(self._note(token_id))
        self._notes.add(task)
        task.add_done_callback(self._notes.discard)

    async def _note(self, token_id: str) -> None:
        try:
            await self._run_change(self._keep, token_id)
        except TocsinError as error:  # in an hour it is tried again
            _LOG.warning("when token %s was used last is not kept: %s", token_id, error.detail)

    async def _keep(self, token_id: str) -> None:
        record = self._index.find(token_id)
        if record is not None:  # not revoked meanwhile
            await self._store.put_token(record)
