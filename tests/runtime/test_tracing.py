"""Trace context: from the request that publishes to whoever is given the message, and the log."""

import io
import json
import logging
import sys
from contextvars import copy_context
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from push import limits
from push.message import check_message
from runtime import process as logs
from runtime.trace_context import (
    OtelMissing,
    OtelTracer,
    Trace,
    answering,
    carried,
    trace_from,
    trace_of,
)
from tests.histories.house import House, message

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
OTHER = "00-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-bbbbbbbbbbbbbbbb-00"


async def test_a_requests_trace_reaches_the_consumer(house: House) -> None:
    queue = await house.queue()
    session, _ = await house.subscribe(queue, await house.group(queue))
    async with house.http() as http:
        said = {"traceparent": PARENT, "tracestate": "vendor=1"}
        sent = [{"key": "k", "body": 1}, {"key": "k", "body": 2, "headers": {"traceparent": OTHER}}]
        answer = await http.post(
            "/v1/queues/orders/messages", json={"messages": sent}, headers=said
        )
    assert answer.status_code == 200, answer.text
    await session.take(2)
    found = [one["headers"] for frame in session.of_type("push") for one in frame["messages"]]
    assert found == [said, {"traceparent": OTHER}]


async def test_without_one_nothing_is_added(house: House) -> None:
    queue = await house.queue()
    session, _ = await house.subscribe(queue, await house.group(queue))
    async with house.http() as http:
        for headers in ({}, {"traceparent": "nonsense"}):
            await http.post(
                "/v1/queues/orders/messages",
                json={"messages": [{"key": "k", "body": 1}]},
                headers=headers,
            )
    await session.take(2)
    sent = [one for frame in session.of_type("push") for one in frame["messages"]]
    assert all("headers" not in one for one in sent)


@pytest.mark.parametrize(
    "parent",
    [
        "", PARENT.upper(), PARENT[:-1], PARENT + "-more", "ff" + PARENT[2:],
        "00-" + "0" * 32 + PARENT[35:], PARENT[:36] + "0" * 16 + "-01",
    ],
)  # fmt: skip
def test_what_is_no_trace_is_none(parent: str) -> None:
    assert trace_from(parent) is None


def test_a_later_version_is_read_as_far_as_it_is_known() -> None:
    found = trace_from("01" + PARENT[2:] + "-more")
    assert found == Trace("01" + PARENT[2:])
    assert found.trace_id == "4bf92f3577b34da6a3ce929d0e0e4736"


def test_two_of_them_are_none() -> None:
    assert trace_of([(b"traceparent", PARENT.encode())] * 2) is None


@given(st.dictionaries(st.text(max_size=20), st.text(max_size=200), max_size=limits.HEADERS_MAX))
def test_what_was_a_message_stays_one(headers: dict[str, str]) -> None:
    original = message(1, headers=headers)
    try:
        check_message(original, 1000)
    except Exception:
        return
    (one,) = carried([original], Trace(PARENT, "s" * 512))
    check_message(one, 1000)
    assert {name: (one.headers or {})[name] for name in headers} == headers


def test_the_log_names_trace_session_and_queue() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logs.JsonLines())
    logger = logging.Logger("tocsin.test")
    logger.addHandler(handler)
    with answering(Trace(PARENT)):
        inherited = copy_context()
        logger.warning("something", extra={"session": "s-1", "queue": "orders"})
    inherited.run(logger.warning, "later, of what the request began")
    logger.warning("something else")
    first, *others = map(json.loads, stream.getvalue().splitlines())
    assert first["trace_id"] == "4bf92f3577b34da6a3ce929d0e0e4736"
    assert (first["session"], first["queue"]) == ("s-1", "orders")
    assert len(others) == 2
    assert not any({"trace_id", "session", "queue"} & other.keys() for other in others)


def test_without_opentelemetry_its_setting_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(OtelMissing, match="extra 'otel'"):
        OtelTracer()


def test_nobody_imports_opentelemetry_without_being_asked() -> None:
    for path in Path("gateway").rglob("*.py"):
        if path.name != "otel.py":
            assert "opentelemetry" not in path.read_text(), path
