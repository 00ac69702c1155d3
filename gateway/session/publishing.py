"""A session's publishes: found a queue for, charged to its allowance, submitted in sending order
(R7), answered.

What a session is charged to, from its `hello` to its end.
"""

import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from functools import partial
from hashlib import blake2b
from typing import Any, Final, Protocol

import msgspec

from gateway.accounting.books import SessionAccounting
from gateway.deliverylog.spans import OriginTracker, PublishOrigin
from gateway.limits.limiter import Allowance, Limiter
from gateway.models import Admission, Transport
from gateway.session.transport import Answer, Broker
from gateway.wire import frames
from gateway.wire.coalesce import Said, Together, receipts_end, receipts_of
from metadata.catalog import Principal, Queue
from metadata.rights import KeyScope
from push.errors import Refused, TocsinError
from push.producer_order import StreamOrder
from runtime.addresses import ClientAddress, name_of
from runtime.loop.fairness import FrameRate


class Charges:
    """Of one session. `now`: seconds, monotonic; `address`: where its client is now."""

    __slots__ = ("_allowance", "_limiter", "frame_rate")

    def __init__(self, limiter: Limiter) -> None:
        self._limiter = limiter
        self._allowance: Allowance | None = None
        self.frame_rate = FrameRate(limiter.session.frames)

    @property
    def allowance(self) -> Allowance:
        """What it may. Nobody asks before `begin`."""
        assert self._allowance is not None
        return self._allowance

    def guessing(self, address: ClientAddress, *, now: float) -> AbstractContextManager[None]:
        """As Limiter.guessing, of where its client is."""
        return self._limiter.checking_credential(name_of(address.text), now=now)

    def begin(
        self, admission: Admission, address: ClientAddress, *, now: float, goes_on: bool = False
    ) -> None:
        """From now on this admission is charged. `goes_on`: the session stands already.

        Raises:
            Refused: as Allowance.open; nothing has changed.
        """
        allowance = self._limiter.allowance(
            admission.principal, name_of(address.text),
            own=admission.limits, credential=admission.credential,
        )  # fmt: skip
        allowance.open(now=now, goes_on=goes_on)
        self.end()
        self._allowance = allowance

    def end(self) -> None:
        """The session is over; or had not begun: nothing happens."""
        if self._allowance is not None:
            self._allowance.close()


logger = logging.getLogger("tocsin.session")
STREAMS_MAX: Final = 1024
"""Queues of a session in which something waits to be sent again. Of one more the oldest is
forgotten."""


class PublishingHost(Protocol):
    """The conversation that publishes."""

    @property
    def session_id(self) -> str: ...

    @property
    def transport(self) -> Transport | None:
        """What carries it now; None: nothing does."""

    @property
    def principal(self) -> Principal: ...

    @property
    def broker(self) -> Broker: ...

    @property
    def admission(self) -> Admission: ...

    @property
    def account(self) -> SessionAccounting: ...

    @property
    def charges(self) -> Charges: ...

    @property
    def heard_at(self) -> float:
        """When something arrived last, by the loop's clock."""

    def refuse(self, error: TocsinError, ref: int | None, queue: str | None = None) -> None:
        """Say that it was not done, and why. `queue`: its queue's name."""

    def asked(self, count: int) -> None:
        """So many more answers (or, negative, fewer) are owed to the client."""

    def answered(self, frame: bytes) -> None:
        """One that is owed."""

    def apply(self, effects: Sequence[Said]) -> None:
        """What the client said, one after the other."""

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run it as a task of the session."""

    def hold_reading(self, hold: bool) -> None:
        """Read nothing more, or go on."""

    def report_bug(self, ref: int | None) -> None:
        """Inside an `except`."""


class Publishing:
    """See the module. `producer`: None where the client has not named one."""

    __slots__ = ("_host", "_late", "_sender", "_streams", "producer")

    def __init__(self, host: PublishingHost) -> None:
        self._host = host
        self._late: dict[str, list[frames.Publish]] | None = None
        """By queue, what waits until it is known whether the queue may be made."""
        self.producer: bytes | None = None
        self._streams: dict[str, StreamOrder] = {}
        """By queue id, what was over a limit and has not come again."""
        self._sender: OriginTracker | None = None
        """None: it has published nothing that was logged."""

    @property
    def is_waiting(self) -> bool:
        """Whether nothing more is to be read."""
        return bool(self._late)

    def closed(self) -> None:
        """The session is over."""
        self._late = None

    def publish(self, frame: frames.Publish) -> None:
        """Submit it, behind what came before. Raises TocsinError: nothing was submitted."""
        if frame.sequence is not None and self.producer is None:
            raise Refused("invalid_request", "a sequence needs the name of a producer, in hello")
        if self._late is not None and frame.queue in self._late:
            self._late[frame.queue].append(frame)  # behind those that wait: sending order (R7)
            return
        host = self._host
        admission = host.admission
        keys = admission.rights.check("publish", frame.queue)  # before anything is looked up
        try:
            queue = host.broker.metadata.find_queue(admission.principal, frame.queue)
        except Refused as error:
            if error.code.name != "queue_not_found":
                raise
            self._publish_late(frame)
        else:
            self._submit(frame, queue, keys)

    def publish_together(self, publishes: Together) -> None:
        """As the one publish that they may be; or, where something is to be judged frame by frame,
        one after the other. Raises nothing: each is answered."""
        try:
            if not self._is_handed_in(publishes):
                self._host.apply(publishes.frames)
        except Exception:
            first, *others = publishes.frames
            self._host.report_bug(first.ref)
            for frame in others:
                self._host.refuse(TocsinError("internal"), frame.ref)

    def _is_handed_in(self, publishes: Together) -> bool:
        whole, host = publishes.whole, self._host
        if whole.sequence is not None and self.producer is None:
            return False
        if self._late is not None and whole.queue in self._late:
            return False
        admission = host.admission
        try:
            keys = admission.rights.check("publish", whole.queue)
            queue = host.broker.metadata.find_queue(admission.principal, whole.queue)
        except TocsinError:
            return False
        # Of several clusters one may be away: what goes to the others does not wait for it.
        if queue.queue_id in self._streams or len(queue.clusters) > 1:
            return False
        owed = host.charges.allowance.publish_all(
            queue, whole.messages, len(publishes.frames), now=host.heard_at
        )
        if owed is None:
            return False
        self._hand_in(whole, queue, keys, publishes.frames, owed)
        return True

    def _charge(self, frame: frames.Publish, queue: Queue, count: int) -> Callable[[], None]:
        """Charge its first `count` messages: what is to be called when they are answered. Raises
        Refused; then what comes behind it is refused, too, and charged to nobody."""
        sequence = frame.sequence
        stream = self._streams.get(queue.queue_id) if self._streams else None
        if (
            stream is not None
            and sequence is not None
            and not stream.admits(sequence, len(frame.messages), frame.resolved)
        ):
            raise Refused("out_of_sequence")
        try:
            host = self._host
            admitted = frame.messages[:count]
            owed = host.charges.allowance.publish(queue, admitted, now=host.heard_at)
        except Refused:
            if sequence is not None:
                stream = stream or self._new_stream(queue)
                stream.refuse(sequence, len(frame.messages))
            raise
        if stream is not None and sequence is not None:
            stream.accept(sequence, count)
            if not stream:
                del self._streams[queue.queue_id]
        return owed

    def _new_stream(self, queue: Queue) -> StreamOrder:
        self._streams.pop(queue.queue_id, None)
        while len(self._streams) >= STREAMS_MAX:
            del self._streams[next(iter(self._streams))]
        stream = self._streams[queue.queue_id] = StreamOrder()
        return stream

    def _submit(self, frame: frames.Publish, queue: Queue, keys: KeyScope) -> None:
        host, count = self._host, len(frame.messages)
        most = host.charges.allowance.at_once(queue, now=host.heard_at)
        if most is None or count <= most:
            self._hand_in(frame, queue, keys, (frame,), self._charge(frame, queue, count))
            return
        # What a rate admits at once goes; the rest is refused in its place, and comes again (R5).
        owed = self._charge(frame, queue, most)
        beyond = host.charges.allowance.beyond(queue, frame.messages[most:], now=host.heard_at)
        if frame.sequence is not None:
            stream = self._streams.get(queue.queue_id) or self._new_stream(queue)
            stream.refuse(frame.sequence + most, count - most)
        first = msgspec.structs.replace(frame, messages=frame.messages[:most])
        self._hand_in(first, queue, keys, (frame,), owed, beyond=(beyond, count - most))

    def _hand_in(
        self, whole: frames.Publish, queue: Queue, keys: KeyScope, asked: Sequence[frames.Publish],
        owed: Callable[[], None], *, beyond: tuple[Refused, int] | None = None,
    ) -> None:  # fmt: skip
        """Publish `whole`, which is what the frames `asked` have: each of them gets its answer.
        `beyond`: why so many messages behind it were refused."""
        self._host.asked(len(asked))
        try:
            self._host.broker.publisher.submit(
                queue,
                whole.messages,
                partial(self._published, asked, whole.queue, owed, beyond),
                producer=None if whole.sequence is None else self.producer,
                sequence=whole.sequence,
                resolved=whole.resolved,
                keys=keys,
                origin=self._origin(whole, queue),
            )
        except BaseException:
            owed()
            self._host.asked(-len(asked))
            raise

    def _origin(self, frame: frames.Publish, queue: Queue) -> PublishOrigin | None:
        log = self._host.broker.delivery_log
        if not log.is_on:
            return None
        if self._sender is None:
            self._sender = OriginTracker()
        return self._sender.origin(log, self._host, queue, frame)

    def _published(
        self, asked: Sequence[frames.Publish], queue: str, owed: Callable[[], None],
        beyond: tuple[Refused, int] | None, answer: Answer,
    ) -> None:  # fmt: skip
        owed()
        counter = self._host.account.of(queue)
        answer.counted_in(counter)
        receipts: list[object] = [
            outcome if isinstance(outcome, tuple) else frames.error_fields(outcome)
            for outcome in answer.outcomes
        ]
        if beyond is not None:
            refused, count = beyond
            receipts += [frames.error_fields(refused)] * count
            for _ in range(count):
                counter.refused(refused.code.name)
        end, place = receipts_end(answer.id_prefix, answer.durability), 0
        for frame in asked:
            count = len(frame.messages)
            self._host.answered(receipts_of(frame.ref, receipts[place : place + count], end))
            place += count

    def _publish_late(self, frame: frames.Publish) -> None:
        """The queue is not there: perhaps it may be made. Nothing more is read meanwhile, which
        bounds what waits here to what had already been read (P9)."""
        if self._late is None:
            self._late = {}
        self._late[frame.queue] = [frame]
        if len(self._late) == 1:
            self._host.hold_reading(True)
        self._host.start(self._find_and_submit(frame.queue))

    async def _find_and_submit(self, name: str) -> None:
        host = self._host
        queue: Queue | None = None
        try:
            waiting = (self._late or {}).get(name, ())
            admission = host.admission
            keys = admission.rights.check("publish", name)
            messages = [one for frame in waiting for one in frame.messages if keys.allow(one.key)]
            queue = await host.broker.queue_for_publish(admission.principal, name, messages)
            failure = TocsinError("internal")
        except TocsinError as error:
            failure = error
        except Exception:
            logger.exception("session %s: queue %r could not be made", host.session_id, name)
            failure = TocsinError("internal")
        if self._late is None:
            return  # closed meanwhile
        for frame in self._late.pop(name):
            if queue is None:
                host.refuse(failure, frame.ref)
            else:
                try:
                    self._submit(frame, queue, host.admission.rights.check("publish", name))
                except TocsinError as error:
                    host.refuse(error, frame.ref, name)
                except Exception:
                    host.report_bug(frame.ref)
        if not self._late:
            host.hold_reading(False)


def producer_id(principal: Principal, name: str) -> bytes:
    """16 bytes that name a producer: the same after a reconnect, another one for every tenant and
    principal, so that nobody can use up somebody else's sequences (R6)."""
    parts = msgspec.json.encode([principal.tenant, principal.name, name])
    return blake2b(parts, digest_size=16, person=b"tocsin-producer").digest()
