"""Any history of clients that lose transports and gateways, and come back (R22).

Each client believes that it holds what the frames that it has read say. Even if frames are lost, it
owns these deliveries. No other client is given them, nor an earlier message of their key (P3), and
its ack counts. Messages that were acked durably come to no client again (P5).
"""

import asyncio
from itertools import count
from random import Random
from typing import Any

import pytest

from gateway.auth.auth import Authenticator
from gateway.session.directory import SessionServices, new_session_id
from push import limits
from tests.histories.house import WAIT_S, House, message, offsets_of
from tests.histories.test_adopting import Mover, Place, settled

Frame = dict[str, Any]
KEYS = ("a", "b", "c", "d", None)
SEEDS = 12
STEPS = 60


class World:
    """True state, independent of the clients' beliefs."""

    def __init__(self, house: House, random: Random) -> None:
        self.house, self.random = house, random
        self.around = SessionServices(house.broker, Authenticator(None))
        self.keys: dict[tuple[int, int], object] = {}
        """Key by (partition, offset). A message without a key has an object of its own."""
        self.settled: set[tuple[int, int]] = set()
        self.clients: list[Believer] = []

    async def publish(self, number: int) -> None:
        keys = [self.random.choice(KEYS) for _ in range(number)]
        bodies = [message(None, key) for key in keys]
        answers = await self.house.publish(self.house.find(), bodies)
        for answer, key in zip(answers, keys, strict=True):
            assert not isinstance(answer, str)
            place = (answer[0], answer[1])
            self.keys[place] = place if key is None else key

    async def restart(self) -> None:
        """Restart with a drain or without warning. All clients come back, at once or one by one."""
        is_orderly = self.random.random() < 0.5
        for client in self.clients:
            client.read(0 if is_orderly else client.unread())
        if is_orderly:
            self.around.sessions.end_lingering()
            for client in self.clients:
                client.socket.session.drain(1.0)
            for client in self.clients:
                client.read()
                client.socket.session.on_transport_lost()
        await self.house.restart()
        self.around = SessionServices(self.house.broker, Authenticator(None))
        again = [client.come_back() for client in self.clients]
        self.random.shuffle(again)
        if self.random.random() < 0.5:
            await asyncio.gather(*again)
        else:
            for one in again:
                await one


class Believer:
    """Client that reads at random times."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.socket = Mover(world.house, world.around, name)
        self.holds: set[Place] = set()
        self.unheard: set[Place] = set()
        """Deliveries that were acked, with the answer perhaps unread."""
        self._read = self._received = 0
        self._refs = count(100)

    # --- Reading --------------------------------------------------------------------------------

    def unread(self) -> int:
        """Return how many of the last frames are lost on the way."""
        return self.world.random.choice((0, 0, 1, 2, 4))

    def read(self, but: int = 0) -> None:
        """Read everything except the last `but` frames."""
        frames = self.socket.frames[self._read : len(self.socket.frames) - but]
        self._read += len(frames)
        for frame in frames:
            if frame["type"] == "push":
                self._given(frame)
            elif frame["type"] == "revoked":
                self._forget(frame["deliveries"])
            else:
                assert frame["type"] != "error", frame

    def _given(self, push: Frame) -> None:
        partition, keys = push["partition"], self.world.keys
        for offset in offsets_of(push):
            place = (partition, offset)
            assert place not in self.world.settled, "P5"
            self.holds -= {held for held in self.holds if (held[0], held[3]) == place}
            for client in self.world.clients:
                for at, _, _, other in client.holds:
                    behind = at == partition and other >= offset
                    assert not (behind and keys[at, other] == keys[place]), "P3"
            self.holds.add((partition, push["epoch"], push["push"], offset))
            self._received += 1

    def _forget(self, deliveries: list[list[int]]) -> None:
        for partition, epoch, push, *ranges in deliveries:
            for first, last in zip(ranges[::2], ranges[1::2], strict=True):
                gone = range(first, last + 1)
                self.holds -= {(partition, epoch, push, offset) for offset in gone}

    # --- Coming back ----------------------------------------------------------------------------

    async def join(self) -> None:
        await self.socket.join()
        self._read = len(self.socket.frames)

    async def come_back(self) -> None:
        """Come back over a new transport, which may be lost again at any time."""
        self.socket = socket = Mover(self.world.house, self.world.around, new_session_id())
        socket.say(type="hello", session=self.name, linger_s=30)
        welcome = await socket.until("welcome")
        assert welcome["session"] == self.name
        if not welcome["resumed"]:
            self._received = 0
            subscribe = {"queue": "orders", "group": "billing", "credit": 1000, "held": True}
            socket.say(type="subscribe", ref=1, subscription=1, **subscribe)
            assert (await socket.until_ref(1))["type"] == "ok"
        claims = [[*place, place[3]] for place in sorted(self.holds | self.unheard)]
        socket.say(type="held", ref=9, subscription=1, received=self._received, deliveries=claims)
        if self.world.random.random() < 0.25:
            if self.world.random.random() < 0.5:
                await socket.until_ref(9)  # it is answered, and the answer is not read
            socket.session.on_transport_lost()
            await self.come_back()
            return
        answer = await socket.until_ref(9)
        self._forget(answer["revoked"])
        self._read = 0
        self.read()
        for place in self.unheard:
            socket.say(type="ack", subscription=1, deliveries=[[*place, place[3]]])

    async def lose(self) -> None:
        self.read(min(self.unread(), len(self.socket.frames) - self._read))
        self.socket.session.on_transport_lost()
        await self.come_back()

    # --- Settling -------------------------------------------------------------------------------

    async def ack(self, number: int, *, is_confirmed: bool) -> None:
        self.read()
        places = self.world.random.sample(sorted(self.holds), min(number, len(self.holds)))
        deliveries = [[*place, place[3]] for place in places]
        self.holds -= {*places}
        if not is_confirmed:
            self.socket.say(type="ack", subscription=1, deliveries=deliveries)
            self.unheard |= {*places}
        elif places:
            ref = next(self._refs)
            self.socket.say(type="ack", ref=ref, subscription=1, deliveries=deliveries)
            answer = await self.socket.until_ref(ref)
            assert (answer.get("settled"), answer.get("stale")) == (len(places), []), "R21"
            self.world.settled |= {(place[0], place[3]) for place in places}

    def nack(self) -> None:
        self.read()
        if self.holds:
            place = self.world.random.choice(sorted(self.holds))
            self.holds.discard(place)
            nack = {"deliveries": [[*place, place[3]]], "delay_s": 0}
            self.socket.say(type="nack", ref=next(self._refs), subscription=1, **nack)


async def step(world: World) -> None:
    """Let one random event happen."""
    random = world.random
    client = random.choice(world.clients)
    match random.choices(range(6), (30, 20, 10, 10, 10, 8))[0]:
        case 0:
            await world.publish(random.randrange(1, 12))
        case 1:
            await client.ack(random.randrange(1, 6), is_confirmed=True)
        case 2:
            await client.ack(random.randrange(1, 6), is_confirmed=False)
        case 3:
            client.nack()
        case 4:
            await client.lose()
        case 5:
            await world.restart()
    for _ in range(random.randrange(6)):
        await asyncio.sleep(0)


@pytest.mark.parametrize("sides", [False, True])
@pytest.mark.parametrize("seed", range(SEEDS))
async def test_what_a_client_believes_to_hold_is_its_own(
    durable_house: House, seed: int, sides: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P3, P5, R17, R22: Everything is settled in the end."""
    if sides:
        monkeypatch.setattr(limits, "HELD_PER_PARTITION_MAX", 2)
        monkeypatch.setattr(limits, "ASIDE_UNWRITTEN_MAX", 2)
    world = World(durable_house, Random(seed))
    queue = await durable_house.queue(
        partitions=world.random.choice((1, 2, 4)), attempts_max=0, lease_s=60
    )
    await durable_house.group(queue)
    world.clients = [Believer(world, f"{name}-session-of-22-signs_") for name in "ab"]
    for client in world.clients:
        await client.join()
    for _ in range(STEPS):
        await step(world)
    async with asyncio.timeout(WAIT_S):
        while await settled(durable_house):
            for client in world.clients:
                await client.ack(1000, is_confirmed=True)
            await asyncio.sleep(0)
