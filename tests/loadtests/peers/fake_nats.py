"""So much of a NATS server with JetStream as the benchmark's clients speak to, over WebSocket: what
they say must be right, and what goes wrong is kept in `wrong`.

It cuts what it says into pieces of any size: a WebSocket message may end in mid-line.
"""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from zlib import crc32

from websockets.asyncio.server import ServerConnection, serve

from loadtests.peers.nats import PARTITIONS


class FakeNats:
    """A server, of any number of connections."""

    def __init__(self) -> None:
        self.wrong: list[str] = []
        self.published = 0
        self.acknowledged: set[bytes] = set()
        self.refusing = b""
        """What a publish is answered instead of a confirmation; empty: the confirmation."""
        self.url = ""
        self._random = Random(1)
        self._sequence = itertools.count(1)
        self._subscribed: dict[bytes, list[tuple[_Connection, bytes]]] = {}
        self._inboxes: dict[bytes, _Connection] = {}
        self._filters: dict[bytes, bytes] = {}
        self._readers: list[bytes] = []
        self._streams: dict[str, list[str]] = {}

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["FakeNats"]:
        """Listen on a free port of loopback."""
        async with serve(self._talk, "127.0.0.1", 0, max_size=None) as server:
            port = next(iter(server.sockets)).getsockname()[1]
            self.url = f"http://127.0.0.1:{port}"
            yield self

    async def _talk(self, socket: ServerConnection) -> None:
        connection = _Connection(socket, self._random)
        await connection.say(b'INFO {"headers":true}\r\n')
        rest = b""
        async for message in socket:
            if not isinstance(message, bytes):
                self.wrong.append("a text message")
                continue
            rest = await self._hear(connection, rest + message)

    async def _hear(self, connection: "_Connection", data: bytes) -> bytes:
        while b"\r\n" in data:
            line, _, behind = data.partition(b"\r\n")
            words = line.split()
            if words[0] == b"PUB":
                size = int(words[-1])
                if len(behind) < size + 2:
                    break
                payload, data = behind[:size], behind[size + 2 :]
                reply = words[2] if len(words) == 4 else b""
                await self._publish(connection, words[1], reply, payload)
                continue
            data = behind
            if words[0] == b"SUB" and words[1].endswith(b".*"):
                self._inboxes[words[1][:-2]] = connection
            elif words[0] == b"SUB":
                self._subscribed.setdefault(words[1], []).append((connection, words[2]))
            elif words[0] == b"PING":
                await connection.say(b"PONG\r\n")
            elif words[0] not in (b"CONNECT", b"PONG"):
                self.wrong.append(line.decode())
        return data

    async def _publish(
        self, connection: "_Connection", subject: bytes, reply: bytes, payload: bytes
    ) -> None:
        if subject.startswith(b"$JS.API."):
            answer = self._asked(subject.decode(), json.loads(payload))
            await self._answer(reply, json.dumps(answer).encode())
        elif subject.startswith(b"$JS.ACK."):
            if payload != b"+ACK" or subject in self.acknowledged:
                self.wrong.append(f"acknowledged {subject!r} with {payload!r}")
            self.acknowledged.add(subject)
            if reply:
                await self._answer(reply, b"")
        else:
            await self._store(subject, reply, payload)

    def _asked(self, subject: str, fields: dict[str, object]) -> dict[str, object]:
        words = subject.split(".")
        config = fields.get("config")
        if words[2:4] == ["STREAM", "CREATE"]:
            assert isinstance(fields["subjects"], list)
            self._streams[words[4]] = fields["subjects"]
        elif isinstance(config, dict) and config["ack_policy"] == "explicit":
            filtered = str(config["filter_subject"]).removesuffix(".*").encode()
            self._filters[filtered] = str(config["deliver_subject"]).encode()
        elif isinstance(config, dict):
            self._readers.append(str(config["deliver_subject"]).encode())
        else:
            return {"error": {"code": 404}}
        return {"type": "created"}

    async def _store(self, subject: bytes, reply: bytes, payload: bytes) -> None:
        self.published += 1
        if self.refusing:
            await self._answer(reply, self.refusing)
            return
        number = next(self._sequence)
        _, queue, *key = subject.split(b".")
        answer = {"stream": queue.decode(), "seq": number}
        await self._answer(reply, json.dumps(answer).encode())
        if key:
            place = b"%b.%d" % (queue, crc32(key[0]) % PARTITIONS)
            into = self._filters[place]
            back = b"$JS.ACK.%b.p.1.%d.%d.1700.0" % (queue, number, number)
            await self._deliver(into, place + b"." + key[0], back, payload)
        else:
            for into in self._readers:
                await self._deliver(into, subject, b"", payload)
            if subject in self._subscribed:
                await self._deliver(subject, subject, reply, payload)

    async def _deliver(self, into: bytes, subject: bytes, back: bytes, payload: bytes) -> None:
        for connection, sid in self._subscribed[into]:
            place = b"%b %b %b" % (subject, sid, back) if back else b"%b %b" % (subject, sid)
            await connection.say(b"MSG %b %d\r\n%b\r\n" % (place, len(payload), payload))

    async def _answer(self, reply: bytes, payload: bytes) -> None:
        inbox = reply.rpartition(b".")[0]
        message = b"MSG %b 1 %d\r\n%b\r\n" % (reply, len(payload), payload)
        await self._inboxes[inbox].say(message)


class _Connection:
    def __init__(self, socket: ServerConnection, random: Random) -> None:
        self._socket = socket
        self._random = random
        self._whole = asyncio.Lock()

    async def say(self, data: bytes) -> None:
        async with self._whole:
            if not self._random.randrange(10):
                cut = self._random.randrange(len(data))
                await self._socket.send(data[:cut])
                data = data[cut:]
            await self._socket.send(data)
