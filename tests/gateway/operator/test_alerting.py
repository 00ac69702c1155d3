"""Alerts of queues' holders, over the whole broker: told once, cleared, and gone on with."""

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from gateway.operator.alerts import TRIES, AlertEvaluator, Post, post
from metadata.catalog import ANYBODY, Queue, QueueAlert, QueueSettings
from push.errors import Refused
from runtime.webhook import HookFailed
from tests.histories.house import House, numbered

HOOKS = {"pager": "https://pager.example/x"}


class Hook:
    """A webhook that hears, or does not."""

    def __init__(self) -> None:
        self.heard: list[dict[str, Any]] = []
        self.fails = False
        self.calls = 0

    async def __call__(self, address: str, body: bytes) -> None:
        assert address in HOOKS.values()
        self.calls += 1
        if self.fails:
            raise HookFailed("it does not answer")
        self.heard.append(json.loads(body))


def alerting_of(
    house: House, webhooks: Mapping[str, str] = {}, *, post: Post = post
) -> AlertEvaluator:
    """Another one than the broker of the house has."""
    broker = house.broker
    return AlertEvaluator(
        broker.metadata, broker.groups.presence, broker.queue_stats, broker.publisher, webhooks,
        post=post,
    )  # fmt: skip


async def watched(house: House, **alert: Any) -> Queue:
    """A queue with an alert about its depth, told to the queue `ops`."""
    await house.queue("ops")
    wanted = {"name": "deep", "when": "depth", "above": 2, "lasts_s": 0, "queue": "ops", **alert}
    return await house.queue(alerts=(QueueAlert(**wanted),))


async def told(house: House) -> list[dict[str, Any]]:
    """Everything that stands in the queue `ops`."""
    ops = house.find("ops")
    read = await house.broker.storage.read(
        house.broker.publisher._route(ops).partitions[0], 0, 1 << 20
    )
    texts = [record.payload.decode() for record in read.records]
    return [one["body"] for text in texts for one in json.loads(f"[{text}]")]


async def test_a_breach_and_its_end_are_each_reported_once(house: House) -> None:
    queue = await watched(house)
    alerting = alerting_of(house)
    await alerting.evaluate(now=0)
    assert await told(house) == []
    await house.publish(queue, numbered(3))
    for at in (10, 20, 30):
        await alerting.evaluate(now=at)
    (one,) = await told(house)
    assert (one["alert"], one["state"], one["value"]) == ("deep", "firing", 3)
    await house.broker.upkeep.purge(ANYBODY, queue, None)
    for at in (40, 50):
        await alerting.evaluate(now=at)
    assert [one["state"] for one in await told(house)] == ["firing", "cleared"]


async def test_the_next_gateway_goes_on_from_there(house: House) -> None:
    queue = await watched(house)
    await house.publish(queue, numbered(3))
    await alerting_of(house).evaluate(now=0)
    other = alerting_of(house)
    await other.evaluate(now=0)
    assert [one["state"] for one in await told(house)] == ["firing"]
    await house.broker.upkeep.purge(ANYBODY, queue, None)
    await other.evaluate(now=10)
    assert [one["state"] for one in await told(house)] == ["firing", "cleared"]


async def test_two_that_look_at_once_tell_it_once(house: House) -> None:
    queue = await watched(house)
    await house.publish(queue, numbered(3))
    one, other = alerting_of(house), alerting_of(house)
    await one.evaluate(now=0)
    mark = f"alerts:{queue.queue_id}"
    kept = json.loads(house.broker.metadata.mark(mark) or "")
    kept["deep"]["owed"] = ["queue"]  # it was told, and its teller ended before it said so
    await house.broker.metadata.set_mark(mark, json.dumps(kept))
    await other.evaluate(now=0)
    assert len(await told(house)) == 1


async def test_a_watcher_of_a_missing_queue_learns_when_it_exists(house: House) -> None:
    queue = await house.queue(
        alerts=(QueueAlert(name="deep", when="depth", above=2, lasts_s=0, queue="ops"),)
    )
    await house.publish(queue, numbered(3))
    alerting = alerting_of(house)
    await alerting.evaluate(now=0)
    await house.queue("ops")
    await alerting.evaluate(now=10)
    assert [one["state"] for one in await told(house)] == ["firing"]


async def test_a_webhook_is_tried_a_few_times(house: House) -> None:
    queue = await watched(house, queue=None, webhook="pager")
    await house.publish(queue, numbered(3))
    hook = Hook()
    hook.fails = True
    alerting = alerting_of(house, HOOKS, post=hook)
    for at in range(0, 100, 10):
        await alerting.evaluate(now=at)
    assert hook.calls == TRIES
    hook.fails = False
    await house.broker.upkeep.purge(ANYBODY, queue, None)
    await alerting.evaluate(now=200)
    assert [one["state"] for one in hook.heard] == ["cleared"]


async def test_no_address_is_called_that_the_operator_has_not_named(house: House) -> None:
    queue = await watched(house, queue=None, webhook="http://169.254.169.254/")
    await house.publish(queue, numbered(3))
    hook = Hook()
    await alerting_of(house, HOOKS, post=hook).evaluate(now=0)
    assert hook.calls == 0


async def test_an_alert_that_was_taken_back_says_nothing_more(house: House) -> None:
    queue = await watched(house)
    await house.publish(queue, numbered(3))
    alerting = alerting_of(house)
    await alerting.evaluate(now=0)
    await house.set_queue(queue.name, alerts=())
    await house.broker.upkeep.purge(ANYBODY, house.find(), None)
    await alerting.evaluate(now=10)
    assert [one["state"] for one in await told(house)] == ["firing"]
    assert house.broker.metadata.mark(f"alerts:{queue.queue_id}") == "{}"


@pytest.mark.parametrize(("when", "group"), [("lag", None), ("oldest_age_s", "billing")])
async def test_what_groups_have_not_settled_is_looked_at(
    house: House, when: str, group: str | None
) -> None:
    queue = await watched(house, when=when, above=0, group=group)
    await house.group(queue)
    alerting = alerting_of(house)
    await alerting.evaluate(now=0)
    assert await told(house) == []
    await house.publish(queue, numbered(1))
    await alerting.evaluate(now=10)
    (one,) = await told(house)
    assert (one["when"], one["group"]) == (when, group)


@pytest.mark.parametrize(
    "alert",
    [
        {"queue": None},
        {"queue": "orders"},
        {"name": "-"},
        {"group": "no group!"},
    ],
)
async def test_what_cannot_be_meant_is_refused(house: House, alert: dict[str, Any]) -> None:
    with pytest.raises(Refused, match=r"alert|name"):
        await watched(house, **alert)


def test_settings_say_what_an_alert_may_be() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"alerts": [{"name": "a", "when": "mood", "above": 1}]}, QueueSettings)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(
            {"alerts": [{"name": f"a{n}", "when": "lag", "above": 1} for n in range(17)]},
            QueueSettings,
        )
