"""W3C trace context: from the request that publishes to the consumer of the message, and the log.

A request's `traceparent` (and `tracestate`) becomes a header of each of its messages that has none
of its own. It is stored with the message and pushed with it. Over a WebSocket, where one socket
serves many traces, only a message's own header counts. Without OpenTelemetry the broker passes the
context on as it came; with it the header names the broker's own span. Requests without a
`traceparent` pay for one look through their headers. Source: https://www.w3.org/TR/trace-context/

OpenTelemetry is an extra of its own, `pip install '.[otel]'`, imported only if `TOCSIN_OTEL` is on.
The exporter and its address are OpenTelemetry's own settings (`OTEL_EXPORTER_OTLP_ENDPOINT`,
`OTEL_SERVICE_NAME`, `OTEL_TRACES_SAMPLER` …). A span is made for each request that publishes and
has a `traceparent`: the broker begins no trace by itself.
"""

import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from push import limits
from push.message import Message

PARENT: Final = "traceparent"
STATE: Final = "tracestate"
_PARENT: Final = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(?:-.*)?")
_STATE_BYTES_MAX: Final = 512
"""Bytes of a `tracestate` that the standard requires to be passed on; a longer one is left out."""


class Trace(NamedTuple):
    """The trace that a request belongs to."""

    parent: str
    """The header `traceparent` as it came."""
    state: str = ""
    """The header `tracestate`; "" if there is none."""

    @property
    def trace_id(self) -> str:
        """Id of the trace: 32 hexadecimal digits."""
        return self.parent[3:35]


class Going:
    """A request that is being answered. Tasks that the request began and that outlive it (a commit,
    a consumer's tasks) inherit its context, but then have no trace any more."""

    __slots__ = ("trace",)

    def __init__(self, trace: Trace) -> None:
        self.trace: Trace | None = trace
        """The request's trace; None once it is answered."""


_GOING: Final[ContextVar[Going | None]] = ContextVar("tocsin_going", default=None)


def current() -> Trace | None:
    """Return the trace of the request that the present task answers; None if the task answers none,
    or the request has no trace."""
    going = _GOING.get()
    return going.trace if going is not None else None


@contextmanager
def answering(trace: Trace) -> Iterator[None]:
    """Make `trace` the current one within the block."""
    going = Going(trace)
    token = _GOING.set(going)
    try:
        yield
    finally:
        going.trace = None
        _GOING.reset(token)


class Tracer(Protocol):
    """Maker of spans for publishes."""

    def publishing(self, queue: str, trace: Trace) -> AbstractContextManager[Trace]:
        """Make a span for the time of the block, in which messages are published into `queue`.
        Yields the trace that the messages' headers are to name."""


class NoTracer:
    """The tracer without OpenTelemetry, which makes no spans."""

    @contextmanager
    def publishing(self, queue: str, trace: Trace) -> Iterator[Trace]:
        """Yield the request's trace as it came."""
        yield trace


def trace_of(headers: Iterable[tuple[bytes, bytes]]) -> Trace | None:
    """Return the trace that a request's headers name. None if they name none, several, or an
    invalid one, which is no error, because no trace can be continued then (section 3.3 of the
    standard)."""
    parents = [value for name, value in headers if name == b"traceparent"]
    if len(parents) != 1:
        return None
    trace = trace_from(parents[0].decode("latin-1"))
    if trace is None:
        return None
    state = ",".join(value.decode("latin-1") for name, value in headers if name == b"tracestate")
    return Trace(trace.parent, state if len(state) <= _STATE_BYTES_MAX and state.isascii() else "")


def trace_from(parent: str) -> Trace | None:
    """Return the trace that the text of a `traceparent` names; None if the text is invalid."""
    match = _PARENT.fullmatch(parent)
    if match is None or not match[1].strip("0") or not match[2].strip("0"):
        return None
    if parent.startswith("00") and len(parent) != 55:
        return None
    return Trace(parent[:55])


def carried(messages: Sequence[Message], trace: Trace) -> Sequence[Message]:
    """Return the messages, each with this trace in its headers if it names none of its own. A
    message is unchanged if its headers would be too many, or too large."""
    more = {PARENT: trace.parent} | ({STATE: trace.state} if trace.state else {})
    size = sum(len(name) + len(text) for name, text in more.items())
    return [_carrying(message, more, size) for message in messages]


def _carrying(message: Message, more: dict[str, str], size: int) -> Message:
    headers = message.headers or {}
    if any(name.lower() == PARENT for name in headers):
        return message
    taken = sum(
        len(name.encode("utf-8", "replace")) + len(text.encode("utf-8", "replace"))
        for name, text in headers.items()
    )
    fits = len(headers) + len(more) <= limits.HEADERS_MAX
    if not fits or taken + size > limits.HEADERS_BYTES_MAX:
        return message
    return msgspec.structs.replace(message, headers=headers | more)


CLOSE_S: Final = 2.0
MISSING: Final = (
    "TOCSIN_OTEL is on, but OpenTelemetry is not installed. Install the extra 'otel' "
    "(opentelemetry-sdk and opentelemetry-exporter-otlp-proto-http), or switch TOCSIN_OTEL off."
)


class OtelMissing(Exception):
    """Error: OpenTelemetry is not installed; the text says what to do."""


class OtelTracer:
    """A tracer over OpenTelemetry. Raises OtelMissing. Spans leave in the background, in batches.
    OpenTelemetry drops what the collector does not take in time, and nobody waits for it."""

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
        # Settings of the environment come first; an argument of `create` would come before them.
        resource = ours.merge(OTELResourceDetector().detect())
        self._provider: Any = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer: Any = self._provider.get_tracer("tocsin")
        self._propagate: Any = propagate
        self._producer: Any = trace.SpanKind.PRODUCER

    @contextmanager
    def publishing(self, queue: str, trace: Trace) -> Iterator[Trace]:
        """Make a span below that of `trace`; the messages' headers name the new one."""
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
        """Send the remaining spans; blocks. What the collector has not taken by then is dropped."""
        # OpenTelemetry waits for half a minute, and has no setting for that.
        closing = threading.Thread(target=self._provider.shutdown, name="otel", daemon=True)
        closing.start()
        closing.join(within_s)
