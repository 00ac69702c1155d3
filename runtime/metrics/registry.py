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
        "1; which process of which version it is.",
        ("process", "version", "gateway"),
        EVERY,
    ),
    Metric(
        "process_start_time_seconds", "gauge", "When the process began, in unix seconds.", of=EVERY
    ),
    Metric("process_cpu_seconds_total", "counter", "CPU time, of all threads.", of=EVERY),
    Metric("process_resident_memory_bytes", "gauge", "Resident memory.", of=EVERY),
    Metric("process_open_fds", "gauge", "Open files and sockets.", of=EVERY),
    Metric("process_max_fds", "gauge", "How many there may be.", of=EVERY),
    Metric(
        "tocsin_loop_lag_seconds",
        "histogram",
        "How late the event loop was, looked at ten times a second.",
        of=EVERY,
    ),
    Metric(
        "tocsin_ready",
        "gauge",
        "1: /readyz says yes; 0: it does not, or nobody leads.",
        of=("gateway", "metadata"),
    ),
    Metric("tocsin_scrape_seconds", "gauge", "How long this answer took to find.", of=EVERY),
)

_QUEUES: Final = (
    _queue(
        "tocsin_queue_messages_total",
        "counter",
        "Messages that were published here, by what became of them: stored, duplicate, "
        "refused, unknown.",
        "outcome",
    ),
    _queue("tocsin_queue_bytes_total", "counter", "Bytes of JSON of those that were stored."),
    _queue(
        "tocsin_queue_certify_seconds",
        "histogram",
        "From accepted to certified, of each message that was stored; of those that went in "
        "one record that of the first.",
    ),
    _queue(
        "tocsin_queue_read_messages_total",
        "counter",
        "Messages that readers here were given, once for each of them.",
    ),
    _queue(
        "tocsin_queue_read_seconds",
        "histogram",
        "From certified to handed to a reader, of what they were given as it came.",
    ),
    _queue("tocsin_queue_readers", "gauge", "Readers here."),
    _queue("tocsin_queue_depth_messages", "gauge", "Messages that are retained."),
    _queue("tocsin_queue_depth_bytes", "gauge", "Their bytes."),
    _queue(
        "tocsin_queue_oldest_age_seconds",
        "gauge",
        "Age of the oldest message that is retained; 0: there is none.",
    ),
    _queue(
        "tocsin_queue_dead_letters_messages",
        "gauge",
        "Messages in its queue for dead letters. Not of queues that share a label.",
    ),
    _queue("tocsin_queue_paused", "gauge", "How many of these queues are paused."),
    _group(
        "tocsin_group_messages_total",
        "counter",
        "What became of messages here: given, redelivered, settled, nacked, rejected (of "
        "these), expired, dead_lettered; and parked, of keys.",
        "event",
    ),
    _group(
        "tocsin_group_dispatch_seconds",
        "histogram",
        "From certified to handed to a consumer, of what was not tried before.",
    ),
    _group(
        "tocsin_group_settle_seconds",
        "histogram",
        "From handed to a consumer to settled by its ack.",
    ),
    _group("tocsin_group_lag_messages", "gauge", "Messages that are not settled."),
    _group(
        "tocsin_group_oldest_age_seconds",
        "gauge",
        "Age of the oldest message that is not settled; 0: there is none.",
    ),
    _group("tocsin_group_in_flight_messages", "gauge", "Messages that consumers here hold."),
    _group("tocsin_group_consumers", "gauge", "Consumers here."),
    _group("tocsin_group_aside_messages", "gauge", "Messages that wait in the storage, aside."),
    _group(
        "tocsin_group_held_keys",
        "gauge",
        "Keys that wait here, by cause: backoff, parked, gate (behind one in flight), commit "
        "(for the storage), ready.",
        "cause",
    ),
    _group("tocsin_group_parked_keys", "gauge", "Keys that are parked, durably."),
    _group(
        "tocsin_group_epochs_total",
        "counter",
        "The epochs of its partitions, added up: grows by one for each that gets an owner.",
    ),
)

_GATEWAY: Final = (
    Metric("tocsin_draining", "gauge", "1: this gateway is going down."),
    Metric("tocsin_alone", "gauge", "1: this gateway is cut off from the others."),
    Metric("tocsin_gateways", "gauge", "Gateways that are there, this one included."),
    Metric(
        "tocsin_sessions",
        "gauge",
        "Sessions: connected, or lingering without a transport.",
        ("state",),
    ),
    Metric("tocsin_sessions_max", "gauge", "How many may be connected."),
    Metric("tocsin_pulls_waiting", "gauge", "Pulls that wait for a message."),
    Metric("tocsin_groups_running", "gauge", "Groups that have consumers here."),
    Metric("tocsin_queues", "gauge", "Queues in the catalog, of all tenants."),
    Metric(
        "tocsin_refusals_total",
        "counter",
        "What was refused: requests, frames, single messages, by code.",
        ("code",),
    ),
    Metric(
        "tocsin_limited_total", "counter", "What limits refused, by scope and kind.", ("limit",)
    ),
    Metric("tocsin_commits_total", "counter", "Commits that have ended.", ("lane",)),
    Metric("tocsin_commit_messages", "histogram", "Messages in each commit.", ("lane",)),
    Metric(
        "tocsin_commit_seconds",
        "histogram",
        "From handing a commit to the storage to its answer, whatever that was.",
        ("lane",),
    ),
    Metric("tocsin_commits_under_way", "gauge", "Commits that have not ended.", ("lane",)),
    Metric(
        "tocsin_commits_slow_total",
        "counter",
        "Times that a commit was under way for so long that publishing was refused.",
        ("lane",),
    ),
    Metric(
        "tocsin_commit_unknown_messages_total",
        "counter",
        "Messages of which publishers were told that nobody knows whether they are stored.",
        ("lane",),
    ),
    Metric(
        "tocsin_breaker_open",
        "gauge",
        "1: publishing is refused because commits fail; 0.5: one is tried.",
        ("lane",),
    ),
    Metric("tocsin_breaker_opened_total", "counter", "Times that it has opened.", ("lane",)),
    Metric("tocsin_pending_messages", "gauge", "Messages that wait for a commit, or are in one."),
    Metric("tocsin_pending_bytes", "gauge", "Their bytes."),
    Metric("tocsin_storage_writable", "gauge", "1: the storage takes writes."),
    Metric("tocsin_storage_publishable", "gauge", "1: it has room for what is published."),
    Metric("tocsin_storage_free_bytes", "gauge", "Free bytes of the disk of an embedded store."),
    Metric(
        "tocsin_storage_waits",
        "gauge",
        "Sentences of what the storage waits for: a level that is not met, a server away.",
    ),
    Metric(
        "tocsin_storage_damage_reports_total",
        "counter",
        "Rows that were found damaged, and quarantined.",
    ),
    Metric(
        "tocsin_storage_fsync_seconds", "histogram", "COMMIT and its fsync, of an embedded store."
    ),
    Metric(
        "tocsin_storage_copies_seconds",
        "histogram",
        "A group of acts, sent, and its WAIT answered, by server and level.",
        ("server", "level"),
    ),
    Metric(
        "tocsin_fenced_writes_total",
        "counter",
        "Cursor writes that the storage refused, because somebody else owned the place.",
    ),
    Metric(
        "tocsin_stale_settlements_total",
        "counter",
        "Acks, nacks and extends of epochs that were over.",
    ),
    Metric(
        "tocsin_dead_letters_moved_total",
        "counter",
        "Messages that were moved to dead letters here.",
    ),
    Metric("tocsin_cache_hits_total", "counter", "What caches answered.", ("cache",)),
    Metric("tocsin_cache_misses_total", "counter", "What they did not.", ("cache",)),
    Metric(
        "tocsin_delivery_log_written_bytes_total",
        "counter",
        "Bytes that were written into the delivery log.",
    ),
    Metric("tocsin_delivery_log_waiting_bytes", "gauge", "Bytes that wait to be."),
    Metric("tocsin_delivery_log_failing", "gauge", "1: it cannot be written."),
    Metric("tocsin_delivery_log_unlogged_spans_total", "counter", "Lines that are not in it."),
    Metric(
        "tocsin_delivery_log_unlogged_messages_total",
        "counter",
        "Messages whose line is not in it, by what it would have told: certified, dispatched, "
        "settled.",
        ("kind",),
    ),
    Metric("tocsin_metadata_usable", "gauge", "1: the catalog answers as it must."),
    Metric(
        "tocsin_metadata_age_seconds",
        "gauge",
        "How old what is known here of the catalog may be: since when nobody could be asked.",
    ),
    Metric(
        "tocsin_scrape_unread_queues",
        "gauge",
        "Queues of which this answer has no depth and lag: the storage was too slow.",
    ),
    Metric(
        "tocsin_scrape_rest_age_seconds",
        "gauge",
        "How old the depth and lag of the queues are that share a label; 0: none does.",
    ),
    Metric(
        "tocsin_alerts_firing",
        "gauge",
        "Alerts of holders that fire; of this gateway, where it evaluates them.",
    ),
    Metric("tocsin_alerts_evaluates", "gauge", "1: this gateway evaluates alerts of holders."),
    Metric(
        "tocsin_alert_posts_total",
        "counter",
        "Webhooks that were called, by what came of it: told, failed, refused.",
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
        "Since when it has not read its database.",
        of=("metadata",),
    ),
    Metric("tocsin_node_peers", "gauge", "Nodes that it sees, itself included.", of=("metadata",)),
    Metric("tocsin_manager_leads", "gauge", "1: this manager leads.", of=("manager",)),
    Metric("tocsin_manager_term", "gauge", "The last term under which it led.", of=("manager",)),
    Metric(
        "tocsin_manager_steps_total",
        "counter",
        "Steps of duties, by what came of them: done, failed.",
        ("duty", "outcome"),
        ("manager",),
    ),
    Metric(
        "tocsin_manager_servers",
        "gauge",
        "Servers of a storage cluster as the leading manager sees them.",
        ("cluster", "state"),
        ("manager",),
    ),
    Metric(
        "tocsin_manager_behind_bytes",
        "gauge",
        "How far the furthest replica of a cluster is behind.",
        ("cluster",),
        ("manager",),
    ),
    Metric(
        "tocsin_manager_seen_age_seconds",
        "gauge",
        "How long ago it has looked at a cluster.",
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
