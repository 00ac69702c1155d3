"""The shell around the rates that several gateways share, which asks the store in the background.

A charge never waits for the store. One call is under way at a time, with all pending requests. It
is made at once if something is wanted, with a pause between two calls, and at least every quarter
of a second. So the store knows that this gateway exists, and the gateway learns the needs of the
others.
"""

import asyncio
import logging
import secrets
from contextlib import suppress
from hashlib import blake2b
from typing import Final

from gateway.limits.accounts import Name
from gateway.limits.spec import Kind
from push.errors import Refused, Unknown
from push.rates.bucket import Rate
from push.rates.shared import ASK_S, ASKS_MAX, BEAT_S, GAP_S, RatePool, SharedBucket, SharedRates

_LOG: Final = logging.getLogger("gateway.shared_limits")
SOON_S: Final = 2 * ASK_S
"""Longest wait advised by a refusal, in seconds, for which `Allowance.wait_for_share` waits,
because perhaps only a call of the store is missing."""
CLOSE_S: Final = 2.0
"""Seconds for which `close` waits for the store. Shares that are not given back by then expire in
the store."""


class SharedLimits:
    """The rates that this gateway shares with others through a pool."""

    def __init__(self, pool: RatePool) -> None:
        self._pool = pool
        self._wanted = asyncio.Event()
        self.shares = SharedRates(self._wanted.set)
        self._gateway: str | None = None
        """The gateway's name in the store, a new one each time that it joins. None while it has not
        joined."""
        self._calls = 0
        self._task: asyncio.Task[None] | None = None

    def bucket(self, name: Name, kind: Kind, rate: Rate) -> SharedBucket:
        """Make the bucket of a name and kind. The store receives a digest, not the name."""
        digest = blake2b("\0".join((*name, kind)).encode(), digest_size=16).hexdigest()
        return self.shares.bucket(f"{kind}:{digest}", rate, now=_now())

    async def start(self) -> None:
        """Join, if the store answers, and go on in the background. It raises no error. Without the
        store, standing shares hold until the gateway can join later."""
        await self._join()
        self._task = asyncio.create_task(self._run(), name="shared limits")

    async def close(self) -> None:
        """Give all shares back and leave the store, if it answers within CLOSE_S."""
        if self._task is None:
            return
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        self._task = None
        if self._gateway is None:
            return
        asks = self.shares.close(now=_now())
        self.shares.on_lapse(now=_now())
        with suppress(Refused, Unknown, TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                for first in range(0, len(asks), ASKS_MAX):
                    self._calls += 1
                    part = asks[first : first + ASKS_MAX]
                    await self._pool.ask(self._gateway, self._calls, part)
                await self._pool.leave(self._gateway)

    def status(self) -> dict[str, object]:
        """Return figures for `tocsin admin status`."""
        return {"cut_off": self.shares.is_cut_off, "held": len(self.shares)}

    async def _run(self) -> None:
        while True:
            if self._gateway is None:
                await asyncio.sleep(BEAT_S)
                await self._join()
                continue
            pause_s = self.shares.pause_s(now=_now())
            if pause_s:
                self._wanted.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await self._wanted.wait()
            await self._ask(self._gateway)
            await asyncio.sleep(GAP_S)

    async def _join(self) -> None:
        sent, name = _now(), secrets.token_hex(8)
        try:
            is_seated, names = await self._pool.join(name)
        except (Refused, Unknown) as error:
            _LOG.warning("limits are not shared, standing shares hold: %s", error)
            return
        self._gateway, self._calls = name, 0
        self.shares.on_join(is_seated, names, now=_now(), sent=sent)

    async def _ask(self, gateway: str) -> None:
        sent = _now()
        asks = self.shares.requests(now=sent)
        self._calls += 1
        try:
            reply = await self._pool.ask(gateway, self._calls, asks)
        except (Refused, Unknown) as error:
            self.shares.on_failure(asks)
            if self.shares.expire(now=_now()):
                _LOG.warning("limits are not shared any more, standing shares hold: %s", error)
                self._gateway = None
            return
        if reply is None or self.shares.expire(now=_now()):
            self._lost()
        else:
            self.shares.on_reply(asks, reply, now=_now(), sent=sent)

    def _lost(self) -> None:
        self._gateway = None
        self.shares.on_lapse(now=_now())


def _now() -> float:
    return asyncio.get_running_loop().time()
