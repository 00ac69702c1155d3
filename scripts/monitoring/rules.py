"""The recording rules of Prometheus, and the parts of an alert rule."""

from dataclasses import dataclass
from typing import Final

RECORDED: Final[dict[str, str]] = {
    "tocsin:stored_messages:rate5m":
        'sum by (job) (rate(tocsin_queue_messages_total{outcome="stored"}[5m]))',
    "tocsin:given_messages:rate5m":
        'sum by (job) (rate(tocsin_group_messages_total{event="given"}[5m]))',
    "tocsin:certify_seconds:p99":
        "histogram_quantile(0.99, sum by (job, le) "
        "(rate(tocsin_queue_certify_seconds_bucket[5m])))",
    "tocsin:dispatch_seconds:p99":
        "histogram_quantile(0.99, sum by (job, le) "
        "(rate(tocsin_group_dispatch_seconds_bucket[5m])))",
    "tocsin:settle_seconds:p99":
        "histogram_quantile(0.99, sum by (job, le) "
        "(rate(tocsin_group_settle_seconds_bucket[5m])))",
    "tocsin:commit_seconds:p99":
        "histogram_quantile(0.99, sum by (job, instance, le) "
        "(rate(tocsin_commit_seconds_bucket[5m])))",
    "tocsin:fsync_seconds:p99":
        "histogram_quantile(0.99, sum by (job, instance, le) "
        "(rate(tocsin_storage_fsync_seconds_bucket[5m])))",
    "tocsin:copies_seconds:p99":
        "histogram_quantile(0.99, sum by (job, server, level, le) "
        "(rate(tocsin_storage_copies_seconds_bucket[5m])))",
    "tocsin:loop_lag_seconds:p99":
        "histogram_quantile(0.99, sum by (job, instance, le) "
        "(rate(tocsin_loop_lag_seconds_bucket[5m])))",
    "tocsin:group_lag_messages:max":
        "max by (job, tenant, queue, group) (tocsin_group_lag_messages)",
    "tocsin:group_oldest_age_seconds:max":
        "max by (job, tenant, queue, group) (tocsin_group_oldest_age_seconds)",
    "tocsin:group_consumers:sum":
        "sum by (job, tenant, queue, group) (tocsin_group_consumers)",
    "tocsin:group_parked_keys:max":
        "max by (job, tenant, queue, group) (tocsin_group_parked_keys)",
}  # fmt: skip
"""Name → expression. Depth, lag and age are the same at every gateway, so the largest value counts.
Counters belong to one gateway, so their sum counts."""

GROUP: Final = {"tenant": "default", "queue": "orders", "group": "billing"}
ONE: Final = {"instance": "a"}
LAST: Final = "0+0x20"
"""A series that stays 0. Values are written as promtool reads them, one a minute for 20 minutes."""


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert. `bad` and `well` have, by series (labels without `job`), the values with which it
    fires after 20 minutes, and does not."""

    name: str
    expr: str
    lasts: str
    severity: str
    summary: str
    means: str
    does: str
    bad: dict[str, str]
    well: dict[str, str]
    labels: dict[str, str]
    """The labels of the firing alert, beside `job` and `severity`."""


def constant(value: float) -> str:
    """Return a series that stays at this value."""
    return f"{int(value) if value == int(value) else value}+0x20"


def rising(by: int) -> str:
    """Return a counter that grows by this number every 15 s."""
    return f"0+{4 * by}x20"


def buckets(name: str, le: str, **labels: str) -> dict[str, str]:
    """Return a histogram with everything in the bucket that ends at `le`. The bucket before it ends
    at half of that."""
    rest = "".join(f',{key}="{value}"' for key, value in labels.items())
    half = f"{float(le) / 2:g}"
    return {
        f'{name}_bucket{{le="{half}"{rest}}}': LAST,
        f'{name}_bucket{{le="{le}"{rest}}}': rising(100),
        f'{name}_bucket{{le="+Inf"{rest}}}': rising(100),
    }


def of_one(name: str, value: float, **labels: str) -> dict[str, str]:
    """Return a gauge of the instance a."""
    rest = "".join(f',{key}="{text}"' for key, text in labels.items())
    return {f'{name}{{instance="a"{rest}}}': constant(value)}


def of_group(name: str, value: float, instance: str = "a") -> dict[str, str]:
    """Return a gauge of the group billing of the queue orders."""
    labels = ",".join(f'{key}="{text}"' for key, text in GROUP.items())
    return {f'{name}{{instance="{instance}",{labels}}}': constant(value)}


def counted(name: str, by: int, **labels: str) -> dict[str, str]:
    """Return a counter of the instance a."""
    rest = "".join(f',{key}="{text}"' for key, text in labels.items())
    return {f'{name}{{instance="a"{rest}}}': rising(by)}
