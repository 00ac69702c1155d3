"""Metrics of real processes, read by Prometheus' own parser; and the shipped configuration, rules
and dashboards in a real Prometheus."""

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import httpx2
import pytest
import tocsin
from prometheus_client import Metric
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from loadtests.server import Server
from runtime.metrics.exposition import OPEN, TEXT
from runtime.metrics.registry import METRICS
from scripts.monitoring.dashboards import DASHBOARDS, Dashboard
from scripts.monitoring.rules import RECORDED
from tests.system.monitored import SCRAPER, TOKEN, World, monitored
from tests.system.prometheus import Running, Series, all_chosen, whole
from tests.system.talk import UNEXPECTED, http_to
from tests.waiting import becomes

SEEN: Final = (
    "count(min by (job, instance) "
    '(count_over_time(tocsin_group_messages_total{queue="orders",event="given"}[5m])) > 3) == 3'
)
"""Queries for the number of scrapes of each gateway, and of the one that a holder sees, since it
delivered."""
Parse = Callable[[str], Any]
FORMATS: Final[dict[str, tuple[str, str, Parse]]] = {
    "prometheus": ("text/plain", TEXT, text_string_to_metric_families),
    "openmetrics": (
        "application/openmetrics-text;version=1.0.0", OPEN,
        openmetrics.text_string_to_metric_families,
    ),
}  # fmt: skip


JOBS: Final = {
    "tocsin": ["embedded", "shared"], "tocsin-metadata": ["node"], "tocsin-manager": ["manager"],
}  # fmt: skip
TARGETS: Final = ("tocsin", "tocsin", "tocsin-metadata", "tocsin-manager", "tocsin-orders")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """An installation whose logs hold nothing unexpected in the end."""
    with monitored(tmp_path_factory.mktemp("monitored"), JOBS) as made:
        yield made
    for process in made.processes.values():
        log = process.log_path.read_bytes()
        assert not UNEXPECTED.search(log), log.decode(errors="replace")
        assert process.exit_code() == 0


async def works(server: Server, is_over: asyncio.Event) -> None:
    """Do a little of everything that is counted, until `is_over`."""
    async with tocsin.connect(server.url, token=TOKEN) as client:
        await client.create_queue("orders", partitions=4, attempts_max=1)
        await client.create_queue("parked", partitions=1, attempts_max=1, on_exhausted="park")
        await client.create_queue("slow", partitions=1, publish_messages_per_s=0.001)
        async with http_to(server, TOKEN) as http:
            batch = {"messages": [{"body": n} for n in range(900)]}

            async def is_answered(status: int) -> bool:
                answer = await http.post("/v1/queues/slow/messages", json=batch)
                assert answer.status_code in (200, 429), answer.text
                return answer.status_code == status

            # 429 meanwhile: a gateway that shares limits has a sixteenth until the store has
            # answered
            await becomes(lambda: is_answered(200))
            assert await is_answered(429)

        async def consume(queue: str) -> None:
            async with client.subscribe(queue, group="billing") as messages:
                async for message in messages:
                    if message.body % 50:
                        await message.ack()
                    else:
                        await message.nack()

        async def read() -> None:
            async with client.read("orders") as messages:
                async for _ in messages:
                    pass

        consumers = [asyncio.create_task(consume(queue)) for queue in ("orders", "parked")]
        consumers.append(asyncio.create_task(read()))
        number = 0
        while not is_over.is_set():
            more = [{"body": number + n, "key": f"k{n}"} for n in range(100)]
            await client.publish_many("orders", more)
            await client.publish("parked", number, key="k")
            await client.publish("orders", number, key="k", id="the same")
            await client.publish("orders", number, key="later", delay_s=0.1)
            number += 100
            await asyncio.sleep(0.05)
        for task in consumers:
            task.cancel()
        await asyncio.gather(*consumers, return_exceptions=True)


async def told(world: World, name: str, accept: str) -> httpx2.Response:
    """Return a process's metrics."""
    headers = {"Authorization": f"Bearer {SCRAPER}", "Accept": accept}
    async with httpx2.AsyncClient(trust_env=False, timeout=30) as http:
        return await http.get(f"http://{world.at[name]}/metrics", headers=headers)


@pytest.mark.parametrize("form", FORMATS)
async def test_prometheus_own_parser_reads_every_process_and_every_metric(
    world: World, worked: "Worked", form: str
) -> None:
    accept, content_type, parse = FORMATS[form]
    seen: set[str] = set()
    for name in world.at:
        answer = await told(world, name, accept)
        assert answer.headers["content-type"] == content_type
        process = {"node": "metadata", "manager": "manager"}.get(name, "gateway")
        families: list[Metric] = list(parse(answer.text))
        assert families
        for family in families:
            metric = METRICS[family.name + ("_total" if family.type == "counter" else "")]
            assert (family.type, family.documentation) == (metric.kind, metric.help)
            assert process in metric.of, (name, metric.name)
            assert family.samples
            for sample in family.samples:
                assert sample.labels.keys() - {"le"} == set(metric.labels)
                assert sample.value >= 0
            seen.add(metric.name)
    assert set(METRICS) - seen == set()


@dataclass
class Worked:
    """The view of a Prometheus on the working installation."""

    prometheus: Running
    began: float
    ended: float

    def series(self, expr: str, dashboard: Dashboard | None = None) -> list[Series]:
        """Return the series of this expression, with all values chosen."""
        chosen = all_chosen(dashboard, self.prometheus) if dashboard is not None else {}
        return self.prometheus.series(whole(expr, 10, chosen), self.began, self.ended, 1)


@pytest.fixture(scope="module")
def worked(world: World) -> Worked:
    """The view of a Prometheus that has scraped all processes at work for a while."""
    began = time.time()

    async def work() -> None:
        is_over = asyncio.Event()
        gateways = (world.processes["embedded"], world.processes["shared"])
        working = [asyncio.create_task(works(one, is_over)) for one in gateways]
        await becomes(lambda: asyncio.to_thread(world.prometheus.is_up, TARGETS))
        await becomes(lambda: asyncio.to_thread(world.prometheus.holds, SEEN))
        is_over.set()
        await asyncio.gather(*working)

    asyncio.run(work())
    return Worked(world.prometheus, began, time.time())


def test_every_rule_is_evaluated_and_every_recorded_one_has_a_value(worked: Worked) -> None:
    groups = worked.prometheus.ask("rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert [rule["lastError"] for rule in rules if rule["health"] != "ok"] == []
    empty = [name for name in RECORDED if not any(one.points for one in worked.series(name))]
    assert empty == []


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda one: one.uid)
def test_every_query_of_every_dashboard_is_answered_with_numbers(
    worked: Worked, dashboard: Dashboard
) -> None:
    empty = [
        expr
        for row in dashboard.rows.values()
        for panel in row
        for expr, _ in panel.lines
        if not any(one.points for one in worked.series(expr, dashboard))
    ]
    assert empty == []


def test_every_variable_of_a_dashboard_has_values_to_choose_from(worked: Worked) -> None:
    for dashboard in DASHBOARDS:
        chosen = all_chosen(dashboard, worked.prometheus)
        for name, query in dashboard.variables.items():
            assert worked.prometheus.values(query, chosen), (dashboard.uid, name)


def test_a_dashboard_of_a_service_shows_its_own_processes(worked: Worked) -> None:
    """Every process reports its CPU. When all are chosen, "all" are the processes of the
    service."""
    seen: dict[str, set[str]] = {}
    for dashboard in DASHBOARDS:
        if "Processes" in dashboard.rows:
            (expr, _), *_ = dashboard.rows["Processes"][0].lines
            assert "process_cpu_seconds_total" in expr
            found = worked.series(expr, dashboard)
            seen[dashboard.uid] = {one.labels["instance"] for one in found}
    assert len(seen) == 3
    assert all(seen.values())
    assert sum(map(len, seen.values())) == len(set().union(*seen.values()))


def test_a_holder_sees_only_their_own_queue(worked: Worked) -> None:
    found = worked.prometheus.ask(
        "series", **{"match[]": '{job="tocsin-orders",__name__=~"tocsin_.*"}'}
    )
    assert {one["queue"] for one in found} == {"orders"}
