"""The client without an event loop: the same answers and exceptions, threads, timeouts, ends."""

import asyncio
import asyncio.base_events
import concurrent.futures._base
import gc
import inspect
import itertools
import queue
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import CodeType, FrameType
from typing import Any

import pytest
import tocsin
import tocsin.blocking
from tocsin.blocking import loop

from tests.clients.fake_broker import FakeBroker


async def script(run: Callable[[], Any]) -> Any:
    """Run it as a program would, in a thread: the fake broker lives in this one."""
    async with asyncio.timeout(20):
        return await asyncio.to_thread(run)


async def test_everything_from_a_script(broker: FakeBroker) -> None:
    def run() -> None:
        with tocsin.blocking.connect(broker.url) as client:
            client.create_queue("new", partitions=4)
            assert [queue["name"] for queue in client.queues()] == ["new", "orders"]
            receipt = client.publish("orders", {"n": 0}, key="k", id="i-0", headers={"h": "v"})
            assert (receipt.offset, receipt.id) == (0, "i-0")
            with client.subscribe("orders", "billing") as messages:
                first = next(messages)
                assert (first.body, first.key, first.id, first.attempt) == ({"n": 0}, "k", "i-0", 1)
                assert first.log == f"id-1-{first.partition}"
                first.extend(5)
                first.nack(0, "again", confirm=True)
                again = messages.next(timeout_s=5)
                assert (again.body, again.attempt) == ({"n": 0}, 2)
                again.ack(confirm=True)
                receipts = client.publish_many("orders", ({"body": n, "key": "k"} for n in (1, 2)))
                assert [one.offset for one in receipts] == [1, 2]
                for message in messages:
                    message.ack()
                    if message.body == 2:
                        break
            assert client.group("orders", "billing")["lag"] == 0
            with client.read("orders", ["k"], start="earliest", idle_s=0.2) as reader:
                assert [message.body for message in reader] == [{"n": 0}, 1, 2]
                assert reader.position is not None
                assert reader.verdicts[0].kind == "resumed"
            client.create_group("orders", "pullers")
            pulled = client.pull("orders", "pullers", messages_max=3)
            receipts_of = [message.receipt for message in pulled]
            assert client.extend_receipts("orders", "pullers", receipts_of).settled == 3
            assert client.nack_receipts("orders", "pullers", receipts_of[2:]).settled == 1
            assert client.ack_receipts("orders", "pullers", receipts_of[:2]).settled == 2
            client.seek_group("orders", "pullers", "latest")
            client.delete_group("orders", "pullers")
            assert client.is_connected

    await script(run)
    assert broker.sockets == []


async def test_operators_calls_go_over_the_same_connection(broker: FakeBroker) -> None:
    """Each asks the broker what the asyncio client asks it."""
    calls: list[Callable[[Any], Any]] = [
        lambda client: client.pause_queue("orders"),
        lambda client: client.resume_queue("orders"),
        lambda client: client.purge_queue("orders", group="g"),
        lambda client: client.peek("orders", key="k", limit=3),
        lambda client: client.redrive_dead_letters("orders", reason="expired", limit=2),
        lambda client: client.parked_keys("orders", "g", limit=5),
        lambda client: client.explain("orders", "user/7 é", group="g"),
        lambda client: client.decide_parked("orders", "g", "retry", key="k"),
    ]

    lists: list[Callable[[Any], Any]] = [
        lambda client: client.dead_letters("orders", key="k"),
        lambda client: client.held_keys("orders", "g"),
        lambda client: client.leases("orders", "g"),
        lambda client: client.sessions(),
    ]

    def run() -> None:
        with tocsin.blocking.connect(broker.url) as client:
            for call in calls:
                with suppress(tocsin.TocsinError, KeyError):  # the fake one knows few of them
                    call(client)
            for list_ in lists:
                with suppress(tocsin.TocsinError):
                    list_(client)

    await script(run)
    asked = list(broker.calls)
    broker.calls.clear()
    async with tocsin.connect(broker.url) as client:
        for call in calls:
            with suppress(tocsin.TocsinError, KeyError):
                await call(client)
        for list_ in lists:
            with suppress(tocsin.TocsinError):
                await anext(list_(client), None)
    assert len(asked) == len(calls) + len(lists)
    assert asked == broker.calls


async def test_exceptions_are_the_same(broker: FakeBroker) -> None:
    def run() -> None:
        with pytest.raises(tocsin.CannotConnect):
            tocsin.blocking.connect("http://127.0.0.1:1")
        with pytest.raises(ValueError, match="http"):
            tocsin.blocking.connect("nowhere")
        with tocsin.blocking.connect(broker.url) as client:
            with pytest.raises(tocsin.QueueNotFound):
                client.publish("nowhere", 1)
            with pytest.raises(tocsin.QueueNotFound):
                client.subscribe("nowhere", "g").__enter__()
            with pytest.raises(tocsin.GroupNotFound):
                client.group("orders", "nowhere")
            with pytest.raises(RuntimeError, match="with"):
                next(client.subscribe("orders", "g"))
        with pytest.raises(tocsin.ClientClosed):
            client.publish("orders", 1)
        client.close()

    await script(run)


async def test_waiting_ends_in_time_and_loses_nothing(broker: FakeBroker) -> None:
    def run() -> None:
        with (
            tocsin.blocking.connect(broker.url) as client,
            client.subscribe("orders", "g", idle_s=0.05) as messages,
        ):
            with pytest.raises(TimeoutError):
                messages.next(timeout_s=0.01)
            assert list(messages) == []
            client.publish_many("orders", [{"body": n} for n in range(20)])
            assert sorted(message.body for message in messages) == list(range(20))
            broker.silent = True
            with pytest.raises(tocsin.PublishTimeout):
                client.publish("orders", 1, timeout_s=0.05)

    await script(run)


async def test_messages_are_fetched_from_a_script(broker: FakeBroker) -> None:
    """As many as there are, the first one waited for; together with the iteration."""

    def run() -> None:
        with tocsin.blocking.connect(broker.url) as client:
            subscription = client.subscribe("orders", "g")
            with pytest.raises(RuntimeError, match="with"):
                subscription.fetch()
            with subscription as messages:
                assert messages.fetch(5, wait_s=0.01) == []
                client.publish_many("orders", [{"body": n} for n in range(20)])
                bodies = [next(messages).body]
                while len(bodies) < 20:
                    fetched = messages.fetch(20 - len(bodies), wait_s=10)
                    for message in fetched:
                        message.ack()
                    bodies += [message.body for message in fetched]
                assert sorted(bodies) == list(range(20))
                assert messages.fetch() == []
            with pytest.raises(tocsin.ClientClosed):
                messages.fetch()

    await script(run)


async def test_threads_share_a_client_and_a_subscription(broker: FakeBroker) -> None:
    def run() -> None:
        seen: list[int] = []
        with (
            tocsin.blocking.connect(broker.url) as client,
            client.subscribe("orders", "g", idle_s=0.5) as messages,
            ThreadPoolExecutor(8) as pool,
        ):

            def consume(_: int) -> None:
                for message in messages:
                    seen.append(message.body)
                    message.ack()

            consuming = [pool.submit(consume, n) for n in range(4)]
            publishing = [
                pool.submit(client.publish, "orders", n, key=f"k{n % 5}") for n in range(100)
            ]
            receipts = [future.result() for future in publishing]
            assert len({(receipt.partition, receipt.offset) for receipt in receipts}) == 100
            for future in consuming:
                future.result()
        assert sorted(seen) == list(range(100))

    await script(run)


async def test_closing_ends_what_other_threads_wait_in(broker: FakeBroker) -> None:
    def run() -> None:
        client = tocsin.blocking.connect(broker.url)
        ended: list[str] = []
        entered = threading.Semaphore(0)

        def consume() -> None:
            with client.subscribe("orders", "g") as messages:
                entered.release()
                for _ in messages:
                    pass
            ended.append("consumer")

        def publish() -> None:
            entered.release()
            with pytest.raises(tocsin.ClientClosed):
                client.publish("orders", 1, timeout_s=None)
            ended.append("publisher")

        broker.silent = True
        threads = [threading.Thread(target=one) for one in (consume, publish)]
        for thread in threads:
            thread.start()
        for _ in threads:
            entered.acquire()
        client.close()
        for thread in threads:
            thread.join()
        assert sorted(ended) == ["consumer", "publisher"]

    await script(run)


async def test_a_call_from_a_callback_is_an_error_and_no_deadlock(broker: FakeBroker) -> None:
    def run() -> None:
        with tocsin.blocking.connect(broker.url) as client:
            client.publish_many("orders", [{"body": n, "key": "k"} for n in range(3)])
            with client.read("orders", start="earliest") as reader:
                position = reader.position
            broker.retained_from = 2
            assert position is not None

            def on_gap(gap: tocsin.Gap) -> None:
                client.publish("orders", str(gap))

            with (
                client.read("orders", start=position, on_gap=on_gap) as reader,
                pytest.raises(RuntimeError, match="own thread"),
            ):
                next(reader)

    await script(run)


async def test_a_subscription_keeps_its_client(broker: FakeBroker) -> None:
    """Nobody else knows it: it must not be collected, and closed, under the subscription."""

    def run() -> None:
        with tocsin.blocking.connect(broker.url).subscribe("orders", "g") as messages:
            with tocsin.blocking.connect(broker.url) as other:
                other.publish("orders", 1)
            assert messages.next(timeout_s=5).body == 1

    await script(run)


INTERRUPTED = """
import sys, tocsin.blocking
with tocsin.blocking.connect(sys.argv[1]) as client, client.subscribe("orders", "g") as messages:
    try:
        print("waiting", flush=True)
        for message in messages:
            pass
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        client.publish("orders", "and it still works")
        raise SystemExit(3)
"""
FORGOTTEN = """
import sys, tocsin.blocking
client = tocsin.blocking.connect(sys.argv[1])
messages = client.subscribe("orders", "g").__enter__()
client.publish("orders", 1)
print(messages.next().body, flush=True)
"""


async def program(code: str, url: str) -> asyncio.subprocess.Process:
    """A Python of its own."""
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        sys.executable, "-X", "dev", "-c", code, url, stdout=pipe, stderr=pipe
    )


async def test_ctrl_c_ends_the_wait(broker: FakeBroker) -> None:
    running = await program(INTERRUPTED, broker.url)
    assert running.stdout is not None
    async with asyncio.timeout(20):
        assert await running.stdout.readline() == b"waiting\n"
        running.send_signal(signal.SIGINT)
        output, errors = await running.communicate()
    assert (output, errors, running.returncode) == (b"interrupted\n", b"", 3)
    assert broker.bodies("orders") == ["and it still works"]


class Interruption:
    """Ctrl-C at the n-th line that this thread comes to while it waits for another one. A line is
    come to once: again it is where a `with` ends, before the lock is given back."""

    FILES = (loop.__file__, asyncio.base_events.__file__, concurrent.futures._base.__file__)

    def __init__(self, line: int) -> None:
        self.left = line
        self.seen: set[tuple[CodeType, int]] = set()

    def _traced(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in self.FILES:
            return None
        place = (frame.f_code, frame.f_lineno)
        if event == "line" and place not in self.seen:
            self.seen.add(place)
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self._traced

    def __enter__(self) -> "Interruption":
        sys.settrace(self._traced)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)


@pytest.mark.filterwarnings("error")
async def test_ctrl_c_at_any_line_loses_no_message_and_leaves_nothing_behind(
    broker: FakeBroker,
) -> None:
    def run() -> None:
        with tocsin.blocking.connect(broker.url) as client:
            client.publish_many("orders", [{"body": n, "key": "k"} for n in range(100)])
            with client.read("orders", start="earliest") as messages:
                read: list[Any] = []
                for line in itertools.count(1):
                    with Interruption(line) as interruption, suppress(KeyboardInterrupt):
                        read.append(messages.next(timeout_s=5).body)
                    if interruption.left > 0:
                        break
                assert line > 10
                assert read == list(range(len(read)))
                following = messages.next(timeout_s=5)
                assert following.body == len(read)
                gc.collect()

    await script(run)


def test_what_is_done_as_the_wait_for_it_ends_is_unclaimed() -> None:
    """A Ctrl-C between the last line of the work and its telling."""
    thread, left = loop.LoopThread(), queue.SimpleQueue[int]()
    given_up: concurrent.futures.Future[int] = concurrent.futures.Future()

    async def work() -> int:
        given_up.cancel()
        return 17

    async def last() -> None:
        """Nothing."""

    thread._begin(given_up, work, None, left.put)
    try:
        assert left.get(timeout=10) == 17
    finally:
        thread.stop(last)


@pytest.mark.parametrize("broker_answers", [True, False])
async def test_a_client_that_is_never_closed_holds_up_no_interpreter(
    broker: FakeBroker, broker_answers: bool
) -> None:
    """Also where the broker hangs when the interpreter ends."""
    hang = "" if broker_answers else "sys.stdin.readline()\n"
    pipe = asyncio.subprocess.PIPE
    running = await asyncio.create_subprocess_exec(
        sys.executable, "-X", "dev", "-c", FORGOTTEN + hang, broker.url,
        stdin=pipe, stdout=pipe, stderr=pipe,
    )  # fmt: skip
    assert running.stdout is not None
    async with asyncio.timeout(20):
        assert await running.stdout.readline() == b"1\n"
        if not broker_answers:
            for socket in broker.sockets:
                socket.transport.pause_reading()
        _, errors = await running.communicate(b"\n")
    assert (errors, running.returncode) == (b"", 0)


def test_it_has_whatever_the_asyncio_client_has() -> None:
    """Every public call and property, with the same parameters; and besides only `idle_s`."""
    calls = [(tocsin.connect, tocsin.blocking.connect)]
    for name, theirs in inspect.getmembers(tocsin.Client):
        if not name.startswith("_"):
            mine = getattr(tocsin.blocking.Client, name)
            assert isinstance(mine, property) == isinstance(theirs, property), name
            if inspect.isfunction(theirs):
                calls.append((theirs, mine))
    for theirs, mine in calls:
        wanted = inspect.signature(theirs).parameters
        got = inspect.signature(mine).parameters
        extra = {"idle_s"} if theirs.__name__ in ("subscribe", "read") else set()
        assert set(got) - set(wanted) == extra, theirs.__name__
        for name, declared in wanted.items():
            assert name in got, f"{theirs.__name__}({name})"
            assert got[name].default == declared.default, f"{theirs.__name__}({name})"
            assert got[name].kind == declared.kind, f"{theirs.__name__}({name})"


class Heard:
    """In place of the asyncio client and its loop: what the blocking one asks of them."""

    def __init__(self) -> None:
        self.arguments: inspect.BoundArguments | None = None

    def __getattr__(self, name: str) -> Callable[..., "Heard"]:
        signature = inspect.signature(getattr(tocsin.Client, name))

        def method(*args: Any, **named: Any) -> Heard:
            self.arguments = signature.bind(self, *args, **named)
            return self

        return method

    def call(self, work: Callable[[], Any]) -> None:
        """Have it done."""
        made = work()
        if inspect.iscoroutine(made):
            asyncio.run(made)

    run = call

    def __aiter__(self) -> "Heard":
        return self

    async def __anext__(self) -> None:
        raise StopAsyncIteration


CALLS = [
    name
    for name, call in inspect.getmembers(tocsin.Client, inspect.isfunction)
    if not name.startswith("_") and name != "close"
]


@pytest.mark.parametrize("name", CALLS)
def test_every_argument_reaches_the_asyncio_client(name: str) -> None:
    """`auto_extend=False` of a subscription once did not."""
    client, heard = object.__new__(tocsin.blocking.Client), Heard()
    client.__dict__ |= {"_client": heard, "_loop": heard}
    said: dict[str, Any] = {}
    parameters = inspect.signature(getattr(tocsin.Client, name)).parameters
    for parameter in list(parameters.values())[1:]:
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            said["lease_s"] = 7.0
        else:
            said[parameter.name] = [parameter.name]
    getattr(client, name)(**said)
    assert heard.arguments is not None
    arguments = dict(heard.arguments.arguments)
    del arguments["self"]
    assert arguments | arguments.pop("settings", {}) == said
