"""The table of all metrics. Pure.

Names follow Prometheus: units in the name, in base units, counters end in `_total`. Metrics of a
queue have the labels `tenant` and `queue`, those of a group also `group`. One label value is used
for all queues or groups that have none of their own (`gateway.operator.metrics`).
"""

from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["counter", "gauge", "histogram"]
Process = Literal["gateway", "metadata", "manager"]
EVERY: Final[tuple[Process, ...]] = ("gateway", "metadata", "manager")


@dataclass(frozen=True, slots=True)
class Metric:
    """A line of the table."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    of: tuple[Process, ...] = ("gateway",)
    """The processes that have it."""
    is_for_holders: bool = False
    """Whether `GET /v1/queues/{queue}/metrics` has it, too."""


def _queue(name: str, kind: Kind, text: str, *labels: str) -> Metric:
    return Metric(name, kind, text, ("tenant", "queue", *labels), is_for_holders=True)


def _group(name: str, kind: Kind, text: str, *labels: str) -> Metric:
    return _queue(name, kind, text, "group", *labels)


_PROCESS: Final = (
    Metric(
        "tocsin_info",
        "gauge",
        "Always 1; the labels name the process and its version.",
        ("process", "version", "gateway"),
        EVERY,
    ),
    Metric(
        "process_start_time_seconds", "gauge", "Start of the process, in unix seconds.", of=EVERY
    ),
    Metric("process_cpu_seconds_total", "counter", "CPU time of all threads.", of=EVERY),
    Metric("process_resident_memory_bytes", "gauge", "Resident memory.", of=EVERY),
    Metric("process_open_fds", "gauge", "Open files and sockets.", of=EVERY),
    Metric("process_max_fds", "gauge", "Limit of open files and sockets.", of=EVERY),
    Metric(
        "tocsin_loop_lag_seconds",
        "histogram",
        "Delay of the event loop, measured ten times a second.",
        of=EVERY,
    ),
    Metric(
        "tocsin_ready",
        "gauge",
        "1 if /readyz answers 200; 0 if it does not.",
        of=("gateway", "metadata"),
    ),
    Metric("tocsin_scrape_seconds", "gauge", "Time that this scrape took.", of=EVERY),
)

_QUEUES: Final = (
    _queue(
        "tocsin_queue_messages_total",
        "counter",
        "Messages published at this gateway, by outcome: stored, duplicate, refused, unknown.",
        "outcome",
    ),
    _queue(
        "tocsin_queue_bytes_total",
        "counter",
        "Bytes of JSON of the messages published and stored at this gateway.",
    ),
    _queue(
        "tocsin_queue_certify_seconds",
        "histogram",
        "Time from accepted to certified, of each stored message. Messages of one record have the "
        "time of its first message.",
    ),
    _queue(
        "tocsin_queue_read_messages_total",
        "counter",
        "Messages given to readers of this gateway, counted once for each reader.",
    ),
    _queue(
        "tocsin_queue_read_seconds",
        "histogram",
        "Time from certified to given to a reader, of messages that readers got at the tail.",
    ),
    _queue("tocsin_queue_readers", "gauge", "Readers at this gateway."),
    _queue("tocsin_queue_depth_messages", "gauge", "Retained messages."),
    _queue("tocsin_queue_depth_bytes", "gauge", "Bytes of the retained messages."),
    _queue(
        "tocsin_queue_oldest_age_seconds",
        "gauge",
        "Age of the oldest retained message; 0 if there is none.",
    ),
    _queue(
        "tocsin_queue_dead_letters_messages",
        "gauge",
        "Messages in its queue of dead letters. Queues that share a label have no such figure.",
    ),
    _queue("tocsin_queue_paused", "gauge", "Number of paused queues with this label."),
    _queue(
        "tocsin_scheduled_messages",
        "gauge",
        "Scheduled messages, which wait until they are due. The depth does not have them.",
    ),
    _group(
        "tocsin_group_messages_total",
        "counter",
        "Messages at this gateway by event: given, redelivered, settled, nacked, rejected (a part "
        "of nacked), expired, dead_lettered. The event parked counts keys.",
        "event",
    ),
    _group(
        "tocsin_group_dispatch_seconds",
        "histogram",
        "Time from certified to given to a consumer, of first attempts.",
    ),
    _group(
        "tocsin_group_settle_seconds",
        "histogram",
        "Time from given to a consumer to settled by its ack.",
    ),
    _group("tocsin_group_lag_messages", "gauge", "Messages that the group has not settled."),
    _group(
        "tocsin_group_oldest_age_seconds",
        "gauge",
        "Age of the oldest message that the group has not settled; 0 if there is none.",
    ),
    _group(
        "tocsin_group_in_flight_messages",
        "gauge",
        "Messages in flight to consumers of this gateway.",
    ),
    _group("tocsin_group_consumers", "gauge", "Consumers at this gateway."),
    _group(
        "tocsin_group_aside_messages",
        "gauge",
        "Messages that wait in side lines, in the storage.",
    ),
    _group(
        "tocsin_group_held_keys",
        "gauge",
        "Keys that wait at this gateway, by cause: backoff, parked, gate (behind a message in "
        "flight), commit (for the storage), ready.",
        "cause",
    ),
    _group("tocsin_group_parked_keys", "gauge", "Parked keys."),
    _group(
        "tocsin_group_epochs_total",
        "counter",
        "Sum of the epochs of its partitions. It grows by one when a partition gets an owner.",
    ),
)

_GATEWAY: Final = (
    Metric("tocsin_draining", "gauge", "1 if this gateway is going down."),
    Metric("tocsin_alone", "gauge", "1 if this gateway is cut off from the others."),
    Metric("tocsin_gateways", "gauge", "Living gateways, this one included."),
    Metric(
        "tocsin_sessions",
        "gauge",
        "Sessions by state: connected, or lingering without a transport.",
        ("state",),
    ),
    Metric("tocsin_sessions_max", "gauge", "Limit of connected sessions."),
    Metric("tocsin_pulls_waiting", "gauge", "Pulls that wait for a message."),
    Metric("tocsin_groups_running", "gauge", "Groups with consumers at this gateway."),
    Metric("tocsin_queues", "gauge", "Queues in the catalog, of all tenants."),
    Metric(
        "tocsin_refusals_total",
        "counter",
        "Refused requests, frames and single messages, by code.",
        ("code",),
    ),
    Metric("tocsin_limited_total", "counter", "Refusals by limits, by scope and kind.", ("limit",)),
    Metric("tocsin_commits_total", "counter", "Commits that have ended.", ("lane",)),
    Metric("tocsin_commit_messages", "histogram", "Messages in each commit.", ("lane",)),
    Metric(
        "tocsin_commit_records_total",
        "counter",
        "Records in all commits that have ended. A commit has one for each partition, or a few if "
        "they are large.",
        ("lane",),
    ),
    Metric(
        "tocsin_commit_seconds",
        "histogram",
        "Time from handing a commit to the storage to its answer, whatever the answer was.",
        ("lane",),
    ),
    Metric("tocsin_commits_under_way", "gauge", "Commits under way.", ("lane",)),
    Metric(
        "tocsin_commits_slow_total",
        "counter",
        "Number of times that publishing was refused because a commit took too long.",
        ("lane",),
    ),
    Metric(
        "tocsin_commit_unknown_messages_total",
        "counter",
        "Messages that were answered `unknown`, because they may be stored or not.",
        ("lane",),
    ),
    Metric(
        "tocsin_breaker_open",
        "gauge",
        "1 if publishing is refused because commits fail; 0.5 while one commit is tried.",
        ("lane",),
    ),
    Metric(
        "tocsin_breaker_opened_total",
        "counter",
        "Number of times that the breaker has opened.",
        ("lane",),
    ),
    Metric("tocsin_pending_messages", "gauge", "Messages that wait for a commit, or are in one."),
    Metric(
        "tocsin_pending_bytes", "gauge", "Bytes of messages that wait for a commit, or are in one."
    ),
    Metric("tocsin_storage_writable", "gauge", "1 if the storage takes writes."),
    Metric("tocsin_storage_publishable", "gauge", "1 if the storage has room for messages."),
    Metric("tocsin_storage_free_bytes", "gauge", "Free bytes of the disk of an embedded store."),
    Metric(
        "tocsin_storage_waits",
        "gauge",
        "Number of reasons for which the storage waits, such as a durability level that is not "
        "met, or a server that does not answer.",
    ),
    Metric(
        "tocsin_storage_damage_reports_total",
        "counter",
        "Rows that were found damaged and were quarantined.",
    ),
    Metric(
        "tocsin_storage_fsync_seconds",
        "histogram",
        "Time of a COMMIT with its fsync, of an embedded store.",
    ),
    Metric(
        "tocsin_storage_copies_seconds",
        "histogram",
        "Time from sending a group of acts to the answer of its WAIT, by server and level.",
        ("server", "level"),
    ),
    Metric(
        "tocsin_fenced_writes_total",
        "counter",
        "Cursor writes that the storage refused, because the partition had another owner.",
    ),
    Metric(
        "tocsin_stale_settlements_total",
        "counter",
        "Acks, nacks and extends of epochs that had ended.",
    ),
    Metric(
        "tocsin_dead_letters_moved_total",
        "counter",
        "Messages that this gateway moved to dead letters.",
    ),
    Metric(
        "tocsin_scheduled_moved_total",
        "counter",
        "Scheduled messages that were due, and that this gateway moved into the log.",
    ),
    Metric(
        "tocsin_scheduled_late_seconds",
        "histogram",
        "Time from when a message was due to when this gateway had moved it into the log.",
    ),
    Metric(
        "tocsin_scheduled_stopped",
        "gauge",
        "1 if this gateway moves no scheduled messages, because its clock has jumped.",
    ),
    Metric(
        "tocsin_clock_jumps_total",
        "counter",
        "Number of times that the wall clock of this gateway was set ahead or back by more than a "
        "minute.",
    ),
    Metric("tocsin_cache_hits_total", "counter", "Look-ups that a cache answered.", ("cache",)),
    Metric(
        "tocsin_cache_misses_total", "counter", "Look-ups that a cache did not answer.", ("cache",)
    ),
    Metric(
        "tocsin_delivery_log_written_bytes_total",
        "counter",
        "Bytes written to the delivery log.",
    ),
    Metric(
        "tocsin_delivery_log_waiting_bytes",
        "gauge",
        "Bytes that wait to be written to the delivery log.",
    ),
    Metric("tocsin_delivery_log_failing", "gauge", "1 if the delivery log cannot be written."),
    Metric(
        "tocsin_delivery_log_unlogged_spans_total",
        "counter",
        "Lines that are missing in the delivery log.",
    ),
    Metric(
        "tocsin_delivery_log_unlogged_messages_total",
        "counter",
        "Messages whose line is missing in the delivery log, by kind of line: certified, "
        "dispatched, settled.",
        ("kind",),
    ),
    Metric("tocsin_metadata_usable", "gauge", "1 if the catalog answers."),
    Metric(
        "tocsin_metadata_age_seconds",
        "gauge",
        "Largest age of this gateway's knowledge of the catalog: the time since the catalog "
        "answered last.",
    ),
    Metric(
        "tocsin_scrape_unread_queues",
        "gauge",
        "Queues without depth and lag in this scrape, because the storage was too slow.",
    ),
    Metric(
        "tocsin_scrape_rest_age_seconds",
        "gauge",
        "Age of the depth and lag of queues that share a label; 0 if there are none.",
    ),
    Metric(
        "tocsin_alerts_firing",
        "gauge",
        "Firing alerts of queues whose alerts this gateway evaluates.",
    ),
    Metric("tocsin_alerts_evaluates", "gauge", "1 if this gateway evaluates alerts of queues."),
    Metric(
        "tocsin_alert_posts_total",
        "counter",
        "Calls of webhooks by outcome: `told` (the webhook took it), `failed`, `refused` (no such "
        "webhook).",
        ("outcome",),
    ),
)

_OTHERS: Final = (
    Metric(
        "tocsin_node_requests_total",
        "counter",
        "Requests to this node of the metadata service, by status: 2xx, 4xx, 5xx.",
        ("status",),
        ("metadata",),
    ),
    Metric(
        "tocsin_node_read_age_seconds",
        "gauge",
        "Time since this node read its database last.",
        of=("metadata",),
    ),
    Metric(
        "tocsin_node_peers",
        "gauge",
        "Nodes that this node sees, itself included.",
        of=("metadata",),
    ),
    Metric("tocsin_manager_leads", "gauge", "1 if this manager leads.", of=("manager",)),
    Metric(
        "tocsin_manager_term", "gauge", "The last term in which this manager led.", of=("manager",)
    ),
    Metric(
        "tocsin_manager_steps_total",
        "counter",
        "Steps of duties by outcome: done, failed.",
        ("duty", "outcome"),
        ("manager",),
    ),
    Metric(
        "tocsin_manager_servers",
        "gauge",
        "Servers of a storage cluster by state, as the leading manager sees them.",
        ("cluster", "state"),
        ("manager",),
    ),
    Metric(
        "tocsin_manager_behind_bytes",
        "gauge",
        "Bytes by which the slowest replica of a storage cluster is behind.",
        ("cluster",),
        ("manager",),
    ),
    Metric(
        "tocsin_manager_seen_age_seconds",
        "gauge",
        "Time since this manager looked at a storage cluster last.",
        ("cluster",),
        ("manager",),
    ),
)

METRICS: Final[dict[str, Metric]] = {
    one.name: one for one in (*_PROCESS, *_QUEUES, *_GATEWAY, *_OTHERS)
}
"""Metrics by name, in the order in which they are shown."""
EVENTS: Final = {
    "published": "stored",
    "duplicates": "duplicate",
    "refused": "refused",
    "unknown": "unknown",
}
"""Counters of a queue → values of `outcome`."""
EXPOSED: Final = {"counter": ("",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
"""Suffixes of a metric's series, by its kind."""


def series() -> dict[str, Metric]:
    """Return the metrics by the name of each series that Prometheus has of them."""
    return {one.name + tail: one for one in METRICS.values() for tail in EXPOSED[one.kind]}
