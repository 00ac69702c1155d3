"""A session whose token runs out asks for a fresh one in time, and goes on with it."""

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from tocsin.errors import NoToken, TocsinError
from tocsin.io.requests import Token, fresh_token
from tocsin.proto import wire

if TYPE_CHECKING:
    from tocsin.io.session import Session

logger = logging.getLogger("tocsin")

RENEW_SHARE: Final = 0.8
"""After this share of its life a token is followed by a fresh one."""
AGAIN_S: Final = 5.0
"""So long after an attempt that failed comes the next one, at the earliest."""


class Renewing:
    """A part of the session, where a function returns tokens. Without one there is nothing to do:
    the broker closes with 4401 when the one token is over."""

    def __init__(self, session: "Session", token: Token) -> None:
        self._session = session
        self._token = token
        self._loop = asyncio.get_running_loop()
        self._due: float | None = None
        self._ends = 0.0
        self._task: asyncio.Task[None] | None = None

    def opened(self) -> None:
        """As Part.opened."""
        self._lasts(self._session.welcome.right_lasts_s)

    def disconnected(self) -> None:
        """As Part.disconnected: the next attempt to connect brings a fresh token."""
        self._due = None
        if self._task is not None:
            self._task.cancel()

    def failed(self, error: TocsinError) -> None:
        """As Part.failed."""
        self.disconnected()

    def collect(self, *, now: float) -> list[bytes]:
        """As Part.collect."""
        return []

    def next_deadline(self) -> float | None:
        """As Part.next_deadline."""
        return self._due

    def expire(self, *, now: float) -> None:
        """As Part.expire."""
        if self._due is not None and now >= self._due:
            self._due = None
            self._task = self._loop.create_task(self._renew(), name="tocsin-token")

    async def _renew(self) -> None:
        try:
            token = await fresh_token(self._token)
        except NoToken as error:  # there may be one the next time, or when the broker has closed
            logger.warning("no fresh token yet: %s", error)
            self._again()
            return
        if token is not None and self._session.is_open:
            ref = next(self._session.refs)
            self._session.expect(ref, lambda answer: self._answered(token, answer))
            self._session.request(wire.Auth(ref=ref, token=token))

    def _answered(self, token: str, answer: wire.Ok | wire.Error | None) -> None:
        if isinstance(answer, wire.Ok):
            self._session.present(token)
            self._lasts(answer.right_lasts_s)
        elif answer is not None:
            logger.warning("the broker does not take the fresh token: %s", answer.exception())
            self._again()

    def _lasts(self, lasts_s: float | None) -> None:
        self._due = None
        if lasts_s is not None:
            now = self._loop.time()
            self._ends = now + lasts_s
            self._wake_at(now + RENEW_SHARE * lasts_s)

    def _again(self) -> None:
        now = self._loop.time()
        if self._ends - now > AGAIN_S:
            self._wake_at(now + max(AGAIN_S, RENEW_SHARE * (self._ends - now)))

    def _wake_at(self, due: float) -> None:
        self._due = due
        self._session.wake_at(due)
