"""The settings of what a broker tells of itself: its books, its delivery log, metrics, alerts and
traces."""

from typing import Final

from gateway.setting import Setting
from gateway.setting_values import (
    parse_host,
    parse_journal_bytes,
    parse_label_count,
    parse_port,
    parse_seconds,
    parse_switch,
    parse_token,
    parse_webhooks,
)
from push import limits

WATCHING: Final = (
    Setting(
        "usage",
        parse_switch,
        "one of 1, true, yes, 0, false, no",
        "Write down, minute by minute, what each principal uses of each queue. [yes]",
        is_flag=True,
    ),
    Setting(
        "usage_bytes_max",
        parse_journal_bytes,
        "a whole number of bytes, at least 65536",
        "What the usage files take at most; the oldest go. [268435456]",
    ),
    Setting(
        "audit_bytes_max",
        parse_journal_bytes,
        "a whole number of bytes, at least 65536",
        "What the audit trail takes at most; its oldest files go. [1073741824]",
    ),
    Setting(
        "delivery_log",
        parse_switch,
        "one of 1, true, yes, 0, false, no",
        "Write down what was certified, given out and settled, and when. [yes]",
        is_flag=True,
    ),
    Setting(
        "delivery_log_bytes_max",
        parse_journal_bytes,
        "a whole number of bytes, at least 65536",
        "What the delivery log takes at most; its oldest files go. [1073741824]",
    ),
    Setting(
        "delivery_log_age_s",
        parse_seconds(60, 31_622_400),
        "seconds from 60 to 31622400",
        "How old a file of the delivery log becomes before it goes. [604800]",
    ),
    Setting(
        "delivery_log_file_bytes",
        parse_journal_bytes,
        "a whole number of bytes, at least 65536",
        "A file of the delivery log that has so many bytes is finished. [67108864]",
    ),
    Setting(
        "delivery_log_file_s",
        parse_seconds(1, 3600),
        "seconds from 1 to 3600",
        "A file of the delivery log that is so old is finished. [60]",
    ),
    Setting(
        "otel",
        parse_switch,
        "one of 1, true, yes, 0, false, no",
        "Hand spans to OpenTelemetry for requests that come with a traceparent; needs the extra "
        "otel, and its own OTEL_… settings. [no]",
        is_flag=True,
    ),
    Setting(
        "alert_webhooks",
        parse_webhooks,
        "name=https://… addresses, several with blanks between them",
        "Addresses that holders' alerts may be told to, each by its name; no other one is called. "
        "[none]",
        is_secret=True,
        has_flag=False,
    ),
    Setting(
        "metrics_host",
        parse_host,
        "a host name or an IP address",
        "Where the port for metrics is; all of /metrics is told there, of all tenants. [127.0.0.1]",
    ),
    Setting(
        "metrics_port",
        parse_port,
        "a port from 0 to 65535",
        "A port for metrics alone, over plain HTTP. [none]",
    ),
    Setting(
        "metrics_token",
        parse_token,
        "1 to 4096 visible ASCII characters without spaces",
        "The bearer token that Prometheus shows there.",
        is_secret=True,
        has_flag=False,
    ),
    Setting(
        "metrics_queues_max",
        parse_label_count,
        "a whole number from 0 to 10000",
        "How many queues have labels of their own in /metrics; all others share one. "
        f"[{limits.METRICS_QUEUES_MAX}]",
    ),
    Setting(
        "metrics_groups_max",
        parse_label_count,
        "a whole number from 0 to 10000",
        f"The same for groups. [{limits.METRICS_GROUPS_MAX}]",
    ),
)
