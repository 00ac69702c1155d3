"""Scheduled messages over killed brokers, gateways and stores, seen over HTTP alone (R32, P1, P4).

Each comes once, none early, in the order of times; cancelled ones never; lists are always right.
"""

import os
import secrets
import time

import pytest

from tests.later.clients import Plan
from tests.later.run import StoreKind, later

WHOLE = bool(os.environ.get("TOCSIN_SOAK"))
SHORT, LONG = 1_500, 100_000


@pytest.mark.parametrize("store", ["embedded", "valkey"])
async def test_each_comes_once_in_order_whatever_is_killed(store: StoreKind) -> None:
    plan = Plan(LONG, 1000) if WHOLE else Plan(SHORT, 100, latest_s=12.0)
    report = await later(plan, store, seed=secrets.randbits(32))
    assert report.verdict.ok, "\n".join(report.lines())
    assert sum(report.deaths.values()) > 1
    assert report.done["cancelled"] > plan.messages // 100
    assert report.done["changed"] > plan.messages // 100


@pytest.mark.parametrize("store", ["embedded", "valkey"])
async def test_what_is_due_in_one_millisecond_comes_in_the_order_of_publishing(
    store: StoreKind,
) -> None:
    count, in_s = (LONG, 300.0) if WHOLE else (SHORT, 10.0)
    plan = Plan(count, count // 15, at_unix_ms=int((time.time() + in_s) * 1000), moved=0.0)
    report = await later(plan, store, seed=secrets.randbits(32))
    assert report.verdict.ok, "\n".join(report.lines())
