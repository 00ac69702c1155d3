"""States of a broker that tests of the console make, and what is true then, because they did it."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Final

import httpx2
import tocsin
from tocsin.proto.message import Message

from loadtests.faults.proxy import Proxy
from loadtests.server import Server
from tests.browser.house import until

KEYS: Final = tuple(f"k{number}" for number in range(10))
TRIED_LATER_S: Final = 3600.0
LATER_S: Final = 49.5 * 86_400
_WORK: Final = tocsin.QueueSettings(
    partitions=4, retention_s=86_400, lease_s=600, lease_total_s=3600, attempts_max=2,
    on_exhausted="park",
)  # fmt: skip
_CONTENT: Final = {"headers": {"kind": "test"}, "content_type": "application/json"}
Truth = dict[tuple[str, str], dict[str, int]]
"""(queue, group or "") -> what the API calls it -> how many."""


@dataclass
class Busy:
    """`work` has groups of every kind; `resting` is paused; `dying` has dead letters; `empty` is
    empty. Nothing of it changes by itself."""

    server: Server
    stack: AsyncExitStack
    client: tocsin.Client
    truth: Truth = field(default_factory=dict)
    held: dict[str, list[Message]] = field(default_factory=dict)
    """By group, what its consumer holds."""
    streams: dict[str, Any] = field(default_factory=dict)
    pulled: list[str] = field(default_factory=list)

    async def first(self) -> None:
        """40 messages of ten keys, taken by five groups."""
        client = self.client
        await client.create_queue("empty", partitions=1)
        await client.create_queue("work", **_WORK)
        await client.publish_many(
            "work",
            [
                {"key": key, "body": {"number": n}, "ttl_s": 86_400, **_CONTENT}
                for n in range(4)
                for key in KEYS
            ],
        )
        for group in ("billing", "idle", "leaving", "mailing", "pulling"):
            await client.create_group("work", group)
        self.truth["work", ""] = {"depth": 40, "published": 40}
        self.truth["work", "idle"] = {"lag": 40, "in_flight": 0, "consumers": 0, "given": 0}
        await self._billing()
        await self._others()
        await self._rest()
        await self._schedule()
        await self._die()

    async def _billing(self) -> None:
        """All is given; k0 and k1 fail twice, k2 and k3 are done, k4 is tried in an hour."""
        await self.join("billing", self.client, credit=1000)
        mine = {message.key: message for message in await self.take("billing", 10)}
        for key in ("k0", "k1"):
            await mine.pop(key).nack(delay_s=0, reason="card declined")
        for message in await self.take("billing", 2):
            assert message.attempt == 2
            await message.nack(delay_s=0, reason="card declined")
        for key in ("k2", "k3"):
            await mine.pop(key).ack(confirm=True)
        await mine.pop("k4").nack(delay_s=TRIED_LATER_S)
        self.held["billing"] = [*mine.values(), *await self.take("billing", 2)]
        self.truth["work", "billing"] = {
            "lag": 38, "in_flight": 26, "consumers": 1, "keys_parked": 2, "given": 42,
            "redelivered": 2, "settled": 2, "nacked": 5, "parked": 2, "dead_lettered": 0,
        }  # fmt: skip

    async def _others(self) -> None:
        url = self.server.url
        poller = await self.stack.enter_async_context(tocsin.connect(url, transport="long-poll"))
        await self.join("mailing", poller, credit=3)
        self.held["mailing"] = await self.take("mailing", 1)
        self.truth["work", "mailing"] = {"lag": 40, "in_flight": 3, "consumers": 1, "given": 3}
        proxy = await self.stack.enter_async_context(Proxy(self.server.port))
        leaving = await self.stack.enter_async_context(tocsin.connect(proxy.url, linger_s=300))
        await self.join("leaving", leaving, credit=2)
        self.held["leaving"] = await self.take("leaving", 1)
        await proxy.close()
        self.truth["work", "leaving"] = {"lag": 40, "in_flight": 2, "given": 2}
        pulled = await self.client.pull("work", "pulling", messages_max=2, wait_s=10)
        self.pulled = [message.receipt for message in pulled]
        self.truth["work", "pulling"] = {"lag": 40, "in_flight": len(pulled)}

    async def _rest(self) -> None:
        await self.client.create_queue("resting", partitions=2)
        await self.client.create_group("resting", "sleepers")
        await self.client.publish_many("resting", [{"key": "r", "body": n} for n in range(5)])
        await self.client.pause_queue("resting")
        self.truth["resting", ""] = {"depth": 5, "published": 5, "paused": True}
        self.truth["resting", "sleepers"] = {"lag": 5, "in_flight": 0}

    async def _schedule(self) -> None:
        """`later` has three messages that come in 49 days, while no test looks."""
        body = {"ttl_s": 3600, "delay_s": LATER_S, **_CONTENT}
        messages = [{"key": key, "id": f"id-{key}", "body": {"of": key}, **body} for key in "abc"]
        await self.client.create_queue("later", partitions=2)
        async with httpx2.AsyncClient(base_url=self.server.url) as http:
            path = "/v1/queues/later/messages"
            (await http.post(path, json={"messages": messages})).raise_for_status()
        self.truth["later", ""] = {"depth": 0, "published": 3}

    async def _die(self) -> None:
        await self.client.create_queue(
            "dying", partitions=1, retention_s=86_400, attempts_max=1, lease_s=600
        )
        await self.client.publish_many(
            "dying", [{"key": f"d{n}", "body": n, **_CONTENT} for n in range(3)]
        )
        async with self.client.subscribe("dying", "mourners") as messages:
            for _ in range(3):
                message = await asyncio.wait_for(anext(messages), 30)
                await message.nack(reason="no such account")
            # Who leaves sooner leaves them to the next owner of the partition.
            await until(self._are_buried, "they are among the dead letters")
        self.truth["dying", ""] = {"depth": 3, "published": 3}
        self.truth["dying", "mourners"] = {"lag": 0, "dead_lettered": 3, "nacked": 3, "given": 3}
        self.truth["dying.dead-letters", ""] = {"depth": 3, "published": 3}

    async def _are_buried(self) -> bool:
        counters = (await self.client.group("dying", "mourners"))["counters"]
        return bool(counters["dead_lettered"] == 3)

    async def second(self) -> None:
        """Some of it is settled, a parked key skipped, a pause ended, a dead letter sent back."""
        for message in self.held["billing"]:
            if message.key in KEYS[5:]:
                await message.ack(confirm=True)
        await self.take("billing", 5)
        await self.client.decide_parked("work", "billing", "skip", key="k0")
        await self.take("billing", 1)
        self.truth["work", "billing"] |= {
            "lag": 32, "in_flight": 22, "keys_parked": 1, "given": 43, "settled": 7,
            "redelivered": 3, "dead_lettered": 1,
        }  # fmt: skip
        self.truth["work.dead-letters", ""] = {"depth": 1, "published": 1}
        await self.held["mailing"][0].ack(confirm=True)
        await self.take("mailing", 1)
        self.truth["work", "mailing"] = {"lag": 39, "in_flight": 3, "given": 4, "settled": 1}
        await self.client.ack_receipts("work", "pulling", self.pulled[:1])
        self.truth["work", "pulling"] = {"lag": 39, "in_flight": len(self.pulled) - 1}
        await self.client.resume_queue("resting")
        await self.client.publish("resting", "one more", key="r")
        self.truth["resting", ""] = {"depth": 6, "published": 6, "paused": False}
        self.truth["resting", "sleepers"] = {"lag": 6, "in_flight": 0}
        assert await self.client.redrive_dead_letters("dying", limit=1) == 1
        self.truth["dying", ""] = {"depth": 4, "published": 4}
        self.truth["dying", "mourners"] |= {"lag": 1}
        self.truth["dying.dead-letters", ""] = {"published": 3}

    async def join(self, group: str, client: tocsin.Client, credit: int) -> None:
        """A consumer of `work` that prolongs nothing."""
        stream = client.subscribe("work", group, credit=credit, auto_extend=False)
        self.streams[group] = await self.stack.enter_async_context(stream)

    async def take(self, group: str, count: int) -> list[Message]:
        """Return this many messages."""
        stream = self.streams[group]
        return [await asyncio.wait_for(anext(stream), 30) for _ in range(count)]


def told(queues: Sequence[dict[str, Any]]) -> Truth:
    """Return what the broker says of all that the truth is about."""
    said: Truth = {}
    for queue in queues:
        said[queue["name"], ""] = {**queue, **queue["counters"]}
        for group in queue["groups"]:
            said[queue["name"], group["name"]] = {**group, **group["counters"]}
    return said


def disagreements(truth: Truth, said: Truth) -> dict[str, Any]:
    """Where they differ."""
    return {
        f"{place} {name}": (value, said.get(place, {}).get(name))
        for place, values in truth.items()
        for name, value in values.items()
        if said.get(place, {}).get(name) != value
    }
