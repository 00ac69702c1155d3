"""Spans by OpenTelemetry's own SDK, as a collector gets them."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from socket import create_server

import httpx2
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from gateway.auth.auth import Authenticator
from gateway.rest.app import Application
from loadtests.server import Server
from runtime.trace_context import OtelTracer, Trace, trace_from
from tests.gateway.asgi import client_of
from tests.histories.house import House

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
SENT = {"messages": [{"key": "k", "body": 1}]}


class Collector(HTTPServer):
    """As much of an OTLP collector as takes spans."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Taking)
        self.taken: list[ExportTraceServiceRequest] = []
        self.thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    @property
    def url(self) -> str:
        """Return what OTEL_EXPORTER_OTLP_ENDPOINT is."""
        return f"http://127.0.0.1:{self.server_port}"


class Taking(BaseHTTPRequestHandler):
    """A request."""

    server: Collector

    def do_POST(self) -> None:
        """Take it."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.taken.append(ExportTraceServiceRequest.FromString(body))
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nobody reads it."""


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """One that OpenTelemetry is told of."""
    started = Collector()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", started.url)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield started
    started.shutdown()
    started.thread.join()
    started.server_close()


async def test_a_publish_is_a_span_that_its_messages_name(
    house: House, collector: Collector
) -> None:
    """Child of the producer's, parent of the consumer's."""
    queue = await house.queue()
    session, _ = await house.subscribe(queue, await house.group(queue))
    tracer = OtelTracer()
    async with client_of(Application(house.broker, Authenticator(None), tracer=tracer)) as http:
        said = {"traceparent": PARENT, "tracestate": "vendor=1"}
        answer = await http.post("/v1/queues/orders/messages", json=SENT, headers=said)
        assert answer.status_code == 200, answer.text
        plain = await http.post("/v1/queues/orders/messages", json=SENT)
        assert plain.status_code == 200, plain.text
    await session.take(2)
    first, other = [one for frame in session.of_type("push") for one in frame["messages"]]
    tracer.close()
    (request,) = collector.taken
    (resource,) = request.resource_spans
    (span,) = resource.scope_spans[0].spans  # nothing was begun for who traces nothing
    assert "headers" not in other
    found = trace_from(first["headers"]["traceparent"])
    assert found is not None
    assert found.trace_id == span.trace_id.hex() == PARENT[3:35]
    assert found.parent[36:52] == span.span_id.hex() != PARENT[36:52]
    assert span.parent_span_id.hex() == PARENT[36:52]
    assert first["headers"]["tracestate"] == "vendor=1"
    assert (span.name, span.kind) == ("publish orders", 4)  # PRODUCER
    assert 0 < span.end_time_unix_nano - span.start_time_unix_nano < 30e9
    assert ("service.name", "tocsin") in {
        (one.key, one.value.string_value) for one in resource.resource.attributes
    }


def test_the_environment_names_the_service(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "north")
    tracer = OtelTracer()
    with tracer.publishing("orders", Trace(PARENT)):
        pass
    tracer.close()
    attributes = collector.taken[0].resource_spans[0].resource.attributes
    assert ("service.name", "north") in {(one.key, one.value.string_value) for one in attributes}


def test_nobody_waits_for_a_collector_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    with create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
        tracer = OtelTracer()
        with tracer.publishing("orders", Trace(PARENT)):
            pass
        tracer.close(within_s=0.1)
        waiting = [thread for thread in threading.enumerate() if thread.name == "otel"]
        assert waiting, "only this thread waits for the collector"
        for thread in waiting:
            thread.join()  # it draws by `random`, which other tests are to have alone


def test_a_broker_hands_its_spans_out_before_it_ends(tmp_path: Path, collector: Collector) -> None:
    settings = {"TOCSIN_OTEL": "yes"}
    with Server(tmp_path / "data", level="warning", settings=settings) as server:
        with httpx2.Client(base_url=server.url, trust_env=False, timeout=30) as http:
            assert http.put("/v1/queues/orders", json={}).status_code == 201
            path = "/v1/queues/orders/messages"
            assert http.post(path, json=SENT, headers={"traceparent": PARENT}).status_code == 200
        server.stop()
        assert server.exit_code() == 0, server.log_tail()
    spans = collector.taken[0].resource_spans[0].scope_spans[0].spans
    assert [span.name for span in spans] == ["publish orders"]
