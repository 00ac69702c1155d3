"""/metrics of nodes of the metadata service and of managers: who is let in, and what is told."""

from types import SimpleNamespace
from typing import cast

import httpx2
import pytest
from starlette.types import ASGIApp

from metadata.service.node import Node, Shards
from runtime.metrics.exposition import Samples, application
from runtime.metrics.registry import METRICS
from services.manager.keeper import ClusterTold, ServerTold
from services.manager.manager import ManagerMetrics
from services.metadata_node.routes import application as node_application
from tests.layout.tree import files, text

TOLD = ClusterTold(
    name="north", store="redis://…", seen_unix_s=0.0, manager="m", term=3, primary="a:1",
    replicas=2, out=[], sentinels={}, says=[],
    servers=[
        ServerTold(address="a:1", state="primary"),
        ServerTold(address="b:1", state="follows", behind_bytes=7),
        ServerTold(address="c:1", state="away", behind_bytes=9),
    ],
)  # fmt: skip


def client(app: ASGIApp, **headers: str) -> httpx2.AsyncClient:
    transport = httpx2.ASGITransport(app=app)
    return httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=headers)


async def nothing() -> Samples:
    return Samples()


async def test_a_manager_that_leads_tells_of_its_clusters() -> None:
    metrics = ManagerMetrics("m-1")
    metrics.on_step("north", is_done=True)
    metrics.on_step("north", is_done=False)
    samples = metrics.collect(leads=True, term=3, told={"north": TOLD, "south": None})
    assert samples.number("tocsin_manager_servers", "north", "away") == 1
    assert samples.number("tocsin_manager_behind_bytes", "north") == 9
    assert samples.number("tocsin_manager_steps_total", "north", "failed") == 1
    assert samples.number("tocsin_manager_term") == 3


async def test_a_manager_that_does_not_lead_tells_nothing_of_clusters() -> None:
    samples = ManagerMetrics("m-1").collect(leads=False, term=0, told={"north": TOLD})
    assert samples.number("tocsin_manager_servers", "north", "away") == 0
    assert samples.number("tocsin_manager_leads") == 0


@pytest.mark.parametrize(
    ("shown", "status"),
    [({}, 401), ({"Authorization": "Bearer other"}, 401), ({"Authorization": "Bearer t"}, 200)],
)
async def test_a_port_with_a_token_tells_only_who_shows_it(
    shown: dict[str, str], status: int
) -> None:
    async with client(application(nothing, "t"), **shown) as http:
        assert (await http.get("/metrics")).status_code == status
        assert (await http.get("/healthz")).status_code == 200
        assert (await http.get("/v1/queues")).status_code == 404


def node() -> Node:
    """As much of one as metrics look at."""
    found = SimpleNamespace(nodes=(1, 2, 3), age_s=0.5, not_ready=list)
    return cast(Node, found)


@pytest.mark.parametrize(
    ("token", "metrics", "nodes"), [("service", 200, 200), ("scraper", 200, 401), ("x", 401, 401)]
)
async def test_the_token_for_metrics_opens_nothing_else_of_a_node(
    token: str, metrics: int, nodes: int
) -> None:
    app = node_application(node(), cast(Shards, None), "service", metrics_token="scraper")
    async with client(app, Authorization=f"Bearer {token}") as http:
        assert (await http.get("/v1/nodes")).status_code == nodes
        answer = await http.get("/metrics")
    assert answer.status_code == metrics
    if metrics == 200:
        assert "tocsin_node_peers 3\n" in answer.text
        assert 'tocsin_node_requests_total{status="4xx"}' in answer.text


def test_every_metric_of_the_table_is_exported_somewhere() -> None:
    told = "".join(
        text(path)
        for path in files(".py", "gateway", "runtime", "services")
        if path.name != "registry.py" or "metrics" not in path.parts
    )
    assert [name for name in METRICS if f'"{name}"' not in told] == []
