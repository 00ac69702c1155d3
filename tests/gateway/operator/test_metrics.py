"""Metrics as a Prometheus meets them: over the whole broker, without sockets."""

import asyncio
import re
from contextlib import nullcontext
from typing import Final

import httpx2
import pytest

from gateway.auth.auth import Authenticator
from gateway.config import Config
from gateway.deliverylog.lines import CertifiedLine, DispatchedLine, SettledLine, messages_of
from gateway.deliverylog.writer import Shortfall
from gateway.operator.metrics import REST, GatewayMetrics, LabelBudget
from gateway.rest.app import Application
from gateway.rest.operation import Need, check_need
from metadata.catalog import ANYBODY, Principal, QueueSettings
from metadata.rights import parse_rights
from push.errors import Refused
from push.histogram import Histogram
from runtime.metrics.exposition import OPEN, TEXT, Samples, application, exposed
from runtime.metrics.registry import METRICS, series
from tests.gateway.asgi import client_of
from tests.histories.house import House, delivery, numbered
from tests.histories.logged import Logged

LINE = re.compile(r"([a-z_]+)(?:\{(.*)\})? (\S+)")
LABEL = re.compile(r'([a-z]+)="((?:[^"\\]|\\.)*)"(?:,|$)')
Found = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def read(text: str) -> Found:
    """Series and their values. What is no line of the format fails."""
    found: Found = {}
    for line in text.splitlines():
        if not line.startswith("# "):
            match = LINE.fullmatch(line)
            assert match is not None, line
            labels = match[2] or ""
            assert LABEL.sub("", labels) == "", line
            place = (match[1], tuple(sorted(LABEL.findall(labels))))
            assert place not in found, line
            found[place] = float(match[3])
    return found


def value(found: Found, name: str, **labels: str) -> float:
    """Return that of one series. Raises KeyError."""
    return found[name, tuple(sorted(labels.items()))]


ORDERS = {"tenant": "default", "queue": "orders"}
BILLING = {**ORDERS, "group": "billing"}


async def scraped(house: House, path: str = "/metrics") -> Found:
    """Return what a Prometheus gets."""
    async with house.http() as http:
        answer = await http.get(path)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == TEXT
    return read(answer.text)


async def test_what_went_through_is_counted_by_stage(house: House) -> None:
    queue = await house.queue()
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group)
    await house.publish(queue, numbered(3))
    given = await session.take(3)
    await house.confirm(consumer, [one for place, _, _ in given[:2] for one in delivery(place)])
    found = await scraped(house)
    assert value(found, "tocsin_queue_messages_total", **ORDERS, outcome="stored") == 3
    assert value(found, "tocsin_queue_certify_seconds_count", **ORDERS) == 3
    assert value(found, "tocsin_group_dispatch_seconds_count", **BILLING) == 3
    assert value(found, "tocsin_group_settle_seconds_count", **BILLING) == 2
    assert value(found, "tocsin_group_in_flight_messages", **BILLING) == 1
    assert value(found, "tocsin_group_lag_messages", **BILLING) == 1
    assert value(found, "tocsin_group_messages_total", **BILLING, event="settled") == 2
    assert value(found, "tocsin_group_epochs_total", **BILLING) == 1
    assert value(found, "tocsin_commit_messages_sum", lane="0") == 3
    assert value(found, "tocsin_ready") == 1
    assert value(found, "tocsin_breaker_open", lane="0") == 0


@pytest.mark.parametrize("is_logged", [True, False])
async def test_what_is_measured_is_what_the_delivery_log_says(
    house: House, is_logged: bool
) -> None:
    """One measurement of each stage, whether it is written down or not."""
    queue = await house.queue()
    group = await house.group(queue)
    logged = Logged(house) if is_logged else None
    session, consumer = await house.subscribe(queue, group)
    await house.publish(queue, numbered(1))
    await house.confirm(consumer, delivery((await session.take(1))[0][0]))
    found = await scraped(house)
    took_s = {
        "tocsin_queue_certify_seconds": value(found, "tocsin_queue_certify_seconds_sum", **ORDERS),
        **{
            name: value(found, f"{name}_sum", **BILLING)
            for name in ("tocsin_group_dispatch_seconds", "tocsin_group_settle_seconds")
        },
    }
    assert all(0 < seconds < 30 for seconds in took_s.values()), took_s
    if logged is not None:
        (certified,), (given,) = logged.of(CertifiedLine), logged.of(DispatchedLine)
        (settled,) = logged.of(SettledLine)
        assert certified.certified_unix_us is not None
        assert given.certified_unix_us is not None
        assert list(took_s.values()) == pytest.approx(
            [
                (certified.certified_unix_us - certified.accepted_unix_us) / 1e6,
                (given.dispatched_unix_us - given.certified_unix_us) / 1e6,
                (settled.settled_unix_us - given.dispatched_unix_us) / 1e6,
            ]
        )


async def test_where_nobody_is_that_is_said(house: House) -> None:
    """An alert about a group without consumers needs a 0."""
    queue = await house.queue()
    await house.group(queue)
    await house.publish(queue, numbered(1))
    found = await scraped(house)
    assert value(found, "tocsin_group_lag_messages", **BILLING) == 1
    assert value(found, "tocsin_group_consumers", **BILLING) == 0
    assert value(found, "tocsin_queue_readers", **ORDERS) == 0


async def test_a_message_that_comes_again_did_not_wait_for_its_first_time(house: House) -> None:
    queue = await house.queue()
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group)
    await house.publish(queue, numbered(1))
    consumer.nack(delivery((await session.take(1))[0][0]), 0, None)
    await session.take(2)
    found = await scraped(house)
    assert value(found, "tocsin_group_messages_total", **BILLING, event="given") == 2
    assert value(found, "tocsin_group_dispatch_seconds_count", **BILLING) == 1
    assert value(found, "tocsin_group_settle_seconds_count", **BILLING) == 0  # nobody has acked


async def test_held_keys_are_counted_by_their_cause(house: House) -> None:
    queue = await house.queue(backoff_s=60, backoff_max_s=60)
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group)
    await house.publish(queue, numbered(1))
    consumer.nack(delivery((await session.take(1))[0][0]), 60, None)
    found = await scraped(house)
    held = {
        dict(labels)["cause"]: count
        for (name, labels), count in found.items()
        if name == "tocsin_group_held_keys"
    }
    assert held["backoff"] + held["commit"] == 1  # until its attempt is durable: commit
    assert sum(held.values()) == 1


async def test_buckets_are_cumulative_and_end_with_the_count(house: House) -> None:
    queue = await house.queue()
    await house.publish(queue, numbered(5))
    found = await scraped(house)
    buckets = [
        count
        for (name, labels), count in found.items()
        if name == "tocsin_queue_certify_seconds_bucket"
    ]
    assert buckets == sorted(buckets)
    assert buckets[-1] == value(found, "tocsin_queue_certify_seconds_count", **ORDERS) == 5


@pytest.mark.parametrize("is_logged", [True, False])
async def test_what_readers_are_given_is_counted_for_each_of_them(
    house: House, is_logged: bool
) -> None:
    """What was there before they came waited for nobody."""
    queue = await house.queue()
    await house.publish(queue, numbered(2))
    logged = Logged(house) if is_logged else None
    sessions = [(await house.read(queue))[0] for _ in range(3)]
    late, _ = await house.read(queue, start="earliest")
    await late.get(2)
    await house.publish(queue, numbered(4))
    for session, count in ((late, 6), *((one, 4) for one in sessions)):
        await session.get(count)
    found = await scraped(house)
    assert value(found, "tocsin_queue_readers", **ORDERS) == 4
    assert value(found, "tocsin_queue_read_messages_total", **ORDERS) == 2 + 4 * 4
    assert value(found, "tocsin_queue_read_seconds_count", **ORDERS) == 4 * 4
    if logged is not None:
        lines = [one for one in logged.of(DispatchedLine) if one.certified_unix_us is not None]
        took_us = sum(
            (one.dispatched_unix_us - (one.certified_unix_us or 0))
            * one.recipients * messages_of(one.runs)
            for one in lines
        )  # fmt: skip
        seconds = value(found, "tocsin_queue_read_seconds_sum", **ORDERS)
        assert seconds == pytest.approx(took_us / 1e6)


async def test_the_delivery_log_tells_what_it_lacks(house: House) -> None:
    assert not any("delivery_log" in name for name, _ in await scraped(house))  # it is off
    logged = Logged(house)
    await house.publish(await house.queue(), numbered(3))
    assert logged.lines()
    written_bytes = sum(len(line) + 1 for chunk in logged.sink.chunks for line in chunk.lines)
    logged.sink.is_failing, logged.sink.waiting_bytes = True, 77
    logged.sink.unlogged = Shortfall(spans=4, certified=3, dispatched=2, settled=1)
    found = await scraped(house)
    assert value(found, "tocsin_delivery_log_written_bytes_total") == written_bytes
    assert value(found, "tocsin_delivery_log_waiting_bytes") == 77
    assert value(found, "tocsin_delivery_log_failing") == 1
    assert value(found, "tocsin_delivery_log_unlogged_spans_total") == 4
    missing = "tocsin_delivery_log_unlogged_messages_total"
    kinds = ("certified", "dispatched", "settled")
    assert [value(found, missing, kind=kind) for kind in kinds] == [3, 2, 1]


# --- Labels are bounded -------------------------------------------------------------------------


def measure(house: House, queues_max: int, groups_max: int) -> GatewayMetrics:
    """With other bounds than the broker of the house has."""
    config = Config(
        data_dir=house.folder, metrics_queues_max=queues_max, metrics_groups_max=groups_max
    )
    return house.broker._measuring_of(config)


async def test_queues_beyond_the_bound_share_one_label(house: House) -> None:
    metrics = measure(house, 2, 1)
    for number in range(4):
        queue = await house.queue(f"q{number}")
        await house.group(queue, "g")
        await house.publish(queue, numbered(number + 1))
    samples = await metrics.collect()
    stored = [
        samples.number("tocsin_queue_messages_total", "default", name, "stored")
        for name in ("q0", "q1", "q2", "q3")
    ]
    assert stored.count(0) == 2
    rest = samples.number("tocsin_queue_messages_total", REST, REST, "stored")
    assert sum(stored) + rest == 1 + 2 + 3 + 4
    metrics.close()


async def test_the_depth_of_those_that_share_a_label_comes_with_a_round(house: House) -> None:
    metrics = measure(house, 1, 1)
    for number in range(3):
        queue = await house.queue(f"q{number}")
        await house.group(queue, "g")
        await house.publish(queue, numbered(10))
    await metrics.collect()
    async with asyncio.timeout(10):
        while not (await metrics.collect()).number(  # noqa: ASYNC110 (a round tells nobody)
            "tocsin_queue_depth_messages", REST, REST
        ):
            await asyncio.sleep(0.01)
    samples = await metrics.collect()
    assert samples.number("tocsin_queue_depth_messages", REST, REST) == 20
    assert samples.number("tocsin_group_lag_messages", REST, REST, REST) == 30 - sum(
        samples.number("tocsin_group_lag_messages", "default", f"q{number}", "g")
        for number in range(3)
    )
    metrics.close()


async def test_what_a_deleted_queue_counted_stays_in_the_sum(house: House) -> None:
    metrics = measure(house, 0, 0)
    queue = await house.queue()
    await house.publish(queue, numbered(7))
    await house.broker.delete_queue(ANYBODY, queue.name)
    await house.queue("another")
    samples = await metrics.collect()
    assert samples.number("tocsin_queue_messages_total", REST, REST, "stored") == 7
    metrics.close()


def test_a_place_is_kept_until_its_holder_goes() -> None:
    places = LabelBudget(2, Histogram())
    places.assign({"a": ("a",), "b": ("b",), "c": ("c",)})
    assert [places.labels(one) for one in "abc"] == [("a",), ("b",), None]
    places.assign({"c": ("c",), "b": ("b",), "d": ("d",)})  # a is gone: the first without one
    assert [places.labels(one) for one in "bcd"] == [("b",), ("c",), None]
    assert not places.forget("b")
    assert places.forget("d")
    places.check()


# --- Who may look -------------------------------------------------------------------------------


async def test_a_queue_is_shown_to_who_has_a_right_on_it(house: House) -> None:
    await house.group(await house.queue())
    await house.queue("others")
    found = await scraped(house, "/v1/queues/orders/metrics")
    queues = {dict(labels)["queue"] for _, labels in found}
    assert queues == {"orders"}
    assert {name for name, _ in found} <= {
        name for name, metric in series().items() if metric.is_for_holders
    }


async def test_a_queue_that_is_not_there_has_no_metrics(house: House) -> None:
    async with house.http() as http:
        answer = await http.get("/v1/queues/nowhere/metrics")
    assert (answer.status_code, answer.json()["code"]) == (404, "queue_not_found")


@pytest.fixture
async def guarded(house: House) -> httpx2.AsyncClient:
    """A client of a broker that wants credentials, and has shown none."""
    application = Application(house.broker, Authenticator("a" * 32))
    return client_of(application)


async def test_without_credentials_nothing_is_told(guarded: httpx2.AsyncClient) -> None:
    async with guarded as http:
        for path in ("/metrics", "/v1/queues/orders/metrics"):
            assert (await http.get(path)).status_code == 401


# --- The formats --------------------------------------------------------------------------------


async def test_openmetrics_is_sent_to_clients_that_ask_for_it(house: House) -> None:
    await house.publish(await house.queue(), numbered(1))
    async with house.http() as http:
        accept = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
        answer = await http.get("/metrics", headers={"accept": accept})
    assert answer.headers["content-type"] == OPEN
    assert answer.text.endswith("\n# EOF\n")
    assert "# TYPE tocsin_queue_messages counter\n" in answer.text
    assert "\ntocsin_queue_messages_total{" in answer.text
    read(answer.text)


async def test_labels_are_escaped() -> None:
    samples = Samples()
    samples.put("tocsin_refusals_total", 1, 'a"b\\c\nd')
    text = (await exposed(samples, as_open=False)).decode()
    assert 'tocsin_refusals_total{code="a\\"b\\\\c\\nd"} 1' in text
    assert len(text.splitlines()) == 3


async def test_what_is_not_in_the_table_cannot_be_told() -> None:
    samples = Samples()
    with pytest.raises(KeyError):
        samples.put("tocsin_invented", 1)
    with pytest.raises(AssertionError):
        samples.put("tocsin_ready", 1, "label")
    with pytest.raises(AssertionError):
        samples.put("tocsin_loop_lag_seconds", 1)


async def test_several_who_ask_at_once_are_given_one_answer(house: House) -> None:
    metrics = house.broker.metrics
    one, other = await asyncio.gather(metrics.collect(), metrics.collect())
    assert one is other
    assert await metrics.collect() is not one


def test_names_are_as_prometheus_has_them() -> None:
    for name, metric in METRICS.items():
        assert re.fullmatch(r"(tocsin|process)(_[a-z]+)+", name), name
        assert name.endswith("_total") is (metric.kind == "counter"), name
        if metric.kind == "histogram":
            assert name.endswith(("_seconds", "_messages")), name
        assert metric.help.endswith("."), name
        assert "le" not in metric.labels


async def test_a_tenant_sees_its_own_queues(house: House) -> None:
    await house.queue()
    await house.broker.create_queue(Principal("b", "blue"), "secret", QueueSettings(partitions=1))
    samples = (await house.broker.metrics.collect()).of_tenant("default")
    text = (await exposed(samples, as_open=False)).decode()
    assert {dict(labels)["tenant"] for _, labels in read(text) if "tenant" in dict(labels)} == {
        "default"
    }
    assert "secret" not in text
    assert "tocsin_ready" in text


async def test_the_operator_sees_all_tenants(house: House, guarded: httpx2.AsyncClient) -> None:
    await house.broker.create_queue(Principal("b", "blue"), "secret", QueueSettings(partitions=1))
    async with guarded as http:
        answer = await http.get("/metrics", headers={"Authorization": f"Bearer {'a' * 32}"})
    assert 'tenant="blue",queue="secret"' in answer.text


@pytest.mark.parametrize(
    ("right", "is_enough"),
    [("observe:*", True), ("manage:*", True), ("observe:orders", False), ("publish:*", False)],
)
def test_to_scrape_a_gateway_is_a_right_of_its_own(right: str, is_enough: bool) -> None:
    with nullcontext() if is_enough else pytest.raises(Refused, match="observe"):
        check_need("observe every", parse_rights([right]), None)


OTHERS: Final[tuple[Need, ...]] = (
    "publish", "consume", "read", "manage", "consume or manage", "manage every",
)  # fmt: skip


def test_who_may_observe_may_do_nothing_else() -> None:
    rights = parse_rights(["observe:*"])
    check_need("any", rights, "orders")
    for need in OTHERS:
        with pytest.raises(Refused):
            check_need(need, rights, "orders")


PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,"
    "application/openmetrics-text;version=0.0.1;q=0.4,"
    "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
)


@pytest.mark.parametrize(
    ("lines", "wants_open"),
    [
        ([PROMETHEUS], True),
        (["application/openmetrics-text"], True),
        (["APPLICATION/OpenMetrics-Text; VERSION=1.0.0; Q=0.9, text/plain;q=0.5"], True),
        (["text/plain;q=0.5", "application/openmetrics-text;version=1.0.0"], True),
        (['application/openmetrics-text; version="1.0.0" ; charset="UTF-8"'], True),
        (["application/*"], True),
        (["application/openmetrics-text, text/plain"], True),
        (["text/plain;q=0, */*"], True),
        (["*/*;q=0.1,text/*;q=0.01"], True),
        ([], False),
        (["*/*"], False),
        (["text/html,*/*;q=0.8"], False),
        (["application/openmetrics-text;q=0"], False),
        (["application/openmetrics-text;q=0, */*"], False),
        (["application/openmetrics-text; q=0.000"], False),
        (["application/openmetrics-text;q=0.2,text/plain;q=0.3"], False),
        (["application/openmetrics-text;version=0.0.1,text/plain;version=0.0.4;q=0.5"], False),
        (["application/openmetrics-text-strict"], False),
        (["x-application/openmetrics-text"], False),
        (['text/plain;note="application/openmetrics-text"'], False),
        (['text/plain;note="a,application/openmetrics-text"'], False),
        (["application/openmetrics-text;q=2"], False),
        (["application/openmetrics-text;q=no"], False),
        (["openmetrics-text, ;q=1, /, application/"], False),
    ],
)
async def test_a_scrape_gets_the_format_that_it_wants_more(
    http: httpx2.AsyncClient, lines: list[str], wants_open: bool
) -> None:
    """RFC 9110, section 12.5.1; of this gateway and of a queue, and at the port for metrics."""
    assert (await http.put("/v1/queues/orders")).status_code == 201
    headers = [("Accept", line) for line in lines] or [("Accept", "")]
    transport = httpx2.ASGITransport(app=application(nothing, None))
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as alone:
        for client, path in (
            (http, "/metrics"), (http, "/v1/queues/orders/metrics"), (alone, "/metrics"),
        ):  # fmt: skip
            answer = await client.get(path, headers=headers)
            assert answer.status_code == 200
            assert answer.headers["content-type"] == (OPEN if wants_open else TEXT)
            assert answer.headers["vary"] == "Accept"
            assert answer.text.endswith("# EOF\n") is wants_open


async def nothing() -> Samples:
    return Samples()
