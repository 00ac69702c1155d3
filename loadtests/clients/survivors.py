"""Producers and WebSocket consumers that outlive the broker, and log every frame they see.

A producer numbers its messages. After every reconnect it sends the unanswered ones again, in order
and under the same sequences. A consumer runs the messages of a key one after another, acks in
random order across keys, and asks for a confirmation of each ack. At each turn of its work it nacks
the first message of one key in a hundred.
"""

import asyncio
import contextlib
import itertools
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Final

import msgspec

from loadtests.clients import wire
from loadtests.clients.recorder import GROUP, QUEUE, ClientFailed, Door, RunState, identity, message
from loadtests.clients.wire import Place, delivery_list, offsets_of, places

WINDOW: Final = 1500
"""A producer sends no new messages while there are this many sequences from its oldest unanswered
one to its latest; the protocol allows 10,000."""
FRAME_MESSAGES_MAX: Final = 60
PACE_S: Final = 0.005
AGAIN_DELAY_S: Final = 0.02
AGAIN_DELAY_S_MAX: Final = 0.25
"""The shortest and longest pause before a refused message is sent again. The pause grows with each
try."""
RECONNECT_S: Final = 0.05
CREDIT: Final = 400
WORK_PERIOD_S: Final = 0.003
NACK_CHANCE: Final = 0.01
LEAVE_CHANCE: Final = 0.0008
"""Probability, per turn of work, that a consumer breaks its own socket without a word."""
AWAY_S_MAX: Final = 3.0
"""The longest that a consumer stays away after it has broken its socket, in seconds. Meanwhile the
pulls have half of the partitions, not a third."""
_ENCODE: Final = msgspec.json.Encoder().encode


class _Error(msgspec.Struct, gc=False):
    code: str
    detail: str = ""
    retry: bool = False


class _Message(msgspec.Struct, gc=False):
    key: str = ""
    body: msgspec.Raw = msgspec.Raw()


class _Received(msgspec.Struct, gc=False):
    """A frame of the broker, as far as survivors need its fields."""

    type: str
    ref: int | None = None
    code: str = ""
    detail: str = ""
    retry: bool = False
    receipts: list[list[int | bool] | _Error] = []
    subscription: int = 0
    partition: int = 0
    epoch: int = 0
    push: int = 0
    offset: int = 0
    skips: list[int] = []
    messages: list[_Message] = []
    deliveries: list[list[int]] = []
    stale: list[list[int]] = []
    not_delivered: list[list[int]] = []


_ONE: Final = msgspec.json.Decoder(_Received)


class Survivor(ABC):
    """A WebSocket client that connects again whenever its socket is lost, to the next gateway,
    until the run ends."""

    def __init__(self, field: RunState, name: str, doors: Sequence[Door] | None = None) -> None:
        """`doors`: the gateways to try, in this order; all of the run if None."""
        self.field = field
        self.name = name
        self._doors = itertools.cycle(doors or field.doors)
        self._heard_at = 0.0
        self.socket = 0
        self.wire: wire.Wire | None = None
        self._server = 0
        self._ref = 0
        self.failure: Exception | None = None
        self._away_s = 0.0
        self.is_away = False
        """Whether the client must not connect. The run sets this to True and back to False."""

    async def run(self) -> None:
        """Connect, and connect again after every loss, until the run stops. Raises ClientFailed."""
        habits = self.field.habits
        while not self.field.stopping:
            if self.is_away:
                await asyncio.sleep(RECONNECT_S)
                continue
            closed = asyncio.Event()
            door = next(self._doors)
            self._server, self.socket = door.server, next(self.field.sockets)
            try:
                async with asyncio.timeout(habits.silence_s or None):
                    self.wire = await wire.connect(
                        door.url, self._message, self._turn, closed.set, token=habits.token
                    )
                self._connected()
                await self._until(closed)
            except (OSError, TimeoutError):
                pass
            self.wire = None
            self.field.log.world("lost", socket=self.socket)
            self._lost()
            if self.failure is not None:
                raise self.failure
            away_s, self._away_s = self._away_s, 0.0
            await asyncio.sleep(away_s + RECONNECT_S * (0.5 + self.field.random.random()))

    async def _until(self, closed: asyncio.Event) -> None:
        """Wait until the socket is closed. If `silence_s` is not 0, ping meanwhile, and abort the
        socket after that time of silence."""
        silence_s = self.field.habits.silence_s
        self._heard_at = time.monotonic()
        while not closed.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(silence_s / 2 or None):
                    await closed.wait()
            if self.wire is None or closed.is_set():
                return
            if time.monotonic() - self._heard_at > silence_s:
                self.wire.abort()
                return
            self.ask(type="ping")

    def leave(self) -> None:
        """Close the socket at the end of the run."""
        if self.wire is not None:
            self.wire.close()

    def send(self, frame: bytes) -> None:
        """Log a frame and send it. On a closed socket nothing happens."""
        if self.wire is not None and not self.wire.closed:
            self._log(b"out", frame)
            self.wire.send(frame)

    def _log(self, way: bytes, frame: bytes) -> None:
        self.field.log.ws(self._server, self.socket, way, frame)

    def ask(self, **fields: object) -> int:
        """Send a frame with a new ref, and return the ref."""
        self._ref += 1
        self.send(_ENCODE({**fields, "ref": self._ref}))
        return self._ref

    def _message(self, data: bytes) -> None:
        self.heard(data)
        try:
            for frame in wire.split(data):
                self._received(_ONE.decode(frame))
        except (ClientFailed, msgspec.DecodeError) as error:
            self.fail(error)

    def heard(self, data: bytes) -> None:
        """Log a WebSocket message that the broker sent."""
        self._heard_at = time.monotonic()
        self._log(b"in", data)

    def fail(self, error: Exception) -> None:
        """Abort the socket because the broker gave an answer that it never should. `run` then
        raises ClientFailed with this error."""
        self.failure = ClientFailed(f"{self.name}: {error}")
        assert self.wire is not None
        self.wire.abort()

    @abstractmethod
    def _connected(self) -> None:
        """Say hello, now that the socket is open."""

    def _received(self, frame: _Received) -> None:
        """Handle a frame. Raises ClientFailed for one that never should come."""
        raise AssertionError(frame)

    @abstractmethod
    def _turn(self) -> None:
        """Act after all frames of one read."""

    @abstractmethod
    def _lost(self) -> None:
        """Forget what was outstanding on the lost socket."""


class SurvivingProducer(Survivor):
    """A producer that publishes, pipelined, until the run no longer produces and everything is
    answered."""

    def __init__(self, field: RunState, number: int) -> None:
        doors = field.doors
        super().__init__(field, f"producer-{number}", doors[number % len(doors) :] + doors)
        self._number = number
        self._next = 0
        self._unanswered: dict[int, bytes] = {}
        self._in_flight: dict[int, range] = {}
        self._again = False
        self._refusals = 0
        """Number of times that refused messages were sent again since the last receipt."""
        self._welcome = False
        self._rate_per_s = 0
        self._allowed = 0.0
        self._pacing: asyncio.TimerHandle | None = None
        self.stored = 0
        """Number of messages with a receipt."""

    @property
    def in_flight(self) -> int:
        """Number of unanswered messages sent on the current socket."""
        return sum(len(sequences) for sequences in self._in_flight.values())

    @property
    def unanswered(self) -> int:
        """Number of messages without a final answer, sent on any socket."""
        return len(self._unanswered)

    def _connected(self) -> None:
        self._rate_per_s = self.field.random.choice(self.field.habits.rates_per_s)
        self.send(_ENCODE({"type": "hello", "producer": self.name, "client": self.name}))

    def _lost(self) -> None:
        self._in_flight.clear()
        self._again = self._welcome = False

    def _received(self, frame: _Received) -> None:
        if frame.type == "welcome":
            self._welcome = True
            self._send_again()
        elif frame.type == "ok" and frame.ref in self._in_flight:
            sequences = self._in_flight.pop(frame.ref)
            if len(frame.receipts) != len(sequences):
                raise ClientFailed(f"{len(sequences)} messages, {len(frame.receipts)} receipts")
            for sequence, receipt in zip(sequences, frame.receipts, strict=True):
                self._answered(sequence, receipt if isinstance(receipt, _Error) else None)
        elif frame.type == "error":
            error = _Error(frame.code, frame.detail, frame.retry)
            for sequence in self._in_flight.pop(frame.ref or 0, ()):
                self._answered(sequence, error)

    def _answered(self, sequence: int, error: _Error | None) -> None:
        if error is None:
            if self._unanswered.pop(sequence, None) is not None:
                self.stored += 1
                self._refusals = 0
                self.field.stored(self._number << 40 | sequence)
        elif error.retry:
            self._again = True
        else:
            raise ClientFailed(f"#{sequence} was refused: {error.code}: {error.detail}")

    def _turn(self) -> None:
        if not self._welcome:
            return
        if not self._again:
            self._fill()
        elif not self._in_flight:
            self._again = False
            self._refusals += 1
            delay_s = min(AGAIN_DELAY_S * self._refusals, AGAIN_DELAY_S_MAX)
            asyncio.get_running_loop().call_later(delay_s, self._send_again)

    def _send_again(self) -> None:
        if not self._welcome or self._in_flight:
            return
        run: list[int] = []
        for sequence in list(self._unanswered):
            if run and (sequence != run[-1] + 1 or len(run) == FRAME_MESSAGES_MAX):
                self._publish(run)
                run = []
            run.append(sequence)
        if run:
            self._publish(run)
        self._fill()

    def _fill(self) -> None:
        random = self.field.random
        if self._pacing is None and self.field.producing:
            self._pacing = asyncio.get_running_loop().call_later(PACE_S, self._pace)
        while self.field.producing and self._allowed > 0 and self._next - self._resolved() < WINDOW:
            count = random.randint(1, FRAME_MESSAGES_MAX)
            self._allowed -= count
            sequences = list(range(self._next, self._next + count))
            for sequence in sequences:
                self._unanswered[sequence] = message(self._number, sequence, random)
            self._next += count
            self._publish(sequences)

    def _pace(self) -> None:
        self._pacing = None
        self._allowed = min(self._allowed + self._rate_per_s * PACE_S, FRAME_MESSAGES_MAX)
        self._turn()

    def _resolved(self) -> int:
        return next(iter(self._unanswered), self._next)  # they are in order

    def _publish(self, sequences: list[int]) -> None:
        self._ref += 1
        self._in_flight[self._ref] = range(sequences[0], sequences[-1] + 1)
        messages = b",".join([self._unanswered[sequence] for sequence in sequences])
        self.send(
            b'{"type":"publish","ref":%d,"queue":"%b","sequence":%d,"resolved":%d,"messages":[%b]}'
            % (self._ref, QUEUE.encode(), sequences[0], self._resolved(), messages)
        )


class SurvivingConsumer(Survivor):
    """A member of the group over WebSocket."""

    def __init__(self, field: RunState, number: int) -> None:
        doors = field.serving
        super().__init__(field, f"consumer-{number}", doors[number % len(doors) :] + doors)
        self._lines: dict[str, deque[Place]] = {}
        self._open: dict[Place, int] = {}
        """Deliveries neither acked, returned nor revoked → identity of their message."""
        self._acks: dict[int, dict[Place, int]] = {}
        self._granted, self._freed, self._subscribing = CREDIT, 0, 0
        self._timer: asyncio.TimerHandle | None = None

    def _connected(self) -> None:
        self._granted, self._freed = CREDIT, 0
        self.send(_ENCODE({"type": "hello", "client": self.name}))
        asked = {"subscription": 1, "queue": QUEUE, "group": GROUP, "credit": CREDIT}
        self._subscribing = self.ask(type="subscribe", **asked)

    def _lost(self) -> None:
        self._lines.clear()
        self._open.clear()
        self._acks.clear()

    def _received(self, frame: _Received) -> None:
        if frame.type == "push":
            self.field.was_given(len(frame.messages))
            offsets = offsets_of(frame.offset, len(frame.messages), frame.skips)
            for offset, one in zip(offsets, frame.messages, strict=True):
                place = (frame.partition, frame.epoch, frame.push, offset)
                self._open[place] = identity(bytes(one.body))
                self._lines.setdefault(one.key, deque()).append(place)
        elif frame.type == "revoked":
            for place in places(frame.deliveries):
                self._drop(place)
        elif frame.type == "ok" and frame.ref in self._acks:
            stale = {*places(frame.stale), *places(frame.not_delivered)}
            for place, number in self._acks.pop(frame.ref).items():
                if place not in stale:
                    self.field.settled("ws", number)
        elif frame.type == "error" and not frame.retry:
            raise ClientFailed(f"{frame.code}: {frame.detail}")
        elif frame.type == "error" and frame.ref == self._subscribing and self.wire:
            self.wire.abort()  # and try again

    def _drop(self, place: Place) -> None:
        if self._open.pop(place, None) is not None:
            self._freed += 1

    def _turn(self) -> None:
        if self._timer is None and self._lines:
            self._timer = asyncio.get_running_loop().call_later(WORK_PERIOD_S, self._work)

    def _work(self) -> None:
        """Ack the first message of about half of the keys, and nack that of a few. Rarely, break
        the socket instead."""
        self._timer = None
        random = self.field.random
        if self.wire is None or self.wire.closed:
            return
        if random.random() < LEAVE_CHANCE:
            self._away_s = random.uniform(0, AWAY_S_MAX)
            self.wire.abort()
            return
        done: dict[Place, int] = {}
        returned: list[Place] = []
        for key, line in list(self._lines.items()):
            while line and line[0] not in self._open:
                line.popleft()  # revoked meanwhile
            if not line:
                del self._lines[key]
            elif random.random() < NACK_CHANCE:
                returned.append(line[0])
                for place in self._lines.pop(key):  # the messages after it return with it
                    self._drop(place)
            elif random.random() < 0.5:
                place = line.popleft()
                done[place] = self._open.pop(place)
                self._freed += 1
        if done:
            ref = self.ask(type="ack", subscription=1, deliveries=delivery_list(list(done)))
            self._acks[ref] = done
        if returned:
            deliveries = delivery_list(returned)
            self.ask(type="nack", subscription=1, deliveries=deliveries, delay_s=0.01)
        if self._freed > CREDIT // 8:
            self._granted += self._freed
            self._freed = 0
            self.send(b'{"type":"credit","subscription":1,"granted":%d}' % self._granted)
        self._turn()
