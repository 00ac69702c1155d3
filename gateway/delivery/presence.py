"""Presence of this gateway among those of one catalog (R14), and its readiness for traffic.

    beats     one call every BEAT_S for all groups; `metadata.heartbeats` judges the answers
    alone     no beat was answered for GONE_S. Others may have taken over by now, so nothing is
              given out from that moment on (`gives_until`), also where the process stood still and
              has not noticed yet
    return    beats are answered again: every group's row is read before anything is given again

A gateway that is the only one on a catalog has no name, is never alone, and sends no beats.
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterable
from hashlib import blake2b
from typing import Final

from metadata.heartbeats import BEAT_S, FORGOTTEN_S, GONE_S, Heartbeats
from metadata.port import Metadata
from push.errors import TocsinError
from push.storage_port import Storage

logger = logging.getLogger("tocsin.presence")
_FORGET_S: Final = 1.0
"""Seconds that `stop` waits for the catalog to forget this gateway. Without that, other gateways
find out by themselves."""


class Presence:
    """The heartbeats by which gateways of a shared catalog know of each other: those that this one
    writes, and what it learns from those of the others, such as who is dead."""

    def __init__(
        self,
        metadata: Metadata,
        *,
        on_return: Callable[[], Awaitable[None]],
        on_resume: Callable[[], None],
        on_dead: Callable[[set[str]], None],
    ) -> None:
        """`on_return` is awaited when beats are answered again after GONE_S without an answer. When
        it returns, nothing is served here that other gateways may have taken over, and `on_resume`
        is called. `on_dead` is called with all dead gateways whenever they are others than before.
        None of them is called if `is_shared` is False."""
        self.is_shared = metadata.is_shared
        """Whether other gateways may work on the catalog."""
        self.gateway = secrets.token_hex(8) if metadata.is_shared else ""
        """The name of this process; another one after each start. "": no other gateway works on the
        catalog."""
        self.started = float("-inf")
        """Time of `start`, by the loop's clock; minus infinity before. From then on this gateway
        waits for members that had a place in a group before (R22)."""
        self.gives_until = float("inf")
        """Time, by the loop's clock, from which on this gateway gives out nothing, because others
        must take it for dead. Answered beats move it on. Infinity: there are no others."""
        self._on_return = on_return
        self._on_resume = on_resume
        self._on_dead = on_dead
        self._announcement: Callable[[], str] | None = None
        self._metadata = metadata
        self._heartbeats = Heartbeats()
        self._number = 0
        """The number of this gateway's last beat, answered or not, so that none is sent twice."""
        self._dead: set[str] = set()
        self._asked_at = 0.0
        self._gaps = 0
        """Number of times that no beat was answered for GONE_S, since `on_return` was called
        last."""
        self._has_warned = False
        """Whether it was logged that this gateway is cut off, since it last gave out again."""
        self._beat_task: asyncio.Task[None] | None = None
        self._return_task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Note the time of the start, and begin to send beats if the catalog is shared."""
        loop = asyncio.get_running_loop()
        self.started = loop.time()
        if self.is_shared:
            logger.info("this is the gateway %s", self.gateway)
            self._asked_at = self.started
            self.gives_until = self._asked_at + GONE_S
            self._beat_task = loop.create_task(self._beat(), name="beats")

    async def stop(self) -> None:
        """Send no more beats, and have the catalog forget this gateway, if it answers within a
        second."""
        tasks = [task for task in (self._beat_task, self._return_task) if task is not None]
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

    def announce(self, announcement: Callable[[], str]) -> None:
        """Send the text that `announcement` returns with each beat from now on, for other gateways
        to read (`announcements`)."""
        self._announcement = announcement

    # --- The other gateways ----------------------------------------------------------------------

    @property
    def is_alone(self) -> bool:
        """Whether other gateways must take this one for dead, or it has not yet caught up since."""
        return asyncio.get_running_loop().time() >= self.gives_until

    def dead(self, gateways: Iterable[str]) -> set[str]:
        """Return those of `gateways` that are considered dead; never this gateway itself."""
        now = asyncio.get_running_loop().time()
        return {
            one
            for one in gateways
            if one != self.gateway and self._heartbeats.is_gone(one, now=now)
        }

    async def announcements(self) -> dict[str, str]:
        """Return gateway → text that it announces, for the other live gateways; "": it announces
        none. Raises TocsinError if the catalog does not answer."""
        texts = await self._metadata.said()
        dead = self.dead(texts)
        return {one: texts[one] for one in texts if one != self.gateway and one not in dead}

    def on_write(self, gateway: str) -> None:
        """Take another gateway for alive, because it has written to a group's row. Its silence
        begins anew."""
        self._heartbeats.heard(gateway, now=asyncio.get_running_loop().time())

    def is_chosen(self, group_id: str) -> bool:
        """Whether this gateway, and no other, looks after a group that has no consumers. Two would
        do everything twice."""
        there = {*self._heartbeats.there(), self.gateway}
        return self.gateway == max(
            there, key=lambda one: blake2b(f"{one} {group_id}".encode()).digest()
        )

    def live(self) -> tuple[str, ...]:
        """Return the names of all live gateways, this one included. Empty: no other gateway works
        on the catalog."""
        return tuple(sorted({*self._heartbeats.there(), self.gateway})) if self.is_shared else ()

    def facts(self) -> dict[str, object]:
        """Describe this gateway's presence to operators. Empty: no other gateway works on the
        catalog."""
        if not self.is_shared:
            return {}
        return {
            "gateway": self.gateway,
            "gateways": list(self.live()),
            "is_alone": self.is_alone,
        }

    # --- Beating ---------------------------------------------------------------------------------

    async def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            asked_at = loop.time()
            self._number += 1
            try:
                text = self._announcement() if self._announcement is not None else ""
                forget = self._heartbeats.gone(FORGOTTEN_S)
                beats = await self._metadata.beat(self.gateway, self._number, forget, text)
            except TocsinError as error:
                if self.is_alone and self._return_task is None and not self._has_warned:
                    self._has_warned = True
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
        if self._return_task is None:
            if self.is_alone or self._gaps:
                self._gaps = max(1, self._gaps)
                self._return_task = loop.create_task(self._return(), name="return")
            else:
                self.gives_until = asked_at + GONE_S
        dead = {*self._heartbeats.gone()} - {self.gateway}
        if dead != self._dead:
            for one in sorted(dead - self._dead):
                logger.warning("the gateway %s is not heard any more: others take over", one)
            self._dead = dead
            self._on_dead(dead)

    async def _return(self) -> None:
        """Learn what others have taken over, then give out again."""
        try:
            while self._gaps:
                self._gaps = 0
                await self._on_return()
            self.gives_until = self._asked_at + GONE_S
            logger.warning("this gateway was not heard for %g s or more, and goes on now", GONE_S)
            self._has_warned = False
            self._on_resume()
        except Exception:
            logger.exception("cannot come back: unexpected")
            self._gaps = 1  # with the next beat
        finally:
            self._return_task = None


class Availability:
    """Readiness of this gateway for traffic. After `leave` it is never ready again."""

    def __init__(self, storage: Storage, metadata: Metadata, presence: Presence) -> None:
        self._storage = storage
        self._metadata = metadata
        self._presence = presence
        self.is_leaving = False

    def leave(self) -> None:
        """Be not ready from now on, because the gateway is going down."""
        self.is_leaving = True

    async def reasons(self) -> list[str]:
        """Return why this gateway is not ready for traffic, one sentence for each reason; empty: it
        is ready."""
        reasons: list[str] = []
        if self.is_leaving:
            reasons.append("draining: this gateway is going down")
        state = await self._storage.state()
        if not state.writable:  # consumers have to drain one that is full (R29, R31)
            reasons += state.reasons or ("the storage does not take writes",)
        if self._presence.is_alone:
            reasons.append("this gateway is cut off, and gives nothing out until it is heard again")
        is_ready, why = await self._metadata.state()
        if not is_ready:
            reasons.append(why)
        return reasons
