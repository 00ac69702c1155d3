"""Clients that schedule, change, cancel and list over plain HTTP, and go on whatever fails.

Each client has keys of its own and does one thing after the other, so that it knows what may be
true of them. A request that has no answer, or one that says "again", is repeated at the next
gateway: a publish as long as its ids are known for sure, everything else until it is answered.
"""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final
from urllib.parse import quote

from loadtests.clients.rest import Rest
from tests.later.books import Books, Found, Scheduled

QUEUE: Final = "later"
AGAIN_S: Final = (0.02, 0.3)
TIMEOUT_S: Final = 8.0
PAGE: Final = 1000
LISTED: Final = 1000


@dataclass(frozen=True, slots=True)
class Plan:
    """What is done. `messages` by all clients together, over `keys`. Each is due between
    `soonest_s` and `latest_s` after it is sent; with `at_unix_ms` all are due then."""

    messages: int
    keys: int
    clients: int = 24
    soonest_s: float = 0.0
    latest_s: float = 40.0
    at_unix_ms: int = 0
    batch_max: int = 20
    partitions: int = 8
    dedup_window_s: float = 5.0
    cancelled: float = 0.1
    """The share of messages that clients try to cancel; and so on."""
    moved: float = 0.1
    replaced: float = 0.05
    listed: float = 0.02


class Gone(Exception):
    """The broker's answer to a request about one message: it cannot be done any more. The text is
    the code."""


class Doors:
    """Connections of one client to all gateways, of which one is used until it fails."""

    def __init__(self, urls: Sequence[str], chance: Random) -> None:
        self._doors = [Rest(url, timeout_s=TIMEOUT_S) for url in urls]
        self._at = chance.randrange(len(urls))
        self._chance = chance

    async def once(self, method: str, path: str, body: object = None) -> Any:
        """Ask once. Returns the answer; None: there is none, or it says to try again. Raises
        Gone: refused for good."""
        data = None if body is None else json.dumps(body).encode()
        try:
            status, answer = await self._doors[self._at].request(method, path, data)
        except (OSError, EOFError, TimeoutError, asyncio.IncompleteReadError):
            self._at = (self._at + 1) % len(self._doors)
            return None
        said = json.loads(answer) if answer else {}
        if status < 400:
            return said
        error = said.get("error", said)
        if error.get("retry") or status in {500, 503, 429}:
            self._at = (self._at + 1) % len(self._doors)
            return None
        raise Gone(error["code"])

    async def until_answered(self, method: str, path: str, body: object = None) -> Any:
        """Ask until there is an answer. Raises Gone."""
        while (answer := await self.once(method, path, body)) is None:
            await self.rest()
        return answer

    async def rest(self) -> None:
        """Wait a moment before a request is repeated."""
        await asyncio.sleep(self._chance.uniform(*AGAIN_S))

    def close(self) -> None:
        """Close all connections."""
        for door in self._doors:
            door.close()


def unix_ms() -> float:
    """Return the present time."""
    return time.time() * 1000


class Client:
    """One client, its keys, and what it knows."""

    def __init__(
        self, number: int, urls: Sequence[str], plan: Plan, books: Books, chance: Random
    ) -> None:
        self._plan, self._books, self._chance = plan, books, chance
        self._number, self._count = number, 0
        self._doors = Doors(urls, chance)
        share = range(number, plan.keys, plan.clients)
        self._keys = [f"key-{one}" for one in share]
        self.done: dict[str, int] = {}
        """Number of acts, by what was answered."""

    async def run(self, count: int) -> None:
        """Publish so many messages, and do the rest beside that."""
        try:
            while self._count < count:
                size = min(self._chance.randint(1, self._plan.batch_max), count - self._count)
                sent = await self._publish(size)
                for one in sent:
                    if one.ticket is not None:
                        await self._something(one)
        finally:
            self._doors.close()

    async def _publish(self, size: int) -> list[Scheduled]:
        plan, now = self._plan, unix_ms()
        left: list[Scheduled] = []
        for _ in range(size):
            name = f"{self._number}-{self._count}"
            self._count += 1
            due = plan.at_unix_ms or self._due_unix_ms()
            left.append(
                self._books.add(Scheduled(name, self._chance.choice(self._keys), [due], [0]))
            )
        sent = [*left]
        # From its due time on, an id is known for the window: not longer than half of that, then.
        last_ms = min(min(one.dues) for one in sent) + 500 * plan.dedup_window_s
        while left and unix_ms() < max(last_ms, now + 500 * plan.dedup_window_s):
            asked = {"messages": [
                {"id": one.name, "key": one.key, "body": 0, "deliver_at_unix_ms": one.dues[0]}
                for one in left
            ]}  # fmt: skip
            try:
                answer = await self._doors.once("POST", f"/v1/queues/{QUEUE}/messages", asked)
            except Gone as gone:
                self._books.flag("answer", f"a publish was answered {gone}")
                return []
            if answer is not None:
                left = self._answered(left, answer["results"])
            if left:
                await self._doors.rest()
        self._note("published, unknown", len(left))
        return sent

    def _due_unix_ms(self) -> int:
        plan = self._plan
        return int(unix_ms() + 1000 * self._chance.uniform(plan.soonest_s, plan.latest_s))

    def _answered(
        self, asked: Sequence[Scheduled], results: Sequence[dict[str, Any]]
    ) -> list[Scheduled]:
        """Note the results of a publish. Returns the messages that have none for good."""
        left = []
        for one, result in zip(asked, results, strict=True):
            if "ticket" in result:
                one.ticket = int(result["ticket"].rpartition("-t")[2])
                one.known_unix_ms = unix_ms()
                self._note("scheduled again" if result["duplicate"] else "scheduled")
            elif "offset" in result:
                one.ticket, one.known_unix_ms = -1, float("inf")  # it was due when it came
                self._note("due at once")
            elif result["error"]["retry"]:
                left.append(one)
            else:
                self._books.flag("answer", f"{one}: {result}")
        return left

    async def _something(self, one: Scheduled) -> None:
        drawn, plan = self._chance.random(), self._plan
        for share, act in (
            (plan.cancelled, self._cancel), (plan.moved, self._move),
            (plan.replaced, self._replace), (plan.listed, self._list),
        ):  # fmt: skip
            drawn -= share
            if drawn < 0:
                await act(one)
                return

    def _path(self, one: Scheduled) -> str:
        return f"/v1/queues/{QUEUE}/scheduled/{quote(one.name)}?key={quote(one.key)}"

    async def _cancel(self, one: Scheduled) -> None:
        try:
            await self._doors.until_answered("DELETE", self._path(one))
            one.is_cancelled = True
            self._note("cancelled")
        except Gone as gone:  # `cancelled`: by a request of ours that had no answer
            one.is_cancelled = str(gone) == "cancelled"
            self._gone("cancel", one, str(gone), "already_due", "cancelled")

    async def _move(self, one: Scheduled) -> None:
        if self._plan.at_unix_ms:
            return
        due = self._due_unix_ms()
        await self._change(one, {"deliver_at_unix_ms": due}, due, one.bodies[-1])

    async def _replace(self, one: Scheduled) -> None:
        body = one.bodies[-1] + 1
        await self._change(one, {"body": body}, one.dues[-1], body)

    async def _change(self, one: Scheduled, change: object, due: int, body: int) -> None:
        before = one.dues[-1], one.bodies[-1]
        one.dues, one.bodies = [*one.dues, due], [*one.bodies, body]
        tries = 0
        try:
            while await self._doors.once("POST", self._path(one), change) is None:
                tries += 1
                await self._doors.rest()
        except Gone as gone:
            if not tries:  # it was asked once, and refused
                one.dues, one.bodies = [before[0]], [before[1]]
            one.dues, one.bodies = sorted({*one.dues}), sorted({*one.bodies})
            self._gone("change", one, str(gone), "already_due")
            return
        one.dues, one.bodies, one.known_unix_ms = [due], [body], unix_ms()
        self._note("changed")

    def _gone(self, what: str, one: Scheduled, code: str, *usual: str) -> None:
        self._note(f"{what}: {code}")
        if code == "id_unknown" and one.ticket == -1:
            return  # it was never scheduled
        if code not in usual:
            self._books.flag("answer", f"{what}: {code}: {one}")

    async def _list(self, one: Scheduled) -> None:
        names: list[str] = []
        dues: list[int] = []
        after = ""
        while True:
            path = f"/v1/queues/{QUEUE}/scheduled?limit={LISTED}&key={quote(one.key)}{after}"
            page = await self._doors.until_answered("GET", path)
            until = unix_ms()
            names += [message["id"] for message in page["messages"]]
            dues += [message["due_unix_ms"] for message in page["messages"]]
            if "next" not in page:
                break
            after = f"&after={page['next']}"
        self._books.check_list(one.key, names, dues, until_unix_ms=until)
        self._note("listed")

    def _note(self, what: str, count: int = 1) -> None:
        self.done[what] = self.done.get(what, 0) + count


async def prepare(urls: Sequence[str], plan: Plan) -> None:
    """Create the queue."""
    doors = Doors(urls, Random(0))
    settings = {
        "partitions": plan.partitions, "retention_s": 86_400,
        "dedup_window_s": plan.dedup_window_s,
    }  # fmt: skip
    await doors.until_answered("PUT", f"/v1/queues/{QUEUE}", settings)
    doors.close()


async def waits(urls: Sequence[str]) -> int:
    """Return how many messages wait in the queue."""
    doors = Doors(urls, Random(0))
    try:
        page = await doors.until_answered("GET", f"/v1/queues/{QUEUE}/scheduled?limit=1")
    finally:
        doors.close()
    return int(page["count"])


async def read_log(urls: Sequence[str]) -> list[Found]:
    """Return all that is in the log."""
    doors, found, after = Doors(urls, Random(0)), [], ""
    try:
        while True:
            path = f"/v1/queues/{QUEUE}/messages?limit={PAGE}{after}"
            page = await doors.until_answered("GET", path)
            for one in page["messages"]:
                found.append(
                    Found(
                        one["id"], one["key"], one["partition"], one["offset"],
                        one["published_unix_ms"], one["body"],
                    )
                )  # fmt: skip
            if "next" not in page:
                return found
            after = f"&after={page['next']}"
    finally:
        doors.close()
