"""A user's session: it opens a transport when it has none, and handles the broker's frames."""

import itertools
from abc import ABC, abstractmethod
from typing import Final

from loadtests.mix.calls import ANSWER_TIMEOUT_S, Frame, Given, Gone
from loadtests.mix.ledger import NotOurs, Stamp, Stream, read_stamp
from loadtests.mix.process_context import NS, ProcessContext
from loadtests.mix.transports import MakeTransport, Transport

TURN_S: Final = 2.0
"""The longest that a turn waits for frames. With shorter turns, the polling of thousands of users
would be what is measured."""
PAUSE_S: Final = (0.05, 0.5)
"""The shortest and longest pause before a lost connection is opened again, in seconds. The longest
doubles with each failed attempt, up to PAUSE_S_MAX."""
PAUSE_S_MAX: Final = 2.0


class Session(ABC):
    """The session of one user, over as many connections as it takes. No connection resumes the one
    before: its deliveries have returned, and come again."""

    def __init__(
        self, context: ProcessContext, role: str, transport: MakeTransport, queue: str
    ) -> None:
        """`queue`: the queue that the session subscribes to."""
        self.context = context
        self.queue = queue
        self.role = role
        self.name = context.name(role)
        self._make = transport
        self.transport: Transport | None = None
        self._refs = itertools.count(1)
        self._away_since_ns = 0
        self._opened = False
        """Whether the current connection has subscribed."""
        self._failures = 0
        """Number of failed attempts in a row to open the session."""

    def turn(self, timeout_s: float = TURN_S) -> None:
        """Receive frames for up to `timeout_s`, and answer them. A lost connection is opened again;
        a failure is counted."""
        try:
            if self.transport is None:
                self._open()
            assert self.transport is not None
            self.heard(self.transport.receive(timeout_s))
        except Gone as error:
            was_open = self._opened
            kind = "session" if was_open else "open"
            self.context.told(kind, self.role, None, 0, error.reason)
            self.lost()
            self._failures = 0 if was_open else self._failures + 1
            longest = min(PAUSE_S_MAX, PAUSE_S[1] * 2 ** min(self._failures, 10))
            self.context.sleep(self.context.random.uniform(PAUSE_S[0], longest))

    def _open(self) -> None:
        began_ns = self.context.now_ns()
        self.context.need(self.queue)
        self.transport = self._make(self.context.url(), self.context.token)
        self.transport.open({"type": "hello", "client": self.name})
        self.subscribe()
        self._opened = True
        self.context.ledger.counts["sessions"] += 1
        now_ns = self.context.now_ns()
        if began_ns >= self.context.ledger.since_ns:
            self.context.ledger.measured(f"open {self.role}", now_ns - began_ns, now_ns)
        if self._away_since_ns:
            took_ns = now_ns - self._away_since_ns
            self.context.ledger.measured(f"comeback {self.role}", took_ns, now_ns)
            self._away_since_ns = 0
        self.context.told("open", self.role, now_ns - began_ns, 0)

    def ref(self) -> int:
        """Return a new ref."""
        return next(self._refs)

    def say(self, *frames: dict[str, object]) -> None:
        """Send frames. Raises Gone."""
        if self.transport is None:
            raise Gone("the connection was given up meanwhile")
        self.transport.send(frames)

    def ask(self, **fields: object) -> Frame:
        """Send a frame with a ref and return its answer. Other frames that come meanwhile are
        handled. Raises Gone, also if the answer is an error, because the next attempt may be
        answered otherwise."""
        ref = self.ref()
        self.say({**fields, "ref": ref})
        deadline_ns = self.context.now_ns() + int(ANSWER_TIMEOUT_S * NS)
        while (left_ns := deadline_ns - self.context.now_ns()) > 0 and self.transport is not None:
            frames = self.transport.receive(left_ns / NS)
            for index, frame in enumerate(frames):
                if frame.ref != ref:
                    continue
                if frame.type == "error":
                    self.context.ledger.counts[f"answered {frame.code}"] += 1
                    raise Gone(f"{frame.code}: {frame.detail}", frame.code)
                self.began(frame)
                self.heard(frames[:index] + frames[index + 1 :])
                return frame
            self.heard(frames)
        raise Gone("no answer within a minute")

    @abstractmethod
    def subscribe(self) -> None:
        """Take a place in a group, or a position. Raises Gone."""

    @abstractmethod
    def began(self, answer: Frame) -> None:
        """Handle the answer that confirms the subscription."""

    @abstractmethod
    def heard(self, frames: list[Frame]) -> None:
        """Handle frames that came. Raises Gone."""

    def lost(self, *, asked: bool = False) -> None:
        """Drop the connection, which is lost, or which this user has cut (`asked`)."""
        if self.transport is not None:
            self.transport.cut()
            self.context.ledger.counts["sockets cut" if asked else "sockets lost"] += 1
            self._away_since_ns = self._away_since_ns or self.context.now_ns()
        self.transport = None
        self._opened = False

    def take(self, message: Given, stream: Stream, now_ns: int, since_ns: int) -> Stamp | None:
        """Note a message that came now, and return its stamp; None if no user made it. The latency
        of a message that was due before `since_ns` is not measured."""
        body = bytes(message.body)
        try:
            stamp = read_stamp(body, self.context.plan.body_bytes)
        except NotOurs as error:
            stream.invented(f"{message.key}: {error}")
            self.context.told("delivery", self.role, None, len(body), "made by no user")
            return None
        took_ns = stream.given(stamp, key=message.key, now_ns=now_ns, since_ns=since_ns)
        self.context.told("delivery", self.role, took_ns, len(body))
        return stamp

    def close(self) -> None:
        """Say goodbye and close the connection."""
        if self.transport is not None:
            self.transport.close()
        self.transport = None
