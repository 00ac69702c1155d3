"""The gateway under test: a whole broker, its sessions, and events around it."""

import asyncio
import secrets
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from gateway.auth.auth import Authenticator
from gateway.limits.limiter import UNLIMITED, Limiter
from gateway.limits.spec import Limits
from gateway.net.connections import Connections
from gateway.net.longpoll import LongPolls
from gateway.session.directory import SessionServices
from gateway.wire import frames
from gateway.wire.protocol import Timing
from metadata.catalog import ANYBODY
from push.message import Message
from push.rates.bucket import Rate
from storage.memory import MemoryStorage
from tests.conformance.replay import Event, Kind, Replay
from tests.conformance.transcript import Deviation, Line, Transcript, frames_of
from tests.conformance.wires import LongPollWire, WebSocketWire, Wire
from tests.histories.house import House, Session
from tests.memory import memory


class LastingStorage(MemoryStorage):
    """A storage whose content outlives its broker, as in a file."""

    async def close(self) -> None:
        """Keep the content, because the storage is opened again."""


class GatewayReplay(Replay):
    """A replay against the gateway. Lines of the client are sent as frames; the broker must send
    its own lines."""

    side = "broker"

    def __init__(self, transcript: Transcript, transport: str) -> None:
        super().__init__(transcript, transport)
        self._folder = tempfile.TemporaryDirectory(dir=memory())
        self._house = House(Path(self._folder.name), "memory")
        self._house.memory = LastingStorage()
        self._settings: dict[str, Any] = transcript.head.get("broker", {})
        self._wires: dict[str, Wire] = {}
        self._mute: set[str] = set()
        """Connections over which none of the broker's frames arrive."""
        self._tokens: dict[str, str | None] = {}
        self._others: dict[str, tuple[Session, Any]] = {}
        self._open_connections: Connections
        self._polls: LongPolls

    async def start(self) -> None:
        """Start a broker with the queues of the head."""
        await self._open()
        for name, settings in self.transcript.head.get("queues", {}).items():
            await self._house.queue(name, **settings)

    async def _open(self) -> None:
        await self._house.open()
        timing = Timing(
            **{name: s for name, s in self._settings.items() if name.startswith("he")}  # seconds
        )
        auth = Authenticator(self._settings.get("token"))
        around = SessionServices(self._house.broker, auth, timing=timing, limiter=self._limiter())
        self._open_connections = Connections(around)
        self._polls = LongPolls(self._open_connections)

    def _limiter(self) -> Limiter:
        """Return a limiter with smaller bursts than settings allow, so that a transcript stays
        readable."""
        per_s = self._settings.get("messages_per_s")
        if per_s is None:
            return UNLIMITED
        return Limiter(Limits(messages=Rate(per_s, 1, self._settings["messages_at_once"])))

    async def stop(self) -> None:
        """End everything."""
        for wire in self._wires.values():
            wire.end(1000)
        self._open_connections.deadlines.close()
        self._open_connections.services.sessions.end_lingering()
        await self._house.stop()
        self._folder.cleanup()

    # --- acts of lines --------------------------------------------------------------------------

    async def do(self, line: Line) -> None:
        if line.who == "world":
            await _WORLD[line["do"]](self, line)
        elif line.who == "carrier":
            self._carry(line)
        else:
            await self._say(line)

    async def see(self, line: Line) -> None:
        """Await the messages that other members of the group receive."""
        session, _ = self._others[line["of"]]
        try:
            async with asyncio.timeout(max(0.001, line.by - self.now)):
                await session.get(len(line["gets"]))
        except TimeoutError:
            pass
        await asyncio.sleep(0.001)
        if session.bodies != line["gets"]:
            raise Deviation(f"{line['of']} was given {session.bodies}, not {line['gets']}")

    def _carry(self, line: Line) -> None:
        if line["do"] == "open":
            self._connect(line)
        elif line["do"] == "silence":
            name = line.get("over", self.over)
            if line.get("how", "both") in ("both", "client"):
                self._wires[name].is_deaf = True
            if line.get("how", "both") in ("both", "broker"):
                self._mute.add(name)
        else:
            self._wires[line.get("over", self.over)].end(None)

    def _connect(self, line: Line) -> None:
        name = self.connection(line)
        transport = line.get("transport", "any")
        transport = self.transport if transport == "any" else transport

        def tell(kind: Kind, what: Any) -> None:
            if name not in self._mute:
                self.happened(kind, name, what)

        token = line.get("token")
        self._tokens[name] = None if token is None else self.captures.fill(token)
        if transport == "websocket":
            principal = ANYBODY if self._settings.get("token") is None else None
            wire = WebSocketWire(
                self._open_connections.services, tell, secrets.token_urlsafe(16), principal
            )
            self._wires[name] = wire
        else:
            self._wires[name] = LongPollWire(self._polls, tell, ANYBODY)

    async def _say(self, line: Line) -> None:
        name = line.get("over", self.over)
        wire = self._wires[name]
        if wire.is_deaf:
            return
        if "close" in line:
            wire.end(line["close"])
        elif "cut" in line:
            wire.end(None)
        elif "binary" in line:
            wire.say_binary()
        elif "text" in line:
            await wire.say(line["text"].encode("utf-8", "surrogateescape"))
        else:
            said = [self.captures.fill(frame) for frame in frames_of(line)]
            if said[0]["type"] == "hello" and self._tokens[name] is not None:
                said[0]["token"] = self._tokens[name]
            await wire.say(msgspec.json.encode(said if "frames" in line else said[0]))

    def is_free(self, event: Event) -> bool:
        """False: a broker sends nothing that is not shown."""
        return False

    def matched(self, line: Line, event: Event) -> None:
        self.where(line)

    # --- the world around -----------------------------------------------------------------------

    async def _publish(self, line: Line) -> None:
        said = line["with"]
        queue = self._house.find(said.get("queue", "orders"))
        messages = [
            Message(
                key=one.get("key"), id=one.get("id"), ttl_s=one.get("ttl_s"),
                body=msgspec.Raw(msgspec.json.encode(one["body"])),
            )
            for one in said["messages"]
        ]  # fmt: skip
        outcomes = await self._house.publish(queue, messages)
        assert all(isinstance(outcome, tuple) for outcome in outcomes), outcomes

    async def _join(self, line: Line) -> None:
        said = line["with"]
        queue = self._house.find(said.get("queue", "orders"))
        group = await self._house.group(queue, said["group"])
        self._others[line["as"]] = await self._house.subscribe(
            queue, group, credit=said.get("credit", 100)
        )

    async def _leave(self, line: Line) -> None:
        self._others[line["of"]][1].leave()

    async def _ack(self, line: Line) -> None:
        session, consumer = self._others[line["of"]]
        await self._house.confirm(consumer, [[*place, place[3]] for place, _, _ in session.given])

    async def _delete_queue(self, line: Line) -> None:
        await self._house.broker.delete_queue(ANYBODY, line["with"]["queue"])

    async def _seek(self, line: Line) -> None:
        queue = self._house.find(line["with"].get("queue", "orders"))
        await self._house.broker.seek_group(
            ANYBODY, queue, line["with"]["group"], line["with"]["to"]
        )

    async def _drain(self, line: Line) -> None:
        for wire in self._wires.values():
            wire.drain(line["with"]["reconnect_after_s"])

    async def _end_drain(self, line: Line) -> None:
        for wire in self._wires.values():
            wire.close(frames.DRAINING)

    async def _restart(self, line: Line) -> None:
        for wire in self._wires.values():
            wire.end(None)
        self._wires.clear()
        self._open_connections.deadlines.close()
        self._open_connections.services.sessions.end_lingering()
        await self._house.stop()
        await self._open()

    async def _trim(self, line: Line) -> None:
        await self._house.broker.janitor.look()

    async def _lose_answer(self, line: Line) -> None:
        self._house.memory.lose_next_answer(applied=line["with"]["applied"])

    async def _expect_lag(self, line: Line) -> None:
        queue = self._house.find(line["with"].get("queue", "orders"))
        group = self._house.broker.metadata.find_group(ANYBODY, queue, line["with"]["group"])
        while (lag := await self._house.lag(queue, group)) != line["gets"]:
            if self.now > line.by:
                raise Deviation(f"the lag is {lag}, not {line['gets']}")
            await asyncio.sleep(0.01)


_WORLD: Final[dict[str, Callable[[GatewayReplay, Line], Any]]] = {
    "publish": GatewayReplay._publish,
    "join": GatewayReplay._join,
    "leave": GatewayReplay._leave,
    "ack": GatewayReplay._ack,
    "delete_queue": GatewayReplay._delete_queue,
    "seek": GatewayReplay._seek,
    "drain": GatewayReplay._drain,
    "end_drain": GatewayReplay._end_drain,
    "restart": GatewayReplay._restart,
    "trim": GatewayReplay._trim,
    "lose_answer": GatewayReplay._lose_answer,
    "lag": GatewayReplay._expect_lag,
}
