"""A message's life, recorded by a profiler: the modules of the server that it passes, hop by hop.

    .venv/bin/python -m tests.system.life push        publish, push and ack over a WebSocket
    .venv/bin/python -m tests.system.life pull        publish, pull and ack over HTTP
    .venv/bin/python -m tests.system.life redis       as push, over Redis or Valkey
    .venv/bin/python -m tests.system.life push --hops print every call, not the figures alone

A gateway of this process serves on a loop of its own, over its own files; the client is another
thread. Connection, subscription and a few messages come first; then single messages are recorded,
from the arrival of the publish's bytes to the write of the ack's `ok`.

A **hop** is the first call of a function of the server, in the loop's thread or in one of the
storage. A reader of the code reads a function once, and comprehensions with their function. Hops in
a row in one module are one **passage**; a **return** is a passage through a module that was left
before. Functions that are not in each of several recordings are left out, because the gateway runs
them for other reasons. The figures are of the recording in the middle.
"""

import argparse
import asyncio
import json
import re
import secrets
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from gateway.broker import Broker
from gateway.config import Config
from gateway.server import OnFatal, Server
from tests.histories.redis_gateways import a_server, emptied
from tests.layout.tree import ROOT, SERVER, text

JOURNEYS: Final = ("push", "pull", "redis")
RECORDINGS: Final = 15
WARM_UP: Final = 5
WAIT_S: Final = 30.0
LOOP: Final = "loop"
_READS: Final = ("_read_ready__data_received", "_read_ready__get_buffer")
_THREAD: Final = re.compile(r"[_-]\d+$")
_TRANSPORT: Final = "asyncio/selector_events.py"
_INLINE: Final = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
"""Parts of the function around them; newer Pythons make no call for most of them."""
_READ, _WRITE = "<read>", "<write>"


@dataclass(frozen=True, slots=True)
class Hop:
    """A call of a function of the server."""

    module: str
    function: str
    thread: str

    def __str__(self) -> str:
        return f"{self.module}:{self.function}"


@dataclass(frozen=True, slots=True)
class Life:
    """The hops of one message, in order, and the number of all calls."""

    hops: tuple[Hop, ...]
    calls: int

    @property
    def passages(self) -> list[str]:
        """The modules, in order: calls within one module are one passage."""
        names = [hop.module for hop in self.hops]
        return [name for i, name in enumerate(names) if i == 0 or name != names[i - 1]]

    @property
    def modules(self) -> int:
        """The number of different modules."""
        return len(set(self.passages))

    @property
    def returns(self) -> int:
        """The number of passages through a module that was left before."""
        return len(self.passages) - self.modules

    @property
    def lines(self) -> int:
        """The lines of these modules."""
        return sum(len(text(path_of(name)).splitlines()) for name in set(self.passages))

    def __str__(self) -> str:
        return (
            f"{self.modules} modules, {self.returns} returns, {self.lines} lines "
            f"({len(self.hops)} functions, {self.calls} calls)"
        )


def path_of(module: str) -> Path:
    """A module's file, relative to the root."""
    path = Path(*module.split("."))
    return path.with_suffix(".py") if (ROOT / path).with_suffix(".py").exists() else (
        path / "__init__.py"
    )  # fmt: skip


class Recorder:
    """A recorder of calls of the server's functions, in every thread that begins while it is
    installed."""

    def __init__(self) -> None:
        self._modules: dict[CodeType, str | None] = {}
        self._events: list[Hop] = []
        self._is_on = False

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Watch threads that begin within the block."""
        threading.setprofile(self._see)
        try:
            yield
        finally:
            threading.setprofile(None)

    def record(self, act: Callable[[], None]) -> Life:
        """Return the hops while `act` runs, from the first bytes that arrive to the last ones
        written."""
        self._events, self._is_on = [], True
        act()
        self._is_on = False
        events, modules = self._events, [hop.module for hop in self._events]
        first, last = modules.index(_READ), len(modules) - modules[::-1].index(_WRITE)
        return as_read(events[first:last])

    def _see(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or not self._is_on:
            return
        code = frame.f_code
        module = self._modules.get(code, "")
        if module == "":
            module = self._modules[code] = _module_of(code)
        if module is not None:
            thread = _THREAD.sub("", threading.current_thread().name)
            self._events.append(Hop(module, code.co_qualname, thread))


def as_read(events: Sequence[Hop]) -> Life:
    """Order the calls of one message. A thread beside the loop runs at the same time, so its calls
    are put where they began, between two arrivals of bytes."""
    ordered: list[Hop] = []
    for hop in events:
        if hop.module == _READ or hop.thread == LOOP:
            ordered.append(hop)
            continue
        place = len(ordered)
        while place and ordered[place - 1].module != _READ:
            place -= 1
            if ordered[place].thread == hop.thread:
                ordered.insert(place + 1, hop)
                break
        else:
            ordered.append(hop)
    ours = [hop for hop in ordered if hop.module not in (_READ, _WRITE)]
    once = dict.fromkeys((hop.module, hop.function) for hop in ours)
    threads = {(hop.module, hop.function): hop.thread for hop in reversed(ours)}
    first = tuple(Hop(*name, threads[name]) for name in once)
    return Life(first, len(ours))


def _common(found: Sequence[Life]) -> list[Life]:
    """Remove the functions that are not in every recording, because the gateway runs them for other
    reasons."""
    names = [{(hop.module, hop.function) for hop in life.hops} for life in found]
    core = set.intersection(*names)
    return [
        Life(tuple(hop for hop in life.hops if (hop.module, hop.function) in core), life.calls)
        for life in found
    ]


def _module_of(code: CodeType) -> str | None:
    """Return the module of the server that contains a function, or the function's act at the
    socket."""
    path = Path(code.co_filename)
    if code.co_name in _INLINE:
        return None
    if code.co_filename.endswith(_TRANSPORT):
        return _READ if code.co_name in _READS else _WRITE if code.co_name == "write" else None
    if not path.is_relative_to(ROOT):
        return None
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__") if parts[0] in SERVER else None


# --- A gateway, and its clients ---------------------------------------------------------------


@contextmanager
def serving(config: Config) -> Iterator[str]:
    """Run a gateway on a loop of its own, in a thread of its own; yield its URL."""
    ready, url = threading.Event(), ""
    stop: Callable[[], object] = ready.set
    failed: list[BaseException] = []

    async def whole() -> None:
        nonlocal url, stop
        server = await Server.open(config, _build, on_fatal=sys.exit)
        stopping, loop = asyncio.Event(), asyncio.get_running_loop()
        url, stop = server.url, lambda: loop.call_soon_threadsafe(stopping.set)
        ready.set()
        await stopping.wait()
        await server.stop()

    def live() -> None:
        try:
            # Not uvloop, whose sockets the profiler does not see.
            with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
                runner.run(whole())
        except BaseException as error:
            failed.append(error)
            ready.set()

    thread = threading.Thread(target=live, name=LOOP)
    thread.start()
    try:
        ready.wait(WAIT_S)
        if failed:
            raise failed[0]
        yield url
    finally:
        stop()
        thread.join(WAIT_S)


async def _build(config: Config, on_fatal: OnFatal) -> Broker:
    return await Broker.open(config, on_fatal=on_fatal)


class Talk:
    """A WebSocket client that waits for each answer."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket

    def say(self, **frame: Any) -> None:
        """Send a frame."""
        self._socket.send(json.dumps(frame))

    def until(self, kind: str) -> dict[str, Any]:
        """Return the next frame of this type; frames of other types are dropped."""
        while True:
            for frame in _frames(self._socket.recv(WAIT_S)):
                if frame["type"] == "error":
                    raise RuntimeError(f"the broker refused: {frame}")
                if frame["type"] == kind:
                    return frame


def _frames(data: str | bytes) -> list[dict[str, Any]]:
    found = json.loads(data)
    return found if isinstance(found, list) else [found]


@contextmanager
def talking(url: str) -> Iterator[Talk]:
    """Yield a session that has said hello."""
    address = url.replace("http", "ws", 1) + "/v1/ws"
    with connect(address, subprotocols=[Subprotocol("tocsin.v1")], proxy=None) as socket:
        talk = Talk(socket)
        talk.say(type="hello")
        talk.until("welcome")
        yield talk


class Calls:
    """HTTP calls over one connection that is kept."""

    def __init__(self, url: str) -> None:
        self._connection = HTTPConnection(url.partition("//")[2], timeout=WAIT_S)

    def __call__(self, method: str, path: str, body: Any) -> Any:
        """Send a request; return the decoded answer."""
        headers = {"Content-Type": "application/json"}
        self._connection.request(method, path, json.dumps(body), headers)
        answer = self._connection.getresponse()
        data = answer.read()
        if answer.status >= 300:
            raise RuntimeError(f"the broker refused: {data!r}")
        return json.loads(data or b"null")

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def pushed(url: str) -> Iterator[Callable[[], None]]:
    """Yield an act of one message each time over WebSockets: published by one session, pushed to
    another one, acked with a confirmation."""
    with closing(Calls(url)) as call:
        call("PUT", "/v1/queues/orders", {"partitions": 1})
    with talking(url) as producer, talking(url) as consumer:
        consumer.say(type="subscribe", ref=1, subscription=1, queue="orders", group="billing",
                     credit=1000)  # fmt: skip
        consumer.until("ok")

        def act() -> None:
            message = {"key": "user-7", "body": {"total": 12}}
            producer.say(type="publish", ref=1, queue="orders", messages=[message])
            push = consumer.until("push")
            place = [push["partition"], push["epoch"], push["push"]]
            deliveries = [[*place, push["offset"], push["offset"]]]
            producer.until("ok")
            consumer.say(type="ack", ref=2, subscription=1, deliveries=deliveries)
            consumer.until("ok")

        while True:
            yield act


def pulled(url: str) -> Iterator[Callable[[], None]]:
    """Yield an act of one message each time over HTTP: published, pulled, acked."""
    call = Calls(url)
    call("PUT", "/v1/queues/orders", {"partitions": 1})
    group = "/v1/queues/orders/groups/billing"
    call("PUT", group, {})

    def act() -> None:
        messages = [{"key": "user-7", "body": {"total": 12}}]
        call("POST", "/v1/queues/orders/messages", {"messages": messages})
        taken = call("POST", f"{group}/pull", {"messages_max": 10, "wait_s": 5})
        receipts = [one["receipt"] for one in taken["messages"]]
        call("POST", f"{group}/ack", {"receipts": receipts})

    with closing(call):
        while True:
            yield act


def lives(journey: str) -> list[Life]:
    """Return several recordings of one journey, by their number of returns."""
    recorder = Recorder()
    store = a_server() if journey == "redis" else nullcontext()
    acts = pulled if journey == "pull" else pushed
    with tempfile.TemporaryDirectory(prefix="tocsin-life-") as folder, store as node:
        key = Path(folder) / "key"
        key.touch(mode=0o600)
        key.write_text(secrets.token_hex(32))
        storage = "sqlite:" if node is None else asyncio.run(emptied(node))
        config = Config(
            data_dir=Path(folder) / "data", port=0, storage=storage, master_key_file=key
        )
        with recorder.installed(), serving(config) as url:
            acting = acts(url)
            for _ in range(WARM_UP):
                next(acting)()
            found = [recorder.record(next(acting)) for _ in range(RECORDINGS)]
            acting.close()  # type: ignore[attr-defined]
    return sorted(_common(found), key=lambda life: (life.returns, life.calls))


def middle(found: Sequence[Life]) -> Life:
    """Return the median recording."""
    return found[len(found) // 2]


def main(arguments: Sequence[str]) -> int:
    """Print the recording. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.system.life",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("journey", choices=JOURNEYS)
    parser.add_argument("--hops", action="store_true", help="print every call")
    parser.add_argument("--spread", action="store_true", help="the figures of every recording")
    said = parser.parse_args(arguments)
    found = lives(said.journey)
    before, left = None, set[str]()
    for hop in middle(found).hops if said.hops else ():
        if before is not None and hop.thread != before.thread:
            sys.stdout.write(f"=== thread {hop.thread}\n")
        is_new = before is None or hop.module != before.module
        mark = "  " if not is_new else "< " if hop.module in left else "> "
        sys.stdout.write(f"{mark}{hop}\n")
        left.add(hop.module)
        before = hop
    for life in found if said.spread else [middle(found)]:
        sys.stdout.write(f"{said.journey}: {life}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
