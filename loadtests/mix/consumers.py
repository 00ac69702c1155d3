"""Users that receive messages: consumers of a group, over either transport, and readers."""

import contextlib
from dataclasses import dataclass
from typing import Final

from loadtests.clients.wire import Place, delivery_list, places
from loadtests.mix.calls import Frame, Gone, Verdict
from loadtests.mix.ledger import Stamp, Stream
from loadtests.mix.plan import role_of
from loadtests.mix.process_context import NS, ProcessContext
from loadtests.mix.sessions import Session
from loadtests.mix.transports import MakeTransport, Socket

CREDIT: Final = 200
CREDIT_SLOW: Final = 8
"""Credit of a slow consumer: its messages wait at it within their leases."""
NACK_CHANCE: Final = 0.005
NACK_DELAY_S: Final = 0.05
WAVES: Final = 2
"""The most acks for one push, each for randomly chosen messages."""
LEAVE_NS: Final = NS
"""The longest time, in nanoseconds, that a leaving consumer waits for the answers to its acks and
nacks."""
_AGAIN_S: Final = 0.2
"""Pause before a refused ack is repeated, unless the broker names one."""


@dataclass(slots=True)
class _Held:
    """A delivery that has not ended."""

    stamp: Stamp | None
    """None: a message that no user of the mix made."""
    key: str | None
    given_ns: int = 0
    asked: int = 0
    """The ref of the ack or nack whose answer ends it; 0: none."""
    is_returned: bool = False
    """Whether it was nacked. The message's next arrival is another delivery then."""


class Consumer(Session):
    """A member of its role's group. It acks each message in random order, and waits for
    confirmation. It returns messages with probability NACK_CHANCE, and keeps the key of a returned
    one closed until the answer (R17)."""

    def __init__(
        self,
        context: ProcessContext,
        role: str,
        transport: MakeTransport = Socket,
        *,
        work_s: float = 0.0,
        nack_chance: float = NACK_CHANCE,
    ) -> None:
        """`work_s`: seconds that the consumer takes over each message, with a small credit if not
        0; `nack_chance`: probability that it returns a message."""
        super().__init__(context, role, transport, context.queue(role))
        self._group = role_of(self.queue)
        self._work_s = work_s
        self._nack_chance = nack_chance
        name = f"{self.queue}/{self._group}"
        context.ledger.subscriber(name, self.queue)
        self._stream = Stream(context.ledger, name, role, settles=True)
        self._credit = CREDIT_SLOW if work_s else CREDIT
        self._granted = self._ended = 0
        self._is_leaving = False
        self._held: dict[Place, _Held] = {}
        self._asked: dict[int, list[Place]] = {}
        self._nacks: dict[int, _Held] = {}
        """Ref → the returned delivery. Its key is closed until the answer, or until it comes
        again."""

    def subscribe(self) -> None:
        """Join the group."""
        self._granted, self._ended = self._credit, 0
        self.ask(
            type="subscribe", subscription=1, queue=self.queue, group=self._group,
            credit=self._credit,
        )  # fmt: skip

    def began(self, answer: Frame) -> None:
        """Note when the queue first had a consumer. A group itself knows where it continues."""
        self.context.joined(self.queue)

    def lost(self, *, asked: bool = False) -> None:
        """Drop the connection, and forget the held deliveries, which have returned to the queue. An
        unanswered ack may have counted or not."""
        super().lost(asked=asked)
        self._stream.left()
        self._held.clear()
        self._asked.clear()
        self._nacks.clear()

    def close(self) -> None:
        """Wait for the answers to acks and nacks, then leave. Messages that arrive meanwhile are
        not worked on."""
        self._is_leaving = True
        deadline_ns = self.context.now_ns() + LEAVE_NS
        with contextlib.suppress(Gone):
            while self._asked and self.transport and self.context.now_ns() < deadline_ns:
                self.heard(self.transport.receive(0.1))
        super().close()
        self.lost()

    def heard(self, frames: list[Frame]) -> None:
        for frame in frames:
            if frame.type == "push":
                self._pushed(frame)
            elif frame.type == "revoked":
                for place in places(frame.deliveries):
                    self._revoked(place)
            elif frame.ref is not None and frame.ref in self._asked:
                self._answered(frame.ref, frame)
            elif frame.type == "drain":
                self.context.sleep(frame.reconnect_after_s)
                raise Gone("the gateway is going down")
            elif frame.type == "error":
                self.context.ledger.counts[f"answered {frame.code}"] += 1
                raise Gone(f"{frame.code}: {frame.detail}", frame.code)
        self._grant()

    # --- deliveries

    def _pushed(self, frame: Frame) -> None:
        now_ns, context = self.context.now_ns(), self.context
        context.given_at_ns = now_ns
        fresh: list[Place] = []
        since_ns = context.joined(self.queue)
        for offset, message in zip(frame.places, frame.messages, strict=True):
            place = (frame.partition, frame.epoch, frame.push, offset)
            stamp = self.take(message, self._stream, now_ns, since_ns)
            self._held[place] = _Held(stamp, message.key, now_ns)
            if self._is_open(message.key, stamp) and not self._is_leaving:
                fresh.append(place)
        self._work(fresh)

    def _is_open(self, key: str | None, stamp: Stamp | None) -> bool:
        """Whether a message of this key may be worked on. It may if no returned message of the key
        awaits its answer, or if this is that message, which came again before the answer."""
        for ref, returned in list(self._nacks.items()):
            if returned.key == key and returned.stamp == stamp:
                del self._nacks[ref]
        return all(returned.key != key for returned in self._nacks.values())

    def _work(self, fresh: list[Place]) -> None:
        """Handle messages, then settle them. After a returned message, none of its key is
        settled."""
        random = self.context.random
        done: list[Place] = []
        closed: set[str | None] = set()
        for place in fresh:
            if self._work_s and not self.context.is_over:
                self.context.sleep(self._work_s)
                self.context.given_at_ns = self.context.now_ns()
            key = self._held[place].key
            if key in closed:
                continue
            if random.random() < self._nack_chance:
                closed.add(key)
                self._nack(place)
            else:
                done.append(place)
        random.shuffle(done)
        for wave in range(WAVES):
            if some := done[wave::WAVES]:
                self._ack(some)

    def _ack(self, some: list[Place]) -> None:
        ref = self.ref()
        self._asked[ref] = some
        for place in some:
            self._held[place].asked = ref
        self.say({"type": "ack", "ref": ref, "subscription": 1, "deliveries": delivery_list(some)})

    def _nack(self, place: Place) -> None:
        """Return a delivery. For this consumer it has ended, whenever the broker receives the
        nack."""
        ref, held = self.ref(), self._held[place]
        self._asked[ref] = [place]
        self._nacks[ref] = held
        held.asked, held.is_returned = ref, True
        if held.stamp is not None:
            self._stream.ended(held.stamp)
        self.context.ledger.counts["nacked"] += 1
        self.say(
            {
                "type": "nack", "ref": ref, "subscription": 1, "delay_s": NACK_DELAY_S,
                "deliveries": delivery_list([place]), "reason": "by chance",
            }
        )  # fmt: skip

    # --- the end of deliveries

    def _answered(self, ref: int, frame: Frame) -> None:
        """Handle the answer to an ack or a nack. A refused ack is repeated if the answer allows a
        retry. After the code `unknown` it is not: each message comes again, or has counted."""
        some = self._asked.pop(ref)
        self._nacks.pop(ref, None)
        left = [place for place in some if place in self._held]
        was_nack = any(self._held[place].is_returned for place in left)
        if frame.type == "error" and frame.code != "not_delivered":
            self.context.ledger.counts[f"answered {frame.code}"] += 1
            if frame.retry and frame.code != "unknown" and not was_nack and left:
                self.context.sleep(frame.retry_after_s or _AGAIN_S)
                self._ack(left)
                return
            for place in left:
                self.context.told("nack" if was_nack else "settle", self.role, None, 0, frame.code)
                self._end(place, settled=False)
            return
        gone = set(places(frame.stale)) | set(places(frame.deliveries))
        self.context.given_at_ns = now_ns = self.context.now_ns()
        for place in left:
            if place not in gone:
                took_ns = now_ns - self._held[place].given_ns
                self.context.told("nack" if was_nack else "settle", self.role, took_ns, 0)
            self._end(place, settled=not was_nack and place not in gone)

    def _revoked(self, place: Place) -> None:
        """Handle a revoked delivery. It may come again, even before the answer to an ack on its
        way. That ack may still count (R21), and its answer decides."""
        held = self._held.get(place)
        if held is not None and not held.asked:
            self._end(place, settled=False)
        elif held is not None and held.stamp is not None:
            self._stream.ended(held.stamp)

    def _end(self, place: Place, *, settled: bool) -> None:
        held = self._held.pop(place)
        self._ended += 1
        if held.stamp is None or held.is_returned:
            return
        if settled:
            self._stream.settled(held.stamp)
        else:
            self._stream.ended(held.stamp)

    def _grant(self) -> None:
        """Grant new credit for deliveries that have ended (R25)."""
        if self._ended * 4 >= self._credit and self.transport is not None:
            self._granted += self._ended
            self._ended = 0
            self.say({"type": "credit", "subscription": 1, "granted": self._granted})


class Reader(Session):
    """A reader of one key of a queue from the start. It continues by its position."""

    def __init__(
        self, context: ProcessContext, role: str = "reader", transport: MakeTransport = Socket, *,
        is_whole: bool = True,
    ) -> None:  # fmt: skip
        """`is_whole`: it stays until the run is over, and must receive every message of its key."""
        super().__init__(context, role, transport, context.random.choice(context.plan.all_queues))
        self._key = f"k{context.random.randrange(context.plan.keys):04d}"
        name = f"{self.queue}//{self.name}"
        context.ledger.subscriber(name, self.queue, [self._key], is_whole=is_whole)
        self._stream = Stream(context.ledger, name, role, settles=False)
        self._queue_id = ""
        self._position: dict[str, list[int]] = {}
        """Partition → [generation of its log, next offset]."""
        self._granted = self._since = 0
        self._began_ns = 0

    def subscribe(self) -> None:
        """Subscribe from the start, or from its position."""
        self._granted, self._since = CREDIT, 0
        where: dict[str, object] = {"start": "earliest"}
        if self._queue_id:
            where = {
                "position": {
                    "queue_id": self._queue_id, "ring_epoch": 1, "partitions": self._position,
                }
            }  # fmt: skip
        self.ask(
            type="subscribe", subscription=1, queue=self.queue, keys=[self._key], credit=CREDIT,
            **where,
        )  # fmt: skip

    def began(self, answer: Frame) -> None:
        """Take over the positions. The age of messages published before now is not the broker's
        latency."""
        self._began_ns = self.context.now_ns()
        self._queue_id = answer.queue_id
        for one in answer.positions:
            assert isinstance(one, Verdict)
            self._position[str(one.partition)] = [one.generation, one.start]
            if one.verdict in {"gap", "unknown"}:
                self._stream.invented(f"a position of this run is answered {one.verdict}")

    def heard(self, frames: list[Frame]) -> None:
        for frame in frames:
            if frame.type == "push":
                self._pushed(frame)
            elif frame.type == "drain":
                self.context.sleep(frame.reconnect_after_s)
                raise Gone("the gateway is going down")
            elif frame.type == "error":
                self.context.ledger.counts[f"answered {frame.code}"] += 1
                raise Gone(f"{frame.code}: {frame.detail}", frame.code)
        if self._since * 4 >= CREDIT and self.transport is not None:
            self._granted += self._since
            self._since = 0
            self.say({"type": "credit", "subscription": 1, "granted": self._granted})

    def _pushed(self, frame: Frame) -> None:
        if isinstance(frame.positions, dict) and frame.positions:
            self._position |= frame.positions
            return
        now_ns = self.context.now_ns()
        for message in frame.messages:
            self.take(message, self._stream, now_ns, self._began_ns)
        if frame.gap:
            self._stream.invented(f"a gap {frame.gap} in what is retained for an hour")
        generation = self._position[str(frame.partition)][0]
        self._position[str(frame.partition)] = [generation, frame.next]
        self._since += len(frame.messages)
        self.context.given_at_ns = now_ns
