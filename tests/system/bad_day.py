"""A client that publishes, consumes and acks while its broker has a bad day, and remembers what it
was answered."""

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from websockets.exceptions import ConnectionClosed

from loadtests.server import SERVE, Server, ServerFailed
from tests.system.disk import Disk
from tests.system.talk import Frame, Talk, http_to, talking
from tests.waiting import becomes

BROKEN: Final = Path(__file__).with_name("broken.py")
QUEUE: Final = "/v1/queues/orders"
KEYS: Final = 3
KEPT_EVERY: Final = 5
"""Of so many messages one is not acked, so that some wait when the broker ends."""
QUIET, MESSAGES = 20, 200
"""Messages before the disk fails, and at most after that."""
EVERY_S: Final = 0.002
END_S: Final = 10.0
FIRST_ACK: Final = 1_000_000
"""Refs of acks; those of publishes are the numbers of their messages, and one."""


@dataclass
class Day:
    """What one producer and consumer has sent, and what it was answered. A message's body is its
    number, which is its sequence, too."""

    published: int = 0
    receipts: dict[int, int] = field(default_factory=dict)
    """Message → offset, of those whose receipt came."""
    sent_at: dict[int, float] = field(default_factory=dict)
    waited_s: dict[int, float] = field(default_factory=dict)
    """Message → seconds until its receipt came."""
    acked: set[int] = field(default_factory=set)
    """Messages for which an ack was sent."""
    settled: set[int] = field(default_factory=set)
    """Messages whose ack was confirmed."""
    asked_at: dict[int, float] = field(default_factory=dict)
    settled_s: dict[int, float] = field(default_factory=dict)
    """Message → seconds until its ack was confirmed."""
    errors: list[Frame] = field(default_factory=list)
    exit_code: int | None = None
    """The broker's; None: it went on."""
    quiet: int = 0
    """Number of messages that were published before the disk failed."""
    violations: list[str] = field(default_factory=list)

    async def publish(self, talk: Talk, count: int, every_s: float = EVERY_S) -> None:
        """Publish this many messages without waiting for their receipts; fewer if the session
        ends."""
        for number in range(self.published, self.published + count):
            self.published = number + 1
            self.sent_at[number] = asyncio.get_running_loop().time()
            await talk.tell(
                type="publish", ref=number + 1, queue="orders", sequence=number,
                messages=[{"key": f"k{number % KEYS}", "body": number}],
            )  # fmt: skip
            await asyncio.sleep(every_s)

    async def consume(self, talk: Talk) -> None:
        """Ack most of what is pushed, each message by itself and confirmed, and take the answers,
        until the session ends."""
        refs = itertools.count(FIRST_ACK + len(self.acked))
        asked: dict[int, int] = {}
        while True:
            await talk.read()
            frames, talk.kept = talk.kept, []
            for frame in frames:
                if frame["type"] == "push":
                    for offset, number in offsets(frame):
                        if number % KEPT_EVERY:
                            ref = next(refs)
                            asked[ref] = number
                            self.acked.add(number)
                            self.asked_at[number] = asyncio.get_running_loop().time()
                            place = [frame["partition"], frame["epoch"], frame["push"]]
                            place += [offset, offset]
                            await talk.tell(type="ack", ref=ref, subscription=1, deliveries=[place])
                else:
                    self._answer(frame, asked)

    def _answer(self, frame: Frame, asked: dict[int, int]) -> None:
        ref, now = frame.get("ref", 0), asyncio.get_running_loop().time()
        if frame["type"] == "ok" and ref in asked:
            assert frame["settled"] == 1, frame
            self.settled.add(asked[ref])
            self.settled_s[asked[ref]] = now - self.asked_at[asked[ref]]
        elif frame["type"] == "ok" and "receipts" in frame:
            (receipt,) = frame["receipts"]
            if isinstance(receipt, list):
                self.receipts[ref - 1] = receipt[1]
                self.waited_s[ref - 1] = now - self.sent_at[ref - 1]
            else:
                self.errors.append(receipt)
        elif frame["type"] == "error":
            self.errors.append(frame)

    @property
    def is_quiet(self) -> bool:
        """Whether every message has its receipt, and every ack that is due its answer."""
        due = {number for number in range(self.published) if number % KEPT_EVERY}
        return len(self.receipts) == self.published and self.settled == due

    async def judge(self, talk: Talk) -> None:
        """Ask a broker that has started again for everything, and compare (P1, P3, P4, P5)."""
        for number in range(self.published):
            answer = await talk.ask(
                type="publish", ref=number + 1, queue="orders", sequence=number,
                messages=[{"key": f"k{number % KEYS}", "body": number}],
            )  # fmt: skip
            (receipt,) = answer["receipts"]
            offset = self.receipts.get(number)
            if offset is not None and receipt != [0, offset, True]:
                self.violations.append(
                    f"{number} had offset {offset}, and is not stored: {receipt}"
                )
        await talk.tell(type="subscribe", ref=1, subscription=1, queue="orders", group="g",
                        credit=10_000)  # fmt: skip
        last = {"messages": [{"key": "last", "body": -1}], "sequence": self.published}
        await talk.tell(type="publish", ref=2, queue="orders", **last)
        given: list[int] = []
        while -1 not in given:
            given += [number for _, number in offsets(await talk.get("push"))]
        given.remove(-1)
        again = self.settled.intersection(given)
        if again:
            self.violations.append(f"settled, and given again: {sorted(again)}")
        lost = set(range(self.published)) - self.acked - set(given)
        if lost:
            self.violations.append(f"not acked, and not given: {sorted(lost)}")
        if len(set(given)) < len(given):
            self.violations.append("given twice")
        for key in range(KEYS):
            of_key = [number for number in given if number % KEYS == key]
            if of_key != sorted(of_key):
                self.violations.append(f"key k{key} out of order: {of_key}")


def offsets(push: Frame) -> list[tuple[int, int]]:
    """Return (offset, body) of a push's messages."""
    skips = set(push.get("skips", []))
    free = (offset for offset in itertools.count(push["offset"]) if offset not in skips)
    return [(next(free), message["body"]) for message in push["messages"]]


Remains = Callable[[Server], AbstractContextManager[Path]]
"""Ends a broker, and yields the data folder that is left of it."""


@contextlib.contextmanager
def killed(server: Server) -> Iterator[Path]:
    """End a broker, unless it has ended: its own folder is left."""
    server.kill()
    yield server.data_dir


async def bad_day(
    folder: Path,
    disk: Disk,
    begin: Callable[[Disk], object],
    *,
    flags: tuple[str, ...] = (),
    messages: int = MESSAGES,
    every_s: float = EVERY_S,
    waits_for_end: bool = False,
    remains: Remains = killed,
) -> Day:
    """Let a broker work well, then have `begin` break its disk while messages and acks come. When
    the broker has ended or stands still, or after `messages`, start the shipped one over what
    `remains`, and judge. `flags`: of tests/system/broken.py (negative controls). `waits_for_end`:
    the broker is to end, perhaps a while after the last message."""
    day = Day()
    command = [str(BROKEN), *flags] if flags else SERVE
    server = Server(folder / "data", command=command, settings=disk.settings)
    # A disk that loses power would lose them, and the other one is to read what this one wrote.
    server.key_path, server.log_path = folder.with_suffix(".key"), folder.with_suffix(".log")
    try:
        server.start()
        async with http_to(server) as http:
            await http.put(QUEUE, json={"partitions": 1, "retention_s": 3600})
        async with talking(server, producer="p") as talk:
            subscribe = {"subscription": 1, "queue": "orders", "group": "g", "credit": 10_000}
            await talk.ask(type="subscribe", ref=1, **subscribe)
            consuming = asyncio.create_task(day.consume(talk))
            try:
                await day.publish(talk, QUIET, every_s)
                await becomes(lambda: day.is_quiet, END_S)
                day.quiet = day.published
                begin(disk)
                with contextlib.suppress(ConnectionClosed, AssertionError):
                    await day.publish(talk, messages, every_s)
                    await becomes(
                        lambda: (
                            consuming.done()
                            or _is_over(server)
                            or (day.is_quiet and not waits_for_end)
                        ),
                        END_S,
                    )
            finally:
                consuming.cancel()
                (ended,) = await asyncio.gather(consuming, return_exceptions=True)
                if isinstance(ended, AssertionError):
                    raise ended
                if _is_over(server):
                    talk.connection.transport.abort()  # nobody answers its goodbye
        if not day.is_quiet or waits_for_end:
            with contextlib.suppress(AssertionError):  # it goes on, and has no exit code
                await becomes(lambda: _is_over(server), END_S)
        day.exit_code = server.exit_code()
        disk.heal()
        with remains(server) as left:
            await _judged(server, left, day)
    finally:
        server.discard()
    return day


async def _judged(server: Server, left: Path, day: Day) -> None:
    """Start the shipped broker over what is left of one that has ended, and judge."""
    again = Server(left)
    again.key_path, again.log_path = server.key_path, server.log_path.with_suffix(".log2")
    try:
        again.start()
        async with talking(again, producer="p") as talk:
            await day.judge(talk)
    except ServerFailed as error:
        day.violations.append(str(error))
    finally:
        again.discard()


def _is_over(server: Server) -> bool:
    """Whether the broker has ended, or stands still for good (SIGSTOP)."""
    if not server.running():
        return True
    stat = Path(f"/proc/{server.pid}/stat").read_text()
    return stat.rpartition(")")[2].split()[0] == "T"
