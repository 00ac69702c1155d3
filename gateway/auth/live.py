"""Whatever lasts longer than the moment at which it was let in, by what has let it in: sessions,
over any transport or none, and requests that wait. When a credential is revoked, they end (P11)."""

import asyncio
import logging
from typing import Protocol

from runtime.loop.fairness import TimeSlices

logger = logging.getLogger("tocsin.session")


class Endable(Protocol):
    """Something that goes on only as long as its credential."""

    def revoked(self) -> None:
        """The credential is good no more: end now."""


class LiveCredentials:
    """See the module."""

    def __init__(self) -> None:
        self._by_credential: dict[str, set[Endable]] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def add(self, credential: str, what: Endable) -> None:
        """It goes on as long as the credential."""
        self._by_credential.setdefault(credential, set()).add(what)

    def discard(self, credential: str, what: Endable) -> None:
        """It has ended, or goes on with another one. Not there: nothing happens."""
        left = self._by_credential.get(credential)
        if left is not None:
            left.discard(what)
            if not left:
                del self._by_credential[credential]

    def count(self, credential: str) -> int:
        """How many go on with it."""
        return len(self._by_credential.get(credential, ()))

    def revoke(self, credential: str) -> None:
        """End everything that it has let in, in slices: others have their turn between (P9). The
        caller sees to it that it lets in nobody more. Inside the event loop."""
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
