"""Where publishes come from, as the delivery log is told it: a session with its clock, or a
request."""

from collections.abc import Sequence
from typing import Protocol

from gateway.deliverylog.deliveries import CARRIERS, Session
from gateway.deliverylog.publishes import Origin, OriginLog
from metadata.catalog import Principal, Queue
from push.message import Message
from runtime.tracing import PARENT, Trace, trace_from


class Host(Session, Protocol):
    """A session that publishes."""

    @property
    def principal(self) -> Principal: ...


class Frame(Protocol):
    """A publish."""

    @property
    def messages(self) -> Sequence[Message]: ...

    @property
    def produced_unix_us(self) -> int | None: ...

    @property
    def clock_offset_us(self) -> int | None: ...


class Sender:
    """A session's: what it said of its clock, and the origin of what came last."""

    __slots__ = ("_offset_us", "_origin", "_shift_us")

    def __init__(self) -> None:
        self._offset_us: int | None = None
        self._shift_us = 0
        """What makes monotonic time of the client's, where the offset is known."""
        self._origin: Origin | None = None

    def origin(self, log: OriginLog, host: Host, queue: Queue, frame: Frame) -> Origin:
        """That of this publish; also of the one before, where both came at one time."""
        now_us, first, origin = log.now_us(), frame.messages[0], self._origin
        count, trace = len(frame.messages), _trace(first) if first.headers is not None else None
        produced_us, offset_us = frame.produced_unix_us, None
        if frame.clock_offset_us is not None:
            self._offset_us = frame.clock_offset_us
            self._shift_us = frame.clock_offset_us - log.clock.base_us
        if produced_us is not None:
            offset_us = self._offset_us
            if offset_us is not None:
                produced_us += self._shift_us
        elif first.sent_unix_ms is not None:
            produced_us = first.sent_unix_ms * 1000
        elif (
            trace is None and origin is not None and origin.takes(count, now_us=now_us, queue=queue)
        ):
            return origin
        carrier = host.transport
        self._origin = Origin(
            log, queue, now_us, count, transport=CARRIERS[carrier or "websocket"],
            producer=host.principal.name, session=host.session_id,
            produced_us=produced_us, clock_offset_us=offset_us, trace=trace,
        )  # fmt: skip
        return self._origin


def origin_of_request(
    log: OriginLog, queue: Queue, producer: str, messages: Sequence[Message],
    trace: Trace | None,
) -> Origin | None:  # fmt: skip
    """That of what one request publishes, which is of this trace. None: the log is off."""
    if not log.is_on:
        return None
    first = messages[0]
    return Origin(
        log, queue, log.now_us(), len(messages), transport="http", producer=producer,
        produced_us=first.sent_unix_ms * 1000 if first.sent_unix_ms is not None else None,
        trace=trace.trace_id if trace is not None else _trace(first),
    )  # fmt: skip


def _trace(first: Message) -> str | None:
    parent = first.headers.get(PARENT) if first.headers is not None else None
    trace = trace_from(parent) if parent is not None else None
    return trace.trace_id if trace is not None else None
