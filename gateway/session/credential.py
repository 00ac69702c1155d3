"""The identity of a session, and what it may use: credential, quota, name of its producer."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from hashlib import blake2b
from typing import Final

import msgspec

from gateway.accounting.usage import SessionAccounting
from gateway.auth.auth import Authenticator, Revocable
from gateway.limits.limiter import Allowance, Limiter, release_nothing
from gateway.models import Admission
from gateway.wire import frames
from metadata.catalog import Principal, Queue
from metadata.rights import Rights
from push.errors import Refused
from push.message import Message
from push.producer_order import StreamOrder
from runtime.addresses import ClientAddress, name_of
from runtime.loop.fairness import FrameRate

STREAMS_MAX: Final = 1024
"""Largest number of queues for which a session remembers refused sequences that have not come
again. Beyond it the oldest queue is forgotten."""


class SessionQuota:
    """The limits of one session, from its `hello` to its end. `now` is monotonic seconds, and an
    `address` is the client's present one."""

    __slots__ = ("_allowance", "_limiter", "_streams", "frame_rate")

    def __init__(self, limiter: Limiter) -> None:
        self._limiter = limiter
        self._allowance: Allowance | None = None
        self._streams: dict[str, StreamOrder] | None = None
        """Queue id → sequences that were refused for a limit and have not come again; None if no
        publish with a sequence was refused so."""
        self.frame_rate = FrameRate(limiter.session.frames)

    def guard_guess(self, address: ClientAddress, *, now: float) -> AbstractContextManager[None]:
        """Return a context in which a credential is checked. A wrong one counts against the
        client's address (Limiter.checking_credential)."""
        return self._limiter.checking_credential(name_of(address.text), now=now)

    def begin(
        self, admission: Admission, address: ClientAddress, *, now: float, goes_on: bool = False
    ) -> None:
        """Charge the session to this admission from now on. `goes_on`: whether the session had
        begun before, and is not counted anew.

        Raises:
            Refused: as Allowance.open does; then nothing has changed.
        """
        allowance = self._limiter.allowance(
            admission.principal,
            name_of(address.text),
            own=admission.limits,
            credential=admission.credential,
        )
        allowance.open(now=now, goes_on=goes_on)
        self.end()
        self._allowance = allowance

    def end(self) -> None:
        """End the session for the limits. Nothing happens if it had not begun, or has ended."""
        if self._allowance is not None:
            self._allowance.close()

    # --- Publishes ------------------------------------------------------------------------------

    def charge_all(
        self, queue: Queue, messages: Sequence[Message], publishes: int, *, now: float
    ) -> Callable[[], None] | None:
        """Charge several publishes to a queue as one. Returns the function to call when they are
        answered. Returns None if each must be charged alone, because not all of them fit, or
        because something of the queue was refused and has not come again."""
        if self._streams is not None and queue.queue_id in self._streams:
            return None
        assert self._allowance is not None
        return self._allowance.publish_all(queue, messages, publishes, now=now)

    def charge(
        self, frame: frames.Publish, queue: Queue, *, now: float
    ) -> Callable[[], None] | None:
        """Charge a publish. Returns the function to call when it is answered; None if it has more
        messages than are admitted at once (`charge_part`).

        Raises:
            Refused: nothing was charged, and the publishes behind it are refused too (R7).
        """
        assert self._allowance is not None
        quota, count = self._allowance.quota(queue, now=now), len(frame.messages)
        if not quota.accounts and self._streams is None:
            return release_nothing
        if quota.messages_max is not None and count > quota.messages_max:
            return None
        return self._charge_in_order(frame, queue, count, now)

    def charge_part(
        self, frame: frames.Publish, queue: Queue, *, now: float
    ) -> tuple[Callable[[], None], int, Refused]:
        """Charge as many messages of a publish as are admitted at once, and refuse the others.
        Returns the function to call when it is answered, the number of those admitted, and the
        refusal.

        Raises:
            Refused: as `charge` does.
        """
        assert self._allowance is not None
        most = self._allowance.messages_max(queue, now=now)
        assert most is not None
        release = self._charge_in_order(frame, queue, most, now)
        refused = self._allowance.refuse_beyond(queue, frame.messages[most:], now=now)
        if frame.sequence is not None:
            stream = (self._streams or {}).get(queue.queue_id) or self._new_stream(queue)
            stream.refuse(frame.sequence + most, len(frame.messages) - most)
        return release, most, refused

    def _charge_in_order(
        self, frame: frames.Publish, queue: Queue, count: int, now: float
    ) -> Callable[[], None]:
        assert self._allowance is not None
        sequence = frame.sequence
        stream = self._streams.get(queue.queue_id) if self._streams else None
        if (
            stream is not None
            and sequence is not None
            and not stream.admits(sequence, len(frame.messages), frame.resolved)
        ):
            raise Refused("out_of_sequence")
        try:
            release = self._allowance.publish(queue, frame.messages[:count], now=now)
        except Refused:
            if sequence is not None:
                stream = stream or self._new_stream(queue)
                stream.refuse(sequence, len(frame.messages))
            raise
        if stream is not None and sequence is not None:
            stream.accept(sequence, count)
            if not stream and self._streams is not None:
                del self._streams[queue.queue_id]
        return release

    def _new_stream(self, queue: Queue) -> StreamOrder:
        streams = self._streams
        if streams is None:
            streams = self._streams = {}
        streams.pop(queue.queue_id, None)
        while len(streams) >= STREAMS_MAX:
            del streams[next(iter(streams))]
        stream = streams[queue.queue_id] = StreamOrder()
        return stream


class SessionCredential:
    """The admission of one session. Another one of the same principal may replace it. The end of
    its credential ends the session."""

    __slots__ = ("_account", "_auth", "_quota", "_session", "_wall", "admission")

    def __init__(
        self,
        session: Revocable | None,
        admission: Admission | None,
        auth: Authenticator,
        account: SessionAccounting,
        quota: SessionQuota,
        *,
        wall: Callable[[], float],
    ) -> None:
        """The end of the credential ends `session`. `admission` is None if a credential has to
        follow. `wall` returns unix seconds."""
        self._session = session
        self._auth = auth
        self._account = account
        self._quota = quota
        self._wall = wall
        self.admission: Admission | None = None
        if admission is not None:
            self._set(admission)

    @property
    def rights(self) -> Rights:
        """The rights of its client now. Not to be used before `hello` has been accepted (P11)."""
        assert self.admission is not None
        return self.admission.rights

    def enter(self, token: str | None, address: ClientAddress, *, now: float) -> Admission:
        """Check a token or ticket at `now` (monotonic seconds), and take the admission it gives.

        Raises:
            Refused: unauthorized; rate_limited if too many from this address were wrong.
        """
        try:
            admission = self._check(token, address, now)
        except Refused as error:
            self._account.reject(error)
            raise
        self.take(admission)
        return admission

    def renew(self, token: str, address: ClientAddress, *, now: float) -> Admission:
        """Check and take another credential of the same principal, in a session that is open.

        Raises:
            Refused: unauthorized, rate_limited; forbidden if it is another principal's.
        """
        try:
            admission = self._check(token, address, now)
        except Refused as error:
            if error.code.name == "unauthorized":
                self._account.reject(error)
            raise
        if self.admission is None or admission.principal != self.admission.principal:
            detail = "the credential is another principal's: open another session for it"
            raise Refused("forbidden", detail)
        self.take(admission)
        self._quota.begin(admission, address, now=now, goes_on=True)
        return admission

    def _check(self, token: str | None, address: ClientAddress, now: float) -> Admission:
        with self._quota.guard_guess(address, now=now):
            return self._auth.check_hello(token, now=now, wall=self._wall())

    def take(self, admission: Admission) -> None:
        """Use this admission from now on, also for the accounting."""
        self._set(admission)
        self._account.admit(admission)

    def _set(self, admission: Admission) -> None:
        self._leave()
        self.admission = admission
        if self._session is not None:
            self._auth.track(admission.credential, self._session)

    def end(self) -> None:
        """Separate the session from its credential, whose end no longer ends it. Nothing happens
        the second time."""
        self._leave()
        self._session = None  # no circle is left for the garbage collector

    def _leave(self) -> None:
        if self.admission is not None and self._session is not None:
            self._auth.untrack(self.admission.credential, self._session)


def producer_id(principal: Principal, name: str) -> bytes:
    """Name a producer in 16 bytes. The name is the same after a reconnect. It differs for every
    tenant and principal, so that nobody can use up somebody else's sequences (R6)."""
    parts = msgspec.json.encode([principal.tenant, principal.name, name])
    return blake2b(parts, digest_size=16, person=b"tocsin-producer").digest()
