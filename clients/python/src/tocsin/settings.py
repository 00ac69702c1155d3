"""Settings of queues and groups, as calls take them. Durations are in seconds."""

from collections.abc import Mapping
from typing import Literal, TypedDict

Overflow = Literal["reject", "dead_letter"]
OnExhausted = Literal["dead_letter", "park"]
Semantics = Literal["at_least_once", "at_most_once"]
WhatAlerts = Literal["lag", "oldest_age_s", "depth", "dead_letters", "parked_keys"]
Level = Literal["local", "quorum", "all"]
"""The durability that a message has when its receipt comes."""


class _NewAlert(TypedDict):
    name: str
    """The name of the alert, unique in its queue."""
    when: WhatAlerts
    """The observed value. `lag`, `oldest_age_s` and `parked_keys` are those of `group`; `depth` and
    `dead_letters` are the numbers of messages in the queue and in its dead-letter queue."""
    above: float
    """The threshold. The alert fires when the value has been above it for `lasts_s` seconds."""


class Alert(_NewAlert, total=False):
    """A threshold of a queue. The broker reports when it has been exceeded, and when that is
    over."""

    lasts_s: float
    """The time for which the value must exceed the threshold, in seconds. Default: 60."""
    group: str | None
    """The observed group. None takes the largest value of any group."""
    queue: str | None
    """The queue that receives a message when the alert fires, and when it is over."""
    webhook: str | None
    """The name of the webhook to call, as TOCSIN_ALERT_WEBHOOKS of the broker defines it."""


class AlertChange(TypedDict, total=False):
    """The changes of an alert. A new alert needs `when` and `above`."""

    when: WhatAlerts
    above: float
    lasts_s: float
    group: str | None
    queue: str | None
    webhook: str | None


class EverySettings(TypedDict, total=False):
    """Settings of a queue that can change, except its alerts."""

    message_bytes_max: int
    """The largest body of a message, in bytes. Default: 262,144; at most 1,048,576."""
    messages_max: int
    """The largest number of messages in the whole queue. Default: 0, no bound."""
    bytes_max: int
    """The largest number of bytes in the whole queue. Default: 0, no bound."""
    due_messages_max: int
    """The largest number of scheduled messages in the whole queue, beside `messages_max`. Default:
    0, no bound of its own."""
    due_bytes_max: int
    """The largest number of bytes of what is scheduled in the whole queue. Default: 0, no bound of
    its own."""
    overflow: Overflow
    """The reaction beyond `messages_max` and `bytes_max`. "reject" (default) counts all retained
    messages and refuses publishes. "dead_letter" counts the messages that each group has not
    settled and moves the oldest to the dead letters."""
    retention_s: float
    """The time after the publication of a message for which the message is kept, though every group
    has settled it, in seconds. Default: 0."""
    message_ttl_s: float | None
    """The age from which on a message is not delivered but moves to the dead letters, in seconds.
    None (default): no limit."""
    lease_s: float
    """The time for which a delivery belongs to one consumer, in seconds. Default: 30."""
    lease_total_s: float
    """The longest time for which a delivery belongs to one consumer with all extends, in seconds.
    Default: 3,600."""
    attempts_max: int
    """The number of attempts after which a message is exhausted. Default: 5; 0 means no end."""
    backoff_s: float
    """The pause before the second attempt, in seconds; doubles with each attempt, up to
    `backoff_max_s`, with jitter. Default: 1."""
    backoff_max_s: float
    """The longest pause between attempts, in seconds. Default: 60."""
    on_exhausted: OnExhausted
    """The fate of an exhausted message: "dead_letter" (default), or "park", which lets its key wait
    for an operator."""
    dead_letter_queue: str | None
    """The queue that takes dead letters. None (default): `<queue>.dead-letters`, created when
    needed."""
    dedup_window_s: float
    """The time for which ids of messages are remembered, in seconds. Default: 300."""
    durability: Level
    """The durability of a message when its receipt comes. Default: "all"."""
    publish_messages_per_s: float | None
    """The limit of all publishers together, in messages per second. None (default): that of the
    broker."""
    publish_bytes_per_s: float | None
    """The limit of all publishers together, in bytes per second. None (default): that of the
    broker."""


class QueueSettings(EverySettings, total=False):
    """Settings of a new queue. A setting that is left out has its default."""

    partitions: int
    """The number of ordered logs, fixed at creation. Consumers of a group share them. Default:
    16."""
    alerts: list[Alert]
    """The thresholds of the queue, up to 16. Default: none."""


class QueueChange(EverySettings, total=False):
    """Settings of a queue to change. A setting that is left out stays as it is.

    `alerts` is a list of all alerts, or a mapping by name of those that change; None removes an
    alert.
    """

    alerts: list[Alert] | Mapping[str, AlertChange | None]


class GroupSettings(TypedDict, total=False):
    """Settings of a group. None means the queue's value, except in `expires_s`.

    A setting that is left out is the queue's if the group is created, and stays as it is if the
    group is changed.
    """

    semantics: Semantics
    """The moment of settling: "at_least_once" (default) when a message is acked, "at_most_once"
    before it is delivered."""
    lease_s: float | None
    """The time for which a delivery belongs to one consumer, in seconds."""
    lease_total_s: float | None
    """The longest time for which a delivery belongs to one consumer with all extends, in
    seconds."""
    attempts_max: int | None
    """The number of attempts after which a message is exhausted; 0 means no end."""
    backoff_s: float | None
    """The pause before the second attempt, in seconds; doubles with each attempt, up to
    `backoff_max_s`, with jitter."""
    backoff_max_s: float | None
    """The longest pause between attempts, in seconds."""
    on_exhausted: OnExhausted | None
    """The fate of an exhausted message: "dead_letter", or "park", which lets its key wait for an
    operator."""
    expires_s: float | None
    """The time without a consumer after which the group is deleted, in seconds. None (default):
    never."""
