"""The reading side of a WebSocket: what its client says, in parts, each when it is its turn.

A base of the connection. What a socket has sent at once may be worth a long time: thousands of
frames, or the beginning of megabytes. It is heard in parts (gateway.net.registry), no faster than
it pays for (gateway.limits.pace), and large things that are not complete are read in turns
(runtime.loop.intake). Meanwhile the socket is not read, so that what waits here is bounded, and the
client's own socket tells it to wait.
"""

import asyncio
from abc import ABC, abstractmethod
from typing import ClassVar, Final

from gateway.net.registry import PART_BYTES_MAX, PART_FRAMES_MAX, Registry
from gateway.session.conversation import Conversation
from gateway.wire import frames
from gateway.wire.frames import Close
from gateway.wire.heard import Heard
from gateway.wire.rfc6455 import BINARY, CLOSE, PING, PONG, TEXT, MessageReader, control_frame
from push import limits
from push.errors import Refused
from runtime.loop.intake import LARGE_READ_BYTES

UNREAD: Final = 1  # reasons to hold reading
ASKED: Final = 2
_TURN: Final = 4
_INTAKE: Final = 8
_BREATH: Final = 16
FULL_READ_BYTES: Final = 192 * 1024
"""A read of about 250 kB is all that uvloop takes at once: there is more, and it would read on, up
to 32 times, before anybody else is heard. Four clients that flooded a broker with nobody beside
them made turns of 60 ms."""
_LAST_WORDS: Final = (b"", *(code.to_bytes(2) for code in (1000, 1001)))
"""Close codes, or none, with which a client says that it will not come back."""
_UNHEARD_S_MAX: Final = 1.0
"""A client that waits for its turn for longer is not silent: now and then that is written down."""


class Reading(asyncio.Protocol, ABC):
    """See the module."""

    __slots__ = ("_conversation", "_is_holding", "_read_holds", "_reader", "_transport")
    registry: ClassVar[Registry]
    scheduled: float
    _transport: asyncio.Transport

    def __init__(self) -> None:
        self._conversation: Conversation | None = None
        """None before the handshake and after our close frame."""
        self._reader = MessageReader(limits.HELLO_BYTES_MAX)
        self._is_holding = False
        """Something incomplete of its client is counted in `incoming`."""
        self._read_holds = 0

    # --- What the connection does ---------------------------------------------------------------

    @abstractmethod
    def send(self, frame: bytes) -> None:
        """As Outlet.send."""

    @abstractmethod
    def close(self, close: Close) -> None:
        """As Outlet.close."""

    @abstractmethod
    def tick(self) -> None:
        """As Timed.tick."""

    @abstractmethod
    def _end(self, last_words: bytes, *, ends_session: bool | None) -> None:
        """The socket is done with."""

    @abstractmethod
    def _answered(self, payload: bytes) -> bool:
        """A pong came. Whether it answers something that it was sent: then it costs nothing."""

    @abstractmethod
    def _flush_early(self) -> None:
        """Answers must not pile up while much is worked off."""

    # --- Hearing --------------------------------------------------------------------------------

    def _hear(self, conversation: Conversation, data: bytes) -> None:
        """Bytes of the client."""
        events = Heard(self._reader.receive(data))
        if self.registry.waits(self, len(data)):
            self._hold(_TURN)
            self.registry.later(self, events)
            return
        self._work(conversation, events, self.registry.part_bytes(len(data)))
        if len(data) >= FULL_READ_BYTES and self._conversation is not None:
            self._hold(_BREATH)
            asyncio.get_running_loop().call_soon(self._breathe)
        if len(data) >= LARGE_READ_BYTES and self._reader.held_bytes >= LARGE_READ_BYTES:
            self._rest()

    def _drop(self, data: bytes) -> None:
        """Bytes that mean nothing any more."""
        if len(data) >= LARGE_READ_BYTES:
            self._rest()

    def _rest(self) -> None:
        """As Intake.rest; waiting already: nothing happens."""
        if not self._read_holds & _INTAKE:
            self._hold(_INTAKE)
            self.registry.intake.rest(self._read_on)

    def _breathe(self) -> None:
        """The others have been heard."""
        if not self._transport.is_closing():
            self._unhold(_BREATH)

    def _read_on(self) -> None:
        if not self._transport.is_closing():
            self._unhold(_INTAKE)

    def _work(self, conversation: Conversation, events: Heard, left: int) -> None:
        """Hand over what the client has said, `left` bytes of it, which is its part of a turn."""
        reader, now = self._reader, asyncio.get_running_loop().time()
        conversation.heard(now=now)
        count, is_cut = 0, False
        for opcode, messages in events:
            if opcode == TEXT:
                count += conversation.receive(*messages, now=now)
                here = self._conversation  # not the shell that a hello came to
                if here is not None and here.is_welcome:
                    reader.bytes_max = limits.FRAME_BYTES_MAX
            elif opcode != PONG or not self._answered(messages[0]):
                count += 1
                self._control(conversation, opcode, messages[0])
            if self._conversation is None:
                return
            conversation = self._conversation  # a hello may have brought back another one
            left -= sum(map(len, messages))
            if left <= 0 or count >= PART_FRAMES_MAX:
                is_cut = True
                break
        if reader.broken is not None:
            self._break(reader.broken)
            return
        if count or is_cut or self._read_holds & _TURN:
            self._pay(conversation, count, events, now, is_cut=is_cut)
        elif self._is_holding or not reader.is_idle:
            self._hold_incomplete(reader.held_bytes)
            conversation.heard_part(now=now)
        self.registry.deadlines.set(self, conversation.next_deadline())
        self._flush_early()

    def _control(self, conversation: Conversation, opcode: int, payload: bytes) -> None:
        if opcode == PING:
            self._transport.write(control_frame(PONG, payload))
        elif opcode == CLOSE:
            # The client's own code, 5.5.1. One that only lost its way may come back.
            is_end = payload[:2] in _LAST_WORDS
            self._end(control_frame(CLOSE, payload), ends_session=is_end)
        elif opcode == BINARY:
            conversation.receive_binary()

    def _break(self, broken: Close) -> None:
        if broken == frames.TOO_LARGE:
            detail = f"a WebSocket message has at most {self._reader.bytes_max} bytes here"
            self.send(frames.error(Refused("request_too_large", detail)))
        self.close(broken)

    def _pay(
        self,
        conversation: Conversation,
        count: int,
        events: Heard,
        now: float,
        *,
        is_cut: bool,
    ) -> None:
        """For `count` frames; then the rest, if there is one, has its turn."""
        reader = self._reader
        wait_s = conversation.pay(count, now=now)
        if wait_s:
            self._hold(_TURN)
            later = min(wait_s, _UNHEARD_S_MAX)
            asyncio.get_running_loop().call_later(later, self._ask_again, events)
        elif is_cut:
            self._hold(_TURN)
            self.registry.later(self, events)
        else:
            self._unhold(_TURN)
        held = reader.held_bytes + (reader.unread_bytes + events.ahead_bytes if wait_s else 0)
        if self._is_holding or held:
            self._hold_incomplete(held)

    def _ask_again(self, events: Heard) -> None:
        """It has waited: has it paid?"""
        conversation = self._conversation
        if conversation is not None:  # else nobody listens any more
            now = asyncio.get_running_loop().time()
            conversation.heard(now=now)
            self._pay(conversation, 0, events, now, is_cut=True)

    def go_on(self, rest: Heard) -> None:
        """As Talker.go_on; then the socket is read again."""
        if self._conversation is not None:  # else nobody listens any more
            self._work(self._conversation, rest, self.registry.part_bytes(PART_BYTES_MAX))

    # --- What is not complete -------------------------------------------------------------------

    def _hold_incomplete(self, size: int) -> None:
        self._is_holding = size > 0
        self.registry.incoming.hold(self, size)

    def give_up(self) -> None:
        """As Holder.give_up of runtime.loop.incoming."""
        self._is_holding = False
        self.send(frames.error(Refused("overloaded", "too many messages are not complete")))
        self.close(frames.OVERLOADED)

    # --- Holding --------------------------------------------------------------------------------

    def _hold(self, why: int) -> None:
        if not self._read_holds:
            self._transport.pause_reading()
        self._read_holds |= why

    def _unhold(self, why: int) -> None:
        if self._read_holds == why:
            self._transport.resume_reading()
        self._read_holds &= ~why
