"""The session machine. It decides what a client may say and when, when it has been silent for too
long, and when its right to be here ends. Pure.

    awaiting hello ──hello──► open ──drain()──► draining
          │                    │                   │
          └────────────────────┴───────────────────┴──► closed

Data and `now` (seconds, monotonic) go in, effects come out, in order. An effect is a client's frame
that may be carried out, a `Refusal` to send, a `SendPing`, or a `Close`, which is the last one.

A message that cannot be decoded changes nothing. Each of its frames that has a `ref` gets an error,
so that no client waits for ever. The session goes on, up to BAD_MESSAGES_PER_SESSION_MAX (P12).
"""

import enum
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Final, NamedTuple

import msgspec

from gateway.wire import frames
from gateway.wire.frames import Close
from push import limits
from push.errors import Refused

REF_MAX: Final = (1 << 53) - 1
SEQUENCE_MAX: Final = (1 << 53) - 1
"""Largest sequence. Beyond it a JSON number is not exact in every language."""
PART_SHARE: Final = 0.25
"""Share of the heartbeat after which the client is notified, again and again, that the parts of its
message arrive. That is sooner than clients give up a silent broker."""
INVALID_UTF8: Final = Close(1007, "text that is not UTF-8")
"""The code of the WebSocket protocol itself, which RFC 6455, 8.1 demands."""


class State(enum.Enum):
    """State of a session."""

    HELLO = "awaiting hello"
    OPEN = "open"
    DRAINING = "draining"
    CLOSED = "closed"


class Refusal(NamedTuple):
    """Send this frame, a refusal with this code."""

    frame: bytes
    code: str

    @classmethod
    def to(cls, refusal: Refused, ref: int | None = None) -> "Refusal":
        """Return the refusal of the frame with this `ref`."""
        return cls(frames.error(refusal, ref), refusal.code.name)


class SendPing(NamedTuple):
    """Ask for a sign of life."""


Effect = frames.ClientFrame | Refusal | SendPing | Close


@dataclass(frozen=True, slots=True)
class Timing:
    """Times for which a session may be silent, in seconds."""

    hello_timeout_s: float = limits.HELLO_TIMEOUT_S
    heartbeat_s: float = limits.HEARTBEAT_S
    heartbeat_timeout_s: float = limits.HEARTBEAT_TIMEOUT_S


class SessionProtocol:
    """The protocol of one client's session, sans I/O, whatever transport carries it."""

    __slots__ = (
        "_answer_until",
        "_awaits_pong",
        "_bad_count",
        "_lost_opens",
        "_part_since",
        "_subscriptions",
        "_taken_bytes",
        "_timing",
        "has_session_name",
        "other_frames",
        "received_at",
        "right_ends",
        "state",
    )

    def __init__(self, timing: Timing, *, now: float, right_ends: float = inf) -> None:
        """`right_ends` is the time at which its client's access ends."""
        self.state = State.HELLO
        self.right_ends = right_ends
        self._timing = timing
        self._answer_until = now + timing.hello_timeout_s
        """Time until which `hello` must come, or the answer to a ping."""
        self._awaits_pong = False
        """Whether a ping was sent, and nothing has arrived since."""
        self._taken_bytes: int | None = None
        """Bytes that its transport had taken at the last ping, or at a later look by `expire`; None
        if nothing was on its way, or nobody can know."""
        self._part_since: float | None = None
        """Time at which an incomplete message began to arrive, or at which its client was last
        notified of that; None if no part has arrived since the last whole message."""
        self.received_at = now
        """Time of the last arrival of anything."""
        self._bad_count = 0
        self.other_frames = 0
        """Number of received frames that are no publishes. A message that cannot be decoded counts
        as one."""
        self.has_session_name = False
        """Whether `hello` named a session, so that its client may hold earlier deliveries."""
        self._subscriptions: dict[int, int | None] = {}
        """Number → credit granted in total; None while it is being opened."""
        self._lost_opens: frozenset[int] = frozenset()
        """Subscriptions that were being opened when their transport was lost, so that their answers
        reach nobody."""

    def __repr__(self) -> str:
        return f"<SessionProtocol {self.state.value}, subscriptions {sorted(self._subscriptions)}>"

    # --- Messages of the client -----------------------------------------------------------------

    def receive(self, *messages: bytes, now: float) -> list[Effect]:
        """Judge text messages. Nothing happens after the session is closed."""
        self.received_at = now
        self._awaits_pong = False
        self._part_since = None
        effects: list[Effect] = []
        for data in messages:
            if self.state is State.CLOSED:
                break
            try:
                received = frames.decode(data)
            except Refused as error:
                self.other_frames += 1
                effects += self._reject_undecodable(data, error)
                continue
            for frame in received:
                if frame.__class__ is not frames.Publish:
                    self.other_frames += 1
                effect = self._check(frame)
                if isinstance(effect, frames.Hello) and effect.session and len(received) > 1:
                    # The frames after it are meant for the other session, if there is one.
                    detail = "a hello with a session is alone in a message"
                    effects.append(Refusal.to(Refused("invalid_request", detail)))
                    effect = self._close(frames.PROTOCOL)
                if effect is not None:
                    effects.append(effect)
                if effect.__class__ is Close:
                    break
        return effects

    def receive_binary(self) -> list[Effect]:
        """Judge a binary message, which this subprotocol does not have."""
        if self.state is State.CLOSED:
            return []
        refusal = Refused("invalid_request", "a binary message; frames are JSON in text messages")
        return [Refusal.to(refusal), self._close(frames.PROTOCOL)]

    def _check(self, frame: frames.ClientFrame) -> Effect | None:
        if (self.state is State.HELLO) is not isinstance(frame, frames.Hello):
            return self._close(frames.HELLO_FIRST)
        match frame:
            case frames.Publish():
                # The type bounds only the sequence of the first message.
                if frame.sequence is None or (
                    frame.sequence + len(frame.messages) - 1 <= SEQUENCE_MAX
                ):
                    return frame
                return _sequence_too_high(frame.sequence, frame)
            case frames.Ping() | frames.Auth():
                return frame
            case frames.Ack() | frames.Nack() | frames.Extend() | frames.Held():
                if self._subscriptions.get(frame.subscription) is None:
                    return _not_subscribed(frame.subscription, frame.ref)
                return frame
            case frames.Credit():
                return self._grant(frame)
            case frames.Subscribe():
                return self._subscribe(frame)
            case frames.Unsubscribe():
                if self._subscriptions.get(frame.subscription) is None:
                    return _not_subscribed(frame.subscription, frame.ref)
                del self._subscriptions[frame.subscription]
                return frame
            case frames.Hello():
                self.state = State.OPEN
                self.has_session_name = frame.session is not None
                return frame

    def _subscribe(self, frame: frames.Subscribe) -> Effect:
        refusal = _check_subscribe(frame)
        if refusal is None and frame.held and not self.has_session_name:
            refusal = Refused("invalid_request", "held is for a session that hello has named")
        if refusal is None and self.state is State.DRAINING:
            refusal = Refused("draining")
        if refusal is None and frame.subscription in self._subscriptions:
            refusal = Refused("already_subscribed")
            is_opening = self._subscriptions[frame.subscription] is None
            if is_opening and frame.subscription in self._lost_opens:
                refusal = Refused("overloaded", "an earlier subscribe is under way: try it again")
        if refusal is None and len(self._subscriptions) >= limits.SUBSCRIPTIONS_PER_SESSION_MAX:
            refusal = Refused(
                "limit_reached",
                f"a session has at most {limits.SUBSCRIPTIONS_PER_SESSION_MAX} subscriptions",
            )
        if refusal is not None:
            return Refusal.to(refusal, frame.ref)
        self._subscriptions[frame.subscription] = None
        return frame

    # enforces: R25
    def _grant(self, frame: frames.Credit) -> Effect | None:
        granted = self._subscriptions.get(frame.subscription)
        if granted is None:
            return _not_subscribed(frame.subscription, None)
        if frame.granted <= granted:
            return None  # the counter only grows, so an older frame says nothing new (R25)
        if frame.granted - granted > limits.CREDIT_MAX:
            refusal = Refused(
                "limit_reached",
                f"subscription {frame.subscription}: credit grows by at most {limits.CREDIT_MAX}",
            )
            return Refusal.to(refusal)
        return frame

    # enforces: P12
    def _reject_undecodable(self, data: bytes, error: Refused) -> list[Effect]:
        effects: list[Effect] = [Refusal.to(error, ref) for ref in _refs(data)]
        if not effects:
            effects.append(Refusal.to(error))
        self._bad_count += 1
        if not _is_utf8(data):
            effects.append(self._close(INVALID_UTF8))
        elif self.state is State.HELLO or self._bad_count > limits.BAD_MESSAGES_PER_SESSION_MAX:
            effects.append(self._close(frames.PROTOCOL))
        return effects

    # --- Results from inside --------------------------------------------------------------------

    def on_open(self, subscription: int, granted: int) -> None:
        """Note a subscribe that succeeded. From now on acks and credit may name it."""
        assert self._subscriptions[subscription] is None
        self._subscriptions[subscription] = granted

    def on_grant(self, subscription: int, granted: int) -> None:
        """Note credit that was accepted. Refused credit changes nothing, because a later frame with
        less may still be new (R25). An unsubscribe in the same message is judged before the credit
        ahead of it is accepted; then the subscription is not brought back."""
        if self._subscriptions.get(subscription) is not None:
            self._subscriptions[subscription] = granted

    def on_refusal(self, subscription: int) -> None:
        """Note a subscribe that failed. Its number is free again."""
        assert self._subscriptions[subscription] is None
        del self._subscriptions[subscription]

    @property
    def open_subscriptions(self) -> list[int]:
        """The numbers of open subscriptions."""
        return [number for number, granted in self._subscriptions.items() if granted is not None]

    def on_end(self, subscription: int) -> None:
        """Note an end that the client did not request. The number is free again. Nothing happens
        for an unknown number."""
        self._subscriptions.pop(subscription, None)

    def drain(self) -> None:
        """Refuse new subscriptions from now on."""
        if self.state is State.OPEN:
            self.state = State.DRAINING

    def end(self) -> None:
        """End the session. Nothing is accepted and nothing is due any more."""
        self.state = State.CLOSED

    # --- Time -----------------------------------------------------------------------------------

    def on_bytes(self, *, now: float) -> None:
        """Note that something arrived. It does not prolong the wait for `hello`."""
        self.received_at = now
        self._awaits_pong = False

    def on_part(self, *, now: float) -> bool:
        """Note a part of a message, after `on_bytes`. Returns whether to send a sign of life. A
        client that is busy sending reads nothing meanwhile, and cannot see that its bytes
        arrive."""
        if self.state is State.HELLO or self.state is State.CLOSED:
            return False
        if self._part_since is None:
            self._part_since = now
        if now - self._part_since < self._timing.heartbeat_s * PART_SHARE:
            return False
        self._part_since = now
        return True

    def reattach(self, *, now: float, right_ends: float) -> None:
        """Go on over another transport, even if silence had closed the session, with the right that
        its client has shown now."""
        self.right_ends = right_ends
        if self.state is State.CLOSED:
            self.state = State.OPEN
        self._lost_opens = frozenset(
            n for n, granted in self._subscriptions.items() if granted is None
        )
        self.has_session_name = True
        self._part_since = None
        self.on_bytes(now=now)

    def next_deadline(self) -> float | None:
        """Return when to call `expire`; None for never. The deadline may have moved on by then."""
        if self.state is State.CLOSED:
            return None
        awaits_answer = self._awaits_pong or self.state is State.HELLO
        silent_until = self.received_at + self._timing.heartbeat_s
        return min(self._answer_until if awaits_answer else silent_until, self.right_ends)

    # enforces: P6
    def expire(
        self, *, now: float, taken_bytes: Callable[[], int | None] = lambda: None
    ) -> SendPing | Close | None:
        """Return what time alone made due. `taken_bytes` is SessionTransport.taken_bytes. It is
        needed because a client answers a ping only after a large message that came before it."""
        deadline = self.next_deadline()
        if deadline is None or now < deadline:
            return None
        if now >= self.right_ends:
            return self._close(frames.UNAUTHORIZED)
        if self.state is State.HELLO:
            return self._close(frames.HELLO_LATE)
        before, self._taken_bytes = self._taken_bytes, taken_bytes()
        if not self._awaits_pong:
            self._awaits_pong = True
            self._answer_until = now + self._timing.heartbeat_timeout_s
            return SendPing()
        if before is None or self._taken_bytes is None or self._taken_bytes <= before:
            return self._close(frames.HEARTBEAT)
        # It takes bytes, so it is alive.
        self._answer_until = now + self._timing.heartbeat_timeout_s
        return None

    def check(self) -> None:
        """Assert what always holds (P9, P12)."""
        assert len(self._subscriptions) <= limits.SUBSCRIPTIONS_PER_SESSION_MAX, "P9"
        assert self._bad_count <= limits.BAD_MESSAGES_PER_SESSION_MAX + 1, "P12"
        assert self.state is not State.HELLO or not self._subscriptions, "hello first"

    def _close(self, close: Close) -> Close:
        self.state = State.CLOSED
        return close


def _sequence_too_high(sequence: int, frame: frames.Publish) -> Refusal:
    refusal = Refused(
        "invalid_request",
        f"the last message's sequence is above {SEQUENCE_MAX}: {len(frame.messages)} messages "
        f"from {sequence} on",
    )
    return Refusal.to(refusal, frame.ref)


def _check_subscribe(frame: frames.Subscribe) -> Refused | None:
    if frame.group is not None and (frame.keys is not None or frame.position is not None):
        return Refused("invalid_request", "keys and position are for readers, without a group")
    if frame.group is None and frame.held:
        return Refused("invalid_request", "held is for consumers; a reader sends its position")
    if frame.position is not None and frame.start is not None:
        return Refused("invalid_request", "start and position exclude each other")
    return None


def _not_subscribed(subscription: int, ref: int | None) -> Refusal:
    refusal = Refused("not_subscribed", f"no subscription {subscription}, or not yet")
    return Refusal.to(refusal, ref)


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


class _Ref(msgspec.Struct):
    ref: object = None


_ONE: Final = msgspec.json.Decoder(_Ref)
_MANY: Final = msgspec.json.Decoder(list[_Ref])


def _refs(data: bytes) -> list[int]:
    """Return the refs in a message that is JSON and yet no frames, in order."""
    try:
        found = _MANY.decode(data) if frames.is_array(data) else [_ONE.decode(data)]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return []
    refs = [one.ref for one in found[: limits.FRAMES_PER_MESSAGE_MAX]]
    return [ref for ref in refs if type(ref) is int and 0 <= ref <= REF_MAX]
