"""A broker in the test's own event loop: real sockets, everything in memory, one partition a key.

How to use it, most to least common:

    async with FakeBroker() as broker:            broker.url is where it listens
        broker.queue("orders")                    there is a queue
        broker.logs["orders"]                     what was stored: [(partition, offset, message)]
        broker.received(frames.Ack)               every frame of that type that came, in order
        broker.refuse("queue_full", times=2)      answers to the next messages, or a callable
        broker.silent = True                      take publishes, store them, answer nothing
        broker.cut(); broker.close(4501, "why")   end every connection, without and with a code
        broker.say({"type": "drain", ...})        send a frame of your own to every connection
        broker.revoke(); broker.welcome[...] = …  take every delivery back; change the welcome
        broker.lease_s = 1; broker.batch = 1      the groups' lease; messages in one push
        broker.refuse_connections = 503           the status of handshakes from now on
        broker.calls                              HTTP calls: [(method, path, body)]

It keeps to the protocol where the client can see it: groups give by credit, redeliver what was
nacked, revoked or lost with its session under a higher attempt, one consumer a group at a time;
readers get everything from their start.
"""

import asyncio
import itertools
import json
import zlib
from collections import defaultdict
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar, cast

import msgspec
from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from gateway.wire import frames
from push.errors import CODES
from push.message import Message, encode_message

F = TypeVar("F")
PARTITIONS = 4
Answer = tuple[int, object]


class Delivery:
    """A message as a group gives it."""

    def __init__(self, partition: int, offset: int, message: Message) -> None:
        self.partition, self.offset, self.message = partition, offset, message
        self.attempt = 0


class Group:
    """What a group has still to give, and what it has given to whom."""

    def __init__(self) -> None:
        self.waiting: list[Delivery] = []
        self.given: dict[tuple[int, int], tuple[Consumer, int, Delivery]] = {}
        self.settled: list[tuple[int, int]] = []
        self.consumers: list[Consumer] = []


class Consumer:
    """A subscription to a group, or without one a reader."""

    def __init__(self, socket: "Socket", frame: frames.Subscribe) -> None:
        self.socket, self.number, self.queue = socket, frame.subscription, frame.queue
        self.group, self.granted, self.spent = frame.group, frame.credit, 0
        self.keys = frame.keys
        self.next: dict[int, int] = {}


class FakeBroker:
    """See the module's docstring."""

    def __init__(self) -> None:
        self.logs: dict[str, list[tuple[int, int, Message]]] = {}
        self.groups: dict[tuple[str, str], Group] = defaultdict(Group)
        self.sockets: list[Socket] = []
        self.frames: list[frames.ClientFrame] = []
        self.calls: list[tuple[str, str, Any]] = []
        self.ticket: str | None = None
        self.welcome: dict[str, Any] = {"heartbeat_s": 20.0}
        self.lease_s, self.batch = 30.0, 100
        self.silent = False
        self.refuse_connections = 0
        self.connected = 0
        self.retained_from = 0
        self.history = "history-1"
        self._refusals: list[Callable[[Message], str | None]] = []
        self._stored: dict[tuple[str | None, str, int], tuple[int, int]] = {}
        self.sessions = itertools.count(1)
        self._pushes = itertools.count(1)
        self._changed = asyncio.Event()
        self.url = ""

    async def __aenter__(self) -> "FakeBroker":
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Socket(self), "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.close()
        self.cut()
        await self._server.wait_closed()

    # --- the menu -------------------------------------------------------------------------------

    def queue(self, name: str) -> None:
        """There is a queue of this name."""
        self.logs.setdefault(name, [])

    def bodies(self, queue: str) -> list[Any]:
        """Return what was stored, in order."""
        return [msgspec.json.decode(message.body) for _, _, message in self.logs[queue]]

    def received(self, kind: type[F]) -> list[F]:
        """Every frame of this type that came."""
        return [frame for frame in self.frames if isinstance(frame, kind)]

    def refuse(self, code: str | Callable[[Message], str | None], times: int = 1) -> None:
        """The next `times` messages get this code, or what the callable says; None: stored."""
        verdict = code if callable(code) else lambda _: code
        self._refusals += [verdict] * times

    def cut(self) -> None:
        """End every connection as a crash would."""
        for socket in list(self.sockets):
            socket.transport.abort()

    def close(self, code: int, reason: str = "") -> None:
        """Close every session."""
        for socket in list(self.sockets):
            socket.close(code, reason)

    def say(self, frame: dict[str, Any]) -> None:
        """Send a frame to every session."""
        for socket in self.sockets:
            socket.send(msgspec.json.encode(frame))

    def revoke(self) -> None:
        """Take back whatever was given."""
        for group in self.groups.values():
            # The last one first: each goes to the front of what waits, and a key keeps its order.
            for (partition, offset), (consumer, push, _) in sorted(
                group.given.items(), reverse=True
            ):
                place = [[partition, 1, push, offset, offset]]
                consumer.socket.send(frames.revoked(consumer.number, place, "drained"))
                self.give_back(group, partition, offset)

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until the condition holds, which is looked at whenever a frame has come."""
        async with asyncio.timeout(10):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    def touched(self) -> None:
        """Something happened."""
        self._changed.set()

    # --- publishing -----------------------------------------------------------------------------

    def publish(self, socket: "Socket", frame: frames.Publish) -> None:
        """Store, refuse, answer."""
        if frame.queue not in self.logs:
            socket.error(frame.ref, "queue_not_found")
            return
        receipts: list[object] = []
        holes: set[int] = set()
        for place, message in enumerate(frame.messages):
            partition = zlib.crc32((message.key or "").encode()) % PARTITIONS
            sequence = (frame.sequence or 0) + place
            stored = self._stored.get((socket.producer, frame.queue, sequence))
            code = self._refusals.pop(0)(message) if self._refusals else None
            if partition in holes or socket.holes.get(partition, sequence) < sequence:
                code = "out_of_sequence"
            if stored is not None:
                receipts.append([*stored, True])
            elif code is not None:
                if CODES[code].retry:
                    holes.add(partition)
                    socket.holes.setdefault(partition, sequence)
                receipts.append(frames.code_fields(code))
            else:
                if socket.holes.get(partition) == sequence:
                    del socket.holes[partition]
                receipts.append(list(self.store(frame.queue, partition, message)))
                self._stored[socket.producer, frame.queue, sequence] = (
                    partition,
                    cast("list[int]", receipts[-1])[1],
                )
        if not self.silent:
            durability = {"level": "all", "copies": 1}
            socket.send(frames.ok(frame.ref, receipts=receipts, durability=durability))
        self.pump()

    def store(self, queue: str, partition: int, message: Message) -> tuple[int, int]:
        """Append; every group gets it."""
        log = self.logs[queue]
        offset = sum(1 for at, _, _ in log if at == partition)
        log.append((partition, offset, message))
        for (name, _), group in self.groups.items():
            if name == queue:
                group.waiting.append(Delivery(partition, offset, message))
        return partition, offset

    # --- consuming ------------------------------------------------------------------------------

    def subscribe(self, socket: "Socket", frame: frames.Subscribe) -> None:
        """Join a group, or read."""
        if frame.queue not in self.logs:
            socket.error(frame.ref, "queue_not_found")
            return
        consumer = Consumer(socket, frame)
        socket.consumers[frame.subscription] = consumer
        if frame.group is not None:
            group = self.group(frame.queue, frame.group, latest=frame.start == "latest")
            group.consumers.append(consumer)
            socket.send(frames.ok(frame.ref, queue_id="id", lease_s=self.lease_s))
        else:
            socket.send(frames.ok(frame.ref, queue_id="id", positions=self.place(consumer, frame)))
        self.pump()

    def group(self, queue: str, name: str, *, latest: bool = False) -> Group:
        """The group, made with everything that is there."""
        if (queue, name) not in self.groups and not latest:
            self.groups[queue, name].waiting = [Delivery(*entry) for entry in self.logs[queue]]
        return self.groups[queue, name]

    def place(self, consumer: Consumer, frame: frames.Subscribe) -> list[dict[str, object]]:
        """Where a reader starts, per partition."""
        verdicts: list[dict[str, object]] = []
        for partition in range(PARTITIONS):
            end = sum(1 for at, _, _ in self.logs[frame.queue] if at == partition)
            wanted = 0 if frame.start == "earliest" else end
            generation, of = 1 if self.history == "history-1" else 2, None
            if frame.position is not None:
                of, wanted = frame.position.partitions[str(partition)]
            verdict: dict[str, object] = {"partition": partition, "verdict": "resumed"}
            if of not in (None, generation):
                verdict["verdict"], wanted = "unknown", 0
            elif wanted < min(self.retained_from, end):
                verdict |= {"verdict": "gap", "from": wanted, "to": self.retained_from - 1}
                wanted = self.retained_from
            consumer.next[partition] = wanted
            verdicts.append({**verdict, "generation": generation, "next": wanted})
        return verdicts

    def pump(self) -> None:
        """Give what may be given."""
        for group in self.groups.values():
            for consumer in group.consumers:
                self.pump_consumer(group, consumer)
        for socket in self.sockets:
            for consumer in socket.consumers.values():
                if consumer.group is None:
                    self.pump_reader(consumer)
        self.touched()

    def pump_consumer(self, group: Group, consumer: Consumer) -> None:
        """One push per run of consecutive offsets of one attempt."""
        while group.waiting and consumer.spent < consumer.granted:
            first = group.waiting.pop(0)
            run = [first]
            while (
                group.waiting
                and len(run) < self.batch
                and consumer.spent + len(run) < consumer.granted
                and group.waiting[0].partition == first.partition
                and group.waiting[0].offset == run[-1].offset + 1
                and group.waiting[0].attempt == first.attempt
            ):
                run.append(group.waiting.pop(0))
            consumer.spent += len(run)
            number = next(self._pushes)
            for one in run:
                one.attempt += 1
                group.given[one.partition, one.offset] = (consumer, number, one)
            head = frames.push_head(
                subscription=consumer.number, partition=first.partition, epoch=1, push=number,
                offset=first.offset, attempt=first.attempt, id_prefix=f"id-1-{first.partition}-",
                published_unix_ms=1_763_690_400_000,
            )  # fmt: skip
            body = b",".join(encode_message(one.message) for one in run)
            consumer.socket.send(frames.push_frame(head, body))

    def pump_reader(self, consumer: Consumer) -> None:
        """One push a message."""
        for partition, offset, message in self.logs[consumer.queue]:
            if consumer.spent >= consumer.granted or offset < consumer.next[partition]:
                continue
            consumer.next[partition] = offset + 1
            if consumer.keys is not None and message.key not in consumer.keys:
                continue
            consumer.spent += 1
            head = frames.reader_head(
                subscription=consumer.number, partition=partition, offset=offset,
                next_offset=offset + 1, id_prefix=f"id-1-{partition}-", published_unix_ms=1,
            )  # fmt: skip
            consumer.socket.send(frames.push_frame(head, encode_message(message)))

    def give_back(self, group: Group, partition: int, offset: int) -> None:
        """It is to be given again, first of all."""
        *_, delivery = group.given.pop((partition, offset))
        group.waiting.insert(0, delivery)

    def settle(self, socket: "Socket", frame: frames.Ack | frames.Nack | frames.Extend) -> None:
        """Ack, nack, extend: what the deliveries name, as far as it is held by this session."""
        group = self.groups[self.queue_of(socket, frame.subscription)]
        settled, stale = 0, []
        for partition, _, push, *ranges in frame.deliveries:
            for first, last in zip(ranges[::2], ranges[1::2], strict=True):
                for offset in range(first, last + 1):
                    held = group.given.get((partition, offset))
                    if held is None or held[1] != push:
                        stale.append([partition, 1, push, offset, offset])
                        continue
                    settled += 1
                    if isinstance(frame, frames.Ack):
                        del group.given[partition, offset]
                        group.settled.append((partition, offset))
                    elif isinstance(frame, frames.Nack):
                        self.give_back(group, partition, offset)
        if frame.ref is not None:
            socket.send(frames.ok(frame.ref, settled=settled, stale=stale))
        self.pump()

    @staticmethod
    def queue_of(socket: "Socket", subscription: int) -> tuple[str, str]:
        """(queue, group) of a subscription."""
        consumer = socket.consumers[subscription]
        return consumer.queue, consumer.group or ""

    def leave(self, consumer: Consumer) -> None:
        """What it holds goes back."""
        if consumer.group is None:
            return
        group = self.groups[consumer.queue, consumer.group]
        if consumer in group.consumers:
            group.consumers.remove(consumer)
        for (partition, offset), (holder, *_) in sorted(group.given.items(), reverse=True):
            if holder is consumer:
                self.give_back(group, partition, offset)

    # --- HTTP -----------------------------------------------------------------------------------

    def answer(self, method: str, path: str, body: Any) -> Answer:
        """(status, JSON) for one call."""
        self.calls.append((method, path, body))
        parts = path.partition("?")[0].strip("/").split("/")
        if parts == ["v1", "tickets"]:
            return 200, {"ticket": self.ticket, "expires_unix_ms": None}
        if parts[:2] != ["v1", "queues"]:
            return 404, "nothing here"
        if len(parts) == 2:
            return 200, {"queues": [self.describe(name) for name in sorted(self.logs)]}
        name = parts[2]
        if len(parts) == 3 and method == "PUT":
            created = name not in self.logs
            self.queue(name)
            made = {**self.describe(name), "settings": body, "created": created}
            return 201 if created else 200, made
        if name not in self.logs:
            return 404, problem("queue_not_found", f"no queue named {name}")
        if len(parts) == 3:
            return 200, self.describe(name)
        if len(parts) == 4:
            return 200, {**self.describe(name), "paused": parts[3] == "pause"}
        group = parts[4]
        if len(parts) == 5 and method != "PUT" and (name, group) not in self.groups:
            return 404, problem("group_not_found", f"no group named {group}")
        if len(parts) == 5 and method == "DELETE":
            del self.groups[name, group]
            return 200, {"deleted": 0}
        if len(parts) == 5 or parts[5] == "seek":
            created = (name, group) not in self.groups
            state = self.group(name, group)
            lag = len(state.waiting) + len(state.given)
            described = {"name": group, "settings": body or {}, "lag": lag}
            if parts[5:] == ["seek"]:
                described["deleted"] = 0
            return 200, {**described, "created": created} if method == "PUT" else described
        return self.pull(name, self.group(name, group), parts[5], body)

    def describe(self, name: str) -> dict[str, Any]:
        """A queue's description."""
        groups = [
            {"name": group, "lag": len(state.waiting) + len(state.given)}
            for (queue, group), state in self.groups.items()
            if queue == name
        ]
        return {
            "name": name,
            "settings": {"partitions": PARTITIONS},
            "holder": "anybody",
            "created_unix_ms": 1_763_690_400_000,
            "partitions": [{"number": number} for number in range(PARTITIONS)],
            "depth": len(self.logs[name]),
            "bytes": 0,
            "groups": groups,
        }

    def pull(self, queue: str, group: Group, verb: str, body: Any) -> Answer:
        """Pull, ack, nack and extend by receipts."""
        if verb == "pull":
            messages: list[dict[str, Any]] = []
            while group.waiting and len(messages) < body["messages_max"]:
                one = group.waiting.pop(0)
                one.attempt += 1
                holder = cast("Consumer", None)
                group.given[one.partition, one.offset] = (holder, 0, one)
                messages.append(
                    {
                        **msgspec.json.decode(
                            encode_message(one.message), type=dict[str, msgspec.Raw]
                        ),
                        "receipt": f"{one.partition}-{one.offset}",
                        "id": one.message.id or f"id-1-{one.partition}-{one.offset}",
                        "partition": one.partition,
                        "offset": one.offset,
                        "attempt": one.attempt,
                        "published_unix_ms": 1,
                        "lease_until_unix_ms": 2,
                    }
                )
            return 200, {"messages": messages}
        stale: list[str] = []
        for receipt in body["receipts"]:
            partition, _, offset = receipt.partition("-")
            place = (int(partition), int(offset))
            if place not in group.given:
                stale.append(receipt)
            elif verb == "nack":
                self.give_back(group, *place)
            elif verb == "ack":
                del group.given[place]
                group.settled.append(place)
        return 200, {"settled": len(body["receipts"]) - len(stale), "stale": stale}


class Socket(asyncio.Protocol):
    """A connection: HTTP until it is upgraded, then a session."""

    def __init__(self, broker: FakeBroker) -> None:
        self.broker = broker
        self.producer: str | None = None
        self.consumers: dict[int, Consumer] = {}
        self.holes: dict[int, int] = {}
        self._buffer = b""
        self._ws: ServerProtocol | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self._ws is not None:
            self._feed(data)
            return
        self._buffer += data
        while b"\r\n\r\n" in self._buffer:
            head, _, rest = self._buffer.partition(b"\r\n\r\n")
            if b"upgrade: websocket" in head.lower():
                self._upgrade()
                return
            lines = head.decode().split("\r\n")
            length = next((int(x[15:]) for x in lines if x.lower().startswith("content-length")), 0)
            if len(rest) < length:
                return
            self._buffer = rest[length:]
            method, path, _ = lines[0].split(" ")
            self._http(method, path, rest[:length])

    def _http(self, method: str, path: str, data: bytes) -> None:
        status, answer = self.broker.answer(method, path, json.loads(data) if data else None)
        body = b"" if answer is None else msgspec.json.encode(answer)
        head = f"HTTP/1.1 {status} X\r\ncontent-length: {len(body)}\r\n\r\n"
        self.transport.write(head.encode() + body)
        self.broker.touched()

    def _upgrade(self) -> None:
        self._ws = ServerProtocol(subprotocols=[Subprotocol("tocsin.v1")], max_size=1 << 22)
        data, self._buffer = self._buffer, b""
        self._feed(data)

    def _feed(self, data: bytes) -> None:
        assert self._ws is not None
        self._ws.receive_data(data)
        for event in self._ws.events_received():
            if isinstance(event, Request):
                self._open(event)
            elif isinstance(event, Frame) and event.opcode is Opcode.TEXT:
                for frame in frames.decode(bytes(event.data)):
                    self._handle(frame)
        self._flush()
        if self._ws.close_expected():
            self.transport.close()

    def _open(self, request: Request) -> None:
        assert self._ws is not None
        response = self._ws.accept(request)
        status = self.broker.refuse_connections
        if status:
            code = {401: "unauthorized", 503: "draining"}[status]
            response = self._ws.reject(status, json.dumps(problem(code, "not now")))
        self._ws.send_response(response)
        if not status:
            self.broker.sockets.append(self)
            self.broker.connected += 1

    def _handle(self, frame: frames.ClientFrame) -> None:
        broker = self.broker
        broker.frames.append(frame)
        match frame:
            case frames.Hello():
                self.producer = frame.producer
                session = f"s-{next(broker.sessions)}"  # it never knows one that comes back
                told = {"type": "welcome", "session": session, "broker": "fake"} | broker.welcome
                self.send(msgspec.json.encode(told))
            case frames.Publish():
                broker.publish(self, frame)
            case frames.Subscribe():
                broker.subscribe(self, frame)
            case frames.Unsubscribe():
                broker.leave(self.consumers.pop(frame.subscription))
                self.send(frames.ok(frame.ref))
            case frames.Credit():
                consumer = self.consumers[frame.subscription]
                consumer.granted = max(consumer.granted, frame.granted)
                broker.pump()
            case frames.Ack() | frames.Nack() | frames.Extend():
                broker.settle(self, frame)
            case frames.Ping():
                self.send(frames.pong(frame.ref))
        broker.touched()

    def send(self, frame: bytes) -> None:
        """Send a frame."""
        if self._ws is not None and self._ws.state is State.OPEN:
            self._ws.send_text(frame)
            self._flush()

    def error(self, ref: int, code: str) -> None:
        """Answer with an error."""
        self.send(msgspec.json.encode({"type": "error", "ref": ref, **frames.code_fields(code)}))

    def close(self, code: int, reason: str) -> None:
        """Close the session."""
        if self._ws is not None and self._ws.state is State.OPEN:
            self._ws.send_close(code, reason)
            self._flush()

    def _flush(self) -> None:
        assert self._ws is not None
        for data in self._ws.data_to_send():
            if data:
                self.transport.write(data)
            else:
                self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self in self.broker.sockets:
            self.broker.sockets.remove(self)
        for consumer in self.consumers.values():
            self.broker.leave(consumer)
        self.broker.pump()


def problem(code: str, detail: str) -> dict[str, object]:
    """A problem document."""
    return {
        "type": f"urn:tocsin:problem:{code}",
        "status": CODES[code].http_status,
        "title": CODES[code].meaning,
        "detail": detail,
        "code": code,
        "retry": CODES[code].retry,
    }
