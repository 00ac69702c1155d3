"""The table of alerts: the summary, meaning and remedy of each, and the data that make it fire."""

from typing import Final

from scripts.monitoring.rules import GROUP, ONE, Alert, buckets, counted, of_group, of_one

JOB: Final = '{job=~"tocsin.*"}'

PROCESSES: Final = (
    Alert("TocsinProcessDown", f"up{JOB} == 0", "1m", "critical",
          "A process of Tocsin does not answer Prometheus.",
          "It has ended, hangs, is cut off, or refuses the scrape's token. `up` does not say "
          "which.",
          "Look at the unit and its log. If a gateway is down, its clients reconnect, and after "
          "10 s other gateways take over what its consumers held. Exit code 70 means that its "
          "store or catalog is not the one it knew (exchanged, emptied, rolled back), or that a "
          "write to it failed: read the last line of the log before you start it again.",
          of_one("up", 0), of_one("up", 1), ONE),
    Alert("TocsinNotReady", "tocsin_ready == 0", "2m", "warning",
          "A process is not ready, and balancers send it no new clients.",
          "It cannot reach its storage, its catalog or the other gateways, or it is shutting "
          "down.",
          "`curl …/readyz` gives each reason in a sentence.",
          of_one("tocsin_ready", 0), of_one("tocsin_ready", 1), ONE),
    Alert("TocsinAlone", "tocsin_alone == 1", "30s", "critical",
          "A gateway is cut off from the others and delivers nothing.",
          "For 5 s it could not report that it is alive, so other gateways may own its "
          "partitions.",
          "Find out whether no gateway reaches the storage, or this one only. In the second case "
          "stop it: its clients then reconnect elsewhere at once.",
          of_one("tocsin_alone", 1), of_one("tocsin_alone", 0), ONE),
    Alert("TocsinLoopLate", "tocsin:loop_lag_seconds:p99 > 0.1", "5m", "warning",
          "The event loop of a process is more than 100 ms late.",
          "The process has more work than one core can do, or the machine has no core for it.",
          "Compare `process_cpu_seconds_total` with one core. Add a gateway and let the balancer "
          "spread the clients, or find the heavy user in `tocsin admin usage`.",
          buckets("tocsin_loop_lag_seconds", "0.5", instance="a"),
          buckets("tocsin_loop_lag_seconds", "0.01", instance="a"), ONE),
    Alert("TocsinFilesNearlyOut", "process_open_fds / process_max_fds > 0.9", "5m", "warning",
          "A process has nearly as many open files as it may have.",
          "Each session is an open file. Further ones are refused.",
          "Raise `LimitNOFILE` of the unit, or add a gateway.",
          of_one("process_open_fds", 95) | of_one("process_max_fds", 100),
          of_one("process_open_fds", 50) | of_one("process_max_fds", 100), ONE),
    Alert("TocsinSessionsNearlyFull",
          'tocsin_sessions{state="connected"} / on (job, instance) group_left () '
          "tocsin_sessions_max > 0.9", "5m", "warning",
          "A gateway has nearly as many sessions as it accepts.",
          "Further clients receive `overloaded` and come back later.",
          "Add a gateway.",
          of_one("tocsin_sessions", 95, state="connected") | of_one("tocsin_sessions_max", 100),
          of_one("tocsin_sessions", 50, state="connected") | of_one("tocsin_sessions_max", 100),
          ONE | {"state": "connected"}),
    Alert("TocsinClockJumped", "tocsin_scheduled_stopped == 1", "0m", "warning",
          "A gateway moves no scheduled messages, because its clock has jumped.",
          "The wall clock was set ahead or back by more than a minute. For 5 minutes the gateway "
          "does not trust it, so that nothing is delivered long before its time. All else goes on.",
          "Look whether the clock of that machine is right now. If it is, `tocsin scheduled "
          "believe-clock` at that gateway goes on at once. If it is not, set it right.",
          of_one("tocsin_scheduled_stopped", 1), of_one("tocsin_scheduled_stopped", 0), ONE),
    Alert("TocsinInternalErrors", 'increase(tocsin_refusals_total{code="internal"}[10m]) > 0', "0m",
          "critical", "A request was answered `internal`: a bug of Tocsin.",
          "No client can cause this answer.",
          "The log has a traceback for each. Please report it.",
          counted("tocsin_refusals_total", 1, code="internal"),
          counted("tocsin_refusals_total", 0, code="internal"), ONE | {"code": "internal"}),
    Alert("TocsinOverloaded",
          'sum by (job, instance) (rate(tocsin_refusals_total'
          '{code=~"overloaded|storage_unavailable"}[5m])) > 1', "5m", "warning",
          "A gateway refuses work because it or its storage has too much to do.",
          "Clients wait and retry. Their latency grows.",
          "Look at the panel of commits. If they are slow, it is the storage; if they are large, "
          "it is more load than the gateway can take.",
          counted("tocsin_refusals_total", 100, code="overloaded"),
          counted("tocsin_refusals_total", 0, code="overloaded"), ONE),
)  # fmt: skip

STORAGE: Final = (
    Alert("TocsinPublishingStopped",
          "tocsin_storage_publishable == 0 or tocsin_storage_writable == 0", "1m", "critical",
          "Nothing can be published through a gateway.",
          "The disk or the store's memory is below its reserve, or the storage is unreachable. "
          "Stored messages are still delivered if the storage answers at all.",
          "`tocsin admin status` says which. On one machine, [make room on the "
          "disk](../../docs/operations/running.md#when-the-disk-is-full); the store's file does "
          "not become smaller. In Redis or Valkey, let consumers catch up, shorten `retention_s`, "
          "purge, or enlarge the store.",
          of_one("tocsin_storage_publishable", 0), of_one("tocsin_storage_publishable", 1), ONE),
    # Half open is the state when the storage works again and nobody publishes there.
    Alert("TocsinBreakerOpen",
          "min_over_time(tocsin_breaker_open[1m]) > 0 and "
          "max_over_time(tocsin_breaker_open[5m]) == 1", "0m", "critical",
          "Commits of a lane fail one after another; publishing there is refused.",
          "A lane is one durability level at one server. If a level is not met, only its own lane"
          " stops.",
          "`tocsin admin status` names what the storage waits for. `tocsin admin clusters` shows "
          "the replicas.",
          of_one("tocsin_breaker_open", 1, lane="2"), of_one("tocsin_breaker_open", 0.5, lane="2"),
          ONE | {"lane": "2"}),
    Alert("TocsinUnknownOutcomes",
          "sum by (job, instance) (increase(tocsin_commit_unknown_messages_total[10m])) > 0", "0m",
          "warning",
          "Publishers got the answer `unknown`: their messages may or may not be stored.",
          "The storage did not answer within the deadline of a commit. Clients send again under "
          "the same sequence or id, and nothing is stored twice.",
          "Examine the storage at that time: a failover, a slow disk, a frozen server.",
          counted("tocsin_commit_unknown_messages_total", 5, lane="0"),
          counted("tocsin_commit_unknown_messages_total", 0, lane="0"), ONE),
    Alert("TocsinCommitsSlow", "tocsin:commit_seconds:p99 > 0.5", "5m", "warning",
          "Commits take more than half a second.",
          "Every publish waits for a commit.",
          "The next two alerts show whether fsync or the copies are slow. Otherwise look at the "
          "store's CPU.",
          buckets("tocsin_commit_seconds", "2.5", instance="a", lane="0"),
          buckets("tocsin_commit_seconds", "0.05", instance="a", lane="0"), ONE),
    Alert("TocsinFsyncSlow", "tocsin:fsync_seconds:p99 > 0.1", "10m", "warning",
          "The disk of an embedded store takes more than 100 ms to fsync.",
          "Other programs use it, it is failing, or it is a network disk.",
          "Look at `iostat -x`. Move the data folder to a disk of its own.",
          buckets("tocsin_storage_fsync_seconds", "0.5", instance="a"),
          buckets("tocsin_storage_fsync_seconds", "0.01", instance="a"), ONE),
    Alert("TocsinCopiesSlow", 'tocsin:copies_seconds:p99{level!="local"} > 0.25', "10m", "warning",
          "Replicas take more than 250 ms to confirm.",
          "WAIT counts replicas that have synced to disk (`appendfsync always`), so the slowest "
          "one decides at `all`.",
          "`tocsin admin clusters` shows how far each one is behind.",
          buckets("tocsin_storage_copies_seconds", "1.0", instance="a", server="s", level="all"),
          buckets("tocsin_storage_copies_seconds", "0.01", instance="a", server="s", level="all"),
          {"server": "s", "level": "all"}),
    Alert("TocsinDiskNearlyFull", "tocsin_storage_free_bytes < 2e9", "5m", "warning",
          "The disk of an embedded store has less than 2 GB left.",
          "Below `TOCSIN_FREE_BYTES_RESERVE` publishing stops.",
          "[Make room](../../docs/operations/running.md#when-the-disk-is-full) before that.",
          of_one("tocsin_storage_free_bytes", 1e9), of_one("tocsin_storage_free_bytes", 1e11), ONE),
    Alert("TocsinDamage", "increase(tocsin_storage_damage_reports_total[1h]) > 0", "0m", "critical",
          "The store has found damaged rows and quarantined them.",
          "A disk or memory has flipped bits. The damaged messages are lost; the log names them.",
          "Run `tocsin admin verify` on a backup, replace the disk, and restore where it matters.",
          counted("tocsin_storage_damage_reports_total", 1),
          counted("tocsin_storage_damage_reports_total", 0), ONE),
    Alert("TocsinDeliveryLogIncomplete",
          "increase(tocsin_delivery_log_unlogged_spans_total[10m]) > 0", "0m", "warning",
          "The delivery log has a gap: reports over this time lack messages.",
          "Its disk is full or too slow. Publishing and delivery continue. The log itself says "
          "how many messages are missing.",
          "Make room, lower `TOCSIN_DELIVERY_LOG_BYTES_MAX`, or switch it off "
          "(`TOCSIN_DELIVERY_LOG=no`).",
          counted("tocsin_delivery_log_unlogged_spans_total", 1),
          counted("tocsin_delivery_log_unlogged_spans_total", 0), ONE),
    Alert("TocsinMetadataAway", "tocsin_metadata_age_seconds > 30", "1m", "warning",
          "A gateway has received no news of its catalog for half a minute.",
          "Known queues continue. Nothing is created or changed, and revocations elsewhere are "
          "unknown here. After an hour API tokens admit nobody.",
          "Look at the metadata service (`tocsin metadata status`), or at the first storage "
          "cluster.",
          of_one("tocsin_metadata_age_seconds", 90), of_one("tocsin_metadata_age_seconds", 0.4),
          ONE),
)  # fmt: skip

QUEUES: Final = (
    Alert("TocsinDispatchSlow", "tocsin:dispatch_seconds:p99 > 1", "10m", "warning",
          "Messages wait for more than a second between certified and dispatched.",
          "Consumers have no open credit, are behind, or are too few.",
          "`tocsin group show QUEUE GROUP` says what each partition waits for. [When consumers "
          "fall behind](../../docs/operations/queues.md#when-consumers-fall-behind) says what to "
          "do about each. The dashboard of a queue shows the rest.",
          buckets("tocsin_group_dispatch_seconds", "10.0", instance="a", queue="orders"),
          buckets("tocsin_group_dispatch_seconds", "0.01", instance="a", queue="orders"), {}),
    Alert("TocsinGroupBehind", "tocsin:group_oldest_age_seconds:max > 600", "5m", "warning",
          "The oldest unsettled message of a group is more than ten minutes old.",
          "Its consumers are too slow, a key is stuck, or it has no consumers.",
          "`tocsin queue peek QUEUE --group GROUP` shows what the oldest messages wait for, and "
          "`tocsin group show QUEUE GROUP` what each partition waits for. [When consumers fall "
          "behind](../../docs/operations/queues.md#when-consumers-fall-behind) says what to do "
          "about each: more handlers or consumers, fewer messages, or the end of a key that fails.",
          of_group("tocsin_group_oldest_age_seconds", 900),
          of_group("tocsin_group_oldest_age_seconds", 5), GROUP),
    Alert("TocsinGroupWithoutConsumers",
          "tocsin:group_lag_messages:max > 0 and on (job, tenant, queue, group) "
          "tocsin:group_consumers:sum == 0", "10m", "warning",
          "Messages wait for a group without consumers.",
          "No consumer is connected to any gateway. (Pulls do not count between two of them.)",
          "Start its consumers. If nobody needs the group, delete it (`tocsin group delete`), "
          "because messages are kept for it.",
          of_group("tocsin_group_lag_messages", 3) | of_group("tocsin_group_consumers", 0),
          of_group("tocsin_group_lag_messages", 3) | of_group("tocsin_group_consumers", 0)
          | of_group("tocsin_group_consumers", 1, "b"), GROUP),
    Alert("TocsinDeadLetters",
          "sum by (job, tenant, queue, group) "
          '(increase(tocsin_group_messages_total{event="dead_lettered"}[15m])) > 0',
          "0m", "warning",
          "Messages of a group have become dead letters.",
          "Every attempt failed, they expired, or the queue overflowed.",
          "`tocsin dead-letters list QUEUE` gives the reason; `redrive` sends them back. [Before "
          "you redrive](../../docs/operations/queues.md#repair), read who gets them.",
          counted("tocsin_group_messages_total", 1, event="dead_lettered", **GROUP),
          counted("tocsin_group_messages_total", 0, event="dead_lettered", **GROUP), GROUP),
    Alert("TocsinKeysParked", "tocsin:group_parked_keys:max > 0", "10m", "warning",
          "Keys of a group are parked and wait for a decision.",
          "The first message of each has used all its attempts, and the group says `park`.",
          "Run `tocsin admin park list QUEUE GROUP`, then retry, skip or release.",
          of_group("tocsin_group_parked_keys", 1), of_group("tocsin_group_parked_keys", 0), GROUP),
    Alert("TocsinPartitionsMove",
          "max by (job, tenant, queue, group) (increase(tocsin_group_epochs_total[10m])) > 500",
          "10m", "warning", "The partitions of a group change their owners all the time.",
          "Consumers or gateways come and go: a crash loop, or a balancer that cuts sockets.",
          "`tocsin admin audit --since 1h` and the logs of the gateways say who came and went.",
          counted("tocsin_group_epochs_total", 20, **GROUP),
          counted("tocsin_group_epochs_total", 0, **GROUP), GROUP),
    Alert("TocsinScrapeIncomplete", "tocsin_scrape_unread_queues > 0", "5m", "warning",
          "Metrics of some queues are missing because the storage is too slow.",
          "Four seconds were not enough. Alerts about these queues do not fire.",
          "Look at the alerts of the storage, or lower `TOCSIN_METRICS_QUEUES_MAX`.",
          of_one("tocsin_scrape_unread_queues", 3), of_one("tocsin_scrape_unread_queues", 0), ONE),
)  # fmt: skip

SERVICES: Final = (
    Alert("TocsinNodeBehind", "tocsin_node_read_age_seconds > 2", "1m", "warning",
          "A node of the metadata service does not read its database.",
          "It answers nobody. Gateways use the other nodes.",
          "Find out whether the database (the first storage cluster) answers it.",
          of_one("tocsin_node_read_age_seconds", 30), of_one("tocsin_node_read_age_seconds", 0.2),
          ONE),
    Alert("TocsinNobodyManages", "max by (job) (tocsin_manager_leads) == 0", "1m", "critical",
          "No manager leads: a lost replica is not taken out.",
          "No manager reaches the catalog's database, or all lost it at once.",
          "The logs of the managers say why. Until then publishing at `all` waits for every "
          "replica.",
          of_one("tocsin_manager_leads", 0), of_one("tocsin_manager_leads", 1), {}),
    Alert("TocsinReplicaAway", 'tocsin_manager_servers{state=~"away|out"} > 0', "5m", "warning",
          "A server of a storage cluster is unreachable.",
          "After 10 s a replica is taken out: publishing no longer waits for it, and there is one"
          " copy less.",
          "Bring its server back: the manager lets it in when it has everything. For a server "
          "that will not return, run `tocsin admin forget-server`.",
          of_one("tocsin_manager_servers", 1, cluster="north", state="out"),
          of_one("tocsin_manager_servers", 2, cluster="north", state="in sync"),
          ONE | {"cluster": "north", "state": "out"}),
    Alert("TocsinDutiesFail",
          'increase(tocsin_manager_steps_total{outcome="failed"}[10m]) > 20', "5m", "warning",
          "A manager cannot do one of its duties.",
          "Its user lacks rights, or the catalog or a node of a Cluster does not answer it.",
          "Its log says why whenever the reason changes.",
          counted("tocsin_manager_steps_total", 5, duty="north", outcome="failed"),
          counted("tocsin_manager_steps_total", 5, duty="north", outcome="done"),
          ONE | {"duty": "north", "outcome": "failed"}),
    Alert("TocsinNobodyEvaluates", "max by (job) (tocsin_alerts_evaluates) == 0", "2m", "warning",
          "No gateway evaluates the alerts that holders have set.",
          "The gateways disagree about which of them are alive, or the catalog is unreachable.",
          "See TocsinAlone and TocsinMetadataAway.",
          of_one("tocsin_alerts_evaluates", 0), of_one("tocsin_alerts_evaluates", 1), {}),
    Alert("TocsinWebhooksFail",
          'increase(tocsin_alert_posts_total{outcome="failed"}[30m]) > 10', "0m", "warning",
          "Webhooks of holders' alerts do not answer.",
          "Each call is tried a few times and then given up. The alert itself remains.",
          "The log names the addresses.",
          counted("tocsin_alert_posts_total", 1, outcome="failed"),
          counted("tocsin_alert_posts_total", 0, outcome="failed"), ONE | {"outcome": "failed"}),
)  # fmt: skip

SECTIONS: Final[dict[str, tuple[Alert, ...]]] = {
    "Processes": PROCESSES,
    "Storage": STORAGE,
    "Queues": QUEUES,
    "Services beside": SERVICES,
}
ALERTS: Final = tuple(alert for alerts in SECTIONS.values() for alert in alerts)
