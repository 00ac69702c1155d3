"""W3C trace context: from the request that publishes to whoever is given the message, and the log.

A request's `traceparent` (and `tracestate`) becomes a header of each of its messages that has none
of its own, is stored with it and pushed with it. Over a WebSocket, where one socket serves many
traces, a message's own header is all there is. Without OpenTelemetry the broker passes the context
on as it came; with it (`runtime.otel`) the header names the broker's own span. Requests without a
`traceparent` pay for one look through their headers.
Source: https://www.w3.org/TR/trace-context/
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Final, NamedTuple, Protocol

import msgspec

from push import limits
from push.message import Message

PARENT: Final = "traceparent"
STATE: Final = "tracestate"
_PARENT: Final = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(?:-.*)?")
_STATE_BYTES_MAX: Final = 512
"""So much everybody has to pass on; what is longer is left out."""


class Trace(NamedTuple):
    """Where a request belongs."""

    parent: str
    """The header as it came."""
    state: str = ""
    """"": there is none."""

    @property
    def trace_id(self) -> str:
        """32 hexadecimal digits."""
        return self.parent[3:35]


class Going:
    """A request that is being answered. What it began and outlives it (a commit, a consumer's
    tasks) inherits its context, and is not told to be of its trace."""

    __slots__ = ("trace",)

    def __init__(self, trace: Trace) -> None:
        self.trace: Trace | None = trace
        """None: it is answered."""


_GOING: Final[ContextVar[Going | None]] = ContextVar("tocsin_going", default=None)


def current() -> Trace | None:
    """That of the request that is being answered here; None: there is none."""
    going = _GOING.get()
    return going.trace if going is not None else None


@contextmanager
def answering(trace: Trace) -> Iterator[None]:
    """Inside, `current` is this one."""
    going = Going(trace)
    token = _GOING.set(going)
    try:
        yield
    finally:
        going.trace = None
        _GOING.reset(token)


class Tracer(Protocol):
    """Who makes spans of it."""

    def publishing(self, queue: str, trace: Trace) -> AbstractContextManager[Trace]:
        """While these messages are published: what is said of them from now on."""


class NoTracer:
    """Nobody does."""

    @contextmanager
    def publishing(self, queue: str, trace: Trace) -> Iterator[Trace]:
        """As Tracer.publishing: passed on as it came."""
        yield trace


def trace_of(headers: Iterable[tuple[bytes, bytes]]) -> Trace | None:
    """That of a request. None: it names none, or what is none: then there is nothing to go on
    with, and it is no error (3.3 there)."""
    parents = [value for name, value in headers if name == b"traceparent"]
    if len(parents) != 1:
        return None
    trace = trace_from(parents[0].decode("latin-1"))
    if trace is None:
        return None
    state = ",".join(value.decode("latin-1") for name, value in headers if name == b"tracestate")
    return Trace(trace.parent, state if len(state) <= _STATE_BYTES_MAX and state.isascii() else "")


def trace_from(parent: str) -> Trace | None:
    """As `trace_of`, of the header's text alone."""
    match = _PARENT.fullmatch(parent)
    if match is None or not match[1].strip("0") or not match[2].strip("0"):
        return None
    if parent.startswith("00") and len(parent) != 55:
        return None
    return Trace(parent[:55])


def carried(messages: Sequence[Message], trace: Trace) -> Sequence[Message]:
    """The same messages; those that name no trace of their own name this one, unless their headers
    are as many, or as large, as they may be."""
    more = {PARENT: trace.parent} | ({STATE: trace.state} if trace.state else {})
    size = sum(len(name) + len(text) for name, text in more.items())
    return [_carrying(message, more, size) for message in messages]


def _carrying(message: Message, more: dict[str, str], size: int) -> Message:
    headers = message.headers or {}
    if any(name.lower() == PARENT for name in headers):
        return message
    taken = sum(len(name.encode("utf-8", "replace")) + len(text.encode("utf-8", "replace"))
                for name, text in headers.items())  # fmt: skip
    fits = len(headers) + len(more) <= limits.HEADERS_MAX
    if not fits or taken + size > limits.HEADERS_BYTES_MAX:
        return message
    return msgspec.structs.replace(message, headers=headers | more)
