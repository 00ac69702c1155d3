"""Users that publish, over a WebSocket or over HTTP, one publish at a time, on a schedule.

A message is due by its publisher's schedule, and its latency counts from there, however late the
publisher was. Otherwise a publisher that waits for an answer before its next message would hide the
delay.
"""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from loadtests.mix.calls import ANSWER_TIMEOUT_S, Failure, Frame, Gone, Http
from loadtests.mix.ledger import Stamp, line_of, stamp_body
from loadtests.mix.plan import KEYS_EACH, MESSAGES_MAX
from loadtests.mix.process_context import NS, ProcessContext
from loadtests.mix.transports import MakeTransport, Socket, Transport

AGAIN_S: Final = 0.1
"""Pause before messages that were not stored are sent again, and before a lost connection is opened
again. It grows with each try up to AGAIN_S_MAX, with a random part."""
AGAIN_S_MAX: Final = 2.0
_IDLE_S: Final = 0.5
"""The longest that a turn waits when nothing is due, in seconds."""
FORGOTTEN: Final = "sequence_too_old"
"""The code with which the broker says that it no longer knows a message's fate, so that it is
neither stored nor refused for certain."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The messages of one publish, each of another key. After a refused message, no later one of
    its key could be stored, whether or not the publish is numbered."""

    queue: str
    messages: tuple[Stamp, ...]

    def behind(self, many: int) -> "Batch":
        """Return the batch without its first `many` messages."""
        return Batch(self.queue, self.messages[many:])


class _Publisher(ABC):
    """A publisher that makes batches when they are due, and notes their answers."""

    def __init__(self, context: ProcessContext, role: str) -> None:
        self.context = context
        self.name = context.name(role)
        self._role = role
        self._turns = itertools.count(context.random.randrange(len(context.plan.all_queues)))
        """The number of the queue for each batch. Each publisher begins at a random queue, so that
        they do not go round in step."""
        first = int(self.name.rpartition(".")[2]) * context.plan.processes + context.process
        self._keys = [
            f"k{(first * KEYS_EACH + x) % context.plan.keys:04d}" for x in range(KEYS_EACH)
        ]
        self._numbers: dict[tuple[str, str], int] = {}
        self._interval_ns = int(context.plan.interval_s * NS)
        self._due_ns = context.now_ns() + int(context.random.random() * self._interval_ns)

    def due_in_s(self) -> float:
        """Return seconds until the next publish; 0 when it is due."""
        return max(0, self._due_ns - self.context.now_ns()) / NS

    def batch(self) -> Batch:
        """Make the batch that is due. A publisher that is late publishes the next one at once; it
        skips nothing."""
        queues = self.context.plan.all_queues  # others, where users came or went meanwhile
        queue = queues[next(self._turns) % len(queues)]
        many = self.context.random.randint(1, min(MESSAGES_MAX, len(set(self._keys))))
        found = []
        for key in self.context.random.sample(sorted(set(self._keys)), many):
            number = self._numbers[queue, key] = self._numbers.get((queue, key), 0) + 1
            found.append(Stamp(line_of(self.name, key), number, self._due_ns))
        self._due_ns += self._interval_ns
        return Batch(queue, tuple(found))

    def wire(self, batch: Batch, *, ids: bool) -> list[dict[str, object]]:
        """Return a batch's messages as they are sent, each with an id of its own if `ids`."""
        size = self.context.plan.body_bytes
        found: list[dict[str, object]] = []
        for one in batch.messages:
            message: dict[str, object] = {
                "key": one.key,
                "body": msgspec.Raw(stamp_body(one, size)),
            }
            if ids:
                message["id"] = f"{one.line.replace('/', '.')}.{one.number}"
            found.append(message)
        return found

    def answered(self, batch: Batch, answers: Sequence[Failure | None], way: str) -> int:
        """Note the answer to each message; None is a receipt. Return how many messages, from the
        first on, have their last answer. The messages after them are sent again, even those already
        stored. Messages refused for good before them are given up (R6)."""
        now_ns = self.context.now_ns()
        for stamp, failure in zip(batch.messages, answers, strict=True):
            if failure is None:
                self.context.ledger.certified(batch.queue, stamp, now_ns=now_ns, way=way)
            elif not failure.retry and failure.code != FORGOTTEN:
                self.context.ledger.refused(batch.queue, stamp)
            if failure is not None:
                self.context.ledger.counts[f"answered {failure.code}"] += 1
            code = "" if failure is None else failure.code
            self.context.told(
                "publish", way, now_ns - stamp.due_ns, self.context.plan.body_bytes, code
            )
        again = (index for index, one in enumerate(answers) if one is not None and one.retry)
        return next(again, len(answers))

    def publish(self, batch: Batch) -> None:
        """Send a batch until each of its messages has its last answer, or the run is over."""
        self.context.unanswered += 1
        try:
            self._publish(batch)
        finally:  # also when the user is ended meanwhile
            self.context.unanswered -= 1

    def _publish(self, batch: Batch) -> None:
        for stamp in batch.messages:
            self.context.ledger.offers(batch.queue, stamp)
        tries = 0
        while not self.context.is_over:
            try:
                self.context.need(batch.queue)
                done, wait_s = self.exchange(batch)
            except Gone as error:
                self.lost()
                done, wait_s = 0, 0.0
                for _ in batch.messages:
                    self.context.told("publish", self._role, None, 0, error.reason)
            batch = batch.behind(done)
            if not batch.messages:
                return
            tries += 1
            self.context.ledger.counts["tries again"] += 1
            most = min(AGAIN_S_MAX, AGAIN_S * 2 ** min(tries, 10))
            self.context.sleep(wait_s + self.context.random.uniform(AGAIN_S / 2, most))

    @abstractmethod
    def exchange(self, batch: Batch) -> tuple[int, float]:
        """Send a batch once. Return the result of `answered`, and how many seconds the broker asks
        to wait. Raises Gone."""

    @abstractmethod
    def lost(self) -> None:
        """Drop the lost connection."""


class SocketPublisher(_Publisher):
    """A publisher over a WebSocket, with numbered publishes. Messages without an answer, or
    answered with an error that may be retried, are sent again under the same sequence, if need be
    over another socket. A message that is refused for good is given up."""

    def __init__(self, context: ProcessContext, transport: MakeTransport = Socket) -> None:
        super().__init__(context, "websocket")
        self._make = transport
        self._producer = f"{context.plan.run}.{self.name}"
        self._socket: Transport | None = None
        self._sequence = 0
        self._ref = 0

    def turn(self) -> None:
        """Publish the batch that is due, until it has its last answer. If none is due, receive,
        because the broker would otherwise consider this client dead."""
        wait_s = self.due_in_s() if self.context.is_publishing else _IDLE_S
        if wait_s <= 0:
            self.publish(self.batch())
        elif self._socket is None:
            self.context.sleep(min(_IDLE_S, wait_s))
        else:
            try:
                self._socket.receive(min(_IDLE_S, wait_s))
            except Gone as error:
                self.context.told("session", "websocket", None, 0, error.reason)
                self.lost()

    def lost(self) -> None:
        if self._socket is not None:
            self._socket.cut()
            self.context.ledger.counts["sockets lost"] += 1
        self._socket = None

    def exchange(self, batch: Batch) -> tuple[int, float]:
        if self._socket is None:
            began_ns = self.context.now_ns()
            socket = self._make(self.context.url(), self.context.token)
            socket.open({"type": "hello", "client": self.name, "producer": self._producer})
            self._socket = socket
            self.context.ledger.counts["sessions"] += 1
            self.context.told("open", "websocket", self.context.now_ns() - began_ns, 0)
        self._ref += 1
        publish = {
            "type": "publish", "ref": self._ref, "queue": batch.queue, "sequence": self._sequence,
            "resolved": self._sequence, "messages": self.wire(batch, ids=False),
        }  # fmt: skip
        self._socket.send([publish])
        answer = self._answer(self._socket)
        if answer.type == "error":
            failure = Failure(answer.code, answer.detail, answer.retry)
            answers: list[Failure | None] = [failure] * len(batch.messages)
        else:
            answers = [one if isinstance(one, Failure) else None for one in answer.receipts]
        done = self.answered(batch, answers, "websocket")
        self._sequence += done
        return done, answer.retry_after_s or 0.0

    def _answer(self, socket: Transport) -> Frame:
        """Return the answer to the latest publish. Raises Gone."""
        while frames := socket.receive(ANSWER_TIMEOUT_S):
            for frame in frames:
                if frame.ref == self._ref:
                    return frame
                if frame.type == "drain":
                    raise Gone("the gateway is going down")
        raise Gone("a publish was not answered within a minute")

    def close(self) -> None:
        """Leave."""
        if self._socket is not None:
            self._socket.close()


class _Result(msgspec.Struct, gc=False):
    error: Failure | None = None


class _Answer(msgspec.Struct, gc=False):
    results: list[_Result]


class _Problem(msgspec.Struct, gc=False):
    code: str = "internal"
    detail: str = ""
    retry: bool = True
    retry_after_s: float = 0.0


class RestPublisher(_Publisher):
    """A publisher over HTTP. Each message has an id of its own, so it is stored once even when it
    is sent again."""

    def __init__(self, context: ProcessContext) -> None:
        super().__init__(context, "rest")
        self._http = Http(context.url(), context.token)
        self._answers = msgspec.json.Decoder(_Answer)
        self._problem = msgspec.json.Decoder(_Problem)

    def turn(self) -> None:
        """Publish the batch that is due, until it has its last answer; sleep if none is due."""
        wait_s = self.due_in_s() if self.context.is_publishing else _IDLE_S
        if wait_s <= 0:
            self.publish(self.batch())
        else:
            self.context.sleep(min(_IDLE_S, wait_s))

    def lost(self) -> None:
        self._http.close()
        self._http = Http(self.context.url(), self.context.token)
        self.context.ledger.counts["sockets lost"] += 1

    def exchange(self, batch: Batch) -> tuple[int, float]:
        path = f"/v1/queues/{batch.queue}/messages"
        status, said = self._http.request("POST", path, {"messages": self.wire(batch, ids=True)})
        if status == 200:
            results = self._answers.decode(said).results
            answers = [one.error for one in results]
            return self.answered(batch, answers, "rest"), 0.0
        problem = self._problem.decode(said)
        failure = Failure(problem.code, problem.detail, problem.retry)
        done = self.answered(batch, [failure] * len(batch.messages), "rest")
        return done, problem.retry_after_s

    def close(self) -> None:
        """Leave."""
        self._http.close()
