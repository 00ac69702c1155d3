"""Spans by OpenTelemetry, where `TOCSIN_OTEL` is on: an extra of its own, `pip install '.[otel]'`.

Imported by nobody otherwise. The exporter and its address are OpenTelemetry's own settings
(`OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_SERVICE_NAME`, `OTEL_TRACES_SAMPLER` …). A span is made for
each request that publishes and comes with a `traceparent`: what a producer traces, is traced; the
broker begins no trace by itself.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from runtime.tracing import PARENT, STATE, Trace

CLOSE_S: Final = 2.0
MISSING: Final = (
    "TOCSIN_OTEL is on, and OpenTelemetry is not installed: install the extra 'otel' "
    "(opentelemetry-sdk and opentelemetry-exporter-otlp-proto-http), or switch it off."
)


class OtelMissing(Exception):
    """It is not installed; the text says what to do."""


class OtelTracer:
    """As tracing.Tracer. Raises OtelMissing. Spans leave in the background, in batches; what the
    collector does not take in time is dropped by OpenTelemetry, and nobody waits for it."""

    def __init__(self) -> None:
        try:
            from opentelemetry import propagate, trace
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import OTELResourceDetector, Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError:
            raise OtelMissing(MISSING) from None
        ours = Resource.create({"service.name": "tocsin"})
        # What the environment says counts more; what `create` is handed would count most.
        resource = ours.merge(OTELResourceDetector().detect())
        self._provider: Any = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer: Any = self._provider.get_tracer("tocsin")
        self._propagate: Any = propagate
        self._producer: Any = trace.SpanKind.PRODUCER

    @contextmanager
    def publishing(self, queue: str, trace: Trace) -> Iterator[Trace]:
        """As Tracer.publishing: what is said of the messages names the broker's span."""
        carrier = {PARENT: trace.parent} | ({STATE: trace.state} if trace.state else {})
        with self._tracer.start_as_current_span(
            f"publish {queue}",
            context=self._propagate.extract(carrier),
            kind=self._producer,
            attributes={
                "messaging.system": "tocsin",
                "messaging.destination.name": queue,
                "messaging.operation.type": "send",
            },
        ):
            said: dict[str, str] = {}
            self._propagate.inject(said)
            yield Trace(said.get(PARENT, trace.parent), said.get(STATE, ""))

    def close(self, within_s: float = CLOSE_S) -> None:
        """Hand out what is left; blocks. What the collector has not taken by then is dropped."""
        # OpenTelemetry waits for half a minute, and cannot be told otherwise.
        closing = threading.Thread(target=self._provider.shutdown, name="otel", daemon=True)
        closing.start()
        closing.join(within_s)
