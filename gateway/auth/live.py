"""Index of sessions and waiting requests by the credential that let them in, whatever transport the
sessions have. When a credential is revoked, they end (P11)."""

import asyncio
import logging
from typing import Protocol

from runtime.loop.fairness import TimeSlices

logger = logging.getLogger("tocsin.session")


class Revocable(Protocol):
    """A session or request that lasts only as long as its credential."""

    def revoked(self) -> None:
        """End now, because the credential is no longer good."""


class LiveCredentials:
    """Find the sessions and requests that a credential has let in, and end them."""

    def __init__(self) -> None:
        self._by_credential: dict[str, set[Revocable]] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def add(self, credential: str, what: Revocable) -> None:
        """Have `what` ended when this credential is revoked."""
        self._by_credential.setdefault(credential, set()).add(what)

    def discard(self, credential: str, what: Revocable) -> None:
        """Forget `what`, because it has ended, or goes on with another credential."""
        left = self._by_credential.get(credential)
        if left is not None:
            left.discard(what)
            if not left:
                del self._by_credential[credential]

    def count(self, credential: str) -> int:
        """Return the number of sessions and requests of this credential."""
        return len(self._by_credential.get(credential, ()))

    # enforces: P11
    def revoke(self, credential: str) -> None:
        """End everything that this credential has let in, in slices, so that others have their turn
        in between (P9). The caller makes sure that the credential lets in nobody else. Call it
        inside the event loop."""
        task = asyncio.get_running_loop().create_task(self._end(credential))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _end(self, credential: str) -> None:
        slices = TimeSlices()
        for what in list(self._by_credential.get(credential, ())):
            if what in self._by_credential.get(credential, ()):
                try:
                    what.revoked()
                except Exception:  # the others must end nevertheless
                    logger.exception("what %s has admitted did not end", credential)
            await slices.yield_if_over()
