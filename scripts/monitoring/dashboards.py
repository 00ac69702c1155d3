"""Grafana's dashboards, as JSON: one of each service for operators, one of a queue for holders."""

import json
from dataclasses import dataclass
from typing import Any, Final

WIDTH: Final = 24
PROCESSES: Final = ("job", "instance")
"""Variables that choose processes."""
ANY: Final = ".*"
SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True, slots=True)
class Panel:
    """A plot: expressions, each with the names of its lines."""

    title: str
    lines: tuple[tuple[str, str], ...]
    unit: str = "short"
    width: int = 8
    text: str = ""


@dataclass(frozen=True, slots=True)
class Dashboard:
    """A dashboard file.

    `variables` maps a name to the query of its choices. At first all are chosen. Processes are
    chosen by name, because queries use these names. Queues may be thousands, so they are chosen by
    a pattern.
    """

    uid: str
    title: str
    variables: dict[str, str]
    rows: dict[str, tuple[Panel, ...]]


def spread(name: str, by: str, where: str) -> tuple[tuple[str, str], ...]:
    """Return three percentiles of a histogram."""
    of = f"sum by ({by}) (rate({name}_bucket{{{where}}}[$__rate_interval]))"
    return tuple((f"histogram_quantile({q}, {of})", f"p{q * 100:g}") for q in (0.5, 0.99, 0.999))


def rate(name: str, by: str, where: str) -> str:
    """Return a rate per second, added up."""
    return f"sum by ({by}) (rate({name}{{{where}}}[$__rate_interval]))"


_G: Final = 'job=~"$job",instance=~"$instance"'
_J: Final = 'job=~"$job"'
_Q: Final = 'tenant=~"$tenant",queue=~"$queue"'


def _process(where: str) -> tuple[Panel, ...]:
    return (
        Panel("CPU", ((f"rate(process_cpu_seconds_total{{{where}}}[$__rate_interval])",
                       "{{instance}}"),), "percentunit"),
        Panel("Memory", ((f"process_resident_memory_bytes{{{where}}}", "{{instance}}"),), "bytes"),
        Panel("Event loop late", spread("tocsin_loop_lag_seconds", "le", where), "s"),
        Panel("Files", ((f"process_open_fds{{{where}}}", "{{instance}}"),
                        (f"process_max_fds{{{where}}}", "most of {{instance}}")), width=12),
        Panel("Ready, and since when", ((f"tocsin_ready{{{where}}}", "{{instance}}"),
              (f"time() - process_start_time_seconds{{{where}}}", "up {{instance}}")), "s", 12),
    )  # fmt: skip


GATEWAYS: Final = Dashboard(
    "tocsin-gateways", "Tocsin: gateways",
    {"job": 'label_values(tocsin_info{process="gateway"}, job)',
     "instance": 'label_values(tocsin_info{process="gateway",job=~"$job"}, instance)'},
    {
        "Messages": (
            Panel("Published", ((rate("tocsin_queue_messages_total", "outcome", _G),
                                 "{{outcome}}"),), "ops"),
            Panel("Given and settled", ((rate("tocsin_group_messages_total", "event", _G),
                                         "{{event}}"),), "ops"),
            Panel("Refused", ((rate("tocsin_refusals_total", "code", _G), "{{code}}"),
                              (rate("tocsin_limited_total", "limit", _G), "limit {{limit}}")),
                  "ops"),
            Panel("Accepted to certified",
                  spread("tocsin_queue_certify_seconds", "le", _G), "s"),
            Panel("Certified to dispatched",
                  spread("tocsin_group_dispatch_seconds", "le", _G), "s"),
            Panel("Dispatched to settled", spread("tocsin_group_settle_seconds", "le", _G), "s"),
            Panel("Given to readers", ((rate("tocsin_queue_read_messages_total", "instance", _G),
                                        "{{instance}}"),), "ops"),
            Panel("Certified to handed to readers",
                  spread("tocsin_queue_read_seconds", "le", _G), "s"),
            Panel("Readers", ((f"sum by (instance) (tocsin_queue_readers{{{_G}}})",
                               "{{instance}}"),)),
        ),
        "Queues": (
            Panel("Lag", (("topk(10, max by (tenant, queue, group) "
                           f"(tocsin_group_lag_messages{{{_J}}}))",
                           "{{queue}} {{group}}"),), "short"),
            Panel("Oldest unsettled", (("topk(10, max by (tenant, queue, group) "
                                        f"(tocsin_group_oldest_age_seconds{{{_J}}}))",
                                        "{{queue}} {{group}}"),), "s"),
            Panel("Depth", (("topk(10, max by (tenant, queue) "
                             f"(tocsin_queue_depth_messages{{{_J}}}))", "{{queue}}"),)),
            Panel("Keys that wait", ((f"sum by (cause) (tocsin_group_held_keys{{{_G}}})",
                                      "{{cause}}"),)),
            Panel("In flight", ((f"sum by (instance) (tocsin_group_in_flight_messages{{{_G}}})",
                                 "{{instance}}"),)),
            Panel("Partitions that get an owner",
                  (("sum(max by (tenant, queue, group) "
                    f"(rate(tocsin_group_epochs_total{{{_J}}}[$__rate_interval])))", "a second"),)),
        ),
        "Storage": (
            Panel("Commits", ((rate("tocsin_commits_total", "lane", _G), "lane {{lane}}"),
                              (f"sum(tocsin_commits_under_way{{{_G}}})", "under way"),
                              (rate("tocsin_commits_slow_total", "lane", _G), "slow {{lane}}")),
                  "ops"),
            Panel("Messages in a commit", spread("tocsin_commit_messages", "le", _G)),
            Panel("Records in a commit",
                  ((f"sum by (lane) (rate(tocsin_commit_records_total{{{_G}}}[$__rate_interval])) "
                    f"/ sum by (lane) (rate(tocsin_commits_total{{{_G}}}[$__rate_interval]))",
                    "lane {{lane}}"),)),
            Panel("A commit takes", spread("tocsin_commit_seconds", "le", _G), "s"),
            Panel("fsync", spread("tocsin_storage_fsync_seconds", "le", _G), "s"),
            Panel("Copies (WAIT)", (("histogram_quantile(0.99, sum by (server, level, le) (rate("
                                     f"tocsin_storage_copies_seconds_bucket{{{_G}}}"
                                     "[$__rate_interval])))", "{{server}} {{level}}"),), "s"),
            Panel("Breakers and doubt", ((f"tocsin_breaker_open{{{_G}}}",
                                          "{{instance}} lane {{lane}}"),
                  (rate("tocsin_commit_unknown_messages_total", "instance", _G),
                   "unknown {{instance}}"),
                  (rate("tocsin_breaker_opened_total", "instance", _G), "opened {{instance}}"))),
            Panel("Waiting for a commit", ((f"tocsin_pending_messages{{{_G}}}", "{{instance}}"),)),
            Panel("Waiting bytes", ((f"tocsin_pending_bytes{{{_G}}}", "{{instance}}"),), "bytes"),
            Panel("Room", ((f"tocsin_storage_free_bytes{{{_G}}}", "free {{instance}}"),), "bytes"),
            Panel("State", ((f"tocsin_storage_writable{{{_G}}}", "writable {{instance}}"),
                            (f"tocsin_storage_publishable{{{_G}}}", "publishable {{instance}}"),
                            (f"tocsin_metadata_usable{{{_G}}}", "catalog {{instance}}"),
                            (f"tocsin_metadata_age_seconds{{{_G}}}", "its age {{instance}}"),
                            (f"tocsin_storage_waits{{{_G}}}", "waits {{instance}}"),
                            (f"tocsin_storage_damage_reports_total{{{_G}}}",
                             "damage {{instance}}")), width=16),
            Panel("Delivery log", ((rate("tocsin_delivery_log_written_bytes_total", "instance", _G),
                                    "written {{instance}}"),
                  (f"tocsin_delivery_log_waiting_bytes{{{_G}}}", "waiting {{instance}}")), "bytes",
                  12),
            Panel("Not in the delivery log", (
                  (rate("tocsin_delivery_log_unlogged_spans_total", "instance", _G),
                   "lines {{instance}}"),
                  (rate("tocsin_delivery_log_unlogged_messages_total", "instance, kind", _G),
                   "{{kind}} {{instance}}"),
                  (f"tocsin_delivery_log_failing{{{_G}}}", "failing {{instance}}")), width=12),
        ),
        "Sessions and company": (
            Panel("Sessions", ((f"sum by (instance, state) (tocsin_sessions{{{_G}}})",
                                "{{instance}} {{state}}"),
                               (f"tocsin_sessions_max{{{_G}}}", "most of {{instance}}"))),
            Panel("Pulls, groups, queues", ((f"tocsin_pulls_waiting{{{_G}}}", "pulls {{instance}}"),
                  (f"tocsin_groups_running{{{_G}}}", "groups {{instance}}"),
                  (f"max(tocsin_queues{{{_J}}})", "queues"))),
            Panel("Gateways", ((f"tocsin_gateways{{{_G}}}", "seen by {{instance}}"),
                               (f"tocsin_alone{{{_G}}}", "alone {{instance}}"),
                               (f"tocsin_draining{{{_G}}}", "draining {{instance}}"))),
            Panel("Fenced and stale", ((rate("tocsin_fenced_writes_total", "instance", _G),
                                        "fenced {{instance}}"),
                  (rate("tocsin_stale_settlements_total", "instance", _G), "stale {{instance}}"),
                  (rate("tocsin_dead_letters_moved_total", "instance", _G),
                   "dead letters {{instance}}")), "ops"),
            Panel("Scheduled messages moved",
                  ((rate("tocsin_scheduled_moved_total", "instance", _G), "moved {{instance}}"),),
                  "ops"),
            Panel("Due to moved", spread("tocsin_scheduled_late_seconds", "le", _G), "s"),
            Panel("Jumps of the clock",
                  ((f"tocsin_scheduled_stopped{{{_G}}}", "stopped {{instance}}"),
                   (rate("tocsin_clock_jumps_total", "instance", _G), "jumps {{instance}}"))),
            Panel("Caches", (("sum by (cache) (rate(tocsin_cache_hits_total"
                              f"{{{_G}}}[$__rate_interval])) / (sum by (cache) "
                              f"(rate(tocsin_cache_hits_total{{{_G}}}[$__rate_interval])) + "
                              "sum by (cache) (rate(tocsin_cache_misses_total"
                              f"{{{_G}}}[$__rate_interval])))", "{{cache}}"),), "percentunit"),
            Panel("Alerts and scrapes", ((f"tocsin_alerts_firing{{{_G}}}", "firing {{instance}}"),
                  (f"tocsin_alerts_evaluates{{{_G}}}", "evaluates {{instance}}"),
                  (rate("tocsin_alert_posts_total", "outcome", _G), "posts {{outcome}}"),
                  (f"tocsin_scrape_seconds{{{_G}}}", "scrape {{instance}}"),
                  (f"tocsin_scrape_unread_queues{{{_G}}}", "unread {{instance}}"),
                  (f"tocsin_scrape_rest_age_seconds{{{_G}}}", "rest {{instance}}"))),
        ),
        "Processes": _process(_G),
    },
)  # fmt: skip

METADATA: Final = Dashboard(
    "tocsin-metadata", "Tocsin: metadata service",
    {"job": "label_values(tocsin_node_peers, job)",
     "instance": 'label_values(tocsin_node_peers{job=~"$job"}, instance)'},
    {
        "Nodes": (
            Panel("Requests", ((rate("tocsin_node_requests_total", "status", _G),
                                "{{status}}"),), "ops"),
            Panel("Has not read its database for", ((f"tocsin_node_read_age_seconds{{{_G}}}",
                                                     "{{instance}}"),), "s"),
            Panel("Sees so many nodes", ((f"tocsin_node_peers{{{_G}}}", "{{instance}}"),)),
        ),
        "Processes": _process(_G),
    },
)  # fmt: skip

MANAGERS: Final = Dashboard(
    "tocsin-managers", "Tocsin: managers",
    {"job": "label_values(tocsin_manager_leads, job)",
     "instance": 'label_values(tocsin_manager_leads{job=~"$job"}, instance)'},
    {
        "Managers": (
            Panel("Leads", ((f"tocsin_manager_leads{{{_G}}}", "{{instance}}"),
                            (f"tocsin_manager_term{{{_G}}}", "term {{instance}}"))),
            Panel("Steps of duties", ((rate("tocsin_manager_steps_total", "duty, outcome", _G),
                                       "{{duty}} {{outcome}}"),), "ops"),
            Panel("Servers", ((f"sum by (cluster, state) (tocsin_manager_servers{{{_J}}})",
                               "{{cluster}} {{state}}"),)),
            Panel("Furthest behind", ((f"tocsin_manager_behind_bytes{{{_J}}}", "{{cluster}}"),),
                  "bytes", 12),
            Panel("Looked at", ((f"tocsin_manager_seen_age_seconds{{{_J}}}", "{{cluster}}"),),
                  "s", 12),
        ),
        "Processes": _process(_G)[:4],
    },
)  # fmt: skip

QUEUE: Final = Dashboard(
    "tocsin-queue", "Tocsin: a queue",
    {"tenant": "label_values(tocsin_queue_depth_messages, tenant)",
     "queue": 'label_values(tocsin_queue_depth_messages{tenant=~"$tenant"}, queue)'},
    {
        "The queue": (
            Panel("Published", ((rate("tocsin_queue_messages_total", "outcome", _Q),
                                 "{{outcome}}"),), "ops"),
            Panel("Bytes", ((rate("tocsin_queue_bytes_total", "queue", _Q), "{{queue}}"),), "Bps"),
            Panel("Accepted to certified",
                  spread("tocsin_queue_certify_seconds", "le", _Q), "s"),
            Panel("Retained", ((f"max by (queue) (tocsin_queue_depth_messages{{{_Q}}})",
                                "messages"),
                               (f"max by (queue) (tocsin_queue_dead_letters_messages{{{_Q}}})",
                                "dead letters"),
                               (f"max by (queue) (tocsin_scheduled_messages{{{_Q}}})",
                                "scheduled"))),
            Panel("Retained bytes", ((f"max by (queue) (tocsin_queue_depth_bytes{{{_Q}}})",
                                      "{{queue}}"),), "bytes"),
            Panel("Oldest retained", ((f"max by (queue) (tocsin_queue_oldest_age_seconds{{{_Q}}})",
                                       "{{queue}}"),
                                      (f"max by (queue) (tocsin_queue_paused{{{_Q}}})", "paused")),
                  "s"),
        ),
        "Its readers": (
            Panel("Readers", ((f"sum by (queue) (tocsin_queue_readers{{{_Q}}})", "{{queue}}"),)),
            Panel("Given to readers", ((rate("tocsin_queue_read_messages_total", "queue", _Q),
                                        "{{queue}}"),), "ops"),
            Panel("Certified to handed to readers",
                  spread("tocsin_queue_read_seconds", "le", _Q), "s"),
        ),
        "Its groups": (
            Panel("Lag", ((f"max by (group) (tocsin_group_lag_messages{{{_Q}}})",
                           "{{group}}"),)),
            Panel("Oldest unsettled", (("max by (group) "
                                        f"(tocsin_group_oldest_age_seconds{{{_Q}}})",
                                        "{{group}}"),), "s"),
            Panel("What became of messages", ((rate("tocsin_group_messages_total", "group, event",
                                                    _Q), "{{group}} {{event}}"),), "ops"),
            Panel("Certified to dispatched",
                  spread("tocsin_group_dispatch_seconds", "le", _Q), "s"),
            Panel("Dispatched to settled", spread("tocsin_group_settle_seconds", "le", _Q), "s"),
            Panel("Consumers, in flight", ((f"sum by (group) (tocsin_group_consumers{{{_Q}}})",
                                            "consumers {{group}}"),
                  (f"sum by (group) (tocsin_group_in_flight_messages{{{_Q}}})",
                   "in flight {{group}}"))),
            Panel("Keys that wait", ((f"sum by (group, cause) (tocsin_group_held_keys{{{_Q}}})",
                                      "{{group}} {{cause}}"),)),
            Panel("Parked keys, messages aside",
                  ((f"max by (group) (tocsin_group_parked_keys{{{_Q}}})", "parked {{group}}"),
                   (f"max by (group) (tocsin_group_aside_messages{{{_Q}}})", "aside {{group}}"))),
            Panel("Partitions that get an owner",
                  (("max by (group) (rate(tocsin_group_epochs_total"
                    f"{{{_Q}}}[$__rate_interval]))", "{{group}}"),)),
        ),
    },
)  # fmt: skip

DASHBOARDS: Final = (GATEWAYS, METADATA, MANAGERS, QUEUE)


def encoded(dashboard: Dashboard) -> str:
    """Return the content of the file."""
    return json.dumps(document(dashboard), indent=1) + "\n"


def document(dashboard: Dashboard) -> dict[str, Any]:
    """Return the dashboard as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in dashboard.rows.items():
        panels.append(
            {"type": "row", "id": len(panels) + 1, "title": title, "collapsed": False,
             "gridPos": {"h": 1, "w": WIDTH, "x": 0, "y": y}, "panels": []}
        )  # fmt: skip
        x, y = 0, y + 1
        for panel in row:
            if x + panel.width > WIDTH:
                x, y = 0, y + 8
            place = {"h": 8, "w": panel.width, "x": x, "y": y}
            panels.append(_panel(panel, len(panels) + 1, place))
            x += panel.width
        y += 8
    return {
        "uid": dashboard.uid, "title": dashboard.title, "tags": ["tocsin"], "schemaVersion": 39,
        "editable": True, "refresh": "15s", "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser", "templating": {"list": _variables(dashboard)}, "panels": panels,
    }  # fmt: skip


def _variables(dashboard: Dashboard) -> list[dict[str, Any]]:
    source = {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Source"}
    return [
        source,
        *(
            {"name": name, "type": "query", "datasource": SOURCE, "refresh": 2, "sort": 1,
             "query": {"query": query, "refId": name}, "definition": query,
             "includeAll": True, "multi": True,
             **({} if name in PROCESSES else {"allValue": ANY})}
            for name, query in dashboard.variables.items()
        ),
    ]  # fmt: skip


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    return {
        "type": "timeseries", "id": number, "title": panel.title, "description": panel.text,
        "gridPos": place, "datasource": SOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"},
                    "tooltip": {"mode": "multi", "sort": "desc"}},
        "targets": [
            {"refId": chr(ord("A") + index), "expr": expr, "legendFormat": legend,
             "datasource": SOURCE}
            for index, (expr, legend) in enumerate(panel.lines)
        ],
    }  # fmt: skip
