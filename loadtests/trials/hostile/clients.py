"""`python -m loadtests.trials.hostile.clients URL PLAN`: attacking clients, in one process.

PLAN is JSON, the fields of `Attack`. The clients begin at once, and print a line when all slow
sockets and readers have begun. They go on until a line comes on the standard input, or its end, and
then print their outcomes as one JSON object. Most kinds open a new socket when the broker has
closed theirs; readers and floods do not. They run under SCHED_IDLE, unless PLAN says otherwise. The
line AT_NICE_19 does not end them but gives them ordinary scheduling, with nice 19.
"""

import asyncio
import contextlib
import json
import os
import sys
import time
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from random import Random
from typing import Any, Final
from urllib.parse import urlsplit

import uvloop

from loadtests.clients.load import Producer, Shape, stamp
from loadtests.clients.rest import Rest
from loadtests.clients.wire import TEXT, frame
from loadtests.server import raise_file_limit
from loadtests.trials.fuzz.frames import HELLO, handshake, raw_frame, request
from loadtests.trials.stalled.sockets import Narrow

MIB: Final = 1024 * 1024
AT_NICE_19: Final = "at nice 19"
QUEUE: Final = "flooded"
SLOW_TURN_S: Final = 0.5
"""Time after which a slow socket sends its next byte."""
FRAME_BYTES: Final = 16 * MIB
HOARDED_BYTES: Final = 2 * MIB
HEADER_BYTES: Final = MIB
"""Bytes of headers of one request; all requests together send `Attack.header_mib`."""
BODY_BYTES: Final = 1000
FLOW_MESSAGES: Final = 50
FLOW_TURN_S: Final = 0.5
FLOOD_FRAMES: Final = 64
"""Number of frames in one message of a flood; the next message is sent after the answer."""
PAUSE_S: Final = 0.25
_STATUS: Final = "HTTP/1.1 "
_OPENING_AT_ONCE: Final = 50


@dataclass(frozen=True)
class Attack:
    """The number of attackers of each kind, and how they run."""

    leaves_cores: bool = True
    """Whether to run under SCHED_IDLE. A process that hardly runs misses the broker's last bytes,
    so a test sets False."""
    slow: int = 1000
    """Number of slow sockets: a third each for a request's header, a WebSocket's handshake, and a
    body."""
    readers: int = 1000
    header_mib: int = 64
    large: int = 16
    """Number of connections that send frames of 16 MiB, one after the other."""
    hoards: int = 150
    """Number of sessions that send all of a message of 2 MiB but its last byte, and as many
    requests with such a body. Half of each would already exceed the bound on all incomplete
    messages."""
    bombs: int = 4
    floods: int = 4
    """Number of sessions that subscribe, grant credit and unsubscribe without end. If it is not 0,
    one more client requests tickets."""


class Heard(asyncio.Protocol):
    """A socket that keeps the first bytes that it received (some 4 KiB), and whether it is
    closed."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.data = b""
        self.closed = False
        self.event = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if len(self.data) < 4096:
            self.data += data
        self.event.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self.event.set()

    def write(self, data: bytes) -> None:
        """Write bytes; to a closed socket, nothing."""
        if not self.closed and not self.transport.is_closing():
            self.transport.write(data)

    async def answer(self, timeout_s: float) -> str:
        """Wait for the first line of the answer and return its status, such as `431`; `closed` if
        the socket closes first, `nothing` after `timeout_s`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not self.closed and b"\r\n" not in self.data:
                    self.event.clear()
                    await self.event.wait()
        return self.said()

    def said(self) -> str:
        """Return the status of the bytes received so far, in the form of `answer`."""
        if self.data.startswith(_STATUS.encode()):
            return self.data[len(_STATUS) : len(_STATUS) + 3].decode()
        return "closed" if self.closed else "nothing"


class Hostile:
    """All attackers."""

    def __init__(self, url: str, plan: Attack) -> None:
        place = urlsplit(url)
        self._url = url
        self._host, self._port, self._netloc = place.hostname or "", place.port or 80, place.netloc
        self._plan = plan
        self._opened = 0
        self.outcomes: Counter[str] = Counter()
        """Number of outcomes by `kind: outcome`."""
        self.problems: list[str] = []
        self._late = 2  # the kinds that take long to begin: slow sockets, readers
        self._complete = asyncio.Event()

    def _begun(self) -> None:
        self._late -= 1
        if not self._late:
            self._complete.set()

    async def _open(self) -> Heard:
        """Open a connection from one of 50 addresses."""
        self._opened += 1
        loop = asyncio.get_running_loop()
        _, heard = await loop.create_connection(
            Heard, self._host, self._port, local_addr=(f"127.0.0.{2 + self._opened % 50}", 0)
        )
        return heard

    def _note(self, kind: str, outcome: str) -> None:
        self.outcomes[f"{kind}: {outcome}"] += 1

    async def run(self, until: Awaitable[object]) -> None:
        """Run all attacks at once until `until` is done."""
        plan = self._plan
        kinds: list[Callable[[], Awaitable[None]]] = [self._slow, self._headers, self._readers]
        kinds += [self._hoard_frames] * plan.hoards + [self._hoard_bodies] * plan.hoards
        kinds += [self._large] * plan.large + [self._bomb] * plan.bombs
        kinds += [self._flood] * plan.floods + [self._tickets] * min(1, plan.floods)
        tasks = [asyncio.create_task(self._go(kind)) for kind in kinds]
        await self._complete.wait()
        print("all are at it", flush=True)  # noqa: T201
        await until
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    async def _go(self, kind: Callable[[], Awaitable[None]]) -> None:
        try:
            await kind()
        except Exception as error:  # reported at the end: one attacker must not stop the others
            self.problems.append(f"{kind.__name__}: {error!r}")
            self._complete.set()

    # --- Slow -----------------------------------------------------------------------------------

    async def _slow(self) -> None:
        """Send headers, handshakes and bodies a byte at a time. A connection that the broker closed
        is opened again."""
        body = f"Content-Length: {BODY_BYTES}"
        post = request(f"POST /v1/queues/{QUEUE}/messages", self._netloc, body)
        get = request("GET /v1/queues", self._netloc, "X-Long: " + "x" * 4000)
        # (kind, first bytes, and the bytes sent one by one)
        kinds = (
            ("slow header", b"", get),
            ("slow handshake", b"", handshake(self._netloc, "X-Long: " + "x" * 4000)),
            ("slow body", post, b" " * BODY_BYTES),
        )
        slots: list[tuple[int, Heard, int]] = []
        for number in range(self._plan.slow):
            slots.append((number % 3, await self._begin(kinds[number % 3][1]), 0))
        self._begun()
        while True:
            began = time.monotonic()
            for number, (kind, heard, place) in enumerate(slots):
                name, first, rest = kinds[kind]
                if heard.closed or heard.data:
                    self._note(name, heard.said())
                    heard.transport.abort()
                    slots[number] = (kind, await self._begin(first), 0)
                elif place < len(rest):
                    heard.write(rest[place : place + 1])
                    slots[number] = (kind, heard, place + 1)
            await asyncio.sleep(max(0.0, SLOW_TURN_S - (time.monotonic() - began)))

    async def _begin(self, first: bytes) -> Heard:
        heard = await self._open()
        if first:
            heard.write(first)
        return heard

    # --- Large ----------------------------------------------------------------------------------

    async def _headers(self) -> None:
        """Send requests with a MiB of headers each, until `header_mib` are sent."""
        line = b"X-Flood: " + b"x" * 1000 + b"\r\n"
        head = request("GET /v1/queues", self._netloc)[:-2]
        for _ in range(self._plan.header_mib):
            heard = await self._open()
            heard.write(head + line * (HEADER_BYTES // len(line)) + b"\r\n")
            self._note("1 MiB of headers", await heard.answer(30))
            heard.transport.abort()
            await asyncio.sleep(PAUSE_S / 2)

    async def _large(self) -> None:
        """Send whole frames of 16 MiB, whatever the broker answers to their header."""
        piece = bytes(MIB // 4)
        while True:
            heard = await self._open()
            heard.write(handshake(self._netloc))
            await heard.answer(10)
            heard.data = b""
            heard.write(HELLO)
            heard.write(raw_frame(TEXT, b"", announced=FRAME_BYTES))
            for _ in range(FRAME_BYTES // len(piece)):
                if heard.closed:
                    break
                heard.write(piece)
                await asyncio.sleep(0)
            await self._closed(heard)
            self._note("16 MiB frame", "4509" if b"\x11\x9d" in heard.data else "no 4509")
            heard.transport.abort()
            await asyncio.sleep(PAUSE_S * 4)

    async def _closed(self, heard: Heard) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(10):
                while not heard.closed and b"\x11\x9d" not in heard.data:
                    heard.event.clear()
                    await heard.event.wait()

    async def _hoard_frames(self) -> None:
        """Send all of a large message but its end; again after the broker has refused it."""
        while True:
            heard = await self._open()
            heard.write(handshake(self._netloc))
            await heard.answer(10)
            heard.data = b""
            heard.write(HELLO)
            whole = raw_frame(TEXT, b"", announced=HOARDED_BYTES) + bytes(HOARDED_BYTES - 1)
            await self._hoard("hoarded frame", heard, whole)

    async def _hoard_bodies(self) -> None:
        """Send all of a large request body but its end; again after the broker has refused it."""
        post, body = f"POST /v1/queues/{QUEUE}/messages", bytes(HOARDED_BYTES - 1)
        while True:
            heard = await self._open()
            length = f"Content-Length: {HOARDED_BYTES}"
            await self._hoard("hoarded body", heard, request(post, self._netloc, length, body=body))

    async def _hoard(self, kind: str, heard: Heard, data: bytes) -> None:
        heard.write(data)
        # A welcome may contain these digits, hence the spaces.
        while not heard.closed and b"overloaded" not in heard.data and b" 408 " not in heard.data:
            heard.event.clear()
            await heard.event.wait()
        refused = b"overloaded" in heard.data or b"\x0f\xa3" in heard.data
        self._note(kind, "overloaded" if refused else heard.said())
        heard.transport.abort()
        await asyncio.sleep(PAUSE_S * 40)

    async def _bomb(self) -> None:
        """Send kilobytes that expand to 64 MiB, with permessage-deflate and as a gzip body."""
        raw = zlib.compressobj(9, zlib.DEFLATED, -15)
        bomb = raw.compress(bytes(64 * MIB)) + raw.flush(zlib.Z_SYNC_FLUSH)
        zipped = zlib.compress(bytes(64 * MIB), 9, 31)
        offer = handshake(self._netloc, "Sec-WebSocket-Extensions: permessage-deflate")
        while True:
            heard = await self._open()
            heard.write(offer)
            await heard.answer(10)
            taken = b"sec-websocket-extensions" in heard.data.lower()
            heard.write(HELLO + raw_frame(TEXT | 0x40, bomb))
            await self._code(heard, b"\x03\xea")
            closed = "1002" if b"\x03\xea" in heard.data else "no 1002"
            self._note("compressed frame", "compression was agreed" if taken else closed)
            heard.transport.abort()
            heard = await self._open()
            lines = ("Content-Encoding: gzip", f"Content-Length: {len(zipped)}")
            place = f"POST /v1/queues/{QUEUE}/messages"
            heard.write(request(place, self._netloc, *lines, body=zipped))
            self._note("gzip body", await heard.answer(10))
            heard.transport.abort()
            await asyncio.sleep(PAUSE_S)

    async def _code(self, heard: Heard, code: bytes) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(10):
                while not heard.closed and code not in heard.data:
                    heard.event.clear()
                    await heard.event.wait()

    # --- Many -----------------------------------------------------------------------------------

    async def _readers(self) -> None:
        """Let readers subscribe and read nothing, while a producer publishes much."""
        some = asyncio.Semaphore(_OPENING_AT_ONCE)
        readers: list[Narrow] = []

        async def join(number: int) -> None:
            async with some:
                reader = Narrow(f"deaf-{number}", QUEUE)
                readers.append(reader)
                await reader.open(self._url, None)
                await reader.subscribe()
                reader.stall()
                self._note("reader that never reads", "subscribed")

        await asyncio.gather(*(join(number) for number in range(self._plan.readers)))
        self._begun()
        producer = Producer("flow", QUEUE, Shape(1024), FLOW_MESSAGES, Random(1), blocks=4)
        await producer.open(self._url, None, producer.name)
        try:
            while producer.failure is None:
                if producer.unanswered < 10 * FLOW_MESSAGES:
                    producer.publish(stamp(time.monotonic_ns()))
                    producer.flush()
                    self._note("readers' flow", "published")
                await asyncio.sleep(FLOW_TURN_S)
            raise producer.failure
        finally:
            producer.close()
            for reader in readers:
                if reader.wire.closed:
                    self._note("reader that never reads", "cut off")
                reader.drop()

    async def _flood(self) -> None:
        """Subscribe, grant credit and unsubscribe, in large messages; each is sent after the answer
        to the one before."""
        heard = await self._open()
        heard.write(handshake(self._netloc))
        await heard.answer(10)
        heard.write(HELLO)
        frames: list[dict[str, object]] = []
        for number in range(FLOOD_FRAMES // 4):
            frames += [
                {"type": "subscribe", "ref": 1, "subscription": number, "queue": QUEUE,
                 "credit": 1, "start": "latest"},
                *[{"type": "credit", "subscription": number, "granted": 2}] * 2,
                {"type": "unsubscribe", "ref": 2, "subscription": number},
            ]  # fmt: skip
        message = frame(json.dumps(frames).encode())
        number = 0
        while not heard.closed:
            number += 1
            heard.data = b""
            heard.write(message + frame(b'{"type":"ping","ref":%d}' % number))
            self._note("flood of frames", "sent")
            mark = b'"pong","ref":%d' % number
            while not heard.closed and mark not in heard.data:
                heard.event.clear()
                await heard.event.wait()
                heard.data = heard.data[-4095:] if mark not in heard.data else heard.data
        self._note("flood of frames", "closed")

    async def _tickets(self) -> None:
        """Request tickets, one after the other."""
        rest = Rest(self._url)
        try:
            while True:
                status, _ = await rest.request("POST", "/v1/tickets", b"{}")
                self._note("tickets", str(status))
        finally:
            rest.close()


async def main(url: str, plan: Attack) -> None:
    """Attack until a line other than AT_NICE_19 comes on the standard input, or its end. Then print
    the outcomes."""
    raise_file_limit(plan.slow + plan.readers + 2 * plan.hoards + 500)
    hostile = Hostile(url, plan)
    await hostile.run(_until_told())
    print(json.dumps({"outcomes": hostile.outcomes, "problems": hostile.problems}))  # noqa: T201


async def _until_told() -> None:
    while (await asyncio.to_thread(sys.stdin.readline)).strip() == AT_NICE_19:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        os.nice(19)


def arguments(plan: Attack) -> str:
    """Return the argument PLAN of this program."""
    return json.dumps(asdict(plan))


if __name__ == "__main__":
    if (attack := Attack(**json.loads(sys.argv[2]))).leaves_cores:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    uvloop.run(main(sys.argv[1], attack))
