"""A broker process, and raw clients that may send anything."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from loadtests.server import SERVE, Server

Frame = dict[str, Any]
WAIT_S = 10.0
UNEXPECTED = re.compile(rb"Traceback|ERROR|CRITICAL|unexpected|exception", re.IGNORECASE)


@contextmanager
def running(folder: Path, *flags: str) -> Iterator[Server]:
    """Run a broker process with these flags. In the end its log must hold nothing unexpected."""
    server = Server(folder / "data", command=[*SERVE, *flags])
    server.spawn()
    try:
        server.wait_ready()
        yield server
        server.stop()
    finally:
        server.discard()
    log = server.log_path.read_bytes()
    assert not UNEXPECTED.search(log), log.decode(errors="replace")
    assert server.exit_code() == 0


@asynccontextmanager
async def http_to(server: Server, token: str | None = None) -> AsyncIterator[httpx2.AsyncClient]:
    """Yield an HTTP client of the broker."""
    headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
    async with httpx2.AsyncClient(
        base_url=server.url, trust_env=False, timeout=30, headers=headers
    ) as client:
        yield client


class Talk:
    """A WebSocket. Frames that no call has asked for yet are kept, in order."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self.kept: list[Frame] = []

    async def say(self, *texts: str | bytes) -> None:
        """Send each text as one message, whatever it is."""
        for text in texts:
            data = text.encode() if isinstance(text, str) else text
            await self.connection.send(data, text=True)

    async def tell(self, **fields: Any) -> None:
        """Send one frame."""
        await self.say(json.dumps(fields))

    async def ask(self, **fields: Any) -> Frame:
        """Send one frame with a `ref`; return its answer."""
        await self.tell(**fields)
        return await self.get("ok", "error", "pong", ref=fields["ref"])

    async def get(self, *kinds: str, **fields: object) -> Frame:
        """Return the next frame of these kinds with these fields."""
        async with asyncio.timeout(WAIT_S):
            while True:
                for frame in self.kept:
                    if frame["type"] in kinds and fields.items() <= frame.items():
                        self.kept.remove(frame)
                        return frame
                await self.read()

    async def read(self) -> None:
        """Keep the frames of the next message."""
        received = json.loads(await self.connection.recv())
        self.kept += received if isinstance(received, list) else [received]

    async def answers(self, mark: int = (1 << 53) - 1) -> list[Frame]:
        """Return all frames before the answer to a ping that is sent now: the answers to the last
        message. Pushes are left out."""
        await self.tell(type="ping", ref=mark)
        await self.get("pong", ref=mark)
        kept, self.kept = self.kept, []
        return [frame for frame in kept if frame["type"] != "push"]

    async def ended(self) -> tuple[int, list[Frame]]:
        """Wait for the end of the session; return the close code, and the frames before it."""
        async with asyncio.timeout(WAIT_S):
            with suppress(ConnectionClosed):
                while True:
                    await self.read()
        code = self.connection.close_code
        assert code is not None
        return code, self.kept


@asynccontextmanager
async def talking(server: Server, **hello: Any) -> AsyncIterator[Talk]:
    """Yield an open session, after `welcome`."""
    async with silent(server) as talk:
        await talk.tell(type="hello", **hello)
        await talk.get("welcome")
        yield talk


@asynccontextmanager
async def silent(server: Server) -> AsyncIterator[Talk]:
    """Yield an open WebSocket, before `hello`."""
    url = server.url.replace("http", "ws", 1) + "/v1/ws"
    async with connect(
        url, subprotocols=[Subprotocol("tocsin.v1")], proxy=None, max_size=None, close_timeout=2,
        compression=None, ping_interval=None,
    ) as connection:  # fmt: skip
        yield Talk(connection)
