"""The held connection of one level, with acts in groups that each end with one WAIT.

Acts that are requested while a group is under way are the next group; there is no timer. A group is
`FCALL …, FCALL …, touch, WAIT, INFO`, sent in one go. Its answers are given out when WAIT has
counted the copies that the level requires. Otherwise they are Unknown and the connection is closed.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from random import random
from time import perf_counter
from typing import Any, Final

from redis.exceptions import RedisError

from push.errors import Refused, Unknown
from push.histogram import Histogram
from push.places import Durability
from push.retry import backoff_s
from storage.redis.answers import answer, is_sure, refused, unavailable
from storage.redis.connection import BACKOFF_BASE_S, BACKOFF_MAX_S, Connection, pack
from storage.redis.replication import copies_needed, doubt_of, fields, out_of

GROUP_ACTS: Final = 1000
GROUP_BYTES: Final = 8 << 20
"""Most bytes of a group, which has at least one act."""
REPLICAS: Final = pack("INFO", "replication", "stats")
BEHIND: Final = "what was asked before it may not have happened"


@dataclass(slots=True)
class PipelinedCall:
    """A packed FCALL, and the future of its answer."""

    command: bytes
    answer: asyncio.Future[Any]
    order: str
    """Name of an order: acts with the same name do not happen if one before them was refused. "":
    the act is in no order."""


@dataclass(frozen=True, slots=True)
class PipelineTerms:
    """The terms of every group. `touch` is the packed FCALL that writes last in it."""

    touch: bytes
    wait_s: float
    """Seconds that WAIT waits for copies. If it takes longer, the outcome is Unknown."""
    silence_s: float
    """Seconds that the replies to a group may take beyond `wait_s`. If they take longer, the
    outcome is Unknown."""


class ReplicatedPipeline:
    """The acts of one level. `connect` makes a checked link to the primary, or raises Refused.
    `confirmed` is called for each group that has the copies that its level requires, before any
    answer is given out, with the number of touches, and the number of replicas that could be
    elected. Each group that lacks them is one of the `doubts` by then."""

    def __init__(
        self,
        level: Durability,
        connect: Callable[[], Awaitable[Connection]],
        terms: PipelineTerms,
        confirmed: Callable[[Durability, int, int], None],
    ) -> None:
        self.level = level
        self._connect = connect
        self._terms = terms
        self._on_confirmed = confirmed
        self.doubts = 0
        """Number of groups that have failed, or had an act with an order that Redis did not
        begin."""
        self.took_s = Histogram()
        """Time from sending each group to its last reply, that of WAIT included, or to the failure
        of its connection."""
        self._queue: deque[PipelinedCall] = deque()
        self._not_empty = asyncio.Event()
        self._closing = False
        self._link: Connection | None = None
        self._is_stale = False
        self._failures = 0
        self._retry_at_s = 0.0
        self._reason = ""
        self._task = asyncio.create_task(self._run(), name=f"shard {level}")

    def act(self, command: bytes, order: str) -> asyncio.Future[Any]:
        """Put an act into the next group, and return the future of its answer. `command` is a
        packed FCALL; `order` is described in `PipelinedCall`."""
        if self._closing:
            return refused(unavailable("the storage is closed"))
        asked: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._queue.append(PipelinedCall(command, asked, order))
        self._not_empty.set()
        return asked

    def renew(self) -> None:
        """Connect anew before the next group, because the primary is elsewhere."""
        self._is_stale = True

    async def close(self) -> None:
        """Finish what was accepted, then close."""
        self._closing = True
        self._not_empty.set()
        await self._task

    async def _run(self) -> None:
        while True:
            await self._not_empty.wait()
            if self._queue:
                group = self._take_group()
                try:
                    await self._commit(group)
                except Exception as error:  # whatever it is, no caller waits for ever
                    self.doubts += 1
                    await self._disconnect()
                    for act in group:
                        _resolve(act, error=Unknown(f"internal: {error!r}"))
                    self._refuse_queue()
            elif self._closing:
                break
            else:
                self._not_empty.clear()
        await self._disconnect()

    def _take_group(self) -> list[PipelinedCall]:
        group: list[PipelinedCall] = []
        orders: set[str] = set()
        size = 0
        while self._queue and len(group) < GROUP_ACTS:
            act = self._queue[0]
            size += len(act.command)
            # Redis refuses by itself in the middle of a group, too, and goes on with the next act.
            if group and (size > GROUP_BYTES or act.order in orders):
                break
            self._queue.popleft()
            if not act.answer.done():  # its caller waits no more, and it has not been sent
                group.append(act)
                orders |= {act.order} - {""}
        return group

    async def _commit(self, group: Sequence[PipelinedCall]) -> None:
        if not group:
            return
        try:
            link = await self._open_link()
        except Refused as error:
            self.doubts += 1
            for act in group:
                _resolve(act, error=Refused(error.code.name, error.detail))
            self._refuse_queue()
            return
        needed = copies_needed(self.level, link.replicas) + link.unready
        commands = [act.command for act in group]
        commands.append(self._terms.touch)
        if self.level != "local":
            commands.append(pack("WAIT", needed, round(self._terms.wait_s * 1000)))
            commands.append(REPLICAS)
        began = perf_counter()
        try:
            replies = await link.ask(commands, self._terms.wait_s + self._terms.silence_s)
        except (RedisError, OSError) as error:  # asyncio's TimeoutError is an OSError
            self.doubts += 1
            for act in group:
                _resolve(act, error=Unknown(f"{link.address}: {str(error) or 'no reply in time'}"))
            self._refuse_queue()
            return
        finally:
            self.took_s.add(perf_counter() - began)
        doubt = self._confirm(link, replies[len(group) :])
        answered = list(zip(group, replies, strict=False))
        is_broken = any(act.order and is_sure(reply) for act, reply in answered)
        if doubt or is_broken:
            self.doubts += 1
        if doubt:
            await self._disconnect()
        for act, reply in answered:
            _answer(act, reply, doubt)
        if doubt:
            self._refuse_queue()
        elif is_broken:
            self._refuse_queue(lambda act: bool(act.order))

    # enforces: P1, R28
    def _confirm(self, link: Connection, ending: Sequence[Any]) -> str:
        """Return the reason why the group is not confirmed; "": it is confirmed. `ending`: the
        replies after those of its acts."""
        if self.level == "local":
            (touched,) = ending
        else:
            touched, counted, info = ending
        if not isinstance(touched, list):
            return f"the group could not be ended: {touched}"
        touches, replicas, out = touched
        touches, replicas = int(touches), int(replicas)
        link.replicas = replicas  # what the next group waits for
        if self.level != "local":
            if not isinstance(counted, int) or not isinstance(info, bytes):
                return f"the copies could not be counted: {counted}"
            # the number of the shard now, which may have been raised since the connection was made
            needed = copies_needed(self.level, replicas)
            if counted - link.unready < needed:
                return f"{counted - link.unready} of {needed} replicas have confirmed it"
            told = fields(info)
            doubt = doubt_of(told, replicas, out_of(out))
            if doubt:
                return doubt
            if needed and told.get("sync_full") != link.syncs:
                return "a replica was synced anew, and may not have it on its disk yet"
        self._on_confirmed(self.level, touches, replicas)
        return ""

    # enforces: R7
    def _refuse_queue(self, which: Callable[[PipelinedCall], bool] = lambda act: True) -> None:
        """Refuse the queued acts for which `which` is true, because they were meant to follow a
        group that may not have happened (R7). Callers that learn of it send them again."""
        waiting, self._queue = self._queue, deque()
        for act in waiting:
            if which(act):
                _resolve(act, error=unavailable(BEHIND))
            else:
                self._queue.append(act)

    async def _open_link(self) -> Connection:
        """Return the link, made anew if there is none. Raises Refused at once while the last
        failure is so recent that another try would only add to it."""
        if self._is_stale:
            self._is_stale = False
            await self._disconnect()
        if self._link is not None and self._link.is_open:
            return self._link
        await self._disconnect()
        clock = asyncio.get_running_loop().time
        if clock() < self._retry_at_s:
            raise unavailable(self._reason)
        try:
            self._link = await self._connect()
        except Refused as error:
            self._failures += 1
            self._reason = error.detail
            self._retry_at_s = clock() + backoff_s(
                self._failures, base_s=BACKOFF_BASE_S, max_s=BACKOFF_MAX_S, draw=random()
            )
            raise
        self._failures = 0
        return self._link

    async def _disconnect(self) -> None:
        if self._link is not None:
            await self._link.close()
            self._link = None


def _answer(act: PipelinedCall, reply: Any, doubt: str) -> None:
    try:
        _resolve(act, answer(reply, doubt))
    except Exception as error:
        _resolve(act, error=error)


def _resolve(act: PipelinedCall, reply: Any = None, *, error: Exception | None = None) -> None:
    if act.answer.done():  # its caller has gone
        return
    if error is None:
        act.answer.set_result(reply)
    else:
        act.answer.set_exception(error)
