"""Histories of healthy brokers, whose delivery logs must accuse no gateway: everything that can
happen to a message except a fault. Each has a queue of its own, named after the history. `mixed`
combines them at random."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random
from typing import Any, Final

from gateway.models import Look, WhichKey
from metadata.catalog import ANYBODY, Group, Queue
from push.errors import TocsinError
from push.places import Verb
from tests.histories.house import message
from tests.histories.logged_world import Client, Fate, LoggedGateway, World

History = Callable[[World], Awaitable[None]]
HEALTHY: Final[dict[str, History]] = {}


def healthy(history: History) -> History:
    """Add a history to HEALTHY."""
    HEALTHY[history.__name__] = history
    return history


def one_in(count: int, fate: Fate) -> Callable[[Random], Fate]:
    """Return a fate for one message in `count`; the others are acked."""
    return lambda random: fate if random.randrange(count) == 0 else "ack"


async def pull(world: World, queue: Queue, group: Group, at: LoggedGateway, turns: int) -> None:
    """Pull over HTTP, and ack, nack or forget the messages."""
    path = f"/v1/queues/{queue.name}/groups/{group.name}"
    async with at.http() as http:
        for _ in range(turns):
            asked = {"messages_max": world.random.randint(1, 8), "wait_s": 0.2}
            answer = await http.post(f"{path}/pull", json=asked)
            assert answer.status_code == 200, answer.text
            for one in answer.json()["messages"]:
                await asyncio.sleep(world.random.uniform(0, 0.05))
                verb = world.random.choice(["ack"] * 7 + ["nack", "nack", "forget"])
                if verb != "forget":
                    await http.post(f"{path}/{verb}", json={"receipts": [one["receipt"]]})


# --- Groups with a backlog ----------------------------------------------------------------------


@healthy
async def behind_at_its_stop(world: World) -> None:
    """Credit for 20, ten handlers of up to 0.6 s, one message in ten nacked, 120 messages a second.
    Messages passed over for lack of credit when the broker stops have not been given yet."""
    queue = await world.queue(partitions=4)
    group = await world.group_of(queue)
    await world.comes(
        queue, group, credit=20, handlers=10, handle_s=(0, 0.6), fate=one_in(10, "nack")
    )
    await world.publish(queue, 1200, rate=120, keys=60)
    await world.up[0].stop()


@healthy
async def behind_and_caught_up(world: World) -> None:
    """The same, but the group catches up."""
    queue = await world.queue(partitions=4)
    group = await world.group_of(queue)
    await world.comes(
        queue, group, credit=20, handlers=10, handle_s=(0, 0.3), fate=one_in(10, "nack")
    )
    await world.publish(queue, 300, rate=120, keys=40)
    await world.settled(queue, group)


@healthy
async def one_hot_key(world: World) -> None:
    """Nine messages in ten are of one key, whose handler is slow."""
    queue = await world.queue(partitions=1)
    group = await world.group_of(queue)
    await world.comes(queue, group, credit=10, handlers=4, handle_s=(0, 0.2))
    for _ in range(20):
        await world.publish(queue, 9, rate=100, keys=1)
        await world.publish(queue, 2, rate=100, keys=9)
    await world.up[0].stop()


@healthy
async def nobody_was_there(world: World) -> None:
    """No client consumes, then one does, in bursts of credit, then none."""
    queue = await world.queue()
    group = await world.group_of(queue)
    await world.publish(queue, 80)
    client = await world.comes(queue, group, credit=7)
    await asyncio.sleep(1)
    client.leave()
    await world.publish(queue, 30)
    await client.come(world.up[0])
    await asyncio.sleep(0.5)


# --- Handlers -----------------------------------------------------------------------------------


@healthy
async def nacks_with_backoff(world: World) -> None:
    """One in five returns, and a few return at once."""
    queue = await world.queue(attempts_max=0)
    group = await world.group_of(queue)
    await world.comes(queue, group, fate=one_in(5, "nack"))
    await world.comes(queue, group, fate=one_in(5, "nack"), delay_s=0.0, gather=8)
    await world.publish(queue, 200)
    await world.settled(queue, group)


@healthy
async def rejected(world: World) -> None:
    """One in ten goes to the dead letters at its first attempt."""
    queue = await world.queue()
    group = await world.group_of(queue)
    await world.comes(queue, group, fate=one_in(10, "reject"))
    await world.publish(queue, 150)
    await world.settled(queue, group)


@healthy
async def exhausted(world: World) -> None:
    """Attempts run out, and later messages of the key go on."""
    queue = await world.queue(attempts_max=2, backoff_s=0.1)
    group = await world.group_of(queue)
    await world.comes(queue, group, credit=30, fate=one_in(3, "nack"))
    await world.publish(queue, 150, keys=6)
    await world.settled(queue, group)


@healthy
async def leases_that_end(world: World) -> None:
    """Handlers forget messages, begin and forget them, and extend the leases of others."""
    queue = await world.queue(attempts_max=0)
    group = await world.group_of(queue, lease_s=1, lease_total_s=3)

    def fate(random: Random) -> Fate:
        rare: list[Fate] = ["forget", "start", "extend", "nack"]
        return random.choice(rare) if random.randrange(4) == 0 else "ack"

    await world.comes(queue, group, credit=40, handle_s=(0, 0.3), fate=fate)
    await world.comes(queue, group, credit=40, handle_s=(0, 1.5), fate=fate)
    await world.publish(queue, 150)
    await world.settled(queue, group)


@healthy
async def without_keys(world: World) -> None:
    """Most messages have no key, and so no order."""
    queue = await world.queue()
    group = await world.group_of(queue)
    await world.comes(queue, group, credit=15, fate=one_in(6, "nack"))
    await world.publish(queue, 200, keyless=0.8)
    await world.up[0].stop()


# --- Parked keys --------------------------------------------------------------------------------


async def _park(world: World) -> tuple[Queue, Group]:
    queue = await world.queue(attempts_max=2, backoff_s=0.05, on_exhausted="park")
    group = await world.group_of(queue)
    await world.comes(queue, group, credit=30, fate=one_in(4, "nack"))
    await world.publish(queue, 150, keys=12)
    await asyncio.sleep(2)
    return queue, group


async def _decide(world: World, queue: Queue, group: Group, verb: Verb) -> None:
    with suppress(TocsinError):  # nothing is parked
        at = world.random.choice(world.up)
        await at.broker.parking.decide(queue, group, verb, WhichKey(every=True))


@healthy
async def left_parked(world: World) -> None:
    """Keys are parked when the broker stops, and their later messages were never given."""
    queue, _ = await _park(world)
    await world.publish(queue, 50)
    await world.up[0].stop()


@healthy
async def parked_and_released(world: World) -> None:
    """Parked keys are released, retried and skipped in turns, until nothing is left."""
    queue, group = await _park(world)
    verbs: list[Verb] = ["retry", "release", "skip"]
    for number in range(60):
        await world.publish(queue, 5 if number < 20 else 0)
        await _decide(world, queue, group, verbs[number % 3])
        await asyncio.sleep(0.5)
        if number > 20 and await world.up[0].lag(queue, group) == 0:
            break


@healthy
async def parked_and_skipped(world: World) -> None:
    """Parked keys are skipped, with more messages of the keys waiting."""
    queue, group = await _park(world)
    for _ in range(6):
        await _decide(world, queue, group, "skip")
        await world.publish(queue, 20)
        await asyncio.sleep(1)


# --- Operators ----------------------------------------------------------------------------------


@healthy
async def paused(world: World) -> None:
    """A group is paused and resumed, and paused when the broker stops."""
    queue = await world.queue()
    group = await world.group_of(queue)
    await world.comes(queue, group, credit=20, fate=one_in(10, "nack"))
    upkeep = world.up[0].broker.upkeep
    for _ in range(3):
        await world.publish(queue, 40)
        await upkeep.pause(ANYBODY, queue.name, paused=True)
        await world.publish(queue, 40)
        await upkeep.pause(ANYBODY, queue.name, paused=False)
    await world.publish(queue, 20)
    await upkeep.pause(ANYBODY, queue.name, paused=True)
    await world.publish(queue, 20)
    await world.up[0].stop()


async def _seeks(world: World, queue: Queue, group: Group, *places: Any) -> None:
    for to in places:
        await world.publish(queue, 40)
        await world.up[0].broker.upkeep.seek(ANYBODY, queue, group.name, to)
    await world.publish(queue, 40)


@healthy
async def sought_back(world: World) -> None:
    """A group seeks everything again, twice, and then an offset."""
    queue = await world.queue()
    group = await world.group_of(queue)
    await world.comes(queue, group, credit=20, fate=one_in(10, "nack"))
    await _seeks(world, queue, group, "earliest", "earliest", ("offset", 5))
    await world.settled(queue, group)


@healthy
async def sought_forward(world: World) -> None:
    """Messages skipped by a seek were never given, and never settled."""
    queue = await world.queue()
    group = await world.group_of(queue)
    await world.comes(queue, group, credit=6, handle_s=(0, 0.4), fate=one_in(10, "nack"))
    await _seeks(world, queue, group, "latest", ("offset", 60), "latest")
    await world.settled(queue, group)


@healthy
async def purged(world: World) -> None:
    """The group, and then the whole queue, is purged while it works."""
    queue = await world.queue()
    group = await world.group_of(queue)
    await world.comes(queue, group, credit=6, handle_s=(0, 0.3), fate=one_in(10, "nack"))
    for name in (group.name, None, group.name):
        await world.publish(queue, 50)
        await world.up[0].broker.upkeep.purge(ANYBODY, queue, name)
    await world.publish(queue, 30)
    await world.settled(queue, group)


@healthy
async def group_made_anew(world: World) -> None:
    """A group is deleted with a backlog, and created again under its name. It begins with
    everything that is retained, or with new messages."""
    queue = await world.queue()
    for start in ("earliest", "latest", "earliest"):
        group = await world.group_of(queue, start=start)
        client = await world.comes(queue, group, credit=10, fate=one_in(10, "nack"))
        await world.publish(queue, 50)
        await world.up[0].broker.delete_group(ANYBODY, queue, group.name)
        client.leave()
        client.end()
    group = await world.group_of(queue)
    await world.comes(queue, group)
    await world.settled(queue, group)


@healthy
async def queue_made_anew(world: World) -> None:
    """A queue is deleted, and created again under its name."""
    for _ in range(2):
        queue = await world.queue()
        group = await world.group_of(queue)
        client = await world.comes(queue, group, credit=10)
        await world.publish(queue, 60)
        await world.up[0].broker.delete_queue(ANYBODY, queue.name)
        client.leave()
        client.end()
    queue = await world.queue()
    group = await world.group_of(queue)
    await world.comes(queue, group)
    await world.publish(queue, 30)
    await world.settled(queue, group)


# --- Several groups, other ways to consume ------------------------------------------------------


@healthy
async def two_groups(world: World) -> None:
    """Two groups keep up and one does not."""
    queue = await world.queue()
    groups = [await world.group_of(queue, name) for name in ("fast", "slow", "third")]
    await world.comes(queue, groups[0], fate=one_in(10, "nack"))
    await world.comes(queue, groups[1], credit=4, handlers=2, handle_s=(0, 0.6))
    await world.comes(queue, groups[2], credit=50)
    await world.publish(queue, 150)
    await world.settled(queue, groups[0], groups[2])


@healthy
async def at_most_once(world: World) -> None:
    """Messages are settled before they are pushed; consumers come and go."""
    queue = await world.queue()
    group = await world.group_of(queue, semantics="at_most_once")
    other = await world.group_of(queue, "other")
    client = await world.comes(queue, group, credit=10)
    await world.comes(queue, other, fate=one_in(10, "nack"))
    for _ in range(3):
        await world.publish(queue, 40)
        client.leave()
        await world.publish(queue, 20)
        await client.come(world.up[0])
    await world.settled(queue, group, other)


@healthy
async def pulled(world: World) -> None:
    """Pulls ack, nack and forget; they begin, stop and begin again."""
    queue = await world.queue(attempts_max=0)
    group = await world.group_of(queue, lease_s=2)
    for _ in range(2):
        pulling = world.goes_on(pull(world, queue, group, world.up[0], 25))
        await world.publish(queue, 80)
        await pulling
        await asyncio.sleep(40)  # they leave the group
    await world.comes(queue, group)
    await world.settled(queue, group)


@healthy
async def pulled_and_subscribed(world: World) -> None:
    """Both consume for one group, which has a backlog in the end."""
    queue = await world.queue(attempts_max=0)
    group = await world.group_of(queue, lease_s=2)
    world.goes_on(pull(world, queue, group, world.up[0], 40))
    await world.comes(queue, group, credit=5, handle_s=(0, 0.2), fate=one_in(8, "nack"))
    await world.publish(queue, 150)
    await world.up[0].stop()


@healthy
async def read_again(world: World) -> None:
    """Readers from the start and from now, of all keys and of one, beside a group."""
    queue = await world.queue()
    group = await world.group_of(queue)
    await world.comes(queue, group, fate=one_in(10, "nack"))
    await world.publish(queue, 60)
    for options in (
        {"start": "earliest"},
        {"start": "latest"},
        {"start": "earliest", "keys": ["k1"]},
    ):
        await world.up[0].read(queue, credit=30, **options)
        await world.publish(queue, 30)
    await world.settled(queue, group)


@healthy
async def over_long_poll(world: World) -> None:
    """Deliveries wait for a poll."""
    queue = await world.queue()
    group = await world.group_of(queue)
    await world.comes(queue, group, transport="long-poll", fate=one_in(10, "nack"), credit=20)
    await world.comes(queue, group, credit=20)
    await world.publish(queue, 120)
    await world.settled(queue, group)


@healthy
async def clients_that_come_and_go(world: World) -> None:
    """Consumers leave with their deliveries, and others get these."""
    queue = await world.queue(partitions=4)
    group = await world.group_of(queue)
    clients = [
        await world.comes(queue, group, credit=20, fate=one_in(10, "nack"), handle_s=(0, 0.3))
        for _ in range(3)
    ]
    publishing = world.goes_on(world.publish(queue, 200))
    while not publishing.done():
        client = world.random.choice(clients)
        if client.consumer is not None:
            client.leave()
        else:
            await client.come(world.up[0])
        await asyncio.sleep(0.3)
    for client in clients:
        if client.consumer is None:
            await client.come(world.up[0])
    await world.settled(queue, group)


# --- Messages that end without being handled ----------------------------------------------------


@healthy
async def expired(world: World) -> None:
    """Half of the messages live for a second, and the group is slow."""
    queue = await world.queue()
    group = await world.group_of(queue)
    await world.comes(queue, group, credit=5, handlers=3, handle_s=(0, 0.3), fate=one_in(8, "nack"))
    for _ in range(20):
        await world.publish(queue, 6, ttl_s=1.0)
        await world.publish(queue, 6)
    await world.settled(queue, group)


@healthy
async def overflowing(world: World) -> None:
    """The oldest messages move on, with and without a consumer."""
    queue = await world.queue(messages_max=40, overflow="dead_letter", retention_s=0)
    group = await world.group_of(queue)
    await world.publish(queue, 120)
    await world.comes(queue, group, credit=8, handle_s=(0, 0.3), fate=one_in(8, "nack"))
    await world.publish(queue, 150)
    await asyncio.sleep(2)
    await world.up[0].stop()


@healthy
async def full(world: World) -> None:
    """A full queue refuses."""
    queue = await world.queue(messages_max=30, overflow="reject", retention_s=0)
    group = await world.group_of(queue)
    await world.comes(queue, group, credit=8, handle_s=(0, 0.3))
    await world.publish(queue, 200, rate=300)
    await world.settled(queue, group)


@healthy
async def dead_letters_full(world: World) -> None:
    """The dead-letter queue is full for a while, also over a stop, and later messages of the keys
    go on."""
    full = await world.queue(".full", partitions=1, messages_max=1, overflow="reject")
    await world.group_of(full)
    await world.publish_now(full, 1)
    queue = await world.queue(attempts_max=1, dead_letter_queue=full.name)
    group = await world.group_of(queue)
    client = await world.comes(queue, group, fate=one_in(6, "nack"))
    await world.publish(queue, 100)
    stopped = world.up[0]
    client.leave()
    await stopped.stop()
    gateway = await world.another(stopped.host)
    await client.come(gateway)
    await world.publish(queue, 60)
    await gateway.set_queue(full.name, messages_max=10_000)
    await world.settled(queue, group)


@healthy
async def redriven(world: World) -> None:
    """Dead letters go back, some of them twice, beside new messages."""
    queue = await world.queue(attempts_max=1)
    group = await world.group_of(queue)
    await world.comes(queue, group, credit=30, fate=one_in(4, "nack"))
    for _ in range(5):
        await world.publish(queue, 40)
        await world.up[0].broker.upkeep.redrive(ANYBODY, queue, Look(limit=7))
    await world.up[0].broker.upkeep.redrive(ANYBODY, queue, Look(limit=1000))
    await world.settled(queue, group)


@healthy
async def retained_for_nobody(world: World) -> None:
    """A queue without groups is trimmed. A group that comes late begins with the rest, and settled
    messages are trimmed."""
    queue = await world.queue(retention_s=2)
    await world.publish(queue, 100, rate=30)
    group = await world.group_of(queue)
    await world.comes(queue, group, credit=10)
    await world.publish(queue, 100, rate=30)
    await asyncio.sleep(4)
    later = await world.group_of(queue, "later")
    await world.comes(queue, later)
    await world.publish(queue, 50, rate=30)
    await world.settled(queue, group, later)


@healthy
async def sent_again(world: World) -> None:
    """Messages are sent again under their ids, also with new ones beside them."""
    queue = await world.queue()
    group = await world.group_of(queue)
    await world.comes(queue, group, fate=one_in(10, "nack"))
    sent: list[Any] = []
    for number in range(60):
        batch = [message(number, f"k{number % 7}", id=f"id{number}")]
        batch += world.random.sample(sent, min(len(sent), world.random.randrange(4)))
        sent.append(batch[0])
        world.random.shuffle(batch)
        await world.send(queue, batch)
        await asyncio.sleep(0.02)
    await world.settled(queue, group)


# --- Starts, stops and kills --------------------------------------------------------------------


@healthy
async def stopped_and_started(world: World) -> None:
    """A gateway is stopped in an orderly way and started, three times, with clients that move and
    others that do not."""
    queue = await world.queue()
    group = await world.group_of(queue)
    clients = [
        await world.comes(queue, group, credit=20, fate=one_in(10, "nack"), handle_s=(0, 0.3))
        for _ in range(3)
    ]
    for number in range(3):
        await world.publish(queue, 60)
        moves = number % 2 == 0
        for client in clients[:2]:
            client.leave(moves=moves)
        await world.up[0].stop()
        for client in clients[2:]:
            client.lose()
        gateway = await world.another("host1")
        for client in clients:
            await client.come(gateway, held=moves)
    await world.settled(queue, group)


@healthy
async def killed(world: World) -> None:
    """The only gateway is killed twice; the last lines of each are lost."""
    queue = await world.queue()
    group = await world.group_of(queue)
    client = await world.comes(queue, group, credit=20, fate=one_in(10, "nack"), handle_s=(0, 0.3))
    for _ in range(2):
        await world.publish(queue, 80)
        await world.kill(world.up[0])
        await client.come(await world.another("host1"))
    await world.publish(queue, 40)
    await world.settled(queue, group)


async def _two(world: World, **settings: Any) -> tuple[Queue, Group, list[Client]]:
    """Start a second gateway, with a consumer at each; they share the partitions."""
    await world.another()
    queue = await world.queue(partitions=4, **settings)
    group = await world.group_of(queue)
    clients = [
        await world.comes(
            queue, group, at=at, credit=20, fate=one_in(10, "nack"), handle_s=(0, 0.2), linger_s=5
        )
        for at in world.up
    ]
    return queue, group, clients


@healthy
async def partitions_that_move(world: World) -> None:
    """Clients join and leave at two gateways."""
    queue, group, _ = await _two(world)
    publishing = world.goes_on(world.publish(queue, 250))
    while not publishing.done():
        at = world.random.choice(world.up)
        one = await world.comes(queue, group, at=at, credit=20, handle_s=(0, 0.1))
        await asyncio.sleep(world.random.uniform(0.1, 1))
        one.leave()
        await asyncio.sleep(world.random.uniform(0, 0.5))
    await world.settled(queue, group)


@healthy
async def one_of_two_stops(world: World) -> None:
    """A gateway stops with a backlog. Its client moves, and returns when it is started again."""
    queue, group, clients = await _two(world)
    for _ in range(2):
        await world.publish(queue, 100, rate=300)
        stops, stays = world.up[0], world.up[1]
        mover = next(one for one in clients if one.gateway is stops)
        mover.leave(moves=True)
        await stops.stop()
        await mover.come(stays, held=True)
        await world.publish(queue, 50, rate=300)
        gateway = await world.another(stops.host)
        mover.leave()
        await mover.come(gateway)
    await world.settled(queue, group)


@healthy
async def both_stop_while_behind(world: World) -> None:
    """Both gateways stop with a backlog, one after the other."""
    queue, _, _ = await _two(world)
    await world.publish(queue, 200, rate=400)
    for gateway in world.up:
        await gateway.stop()
        await asyncio.sleep(1)


@healthy
async def one_of_two_is_killed(world: World) -> None:
    """The other gateway takes over; the killed one is started again."""
    queue, group, clients = await _two(world)
    await world.publish(queue, 100, rate=100)
    killed = world.up[0]
    await world.kill(killed)
    await world.publish(queue, 60, rate=100)
    gateway = await world.another(killed.host)
    await clients[0].come(gateway)
    await world.publish(queue, 60, rate=100)
    await world.settled(queue, group)


@healthy
async def one_of_two_is_cut_off(world: World) -> None:
    """One gateway's store and catalog do not answer for a while; the other one takes over."""
    queue, group, clients = await _two(world)
    await world.publish(queue, 80)
    away, there = world.up
    away.cut_off()
    await world.publish(queue, 60, at=there)
    await asyncio.sleep(30)
    away.come_back()
    await world.publish(queue, 60, at=there)
    for client in clients:
        if client.gateway is away:
            client.leave()
            await client.come(there)
    await world.settled(queue, group)


@healthy
async def parked_at_two(world: World) -> None:
    """Keys are parked and decided through either gateway, and one of them stops."""
    queue, group, clients = await _two(world, attempts_max=1, on_exhausted="park")
    verbs: list[Verb] = ["retry", "skip", "release"]
    for number in range(6):
        await world.publish(queue, 40)
        await _decide(world, queue, group, verbs[number % 3])
    clients[1].leave()
    await world.up[1].stop()
    await world.publish(queue, 40)
    await _decide(world, queue, group, "release")
    await asyncio.sleep(5)


# --- Random histories ---------------------------------------------------------------------------


class _Mix:
    """A random history, over two gateways or one."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.random = world.random
        self.queue: Queue
        self.groups: list[Group] = []

    async def begin(self) -> None:
        """Choose settings and groups at random."""
        world, random = self.world, self.random
        if random.random() < 0.6:
            await world.another()
        more: dict[str, Any] = {}
        if random.random() < 0.2:
            more = {"messages_max": 60, "overflow": "dead_letter"}
        self.queue = await world.queue(
            partitions=random.choice([1, 2, 4]), attempts_max=random.choice([0, 1, 3]),
            on_exhausted=random.choice(["park", "dead_letter"]),
            retention_s=random.choice([0, 3, 3600]), **more,
        )  # fmt: skip
        for number in range(random.choice([1, 1, 2])):
            semantics = random.choice(["at_least_once"] * 4 + ["at_most_once"])
            group = await world.group_of(
                self.queue, f"group{number}", semantics=semantics, lease_s=random.choice([1, 30])
            )
            self.groups.append(group)
            await self.join()

    async def publish(self) -> None:
        """Publish a few messages."""
        ttl_s = self.random.choice([None, None, None, 1.0])
        await self.world.publish(
            self.queue, self.random.randint(1, 30), keyless=0.1, keys=10, ttl_s=ttl_s
        )

    async def join(self) -> None:
        """Add a client at any gateway."""
        fates: list[Fate] = ["nack", "nack", "reject", "forget", "extend", "start"]

        def fate(random: Random) -> Fate:
            return random.choice(fates) if random.random() < 0.2 else "ack"

        await self.world.comes(
            self.queue, self.random.choice(self.groups), at=self.random.choice(self.world.up),
            credit=self.random.choice([3, 20, 200]), gather=self.random.choice([1, 5]),
            handle_s=(0, self.random.choice([0.05, 0.5])), fate=fate,
        )  # fmt: skip

    async def leave(self) -> None:
        """Let a client leave."""
        there = [one for one in self.world.clients if one.consumer is not None]
        if there:
            self.random.choice(there).leave()

    async def stop(self) -> None:
        """Stop or kill a gateway, and start it again."""
        world = self.world
        gateway = self.random.choice(world.up)
        is_killed = self.random.random() < 0.3
        clients = [one for one in world.clients if one.gateway is gateway and one.consumer]
        if is_killed:
            await world.kill(gateway)
        else:
            for client in clients:
                client.leave(moves=True)
            await gateway.stop()
        again = await world.another(gateway.host)
        for client in clients:
            await client.come(self.random.choice([again, *world.up]), held=not is_killed)

    async def operate(self) -> None:
        """Act as an operator."""
        world, queue = self.world, self.queue
        at = self.random.choice(world.up)
        group = self.random.choice(self.groups)
        upkeep = at.broker.upkeep
        act = self.random.choice(["seek", "purge", "pause", "decide", "decide", "redrive"])
        with suppress(TocsinError):
            if act == "seek":
                places: list[Any] = ["earliest", "latest", ("offset", 10)]
                to = self.random.choice(places)
                await upkeep.seek(ANYBODY, queue, group.name, to)
            elif act == "purge":
                await upkeep.purge(ANYBODY, queue, self.random.choice([group.name, None]))
            elif act == "pause":
                await upkeep.pause(ANYBODY, queue.name, paused=True)
                await self.publish()
                await upkeep.pause(ANYBODY, queue.name, paused=False)
            elif act == "redrive":
                await upkeep.redrive(ANYBODY, queue, Look(limit=self.random.randint(1, 20)))
            else:
                verbs: list[Verb] = ["retry", "skip", "release"]
                await _decide(world, queue, group, self.random.choice(verbs))

    async def go(self) -> None:
        """Play the history."""
        acts = [self.publish] * 8 + [self.join] * 2 + [self.leave] + [self.operate] * 2
        acts += [self.stop]
        for _ in range(25):
            await self.random.choice(acts)()
            await asyncio.sleep(self.random.choice([0, 0.1, 1]))
        for gateway in self.world.up if self.random.random() < 0.5 else ():
            await gateway.stop()


async def mixed(world: World) -> None:
    """All acts at random."""
    mix = _Mix(world)
    await mix.begin()
    await mix.go()
