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
    when: WhatAlerts
    above: float


class Alert(_NewAlert, total=False):
    """A threshold of a queue. The broker reports when it is exceeded."""

    lasts_s: float
    group: str | None
    queue: str | None
    webhook: str | None


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
    messages_max: int
    bytes_max: int
    overflow: Overflow
    retention_s: float
    message_ttl_s: float | None
    lease_s: float
    lease_total_s: float
    attempts_max: int
    backoff_s: float
    backoff_max_s: float
    on_exhausted: OnExhausted
    dead_letter_queue: str | None
    dedup_window_s: float
    durability: Level
    publish_messages_per_s: float | None
    publish_bytes_per_s: float | None


class QueueSettings(EverySettings, total=False):
    """Settings of a new queue. A setting that is left out has its default."""

    partitions: int
    alerts: list[Alert]


class QueueChange(EverySettings, total=False):
    """Settings of a queue to change. A setting that is left out stays as it is.

    `alerts` is a list of all alerts, or a mapping by name of those that change; None removes an
    alert.
    """

    alerts: list[Alert] | Mapping[str, AlertChange | None]


class GroupSettings(TypedDict, total=False):
    """Settings of a group. None means the queue's value.

    A setting that is left out is the queue's if the group is created, and stays as it is if the
    group is changed.
    """

    semantics: Semantics
    lease_s: float | None
    lease_total_s: float | None
    attempts_max: int | None
    backoff_s: float | None
    backoff_max_s: float | None
    on_exhausted: OnExhausted | None
    expires_s: float | None
