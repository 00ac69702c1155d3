"""Prometheus' own tool over what is shipped, and over what a gateway tells."""

import subprocess

from tests.histories.house import House, numbered
from tests.layout.tree import ROOT
from tests.servers.programs import needed

RULES = ROOT / "deploy/prometheus"


def promtool(*command: str, told: str = "") -> str:
    """Return what it says; it has to be content."""
    done = subprocess.run(
        [needed("promtool"), *command], cwd=RULES, input=told, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_rules_are_rules() -> None:
    promtool("check", "rules", "recording.yml", "alerts.yml")


def test_each_alert_fires_with_its_cause_and_not_without() -> None:
    promtool("test", "rules", "tests.yml")


def test_the_example_is_a_configuration() -> None:
    promtool("check", "config", "--syntax-only", "prometheus.yml")


async def test_what_a_gateway_tells_is_well_formed(house: House) -> None:
    queue = await house.queue()
    group = await house.group(queue)
    session, _ = await house.subscribe(queue, group)
    await house.publish(queue, numbered(3))
    await session.take(3)
    async with house.http() as http:
        text = (await http.get("/metrics")).text
    promtool("check", "metrics", told=text)
