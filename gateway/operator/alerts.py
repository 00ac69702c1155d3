"""Evaluate the alerts of queues' holders, and send them until they are received.

one      one of all gateways evaluates a queue: among the living ones, the one that a hash of queue
         and gateway puts first (`Presence.is_chosen`). For seconds it may be two, when gateways
         come and go
once     a change is stored in the catalog, with its receivers, before it is sent. The message about
         it has an id made of the change. The next evaluation sends what was not sent, under the
         same id, and the queue stores it once
hooks    only addresses that the broker's settings name are called, each with a deadline, at most
         TRIES times
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Final, Literal

import msgspec

from gateway.delivery.presence import Presence
from gateway.operator.stats import QueueStatsCache, age_s
from gateway.publish.batch import (
    PendingPublish,
)
from gateway.publish.publisher import Publisher
from metadata.catalog import Principal, Queue, QueueAlert, dead_letter_name
from metadata.port import Metadata
from push.errors import Refused, TocsinError
from push.message import Message
from runtime.metrics.exposition import Samples
from runtime.webhook import HookFailed, ScaleHook

EVERY_S: Final = 10.0
POST_S: Final = 5.0
PUBLISH_S: Final = 10.0
TRIES: Final = 5
"""Largest number of calls of a webhook about one change of an alert. There is one call each time
that the queue is evaluated."""
_LOG: Final = logging.getLogger("tocsin.alerts")
CLEARS_S: Final = 60.0
"""Largest number of seconds for which a value must not be above its threshold before the alarm
clears."""
Change = Literal["fires", "clears"]
Post = Callable[[str, bytes], Awaitable[None]]
"""Function that calls a webhook, with its address and the body. Raises HookFailed."""


class Alarm:
    """The state of one alert: whether it fires, and when that changes.

    The alarm fires when the value has been above the threshold for as long as the alert says. It
    clears when the value has not been above it for the same time, CLEARS_S at most. So a value that
    goes to and fro does not notify anybody each time.
    """

    __slots__ = ("_since", "fires")

    def __init__(self, *, fires: bool = False) -> None:
        """`fires`: whether it fired when it was last judged, perhaps by another gateway."""
        self.fires = fires
        self._since: float | None = None
        """Time at which the value came to the other side of the threshold; None if it is not on
        the other side."""

    def __repr__(self) -> str:
        return f"Alarm(fires={self.fires}, other side since {self._since})"

    def judge(self, value: float, above: float, lasts_s: float, *, now: float) -> Change | None:
        """Return what changes with this value; None if nothing does. `above` is the threshold, and
        `lasts_s` is how long the value must be above it."""
        if (value > above) is self.fires:
            self._since = None
            return None
        if self._since is None:
            self._since = now
        needed_s = min(lasts_s, CLEARS_S) if self.fires else lasts_s
        if now - self._since < needed_s:
            return None
        self.fires, self._since = not self.fires, None
        return "fires" if self.fires else "clears"


class AlertState(msgspec.Struct, kw_only=True, omit_defaults=True):
    """State that the catalog keeps of an alert that fires, or whose end is still to be sent."""

    state: Literal["firing", "cleared"]
    since_unix_ms: int
    value: float
    owed: list[Literal["queue", "webhook"]] = []
    """Receivers that have not received it yet."""
    tries: int = 0
    """Number of calls of the webhook about this change."""


class AlertNotice(msgspec.Struct, kw_only=True):
    """Message about an alert; docs/operations/observability.md describes it."""

    alert: str
    queue: str
    group: str | None
    when: str
    above: float
    value: float
    state: Literal["firing", "cleared"]
    since_unix_ms: int
    now_unix_ms: int


async def post(address: str, body: bytes) -> None:
    """Call a webhook. Raises HookFailed."""
    await ScaleHook(address, within_s=POST_S).tell(body)


class AlertEvaluator:
    """Alerts of the queues that this gateway evaluates. `webhooks` are addresses by name; no other
    address is ever called."""

    def __init__(
        self,
        metadata: Metadata,
        presence: Presence,
        stats: QueueStatsCache,
        publisher: Publisher,
        webhooks: Mapping[str, str],
        *,
        post: Post = post,
    ) -> None:
        self._metadata = metadata
        self._presence = presence
        self._stats = stats
        self._publisher = publisher
        self._webhooks = webhooks
        self._post = post
        self._alarms: dict[tuple[str, str], Alarm] = {}
        self._states: dict[str, dict[str, AlertState]] = {}
        """States by queue id, of the queues that are evaluated here."""
        self._task: asyncio.Task[None] | None = None
        self._posts: Counter[str] = Counter({"told": 0, "failed": 0, "refused": 0})

    def start(self) -> None:
        """Begin to evaluate."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="alerts")

    async def stop(self) -> None:
        """Stop evaluating. The next gateway sends what was not sent."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    def measure(self, samples: Samples) -> None:
        """Put the figures of the alerts that this gateway evaluates into a scrape."""
        firing = sum(
            state.state == "firing" for kept in self._states.values() for state in kept.values()
        )
        is_looking = self._task is not None and not self._presence.is_alone
        samples.put("tocsin_alerts_firing", firing)
        samples.put("tocsin_alerts_evaluates", is_looking)
        for outcome, count in self._posts.items():
            samples.put("tocsin_alert_posts_total", count, outcome)

    async def _run(self) -> None:
        while True:
            try:
                await self.evaluate(now=asyncio.get_running_loop().time())
            except Exception:
                _LOG.exception("alerts could not be evaluated: unexpected")  # the next look comes
            await asyncio.sleep(EVERY_S)

    # --- Evaluating ------------------------------------------------------------------------------

    async def evaluate(self, *, now: float) -> None:
        """Evaluate the alerts of each queue that this gateway has to evaluate, once."""
        presence = self._presence
        mine: set[str] = set()
        for queue in self._metadata.list_all_queues():
            is_kept = queue.queue_id in self._states
            if presence.is_alone or not (queue.settings.alerts or is_kept):
                continue
            if not presence.is_chosen(queue.queue_id):
                continue
            mine.add(queue.queue_id)
            try:
                await self._evaluate(queue, now)
            except TocsinError as error:  # the storage, or the catalog, is away: the next time
                _LOG.info(
                    "alerts of %s could not be evaluated: %s",
                    queue.name,
                    error.detail,
                    extra={"queue": queue.name},
                )
        for queue_id in self._states.keys() - mine:
            self._forget(queue_id)

    def _forget(self, queue_id: str) -> None:
        del self._states[queue_id]
        for place in [place for place in self._alarms if place[0] == queue_id]:
            del self._alarms[place]

    async def _evaluate(self, queue: Queue, now: float) -> None:
        kept = self._states.get(queue.queue_id)
        if kept is None:  # another gateway, or this one before its restart, may have stored some
            text = self._metadata.mark(_mark(queue))
            kept = msgspec.json.decode(text, type=dict[str, AlertState]) if text else {}
            self._states[queue.queue_id] = kept
        named = {alert.name: alert for alert in queue.settings.alerts}
        for name in [name for name in kept if name not in named]:  # taken back: nobody waits
            del kept[name]
            self._alarms.pop((queue.queue_id, name), None)
            await self._save(queue)
        for name, alert in named.items():
            fires = name in kept and kept[name].state == "firing"
            alarm = self._alarms.setdefault((queue.queue_id, name), Alarm(fires=fires))
            value = await self._value(queue, alert)
            if name in kept and kept[name].owed:
                pass  # the change before is sent first: receivers get each change, in order
            elif alarm.judge(value, alert.above, alert.lasts_s, now=now):
                kept[name] = AlertState(
                    state="firing" if alarm.fires else "cleared",
                    since_unix_ms=int(time.time() * 1000),
                    value=round(value, 3),
                    owed=_receivers(alert),
                )
                await self._save(queue)
            if name in kept and kept[name].owed:
                await self._send(queue, alert, kept[name])
            if name in kept and kept[name].state == "cleared" and not kept[name].owed:
                del kept[name]
                await self._save(queue)

    async def _save(self, queue: Queue) -> None:
        text = msgspec.json.encode(self._states[queue.queue_id]).decode()
        await self._metadata.set_mark(_mark(queue), text)

    async def _value(self, queue: Queue, alert: QueueAlert) -> float:
        """Return the present value that the alert is about. Raises TocsinError if the storage does
        not answer."""
        principal = Principal(queue.holder, queue.tenant)
        if alert.when == "dead_letters":
            try:
                queue = self._metadata.find_queue(principal, dead_letter_name(queue))
            except Refused:
                return 0.0
        groups = [
            group
            for group in self._metadata.list_groups(principal, queue)
            if alert.group in (None, group.name)
        ]
        is_of_groups = alert.when in ("lag", "oldest_age_s", "parked_keys")
        stats = await self._stats.stats(queue, groups if is_of_groups else [])
        if not is_of_groups:
            return float(sum(state.messages for state in stats.states))
        found = [stats.groups[one.group_id] for one in groups if one.group_id in stats.groups]
        if alert.when == "lag":
            return float(max((one.lag for one in found), default=0))
        if alert.when == "parked_keys":
            return float(max((one.parked for one in found), default=0))
        return max((age_s(one.oldest_unix_ms) for one in found), default=0.0)

    # --- Sending ---------------------------------------------------------------------------------

    async def _send(self, queue: Queue, alert: QueueAlert, state: AlertState) -> None:
        body = msgspec.json.encode(
            AlertNotice(
                alert=alert.name,
                queue=queue.name,
                group=alert.group,
                when=alert.when,
                above=alert.above,
                value=state.value,
                state=state.state,
                since_unix_ms=state.since_unix_ms,
                now_unix_ms=int(time.time() * 1000),
            )
        )
        owed = list(state.owed)
        if "queue" in owed and await self._publish(queue, alert, state, body):
            owed.remove("queue")
        if "webhook" in owed and await self._call(alert, state, body):
            owed.remove("webhook")
        if owed != state.owed or "webhook" in owed:
            state.owed = owed
            await self._save(queue)

    async def _publish(
        self, queue: Queue, alert: QueueAlert, state: AlertState, body: bytes
    ) -> bool:
        """Publish a change to the alert's queue. Returns whether it is stored, or the alert names
        no queue any more."""
        if alert.queue is None:
            return True
        principal = Principal(queue.holder, queue.tenant)
        name = f"{queue.queue_id}:{alert.name}:{state.since_unix_ms}:{state.state}"
        message = Message(key=queue.name, body=msgspec.Raw(body), id=name)
        answered: asyncio.Future[PendingPublish] = asyncio.get_running_loop().create_future()

        def answer(found: PendingPublish) -> None:
            if not answered.done():
                answered.set_result(found)

        try:
            to = self._metadata.find_queue(principal, alert.queue)
            self._publisher.submit(PendingPublish(to, [message], answer))
            async with asyncio.timeout(PUBLISH_S):
                outcome = (await answered).outcomes[0]
        except (TocsinError, TimeoutError) as error:
            outcome = error if isinstance(error, TocsinError) else Refused("overloaded")
        if isinstance(outcome, TocsinError):
            _LOG.warning(
                "the alert %s of %s was not published to the queue %s: %s",
                alert.name,
                queue.name,
                alert.queue,
                outcome.detail,
            )
            return False
        return True

    async def _call(self, alert: QueueAlert, state: AlertState, body: bytes) -> bool:
        """Call the alert's webhook. Returns whether no further call is needed."""
        address = self._webhooks.get(alert.webhook or "")
        if address is None:
            self._posts["refused"] += 1
            _LOG.warning(
                "the alert %s names the webhook %s, which does not exist", alert.name, alert.webhook
            )
            return True
        state.tries += 1
        try:
            await self._post(address, body)
        except HookFailed as error:
            self._posts["failed"] += 1
            _LOG.warning(
                "the webhook %s did not take the alert %s: %s", alert.webhook, alert.name, error
            )
            return state.tries >= TRIES
        self._posts["told"] += 1
        return True


def _mark(queue: Queue) -> str:
    return f"alerts:{queue.queue_id}"


def _receivers(alert: QueueAlert) -> list[Literal["queue", "webhook"]]:
    owed: list[Literal["queue", "webhook"]] = []
    if alert.queue is not None:
        owed.append("queue")
    if alert.webhook is not None:
        owed.append("webhook")
    return owed
