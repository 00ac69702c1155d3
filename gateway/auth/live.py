"""Index of everything that outlives the moment at which a credential let it in: sessions, over any
transport or none, and requests that wait. When a credential is revoked, they end (P11)."""

import asyncio
import logging
from typing import Protocol

from runtime.loop.fairness import TimeSlices

logger = logging.getLogger("tocsin.session")


class Revocable(Protocol):
    """A session or request that goes on only as long as its credential."""

    def revoked(self) -> None:
        """End now: the credential is good no more."""


class LiveCredentials:
    """Find by a credential what it has let in, and end it."""

    def __init__(self) -> None:
        self._by_credential: dict[str, set[Revocable]] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def add(self, credential: str, what: Revocable) -> None:
        """End `what` when this credential is revoked."""
        self._by_credential.setdefault(credential, set()).add(what)

    def discard(self, credential: str, what: Revocable) -> None:
        """Forget `what`: it has ended, or goes on with another credential."""
        left = self._by_credential.get(credential)
        if left is not None:
            left.discard(what)
            if not left:
                del self._by_credential[credential]

    def count(self, credential: str) -> int:
        """Number of entries of this credential."""
        return len(self._by_credential.get(credential, ()))

    # enforces: P11
    def revoke(self, credential: str) -> None:
        """End everything that this credential has let in, in slices, so that others have their turn
        between (P9). The caller makes sure that it lets in nobody more. Inside the event loop."""
        task = asyncio.get_running_loop().create_task(self._end(credential))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _end(self, credential: str) -> None:
        slices = TimeSlices()
        for what in list(self._by_credential.get(credential, ())):
            if what in self._by_credential.get(credential, ()):
                try:
                    what.revoked()
                except Exception:  # the others are to end all the same
                    logger.exception("what %s has admitted did not end", credential)
            await slices.yield_if_over()
