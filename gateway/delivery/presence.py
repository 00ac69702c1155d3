"""This gateway among the others that work on one catalog: says that it is there, hears who is not
any more, and knows when others must take it for gone itself (R14).

    beats     one call every BEAT_S for all groups; `metadata.heartbeats` judges the answers
    alone     nobody has answered for GONE_S: others may have taken over by now, so nothing is given
              out from that moment on (`Context.gives_until`), also where the process stood still
              and has not noticed yet
    back      answered again: every group's row is looked at before anything is given again

Where one gateway works on a catalog, it has no name, is never alone, and nothing happens here.

Whether this gateway is ready for traffic, and if not, why.
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterable
from hashlib import blake2b
from typing import Final

from gateway.delivery.owned_partition import DeliveryContext
from metadata.heartbeats import BEAT_S, FORGOTTEN_S, GONE_S, Heartbeats
from metadata.port import Metadata
from push.errors import TocsinError
from push.storage_port import Storage

logger = logging.getLogger("tocsin.presence")
_FORGET_S: Final = 1.0
"""For the last words: others find out without them."""


class Presence:
    """See the module."""

    def __init__(self, context: DeliveryContext, metadata: Metadata) -> None:
        self.is_shared = metadata.is_shared
        self.gateway = secrets.token_hex(8) if metadata.is_shared else ""
        """This process's name; another one after each start."""
        self.started = float("-inf")
        """When this gateway began to wait for who had a place in a group before it (R22)."""
        self.came_back: Callable[[], Awaitable[None]] | None = None
        """Called after it was alone; when it returns nothing is served that others may have."""
        self.goes_on: Callable[[], None] = lambda: None
        """Called when things may be given out again after that."""
        self.have_gone: Callable[[set[str]], None] = lambda gone: None
        """Called with those that are gone, when they are others than before."""
        self.says: Callable[[], str] = lambda: ""
        """What others may know of this gateway (`said`), as of its next beat."""
        self._context = context
        self._metadata = metadata
        self._heartbeats = Heartbeats()
        self._number = 0
        """Of its last beat, whether or not that was answered: none is said twice."""
        self._gone: set[str] = set()
        self._asked_at = 0.0
        self._gaps = 0
        """How often nobody answered for too long."""
        self._told_alone = False
        """Whether people were told since it was alone."""
        self._beating: asyncio.Task[None] | None = None
        self._returning: asyncio.Task[None] | None = None

    def start(self) -> None:
        """It is there from now on."""
        loop = asyncio.get_running_loop()
        self.started = loop.time()
        if self.is_shared:
            logger.info("this is the gateway %s", self.gateway)
            self._asked_at = self.started
            self._context.gives_until = self._asked_at + GONE_S
            self._beating = loop.create_task(self._beat(), name="beats")

    async def stop(self) -> None:
        """Beat no longer, and have this gateway forgotten, if somebody listens."""
        tasks = [task for task in (self._beating, self._returning) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
            number = self._heartbeats.number_of(self.gateway)
            try:
                async with asyncio.timeout(_FORGET_S):
                    await self._metadata.beat("", 0, {self.gateway: number})
            except (TimeoutError, TocsinError):
                logger.info("the others find out themselves that this gateway has gone")

    # --- What is known of the others -------------------------------------------------------------

    @property
    def is_alone(self) -> bool:
        """Whether others must take this gateway for gone, or it has not yet caught up since."""
        return asyncio.get_running_loop().time() >= self._context.gives_until

    def gone(self, gateways: Iterable[str]) -> set[str]:
        """Those of these that are not there any more. Never this one."""
        now = asyncio.get_running_loop().time()
        return {
            one
            for one in gateways
            if one != self.gateway and self._heartbeats.is_gone(one, now=now)
        }

    async def said(self) -> dict[str, str]:
        """What the other gateways say that are there, by gateway; "": nothing. Raises TocsinError:
        nobody can tell."""
        said = await self._metadata.said()
        gone = self.gone(said)
        return {one: said[one] for one in said if one != self.gateway and one not in gone}

    def number_of(self, gateway: str) -> int:
        """Its last number; 0: it has none."""
        return self._heartbeats.number_of(gateway)

    def heard(self, gateway: str) -> None:
        """It has written something: it is there."""
        self._heartbeats.heard(gateway, now=asyncio.get_running_loop().time())

    def is_chosen(self, group_id: str) -> bool:
        """Whether it is this gateway of all that looks after a group that has no consumers: what
        two did at once, they would do twice."""
        there = {*self._heartbeats.there(), self.gateway}
        return self.gateway == max(
            there, key=lambda one: blake2b(f"{one} {group_id}".encode()).digest()
        )

    def there(self) -> tuple[str, ...]:
        """All gateways that are there, with this one; none: there are never others."""
        return tuple(sorted({*self._heartbeats.there(), self.gateway})) if self.is_shared else ()

    def facts(self) -> dict[str, object]:
        """For looking at."""
        if not self.is_shared:
            return {}
        there = list(self.there())
        return {"gateway": self.gateway, "gateways": there, "is_alone": self.is_alone}

    # --- Beating ---------------------------------------------------------------------------------

    async def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            asked_at = loop.time()
            self._number += 1
            try:
                beats = await self._metadata.beat(
                    self.gateway, self._number, self._heartbeats.gone(FORGOTTEN_S), self.says()
                )
            except TocsinError as error:
                if self.is_alone and self._returning is None and not self._told_alone:
                    self._told_alone = True
                    logger.warning("this gateway is cut off, and gives nothing out: %s", error)
            except Exception:
                logger.exception("a beat failed: unexpected")  # the next one still comes
            else:
                self._answered(beats, asked_at)
            await asyncio.sleep(max(0.0, asked_at + BEAT_S - loop.time()))

    def _answered(self, beats: dict[str, int], asked_at: float) -> None:
        loop = asyncio.get_running_loop()
        self._heartbeats.saw(beats, now=loop.time(), asked_at=asked_at)
        if asked_at - self._asked_at >= GONE_S or loop.time() >= self._asked_at + GONE_S:
            self._gaps += 1
        self._asked_at = asked_at
        if self._returning is None:
            if self.is_alone or self._gaps:
                self._gaps = max(1, self._gaps)
                self._returning = loop.create_task(self._return(), name="return")
            else:
                self._context.gives_until = asked_at + GONE_S
        gone = {*self._heartbeats.gone()} - {self.gateway}
        if gone != self._gone:
            for one in sorted(gone - self._gone):
                logger.warning("the gateway %s is not heard any more: others take over", one)
            self._gone = gone
            self.have_gone(gone)

    async def _return(self) -> None:
        """Others may have taken over: know what they have, then go on."""
        try:
            while self._gaps:
                self._gaps = 0
                if self.came_back is not None:
                    await self.came_back()
            self._context.gives_until = self._asked_at + GONE_S
            logger.warning("this gateway was not heard for %g s or more, and goes on now", GONE_S)
            self._told_alone = False
            self.goes_on()
        except Exception:
            logger.exception("cannot come back: unexpected")
            self._gaps = 1  # with the next beat
        finally:
            self._returning = None


class Availability:
    """See the module. It leaves once, and is not ready from then on."""

    def __init__(self, storage: Storage, metadata: Metadata, presence: Presence) -> None:
        self._storage = storage
        self._metadata = metadata
        self._presence = presence
        self.is_leaving = False

    def leave(self) -> None:
        """The gateway is going down."""
        self.is_leaving = True

    async def reasons(self) -> list[str]:
        """What is not ready, one sentence each; empty: ready."""
        reasons: list[str] = []
        if self.is_leaving:
            reasons.append("draining: this gateway is going down")
        state = await self._storage.state()
        if not state.writable:  # one that is full is to be drained, by whoever comes (R29, R31)
            reasons += state.reasons or ("the storage does not take writes",)
        if self._presence.is_alone:
            reasons.append("this gateway is cut off, and gives nothing out until it is heard again")
        is_ready, why = await self._metadata.state()
        if not is_ready:
            reasons.append(why)
        return reasons
