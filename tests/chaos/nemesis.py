"""What is done to the world, fault by fault, each drawn from a seed: how, to whom, for how long.

A fault ends when its links stand again and its processes have been started again. What happens
from then on is the broker's own affair, and is judged: `healed` only waits for the next one.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Final, TypeVar

from loadtests.faults.soak_clients import SoakClients
from services.manager.rules.leader import BEAT_S, LEASE_S
from tests.chaos.disks import Disks
from tests.chaos.world import Gateway, Manager, World
from tests.servers.network import Host
from tests.servers.node import Node

SHAPES: Final = (
    "primary-with-clients", "minority", "one-replica", "gateway-from-store", "one-way", "flapping",
    "store-from-store",
)  # fmt: skip
"""Of partitions."""
T = TypeVar("T")
KINDS: Final = ("failover", "partition", "kill", "freeze", "power-loss")
PARTED_S: Final = (1.0, 6.0)
"""How long a partition lasts."""
METADATA: Final = ("metadata-kill", "metadata-cut", "metadata-freeze", "metadata-away")
"""What is done to nodes of the metadata service."""
METADATA_GONE_S: Final = (0.5, 8.0)
"""How long one is away: others have taken it for gone, or have not yet."""
METADATA_AWAY_S: Final = (6.0, 15.0)
"""And all of them: longer than a gateway may be silent."""
METADATA_AWAY_WHOLE_S: Final = 60.0
METADATA_AWAY_WHOLE_CHANCE: Final = 0.2
KNOWN_GOES_ON_S: Final = 10.0
"""Between two receipts of a producer then, at most, on a machine that has much to do."""
BETWEEN_S: Final = (0.2, 1.0)
"""From a fault's end, when messages flow again, to the next one."""
FROZEN_S: Final = 7.0
"""Beyond metadata.heartbeats.GONE_S: the others have taken over."""
DOWN_S: Final = 8.0
"""How long a gateway is away, at most: the others have taken over, or have not yet."""
FROZEN_WHOLE_S: Final = 90.0
AWAY_S: Final = 16.0
"""Beyond services.manager.rules.election.AWAY_S: it was taken out."""
AWAY_WHOLE_S: Final = 60.0
AWAY_LEAST_S: Final = 2.0
"""Until what was under way when it went has ended."""
PAUSE_S: Final = 15.0
"""Of publishing, at most, until it is taken out."""
TAKEN_OVER_S: Final = LEASE_S + 2 * BEAT_S
"""So much more where the manager that leads is killed meanwhile: another one has seen nothing of it
for LEASE_S, and each of the two looks once a beat."""
TAKEN_OUT_S: Final = 13.0
"""In which a manager sees, waits, and takes out: one of two is killed somewhere in it."""
BUSY_CHANCE: Final = 0.7
"""That a fault meets the primary, or a replica of it, that has the messages; else any."""
STALE_ELECTION_S: Final = 8.0
"""In which a replica that should not be elected would be, twice over."""
STALE_CHANCE: Final = 0.3
"""Of a failover to a replica that was cut off before."""
FLOWING_MESSAGES: Final = 200
HEALED_TIMEOUT_S: Final = 60.0
ELECTED_TIMEOUT_S: Final = 30.0


@dataclass
class Nemesis:
    """Does one fault after another. `frozen_s`: how long a gateway is frozen; `down_s`:
    how long one that was killed is away, at most; `away_s`: how long a replica that managers take
    out is away; `disks`: what the store's files lie on, where its power can be cut."""

    world: World
    crew: SoakClients
    random: Random
    progress: Callable[[str], None]
    frozen_s: float = FROZEN_S
    down_s: float = DOWN_S
    away_s: float = AWAY_S
    disks: Disks | None = None
    faults: int = 0
    done: list[str] = field(default_factory=list)
    """Kinds, and shapes of partitions, as they were done."""

    async def fault(self, kind: str) -> None:
        """One of this kind, or of this shape, from its beginning to when all is as before."""
        doing: Callable[[], Awaitable[None]]
        asked = kind
        if kind == "partition":
            kind = SHAPES[self.random.randrange(len(SHAPES))]
        match kind:
            case "failover":
                stale = self.random.random() < STALE_CHANCE
                doing = self._stale_failover if stale else self._failover
            case "stale-failover":
                doing = self._stale_failover
            case "stale-restart":
                doing = self._stale_restart
            case "away":
                doing = self._away
            case "stale-away":
                doing = self._stale_away
            case "kill":
                doing = self._kill
            case "freeze":
                doing = self._freeze
            case "power-loss":
                doing = self._power_loss
            case _:
                doing = {
                    "primary-with-clients": self._primary_with_clients,
                    "minority": self._minority,
                    "one-replica": self._one_replica,
                    "gateway-from-store": self._gateway_from_store,
                    "one-way": self._one_way,
                    "flapping": self._flapping,
                    "store-from-store": self._store_from_store,
                    "metadata-kill": self._metadata_kill,
                    "metadata-cut": self._metadata_cut,
                    "metadata-freeze": self._metadata_freeze,
                    "metadata-away": self._metadata_away,
                }[kind]
        await doing()
        self.done.append(kind if asked != "failover" else asked)
        await self.healed()

    async def healed(self) -> None:
        """All follow the primary again, and messages of every producer flow. Where they do not,
        the checker will say so."""
        await asyncio.to_thread(self.world.store.wait_in_sync)
        self.world.weaken()
        await self._flowing()
        await self.crew.wait(self.random.uniform(*BETWEEN_S))

    async def _flowing(self) -> None:
        if not await self.crew.all_flowing(FLOWING_MESSAGES, HEALED_TIMEOUT_S):
            self.progress(f"not everybody's messages flow after {HEALED_TIMEOUT_S:.0f} s")

    @contextmanager
    def _logged(self, kind: str, *gateways: Gateway) -> Iterator[None]:
        """A fault of this kind, which touches these gateways; none named: all of them."""
        self.faults += 1
        log, number = self.crew.field.log, self.faults
        names = [gateway.name for gateway in gateways]
        self.progress(f"fault {number}: {kind} {' '.join(names)}")
        log.world("begins", fault=number, kind=kind, gateways=names)
        try:
            yield
        finally:
            self.world.heal()
            log.world("ends", fault=number)

    # --- the store's nodes

    async def _failover(self) -> None:
        """The primary's link is cut, then it is killed; it comes back as a replica."""
        lost, _ = await self._shard()
        with self._logged("failover"):
            await self._lose(lost)
            await self._elected(lost)
            await self.crew.wait(self.random.uniform(0, 1))
            lost.spawn()

    async def _stale_failover(self) -> None:
        """A replica is cut off for a while, and is then all that is left: it becomes the primary
        with what it has. What the other one has had alone must have been promised to nobody."""
        world = self.world
        lost, replicas = await self._shard()
        behind, other = self._shuffled(replicas)
        with self._logged("stale-failover"):
            world.cut(world.hosts[behind])
            # No replica is elected that was away for longer than ten times the node timeout.
            await self.crew.wait(self.random.uniform(0.5, 3.0))
            world.cut(world.hosts[other])
            await self._lose(lost)
            world.join(world.hosts[behind])
            await self._elected(lost)
            await self.crew.wait(self.random.uniform(0, 1))
            lost.spawn()

    async def _stale_restart(self) -> None:
        """A room goes dark, in it a replica of each shard, and the operator says so. Then a primary
        is lost and its other replica cut off, and the room comes back: of that shard it has an
        older copy than what was promised since, and the others are not there to say so."""
        world = self.world
        shards = await asyncio.to_thread(world.shards)
        lost, replicas = await self._shard(is_busy=True)
        behind, other = self._shuffled(replicas)
        dark = [behind, *(self.random.choice(shards[one]) for one in shards if one is not lost)]
        with self._logged("stale-restart"):
            for node in dark:
                node.kill()
            await asyncio.to_thread(world.count_out, dark)
            await self._flowing()
            world.cut(world.hosts[other])
            await self._lose(lost)
            for node in dark:
                node.spawn()
            await self._elected(lost, within_s=STALE_ELECTION_S)
            world.join(world.hosts[other])
            world.join(world.hosts[lost])
            lost.spawn()
            await asyncio.to_thread(world.count_in, dark)

    async def _away(self) -> None:
        """A replica is away for a while (its process is gone, or stands still, or its link is cut),
        and managers look after that, of which one is killed in the middle. Publishing goes on. It
        comes back and is let in; then the primary is lost, and comes back."""
        world, random = self.world, self.random
        lost, replicas = await self._shard()
        gone, how = random.choice(replicas), random.choice(("killed", "frozen", "cut"))
        with self._logged("away"), world.managers() as managers:
            await asyncio.to_thread(world.wait_managed, managers)
            match how:
                case "killed":
                    gone.kill()
                case "frozen":
                    gone.freeze()
                case _:
                    world.cut(world.hosts[gone])
            began = time.monotonic()
            self.crew.field.log.world("replica-gone")
            at_s, victim = random.uniform(0.0, TAKEN_OUT_S), random.choice(managers)
            killing = asyncio.create_task(self._kill_manager(victim, at_s))
            await self.crew.wait(AWAY_LEAST_S)
            if not await self.crew.all_flowing(1, HEALED_TIMEOUT_S):
                raise TimeoutError(f"publishing did not go on while {gone!r} was {how}")
            self.progress(f"{gone!r} was {how}: publishing after {time.monotonic() - began:.1f} s")
            await self.crew.wait(max(0.0, began + self.away_s - time.monotonic()))
            within_s = PAUSE_S + (TAKEN_OVER_S if await killing else 0.0)
            match how:
                case "killed":
                    gone.spawn()
                case "frozen":
                    gone.thaw()
                case _:
                    world.join(world.hosts[gone])
            await asyncio.to_thread(world.wait_counted, [])
            self.crew.field.log.world("replica-in", within_s=within_s)
            await self._lose(lost)
            await self._elected(lost)
            await self.crew.wait(random.uniform(0.0, TAKEN_OUT_S))
            lost.spawn()
            world.join(world.hosts[lost])
            await asyncio.to_thread(world.wait_settled)

    async def _stale_away(self) -> None:
        """A replica is taken out by managers. Then the primary is lost and the other replica cut
        off, and it comes back with what it had: nobody has it elected. Then all come back."""
        world = self.world
        lost, replicas = await self._shard()
        behind, other = self._shuffled(replicas)
        with self._logged("stale-away"), world.managers() as managers:
            await asyncio.to_thread(world.wait_managed, managers)
            behind.kill()
            await asyncio.to_thread(world.wait_counted, [behind])
            await self._flowing()
            world.cut(world.hosts[other])
            await self._lose(lost)
            behind.spawn()
            await self._elected(lost, within_s=STALE_ELECTION_S)
            world.join(world.hosts[other])
            world.join(world.hosts[lost])
            lost.spawn()
            await asyncio.to_thread(world.wait_settled)

    async def _kill_manager(self, victim: Manager, at_s: float) -> bool:
        """Whether it led: then another one takes over first."""
        await self.crew.wait(at_s)
        led = victim.leads()
        await asyncio.to_thread(victim.kill)
        who = "which led" if led else "which did not lead"
        self.progress(f"{victim.name}, {who}, was killed {at_s:.1f} s after that")
        return led

    async def _lose(self, node: Node) -> None:
        """Its machine is lost. The link first: the kernel of a killed process still sends."""
        self.world.cut(self.world.hosts[node])
        await self.crew.wait(self.random.uniform(0, 0.5))
        node.kill()

    async def _elected(self, lost: Node, *, within_s: float = ELECTED_TIMEOUT_S) -> None:
        """Another one is primary. Where none can be, the old one has to come back."""
        wait = self.world.store.wait_failover
        try:
            heir = await asyncio.to_thread(wait, lost, within_s=within_s)
        except TimeoutError:
            self.progress("no other primary was elected")
        else:
            self.progress(f"{heir!r} is primary in place of {lost!r}")

    async def _power_loss(self) -> None:
        """All nodes at once. Without disks of their own they are killed, and their page cache is
        the machine's: what they wrote and did not sync is there all the same."""
        with self._logged("power-loss"):
            if self.disks is not None:
                await asyncio.to_thread(self.disks.power_off)
            else:
                for node in self.world.store.nodes:
                    node.kill()
            await self.crew.wait(self.random.uniform(0, 2))
            for node in self._shuffled(self.world.store.nodes):
                node.spawn()

    # --- partitions

    async def _parted(self) -> None:
        await self.crew.wait(self.random.uniform(*PARTED_S))

    async def _primary_with_clients(self) -> None:
        """A primary, a gateway and the clients here, the other nodes and the Sentinels there."""
        world = self.world
        primary, _ = await self._shard()
        here: list[Host | None] = [world.hosts[primary], self._gateway().host, None]
        there = [host for host in world.all_hosts() if host not in here]
        with self._logged("primary-with-clients"):
            world.part(here, there)
            await self._parted()

    async def _minority(self) -> None:
        """A replica, one that votes on its primary and a gateway here, everybody else there."""
        world, gateway = self.world, self._gateway()
        primary, replicas = await self._shard()
        voters = await asyncio.to_thread(world.voters, primary)
        replica = self.random.choice(replicas)
        here = [world.hosts[replica], self.random.choice(voters), gateway.host]
        with self._logged("minority"):
            world.part(here, [host for host in world.all_hosts() if host not in here])
            await self._parted()

    async def _one_replica(self) -> None:
        _, replicas = await self._shard()
        with self._logged("one-replica"):
            self.world.cut(self.world.hosts[self.random.choice(replicas)])
            await self._parted()

    async def _gateway_from_store(self) -> None:
        """Its clients still reach it."""
        world, gateway = self.world, self._gateway()
        with self._logged("gateway-from-store", gateway):
            world.part([gateway.host], [*world.store_hosts, *world.sentinel_hosts])
            # Up to twice as long as it takes until others take it for gone.
            await self.crew.wait(self.random.uniform(1.0, 2 * FROZEN_S))

    async def _one_way(self) -> None:
        """One does not hear the other, and is heard."""
        world = self.world
        primary, replicas = await self._shard()
        replica, gateway = self.random.choice(replicas), self._gateway()
        pair = self._shuffled(
            self.random.choice(
                [
                    [world.hosts[primary], world.hosts[replica]],
                    [world.hosts[primary], gateway.host],
                ]
            )
        )
        with self._logged("one-way"):
            world.part(pair[:1], pair[1:], both_ways=False)
            await self._parted()

    async def _flapping(self) -> None:
        world = self.world
        primary, replicas = await self._shard()
        node = self.random.choice([primary, *replicas])
        host = self.random.choice([world.hosts[node], self._gateway().host])
        with self._logged("flapping"):
            for _ in range(self.random.randint(3, 6)):
                world.cut(host)
                await self.crew.wait(self.random.uniform(0.1, 1.5))
                world.join(host)
                await self.crew.wait(self.random.uniform(0.1, 1.5))

    async def _store_from_store(self) -> None:
        """The nodes do not reach each other, and everybody else reaches them."""
        hosts = self.world.store_hosts
        with self._logged("store-from-store"):
            for place, host in enumerate(hosts):
                self.world.part([host], hosts[place + 1 :])
            await self._parted()

    # --- gateways

    async def _kill(self) -> None:
        gateway = self._gateway()
        log = self.crew.field.log
        with self._logged("kill", gateway):
            gateway.server.kill()
            log.world("ended", server=gateway.door.server)
            await self.crew.wait(self.random.uniform(0, self.down_s))
            start(self.world, gateway, self.crew)
        await asyncio.to_thread(gateway.server.wait_ready)

    async def _freeze(self) -> None:
        """The process stands still; its kernel takes and sends. Others take over meanwhile, and it
        does not know when it goes on."""
        gateway = self._gateway()
        with self._logged("freeze", gateway):
            await asyncio.to_thread(gateway.server.freeze)
            gateway.is_frozen = True
            await self.crew.wait(self.frozen_s * self.random.uniform(1.0, 1.3))
            gateway.server.thaw()
            gateway.is_frozen = False

    # --- nodes of the metadata service

    async def _metadata_kill(self) -> None:
        """One or two of them."""
        nodes = self._shuffled(self.world.metadata)[: self.random.randint(1, 2)]
        with self._logged("metadata-kill"):
            for node in nodes:
                node.server.kill()
                await self.crew.wait(self.random.uniform(0, 1))
            await self._metadata_gone()
            for node in nodes:
                node.server.spawn()
        for node in nodes:
            await asyncio.to_thread(node.server.wait_ready)

    async def _metadata_cut(self) -> None:
        """One from everybody, from the gateways alone, or from the store alone."""
        world, node = self.world, self.random.choice(self.world.metadata)
        gateways: list[Host | None] = [gateway.host for gateway in world.gateways]
        store: list[Host | None] = [*world.store_hosts, *world.sentinel_hosts]
        others = [host for host in world.all_hosts() if host is not node.host]
        whom = self.random.choice([others, gateways, store])
        with self._logged("metadata-cut"):
            world.part([node.host], whom)
            await self._metadata_gone()

    async def _metadata_freeze(self) -> None:
        node = self.random.choice(self.world.metadata)
        with self._logged("metadata-freeze"):
            await asyncio.to_thread(node.server.freeze)
            await self._metadata_gone()
            node.server.thaw()

    async def _metadata_away(self) -> None:
        """All of them from all gateways, sometimes for a minute: what is known goes on."""
        world, random = self.world, self.random
        gateways = [gateway.host for gateway in world.gateways]
        is_whole = random.random() < METADATA_AWAY_WHOLE_CHANCE
        away_s = METADATA_AWAY_WHOLE_S if is_whole else random.uniform(*METADATA_AWAY_S)
        with self._logged("metadata-away"):
            world.part([node.host for node in world.metadata], gateways)
            until = time.monotonic() + away_s
            while time.monotonic() < until:
                if not await self.crew.all_flowing(1, KNOWN_GOES_ON_S):
                    raise TimeoutError("publishing did not go on without the metadata service")
                await self.crew.wait(min(1.0, max(0.0, until - time.monotonic())))

    async def _metadata_gone(self) -> None:
        await self.crew.wait(self.random.uniform(*METADATA_GONE_S))

    # --- who

    def _gateway(self) -> Gateway:
        return self.random.choice(self.world.gateways)

    async def _shard(self, *, is_busy: bool = False) -> tuple[Node, list[Node]]:
        """A primary and its replicas. `is_busy`: one that has messages."""
        is_busy = self.random.random() < BUSY_CHANCE or is_busy
        world = self.world
        shards = await asyncio.to_thread(world.busy_shards if is_busy else world.shards)
        primary = self.random.choice(list(shards))
        return primary, shards[primary]

    def _shuffled(self, things: list[T]) -> list[T]:
        return self.random.sample(things, len(things))


def start(world: World, gateway: Gateway, crew: SoakClients) -> None:
    """Start it, and have that in the log."""
    crew.field.log.world("serves", server=world.spawn(gateway), gateway=gateway.name)
