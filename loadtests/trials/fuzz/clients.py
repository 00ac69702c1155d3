"""Clients that send input that is nearly right, and note the broker's answers.

Each conversation has a name and draws from a Random of that name, so it can be repeated alone.
"""

import asyncio
import json
import re
import time
from collections import Counter
from contextlib import suppress
from random import Random
from typing import Any, Final
from urllib.parse import urlsplit

from loadtests.clients import wire
from loadtests.clients.rest import Rest
from loadtests.trials.fuzz.frames import HELLO, PING, handshake, requests, smuggled, wrong_frames
from loadtests.trials.fuzz.messages import Mutator, corpus, mutated_bytes, refs_of

ANSWER_S: Final = 15.0
"""Seconds after which a client that still waits for an answer, such as that to a ping, calls the
session or socket stuck."""
ADDRESSES: Final = 50
"""Number of source addresses, 127.0.0.2 and up. One has 28,000 ports, and each is unusable for a
minute after use."""
CLOSES: Final = frozenset((1000, 1002, 1003, 1007, 4401, 4500, 4502, 4503, 4509))
"""The close codes that may answer wrong input."""
MAY_BE_503: Final = frozenset(("overloaded", "draining", "unknown", "storage_unavailable"))
_BATCH: Final = 16
_STATUS: Final = re.compile(rb"HTTP/1\.1 (\d{3}) [^\r]*\r\n")
_CODE: Final = re.compile(rb'"code":"(\w+)"')
_PATIENCE_S: Final = 0.2
"""Seconds to wait for an answer that may not come, before the client closes its half of the
socket."""


class Notes:
    """The results of all conversations."""

    def __init__(self) -> None:
        self.sent: Counter[str] = Counter()
        """Number of mutated frames and requests, by kind."""
        self.closes: Counter[int] = Counter()
        self.codes: Counter[str] = Counter()
        self.statuses: Counter[int] = Counter()
        self.answered = 0
        """Number of refs that needed an answer and got it."""
        self.wrong: list[str] = []

    def note(self, who: str, what: str, about: object = b"") -> None:
        """Note something that must not happen."""
        self.wrong.append(f"{who}: {what} {about!r}"[:600])


class Fuzz:
    """The shared state of conversations: the broker's address, and the good frames."""

    def __init__(self, url: str, seed: int, notes: Notes) -> None:
        place = urlsplit(url)
        self.url = url
        self.host, self.port = place.hostname or "", place.port or 80
        self.netloc = place.netloc
        self.seed = seed
        self.notes = notes
        self.frames = corpus()
        self.requests = requests(self.netloc)
        self.smuggled = smuggled(self.netloc)

    def random(self, name: str) -> Random:
        """Return the random source of one conversation."""
        return Random(f"{self.seed}:{name}")

    async def messages(self, name: str, count: int) -> int:
        """Run a WebSocket session of up to `count` messages, and note its failure. Return how many
        were sent; 1 if it failed before the first."""
        talk = _Talk(self, name)
        try:
            return await talk.run(count)
        except (TimeoutError, OSError) as error:
            self.notes.note(name, f"no session, or a stuck one: {error!r}", talk.last)
            return max(1, talk.sent)
        finally:
            talk.close()

    async def raw(self, name: str) -> int:
        """Open a WebSocket, send frames that break RFC 6455, and note what is wrong with the
        answers. Return 1."""
        random = self.random(name)
        before = handshake(self.netloc)
        if random.random() < 0.8:
            before += HELLO + PING
        message = Mutator(self.frames, random).message()
        data = wrong_frames(random, message)
        self.notes.sent["websocket frames"] += 1
        answer = await self._exchange(name, before + data + PING, is_final=True)
        _, _, rest = answer.partition(b"\r\n\r\n")
        self._read_frames(name, rest)
        return 1

    async def http(self, name: str) -> int:
        """Send one broken request over one connection, and note what is wrong with the answers.
        Return 1."""
        random = self.random(name)
        if random.random() < 0.2:
            data = random.choice(self.smuggled)
        else:
            data = mutated_bytes(random.choice(self.requests), random)
        self.notes.sent["http requests"] += 1
        await self._exchange(name, data, is_final=False)
        return 1

    async def vectors(self) -> int:
        """Send each request once, without mutation; return their number."""
        every = [*self.smuggled, *self.requests]
        self.notes.sent["http requests"] += len(every)
        await asyncio.gather(
            *(
                self._exchange(f"vector-{number}", data, is_final=False)
                for number, data in enumerate(every)
            )
        )
        return len(every)

    async def _exchange(self, name: str, data: bytes, *, is_final: bool) -> bytes:
        """Send bytes, close the client's half of the socket (at once if `is_final`, else after a
        short wait for an answer), and return what the broker sends until it closes the socket."""
        notes, received = self.notes, b""
        try:
            async with asyncio.timeout(ANSWER_S):
                reader, writer = await asyncio.open_connection(
                    self.host, self.port, local_addr=(_address(name), 0)
                )
                try:
                    writer.write(data)
                    if not is_final:
                        with suppress(TimeoutError):
                            async with asyncio.timeout(_PATIENCE_S):
                                received = await reader.read(65_536)
                    with suppress(OSError):
                        writer.write_eof()
                    with suppress(ConnectionError):
                        received += await reader.read()
                finally:
                    writer.transport.abort()
        except TimeoutError:
            notes.note(name, "the socket stays open", data[:200])
        except OSError as error:
            notes.note(name, f"no connection: {error!r}")
        for status in map(int, _STATUS.findall(received)):
            notes.statuses[status] += 1
            codes = {code.decode() for code in _CODE.findall(received)}
            if status >= 500 and not codes & MAY_BE_503:
                notes.note(name, f"was answered {status}", (data[:300], received[-300:]))
        return received

    def _read_frames(self, name: str, data: bytes) -> None:
        """Check that the broker's bytes are whole, unmasked frames of JSON; the last one may be a
        close."""
        place = 0
        while len(data) - place >= 2:
            first, size = data[place], data[place + 1]
            place += 2
            if size in (126, 127):
                wide = 2 if size == 126 else 8
                size = int.from_bytes(data[place : place + wide])
                place += wide
            payload = data[place : place + size]
            place += size
            if first == wire.CLOSE:
                self.closed(name, int.from_bytes(payload[:2]) if payload else 1000)
            elif first == wire.TEXT and place <= len(data):
                self.heard(name, payload)
            elif first not in (wire.PONG, wire.PING, wire.TEXT):
                self.notes.note(name, f"a frame that starts with {first:#x}", data[:200])
                return

    def heard(self, name: str, message: bytes) -> list[dict[str, Any]]:
        """Return the frames of one message of the broker. Note their error codes, and a message
        that is wrong."""
        try:
            value = json.loads(message)
        except ValueError:
            self.notes.note(name, "a message that is no JSON", message[:300])
            return []
        several: list[dict[str, Any]] = value if isinstance(value, list) else [value]
        for one in several:
            code = one.get("code")
            if one.get("type") == "error" and isinstance(code, str):
                self.notes.codes[code] += 1
                if code == "internal":
                    self.notes.note(name, "an internal error", one)
        return several

    def closed(self, name: str, code: int | None) -> None:
        """Note the code with which the broker closed a socket."""
        self.notes.closes[code or 0] += 1
        # A client's own code comes back as it is.
        if code not in CLOSES and not name.startswith("raw"):
            self.notes.note(name, f"was closed with {code}")


def _address(name: str) -> str:
    return f"127.0.0.{2 + sum(name.encode()) * 7 % ADDRESSES}"


class _Talk:
    """A WebSocket session that goes on until it has sent its messages, or the broker ends it."""

    def __init__(self, fuzz: Fuzz, name: str) -> None:
        self._fuzz = fuzz
        self._name = name
        self._random = fuzz.random(name)
        self._mutator = Mutator(fuzz.frames, self._random)
        self._owed: Counter[int] = Counter()
        self._is_heard = asyncio.Event()
        self._mark = 0
        """The ref of the good ping that is not answered yet; 0 if none."""
        self._wire: wire.Wire | None = None
        self.sent = 0
        self.last = b""

    async def run(self, count: int) -> int:
        """Send up to `count` messages in batches, each followed by a good ping; return how many
        were sent. At the end every ref must have its answer, unless the broker has closed the
        socket. Raises TimeoutError or OSError."""
        loop, fuzz = asyncio.get_running_loop(), self._fuzz
        async with asyncio.timeout(ANSWER_S):
            _, self._wire = await loop.create_connection(
                lambda: wire.Wire(self._message, on_closed=self._is_heard.set),
                fuzz.host, fuzz.port, local_addr=(_address(self._name), 0),
            )  # fmt: skip
            await self._wire.handshake(fuzz.netloc, "/v1/ws", {})
        self._say_hello(self._wire)
        while self.sent < count and not self._wire.closed:
            batch = [self._mutator.message() for _ in range(min(_BATCH, count - self.sent))]
            for message in batch:
                self._owed.update(refs_of(message))
            self.sent += len(batch)
            fuzz.notes.sent["messages"] += len(batch)
            self.last = batch[-1][:200]
            self._mark = (1 << 52) + self.sent
            self._wire.send_all([*batch, b'{"type":"ping","ref":%d}' % self._mark])
            await self._until(lambda: not self._mark)
        if not self._wire.closed:
            await self._until(lambda: not any(n > 0 for n in self._owed.values()))
        if self._wire.close_code is not None or self._wire.close_reason:
            fuzz.closed(self._name, self._wire.close_code)
        return self.sent

    def _say_hello(self, socket: wire.Wire) -> None:
        random = self._random
        if random.random() < 0.05:
            return  # the first frame of the session is not a hello then
        producer = f"fuzz-{random.randrange(1000)}"
        frames: list[dict[str, Any]] = [{"type": "hello", "producer": producer}]
        frames.append({"type": "subscribe", "ref": 1 << 51, "subscription": 1, "queue": "orders",
                       "group": f"g{random.randrange(4)}", "credit": 4})  # fmt: skip
        if random.random() < 0.5:
            frames.append({"type": "subscribe", "ref": (1 << 51) + 1, "subscription": 2,
                           "queue": "orders", "credit": 4, "start": "earliest"})  # fmt: skip
        self._owed.update([frame["ref"] for frame in frames[1:]])
        socket.send_all([json.dumps(frame).encode() for frame in frames])

    def _message(self, message: bytes) -> None:
        for frame in self._fuzz.heard(self._name, message):
            kind, ref = frame.get("type"), frame.get("ref")
            if kind == "push" and frame.get("epoch") and frame["messages"]:
                first = frame["offset"]
                self._mutator.place = [frame["partition"], frame["epoch"], frame["push"],
                                       first, first]  # fmt: skip
            elif isinstance(ref, int) and kind in ("ok", "error", "pong"):
                if kind == "pong" and ref == self._mark:
                    self._mark = 0
                elif self._owed[ref] > 0:
                    self._owed[ref] -= 1
                    self._fuzz.notes.answered += 1
        self._is_heard.set()

    async def _until(self, done: Any) -> None:
        """Wait until `done()` is true or the socket is closed, which is an answer too. Raises
        TimeoutError after ANSWER_S."""
        assert self._wire is not None
        try:
            async with asyncio.timeout(ANSWER_S):
                while not done() and not self._wire.closed:
                    self._is_heard.clear()
                    await self._is_heard.wait()
        except TimeoutError:
            owed = [ref for ref, count in self._owed.items() if count > 0]
            raise TimeoutError(f"refs {owed[:10]} had no answer in {ANSWER_S} s") from None

    def close(self) -> None:
        """Close the socket at once, without a close frame."""
        if self._wire is not None:
            self._wire.abort()


async def long_poll(fuzz: Fuzz, name: str, count: int) -> int:
    """Run a session by long poll of up to `count` messages, and note what is wrong with the
    answers. Return how many were sent, and 1 if there were none, so that a caller that counts them
    comes to an end."""
    mutator, rest, notes = Mutator(fuzz.frames, fuzz.random(name)), Rest(fuzz.url), fuzz.notes
    owed: set[int] = set()
    batch = sent = 0
    try:
        hello = {"type": "hello", "linger_s": 0, "producer": name}
        opened = await rest.call("POST", "/v1/sessions", hello)
        path = f"/v1/sessions/{opened['session']}/frames"
        batch = opened["batch"]
        deadline = time.monotonic() + ANSWER_S
        while sent < count or owed:
            if sent < count:
                message = mutator.message()
                sent += 1
                notes.sent["long-poll messages"] += 1
                status, body = await rest.request("POST", f"{path}?number={sent}", message)
                _judge(fuzz, name, status, body)
                if status == 404:
                    break
                if status < 300:
                    owed |= set(refs_of(message))
                deadline = time.monotonic() + ANSWER_S
            status, body = await rest.request("GET", f"{path}?after={batch}&wait_s=0.1")
            _judge(fuzz, name, status, body)
            if status >= 400:
                break
            answer = json.loads(body)
            batch = answer["batch"]
            heard = {frame.get("ref") for frame in answer["frames"]}
            fuzz.heard(name, json.dumps(answer["frames"]).encode())
            notes.answered += len(owed & heard)
            owed -= heard
            if answer.get("close"):
                fuzz.closed(name, answer["close"]["code"])
                break
            if time.monotonic() > deadline:
                notes.note(name, f"refs {sorted(owed)[:10]} had no answer")
                break
    except (OSError, EOFError, RuntimeError) as error:
        notes.note(name, f"no session, or a stuck one: {error!r}")
    finally:
        rest.close()
    return max(1, sent)


def _judge(fuzz: Fuzz, name: str, status: int, body: bytes) -> None:
    fuzz.notes.statuses[status] += 1
    if status >= 500:
        code = _CODE.search(body)
        if code is None or code[1].decode() not in MAY_BE_503:
            fuzz.notes.note(name, f"was answered {status}", body[:300])
