"""The Python SDK under test: its session over carriers whose other end is the transcript."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Any, Final

import msgspec
import tocsin
from tocsin.api.client import Client
from tocsin.api.publisher import Publisher
from tocsin.errors import CannotConnect, broker_error
from tocsin.io.carrier import ABNORMAL, Listener
from tocsin.io.session import Session
from tocsin.proto.connect_policy import Transport

from tests.conformance.replay import Event, Replay
from tests.conformance.transcript import Deviation, Line, Transcript, frames_of

URL: Final = "http://broker.test"


class Carried:
    """A Carrier whose broker is the transcript."""

    def __init__(self, replay: "SdkReplay", transport: Transport) -> None:
        self.transport: Transport = transport
        self.writable = True
        self.refusal: Exception | None = None
        self.name = ""
        self.is_silent = False
        self.is_over = False
        self._replay = replay
        self._loop = asyncio.get_running_loop()
        self._listener: Listener | None = None
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self.received_at = self._loop.time()
        self.is_receiving = False
        self.patient_until = 0.0

    # --- the broker's end -----------------------------------------------------------------------

    def deliver(self, data: bytes) -> None:
        """Deliver a message of the broker."""
        if not self.is_over and not self.is_silent:
            self.received_at = self._loop.time()
            if self._listener is not None:
                self._listener.on_message(data)

    def finish(self, code: int, reason: str = "") -> None:
        """Close the connection, as the broker or a cut does."""
        if self.is_over:
            return
        self.is_over = True
        if not self._closed.done():
            self._closed.set_result(None)
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.on_closed(code, reason)

    # --- Carrier --------------------------------------------------------------------------------

    def listen(self, listener: Listener | None) -> None:
        self._listener = listener

    def limit(self, message_bytes_max: int) -> None:
        """Do nothing."""

    def present(self, token: str) -> None:
        """Do nothing."""

    def send(self, frames: Sequence[bytes]) -> None:
        if not self.is_over:
            for frame in frames:
                self._replay.happened("frame", self.name, msgspec.json.decode(frame))

    def close(self, code: int = 1000, reason: str = "") -> None:
        if not self.is_over:
            self._replay.happened("close", self.name, code)
            self._loop.call_soon(self.finish, code)

    async def wait_closed(self) -> None:
        await asyncio.wait((self._closed,))

    def abort(self) -> None:
        if not self.is_over:
            self._replay.happened("cut", self.name, None)
            self._loop.call_soon(self.finish, ABNORMAL)


class Attempt:
    """A request of the SDK for a carrier, which waits until the transcript has one for it."""

    def __init__(self, transport: Transport, token: str | None) -> None:
        self.transport = transport
        self.token = token
        self.carrier: asyncio.Future[Carried] = asyncio.get_running_loop().create_future()


class SdkReplay(Replay):
    """A replay against the SDK. Lines of the broker are delivered, and the SDK must send the
    client's. Lines of the user are calls, which must return the results shown."""

    side = "client"

    def __init__(self, transcript: Transcript, transport: str) -> None:
        super().__init__(transcript, transport)
        self._settings: dict[str, Any] = transcript.head.get("client", {})
        self._carriers: dict[str, Carried] = {}
        self._granted: dict[int, int] = {}
        self._first: dict[int, int] = {}
        self._windows: dict[int, int] = {}
        """Subscription → the most that may be granted in total (R25)."""
        self._things: dict[str, Any] = {}
        """Objects that the user has made: subscriptions, readers, messages."""
        self._calls: dict[str, asyncio.Task[Any]] = {}
        self._tokens = deque(self._settings.get("tokens", []))
        self._client: Client

    async def start(self) -> None:
        """Make a client that has not connected yet."""
        settings, rng = self._settings, Random(1)
        mode = settings.get("transport", self.transport)
        options: dict[str, Any] = {
            "token": self._token if self._tokens else settings.get("token"),
            "producer": "producer-1", "linger_s": settings.get("linger_s", 30.0),
            "name": "tocsin-python", "connect_timeout_s": 10.0, "trace": None,
        }  # fmt: skip
        self._session = Session(URL, mode=mode, rng=rng, open_carrier=self._open, **options)
        self._client = Client(URL, transport=mode, **options)
        self._client._session = self._session
        self._client._publisher = Publisher(self._session, rng=rng)

    async def stop(self) -> None:
        """End everything."""
        for call in self._calls.values():
            call.cancel()
        await asyncio.gather(*self._calls.values(), return_exceptions=True)
        await self._client.close()

    def _token(self) -> str:
        return str(self._tokens.popleft() if len(self._tokens) > 1 else self._tokens[0])

    async def _open(self, transport: Transport, token: str | None) -> Carried:
        attempt = Attempt(transport, token)
        self.happened("open", "", attempt)
        return await attempt.carrier

    # --- carriers -------------------------------------------------------------------------------

    def compare(self, line: Line, event: Event) -> str | None:
        if event.kind != "open" or line.who != "carrier":
            return super().compare(line, event)
        transport = line.get("transport", "any")
        transport = self.transport if transport == "any" else transport
        if event.what.transport != transport:
            return f"an attempt over {event.what.transport}, and not over {transport}"
        if "token" in line and event.what.token != line["token"]:
            return f"the token {event.what.token}"
        return None

    def matched(self, line: Line, event: Event) -> None:
        """Provide a carrier for an attempt, or refuse it; note a frame."""
        if event.kind == "frame":
            self._note(event.what)
        if event.kind != "open" or event.what.carrier.done():
            return
        if line["do"] == "refuse":
            event.what.carrier.set_exception(_REFUSALS[line["how"]]())
            return
        carrier = Carried(self, event.what.transport)
        carrier.name = self.connection(line)
        self._carriers[carrier.name] = carrier
        event.what.carrier.set_result(carrier)

    def is_free(self, event: Event) -> bool:
        """Whether a client may send this at any time: pings, questions whether acks are durable,
        credit, marks of started deliveries."""
        if event.kind in ("cut", "close"):
            return event.over != self.over  # the session continues elsewhere
        if event.kind != "frame":
            return False
        frame = event.what
        if frame["type"] == "ping":
            carrier = self._carriers[event.over]
            pong = {"type": "pong", **({"ref": frame["ref"]} if "ref" in frame else {})}
            carrier.deliver(msgspec.json.encode(pong))
            return True
        if frame["type"] == "ack" and not frame["deliveries"] and "ref" in frame:
            ok = {"type": "ok", "ref": frame["ref"], "settled": 0, "stale": []}
            self._carriers[event.over].deliver(msgspec.json.encode(ok))
            return True
        if frame["type"] == "credit":
            self._note(frame)
            return True
        return frame["type"] == "extend" and not frame.get("deliveries") and "ref" not in frame

    def _note(self, frame: dict[str, Any]) -> None:
        """Check R25: granted credit never exceeds the first window, plus one for each delivery."""
        if frame["type"] == "subscribe":
            number = frame["subscription"]
            self._granted[number] = frame["credit"]
            # Deliveries held over a restart of the broker have taken their credit already.
            window = self._first.setdefault(number, frame["credit"])
            self._windows[number] = window if frame.get("held") else frame["credit"]
        elif frame["type"] == "credit":
            number = frame["subscription"]
            if frame["granted"] > self._windows[number]:
                raise Deviation(f"R25: {frame} when {self._windows[number]} have room")
            self._granted[number] = max(frame["granted"], self._granted[number])

    def _is_known(self, line: Line) -> bool:
        """Whether the credit shown has been granted already. Credit is absolute, so the greatest
        number counts."""
        frame = line.get("frame", {})
        if frame.get("type") != "credit":
            return False
        number = self.captures.fill(frame["subscription"])
        return bool(self._granted.get(number) == frame["granted"])

    # --- acts of lines --------------------------------------------------------------------------

    async def do(self, line: Line) -> None:
        if line.who == "user":
            await _USER[line["do"]](self, line)
            return
        carrier = self._carriers[line.get("over", self.over)]
        if line.who == "carrier":
            if line["do"] == "silence":
                carrier.is_silent = line.get("how", "both") in ("both", "broker")
            else:
                carrier.finish(ABNORMAL)
        elif "close" in line:
            carrier.finish(line["close"])
        elif "text" in line:
            carrier.deliver(line["text"].encode("utf-8", "surrogateescape"))
        else:
            said = [self.captures.fill(frame) for frame in frames_of(line)]
            for frame in said:
                if frame["type"] == "push":
                    number = frame["subscription"]
                    room = self._windows.get(number, 0) + len(frame["messages"])
                    self._windows[number] = room
            carrier.deliver(msgspec.json.encode(said if "frames" in line else said[0]))

    async def see(self, line: Line) -> None:
        """Await the result of a call, or its error."""
        call = self._calls[line["told"]]
        await asyncio.wait((call,), timeout=max(0.002, line.by - self.now))
        if not call.done():
            raise Deviation(f"{line['told']} does not return by {line.by} s")
        self._check(line, call.exception() or call.result())

    def _check(self, line: Line, got: Any) -> None:
        value = described(got)
        shown = {"error": line["error"]} if "error" in line else line.get("gets", value)
        failed = isinstance(got, BaseException) and "gets" not in line and "error" not in line
        why = f"{value}" if failed else self.captures.match(shown, value)
        if why is not None:
            raise Deviation(f"the user: {why}")

    # --- the user -------------------------------------------------------------------------------

    def _call(self, line: Line, work: Any) -> None:
        self._calls[line["as"]] = asyncio.ensure_future(work)

    async def _connect(self, line: Line) -> None:
        self._call(line, self._session.open())

    async def _publish(self, line: Line) -> None:
        said = line["with"]
        messages = said["messages"]
        self._call(line, self._client.publish_many(said.get("queue", "orders"), messages))

    async def _subscribe(self, line: Line) -> None:
        said = {"auto_extend": False, **line["with"]}
        queue = said.pop("queue", "orders")
        made = self._things[line["as"]] = self._client.subscribe(queue, **said)
        self._call(line, made.__aenter__())

    async def _read(self, line: Line) -> None:
        said = dict(line["with"])
        queue, position = said.pop("queue", "orders"), said.pop("position", None)
        if position is not None:
            text = msgspec.json.encode(self.captures.fill(position))
            said["start"] = tocsin.Position.from_json(text)
        made = self._things[line["as"]] = self._client.read(queue, **said)
        self._call(line, made.__aenter__())

    async def _take(self, line: Line) -> None:
        source = self._things[line["of"]]
        got: Any
        try:
            if line.get("gets", "") is None:
                got = source.next_nowait()
            else:
                async with asyncio.timeout(max(0.002, line.by - self.now)):
                    got = await anext(source)
        except TimeoutError:
            raise Deviation(f"nothing is handed out by {line.by} s") from None
        except Exception as error:
            got = error
        self._things[line.get("as", "")] = got
        self._check(line, got)

    async def _settle(self, line: Line) -> None:
        message, said = self._things[line["of"]], dict(line.get("with", {}))
        call = asyncio.ensure_future(getattr(message, line["do"])(**said))
        if "as" in line:
            self._calls[line["as"]] = call
            return
        await asyncio.wait((call,))
        self._check(line, call.exception())

    async def _leave(self, line: Line) -> None:
        self._call(line, self._things[line["of"]].close())

    async def _close(self, line: Line) -> None:
        self._call(line, self._client.close())

    async def _position(self, line: Line) -> None:
        position = self._things[line["of"]].position
        self._check(line, None if position is None else msgspec.json.decode(position.to_json()))

    async def _transport(self, line: Line) -> None:
        self._check(line, self._client.transport)


def described(got: Any) -> Any:
    """Return the result or error of a call in the words of the format."""
    if isinstance(got, tocsin.Receipt) and got.is_scheduled:
        when = {"ticket": got.ticket, "due_unix_ms": got.due_unix_ms}
        return {"partition": got.partition, **when, "duplicate": got.duplicate}
    if isinstance(got, tocsin.Receipt):
        return {"partition": got.partition, "offset": got.offset, "duplicate": got.duplicate}
    if isinstance(got, tocsin.PublishManyFailed):
        return [described(outcome) for outcome in got.outcomes]
    if isinstance(got, tocsin.Gap):
        return {"gap": [got.first, got.last], "partition": got.partition}
    if isinstance(got, BaseException):
        return {"error": _name(got)}
    if isinstance(got, list):
        return [described(one) for one in got]
    if isinstance(got, tocsin.Message | tocsin.ReadMessage):
        shown = {"key": got.key, "body": got.body, "offset": got.offset, "id": got.id}
        return shown | ({"attempt": got.attempt} if isinstance(got, tocsin.Message) else {})
    return got if isinstance(got, str | dict) else None


def _name(error: BaseException) -> str:
    for kind, name in _ERRORS:
        if isinstance(error, kind):
            return name
    if isinstance(error, tocsin.SessionEnded):
        return f"session_ended {error.close_code}"
    if isinstance(error, tocsin.BrokerError):
        return error.code
    return repr(error)


_ERRORS: Final[Iterable[tuple[type[BaseException], str]]] = (
    (tocsin.StaleDelivery, "stale"),
    (tocsin.ClientClosed, "closed"),
    (StopAsyncIteration, "closed"),
    (tocsin.PublishTimeout, "timeout"),
    (CannotConnect, "cannot_connect"),
)
_REFUSALS: Final[dict[str, Callable[[], Exception]]] = {
    "unreachable": ConnectionRefusedError,
    "blocked": lambda: CannotConnect("the server is not a Tocsin broker: HTTP status 503"),
    "unauthorized": lambda: broker_error("unauthorized", "the token is not accepted"),
}
_USER: Final[dict[str, Callable[[SdkReplay, Line], Any]]] = {
    "connect": SdkReplay._connect,
    "publish": SdkReplay._publish,
    "subscribe": SdkReplay._subscribe,
    "read": SdkReplay._read,
    "next": SdkReplay._take,
    "ack": SdkReplay._settle,
    "nack": SdkReplay._settle,
    "reject": SdkReplay._settle,
    "extend": SdkReplay._settle,
    "leave": SdkReplay._leave,
    "close": SdkReplay._close,
    "position": SdkReplay._position,
    "transport": SdkReplay._transport,
}
