"""Stores and gateways that fail, in short: P1 to P7, P10 over a few faults of each kind, and two
negative controls. The whole run, and all controls, are `make chaos`."""

import secrets

import pytest

from tests.chaos.breaks import BREAKS
from tests.chaos.rounds import Plan, Report, play
from tests.servers.binaries import Binary, binaries
from tests.servers.layouts import Layout
from tests.servers.network import needs

pytestmark = pytest.mark.skipif(bool(needs()), reason=needs())
ACKNOWLEDGED_MIN = 200
"""Per fault; in the whole run it is 1,000."""


def played(
    faults: list[str], binary: Binary, broken: str = "", layout: Layout = "sentinel"
) -> Report:
    """A round of these faults with a seed of its own, which a failure prints."""
    plan = Plan(
        secrets.randbits(32), faults, serving=1, broken=broken, rates_per_s=(60, 120), down_s=1.0,
        layout=layout,
    )  # fmt: skip
    report = play(plan, binary, print)
    print(report)  # noqa: T201 - pytest shows it where the test fails, or with -rP
    return report


def test_nothing_is_lost_in_failovers_partitions_and_kills(redis_binary: Binary) -> None:
    """One engine loses its primary to a replica that lags, the other is parted; a gateway dies."""
    is_first = redis_binary == binaries()[0]
    faults = ["stale-failover", "kill"] if is_first else ["primary-with-clients", "power-loss"]
    report = played(faults, redis_binary)
    assert report.ok, report
    assert report.verdict is not None
    assert min(report.verdict.acknowledged_per_fault) >= ACKNOWLEDGED_MIN


def test_nothing_is_lost_when_shards_of_a_cluster_fail_over() -> None:
    """To a replica that lags, and to one on the other side of a cut through the whole Cluster."""
    report = played(["stale-failover", "minority"], binaries()[-1], layout="cluster")
    assert report.ok, report
    assert report.verdict is not None
    assert min(report.verdict.acknowledged_per_fault) >= ACKNOWLEDGED_MIN


def test_receipts_for_one_copy_of_two_turn_it_red() -> None:
    """A replica that was cut off is elected, and has not what was promised."""
    report = played(["stale-failover"], binaries()[0], broken="wait-one")
    assert report.verdict is not None
    assert BREAKS["wait-one"].shows & set(report.verdict.violations)
