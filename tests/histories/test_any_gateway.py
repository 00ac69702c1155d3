"""Histories of operators at another gateway than the owner's (R17, R18, R24). Each runs over
memory, in virtual time, and over a real store. A usually has the consumer, and B gets the
requests."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from gateway.delivery import remote_owner as judging
from gateway.delivery.remote_owner import OwnerServer
from gateway.models import Decided, Look, ParkedKeys, WhichKey
from gateway.operator import parking
from gateway.operator import redrive as redriving
from gateway.operator import stats as stock
from metadata.catalog import ANYBODY, Group, GroupSettings
from push import limits
from push.errors import Refused, TocsinError, Unknown
from push.letters import Inbox, Unpark
from push.places import CursorPlace, Partition, Verb
from tests.conformance.virtual import run
from tests.histories import gateways
from tests.histories.gateways import Town
from tests.histories.house import House, Session, delivery, message
from tests.histories.redis_gateways import a_server, emptied
from tests.histories.test_gateways_on_redis import Gateway as RealGateway
from tests.servers.node import Node
from tests.waiting import becomes

ALL = WhichKey(every=True)
DEAD = "orders.dead-letters"
Gateway = gateways.Gateway | RealGateway


@dataclass
class Pair:
    """Two gateways, a queue and a group of which keys are parked after one failure."""

    a: Gateway
    b: Gateway
    kill: Callable[[Gateway], Awaitable[None]]
    """Ends a gateway, as far as others can tell."""
    empty_inboxes: Callable[[], None]
    """Empties the inboxes, as a failover may."""
    group: Group = field(init=False)

    async def make(self, partitions: int = 1, on_exhausted: str = "park") -> None:
        """Make the queue and the group, and wait until both gateways know them."""
        queue = await self.a.queue(
            partitions=partitions, attempts_max=1, on_exhausted=on_exhausted, retention_s=3600
        )
        self.group, _ = await self.a.broker.put_group(
            ANYBODY, queue, "billing", GroupSettings(), None
        )
        await self.known("orders", "billing")

    async def known(self, queue: str, group: str | None = None) -> None:
        """Wait until both gateways know the queue, and the group if one is named."""

        def is_known() -> bool:
            with suppress(Refused):
                for gateway in (self.a, self.b):
                    found = gateway.find(queue)
                    if group is not None:
                        gateway.broker.metadata.find_group(ANYBODY, found, group)
                return True
            return False

        await becomes(is_known)

    async def known_to_b(self, queue: str) -> None:
        """Wait until B knows the queue. A no longer runs."""

        def is_known() -> bool:
            with suppress(Refused):
                return bool(self.b.find(queue))
            return False

        await becomes(is_known)

    async def park(self, *keys: str, at: Gateway | None = None) -> tuple[Session, Any]:
        """Make a consumer that fails the first message of each of these keys."""
        at = at or self.a
        session, consumer = await at.consumer(self.group, f"a-session-for-{len(keys)}-keys_")
        await self.publish(*keys)
        for place, *_ in await session.take(len(keys)):
            consumer.nack(delivery(place), 0, None)
        await self.parked(len(keys))
        return session, consumer

    async def publish(self, *keys: str) -> None:
        """Publish a message of each key. Its body is its number in this call."""
        messages = [message(number, key) for number, key in enumerate(keys)]
        answers = await self.a.publish(self.a.find(), messages)
        assert not any(isinstance(answer, str) for answer in answers), answers

    async def parked(self, count: int) -> ParkedKeys:
        """Wait until B's list has `count` parked keys."""
        while True:
            found = await self.b.broker.parking.list_keys(self.b.find(), self.group, 1000)
            if found.keys_parked == count:
                return found
            await asyncio.sleep(0.01)

    async def decide(self, verb: Verb, which: WhichKey = ALL, at: Gateway | None = None) -> Decided:
        """Decide through B, unless `at` names another gateway."""
        at = at or self.b
        return await at.broker.parking.decide(at.find(), self.group, verb, which)

    @property
    def owner_server(self) -> OwnerServer:
        """Return the server through which A takes letters."""
        found = self.a.broker.owner_server
        assert found is not None
        return found

    @property
    def inbox(self) -> Inbox:
        """Return the inbox as B sees it."""
        found = self.b.broker.storage.inbox
        assert found is not None
        return found

    def place(self, number: int = 0) -> CursorPlace:
        """Return a place of the group."""
        return CursorPlace(self.group.group_id, Partition(self.a.find().queue_id, number))

    async def written(self, number: int = 0) -> list[tuple[str, bytes]]:
        """Wait for a letter."""
        while True:
            found = await self.inbox.letters(self.place(number))
            if found:
                return found
            await asyncio.sleep(0.01)

    async def buried(self) -> list[Any]:
        """Return the bodies in the dead letters, once there are some. A skip is answered when it is
        decided, while its message is still on its way."""
        await self.known_to_b(DEAD)
        while True:
            with suppress(Refused):  # the storage does not have the queue yet
                found = await self.b.broker.upkeep.peek(
                    ANYBODY, self.b.find(DEAD), Look(limit=1000), None
                )
                if found.messages:
                    return [int(bytes(one.body or b"")) for one in found.messages]
            await asyncio.sleep(0.01)


History = Callable[..., Awaitable[None]]


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    """Server for all histories of this module."""
    with a_server() as started:
        yield started


async def over_memory(history: History, folder: Path) -> None:
    """Run the history over two gateways in one process, with one storage in memory."""
    town = Town(folder)
    await town.open(2)

    async def kill(gateway: Gateway) -> None:
        cast(gateways.Gateway, gateway).cut_off()

    try:
        a, b = town.gateways
        await history(Pair(a, b, kill, town.inbox._boxes.clear))
    finally:
        await town.close()


async def over_a_real_store(history: History, folder: Path, node: Node) -> None:
    """Run the history over two gateways and a server."""
    url = await emptied(node)
    dead: list[House] = []

    async def kill(gateway: Gateway) -> None:
        dead.append(gateway)
        await gateway.broker.storage.close()
        await gateway.broker.metadata.close()

    async def stop(gateway: House) -> None:
        with suppress(TocsinError):
            await gateway.stop()

    def empty_inboxes() -> None:
        for key in [*node.ask("KEYS", "*:in:*"), *node.ask("KEYS", "*:ia:*")]:
            node.ask("DEL", key)

    async with AsyncExitStack() as stack:
        opened = []
        for name in "ab":
            (folder / name).mkdir(mode=0o700)
            gateway = RealGateway(folder / name, url)
            await gateway.open()
            stack.push_async_callback(stop, gateway)
            opened.append(gateway)
        async with asyncio.timeout(60):
            await history(Pair(opened[0], opened[1], kill, empty_inboxes))


def at_any_gateway(history: History) -> Callable[..., None]:
    """Make a test that runs this history over both stores."""

    @pytest.mark.parametrize("store", ["memory", "server"])
    def test(
        store: str, folder: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def told(pair: Pair) -> None:
            await history(pair, *([monkeypatch] if history.__code__.co_argcount > 1 else []))

        if store == "memory":
            run(over_memory(told, folder))
        else:
            asyncio.run(over_a_real_store(told, folder, request.getfixturevalue("node")))

    test.__name__, test.__doc__ = history.__name__, history.__doc__
    return test


# --- One answer, as at one gateway --------------------------------------------------------------


@at_any_gateway
async def test_a_key_is_retried_through_the_other_gateway(pair: Pair) -> None:
    """R24, P3: The owner tries it again, and the rest follows in order. The second time it is not
    parked, and nothing changes."""
    await pair.make()
    session, consumer = await pair.park("k")
    await pair.publish("k", "k")
    (before,) = (await pair.parked(1)).keys
    done = await pair.decide("retry", WhichKey(key="k"))
    assert (done.decision, done.keys_parked, done.refused) == ("retry", 0, [])
    assert [(one.key, one.offset, one.since_unix_ms) for one in done.keys] == [
        ("k", 0, before.since_unix_ms)
    ]
    with pytest.raises(Refused, match="not_parked"):
        await pair.decide("retry", WhichKey(key="k"))
    await session.take(2)
    assert await pair.a.confirm(consumer, delivery(session.given[1][0])) == (1, 0)
    await session.take(4)
    assert [place[3] for place, *_ in session.given] == [0, 0, 1, 2]


@at_any_gateway
async def test_all_parked_keys_of_a_group_are_one_answer_wherever_they_are(pair: Pair) -> None:
    """Some keys are of partitions that A has, and some of those that B has itself."""
    await pair.make(partitions=4)
    keys = [f"k{number}" for number in range(64)]  # a partition without one: 1 in 25 million
    first, one = await pair.park(*keys)
    _, two = await pair.b.consumer(pair.group, "another-session-here__")
    await becomes(lambda: len(pair.a.owns(pair.group)) == len(pair.b.owns(pair.group)) == 2)
    found = (await pair.parked(64)).keys
    assert {key.partition for key in found} == {0, 1, 2, 3}
    done = await pair.decide("release")
    assert sorted(str(key.key) for key in done.keys) == sorted(keys)
    assert (done.keys_parked, done.refused) == (0, [])
    await pair.parked(0)
    del first, one, two


@at_any_gateway
async def test_a_head_that_is_skipped_through_the_other_gateway_is_in_the_dead_letters(
    pair: Pair,
) -> None:
    """P1: It is there when the skip is answered, and the next message of its key is given."""
    await pair.make()
    session, _ = await pair.park("k")
    await pair.publish("other", "k")
    await pair.decide("skip", WhichKey(key="k"))
    assert await pair.buried() == [0]
    await session.take(3)
    assert sorted(place[3] for place, *_ in session.given) == [0, 1, 2]


@at_any_gateway
async def test_of_two_operators_at_two_gateways_one_decides(pair: Pair) -> None:
    """At most once: One head is skipped, and the other operator is answered so."""
    await pair.make()
    await pair.park("k")
    await pair.publish("k", "k")
    asked = [pair.decide("skip", WhichKey(key="k"), at) for at in (pair.a, pair.b, pair.b)]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    refused = [one for one in answers if isinstance(one, BaseException)]
    assert [str(error)[:10] for error in refused] == ["not_parked"] * 2
    assert await pair.buried() == [0]


@at_any_gateway
async def test_what_cannot_be_asked_is_named_and_the_rest_is_done(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P9, R5: One partition's inbox is full. Its keys stay parked, and are counted as left. If
    nothing at all was done, that is the answer."""
    await pair.make(partitions=2)
    await pair.park(*[f"k{number}" for number in range(12)])
    found = (await pair.parked(12)).keys
    there = [key for key in found if key.partition == 0]
    assert 0 < len(there) < 12
    monkeypatch.setattr(limits, "INBOX_LETTERS_MAX", 1)
    taking = OwnerServer._judge

    def judge(self: OwnerServer, place: CursorPlace, letters: Any) -> None:
        if place.partition.number != 0:
            taking(self, place, letters)

    monkeypatch.setattr(OwnerServer, "_judge", judge)
    epochs = {
        cursor.place: cursor.epoch
        for cursor in await pair.b.broker.storage.cursors(
            pair.a.find().queue_id, pair.group.group_id
        )
    }
    filler = Unpark(verb="retry", epoch=epochs[pair.place()], keys=[])
    assert await pair.inbox.post(pair.place(), "f" * 32, filler) is None
    with pytest.raises(Refused, match="overloaded"):
        await pair.decide("release", WhichKey(key=there[0].key))
    done = await pair.decide("release")
    assert {key.partition for key in done.keys} == {1}
    (refused,) = done.refused
    assert (refused.partition, refused.keys, refused.code) == (0, len(there), "overloaded")
    assert done.keys_parked == len(there)
    await pair.parked(len(there))


@at_any_gateway
async def test_a_decision_through_the_other_gateway_waits_until_it_is_durable(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R18: A second request in the meantime is not answered sooner."""
    monkeypatch.setattr(limits, "LETTER_AGAIN_S", 0.02)
    await pair.make()
    await pair.park("k")
    goes, asked = asyncio.Event(), asyncio.Event()
    real = pair.a.broker.storage.write_cursors

    async def write_cursors(writes: Any) -> Any:
        asked.set()
        await goes.wait()
        return await real(writes)

    monkeypatch.setattr(pair.a.broker.cursor_writer._storage, "write_cursors", write_cursors)
    deciding = asyncio.ensure_future(pair.decide("retry"))
    try:
        await asked.wait()
        await asyncio.wait((deciding,), timeout=0.2)
        assert not deciding.done()
    finally:
        goes.set()
    assert len((await deciding).keys) == 1


# --- Owners that are silent, end and change -----------------------------------------------------


@at_any_gateway
async def test_a_decision_goes_on_when_its_owner_dies_before_it_was_read(pair: Pair) -> None:
    """P6, P7: A dies in the middle of the request. B takes over, and decides itself, once."""
    await pair.make()
    await pair.park("k")
    pair.owner_server._closed = True
    deciding = asyncio.ensure_future(pair.decide("skip"))
    await pair.written()
    await pair.kill(pair.a)
    done = await deciding
    assert [key.key for key in done.keys] == ["k"]
    assert await pair.buried() == [0]
    assert await pair.b.lag(pair.b.find(), pair.group) == 0


@at_any_gateway
async def test_a_decision_whose_owner_died_before_it_could_say_is_unknown(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R5: It is durable, and no gateway knows for whom. It has happened once, and asking again is
    safe."""
    await pair.make()
    await pair.park("k")
    real, is_durable = judging.unpark, asyncio.Event()

    async def unpark(*args: Any) -> str:
        await real(*args)
        is_durable.set()
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    monkeypatch.setattr("gateway.delivery.remote_owner.unpark", unpark)
    deciding = asyncio.ensure_future(pair.decide("release"))
    await is_durable.wait()
    await pair.kill(pair.a)
    session, _ = await pair.b.consumer(pair.group, "a-session-that-follows")
    with pytest.raises(Unknown, match="List the parked keys"):
        await deciding
    with pytest.raises(Refused, match="not_parked"):
        await pair.decide("release", WhichKey(key="k"))
    assert [body for _, body, _ in await session.take(1)] == [0]


@at_any_gateway
async def test_an_owner_that_does_not_answer_makes_an_honest_answer(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R5: The answer is unknown, comes in time and over HTTP, and names what is decided. Partitions
    of B itself are not held up. When A reads the letter it happens, once, and asking again finds
    that."""
    monkeypatch.setattr(parking, "DECIDE_TIMEOUT_S", 3.0)
    await pair.make(partitions=2)
    keys = [f"k{number}" for number in range(12)]
    await pair.park(*keys)
    await pair.b.consumer(pair.group, "another-session-here__")
    await becomes(lambda: len(pair.a.owns(pair.group)) == len(pair.b.owns(pair.group)) == 1)
    if 0 in pair.b.owns(pair.group):  # the silent one has the first partition
        pair.a, pair.b = pair.b, pair.a
    mine = {
        key.key for key in (await pair.parked(12)).keys if key.partition in pair.b.owns(pair.group)
    }
    pair.owner_server._closed = True
    path = "/v1/queues/orders/groups/billing/parked"
    async with pair.b.http() as http:
        refused = await http.post(path, json={"decision": "release", "all": True})
        problem = refused.json()
        assert refused.status_code == 503, (problem, pair.a.owns(pair.group), mine)
        assert (problem["code"], problem["retry"]) == ("unknown", True)
        detail = f"{len(mine)} keys are decided; for {12 - len(mine)} this is unknown"
        assert problem["detail"].startswith(detail)
        left = (await pair.parked(12 - len(mine))).keys
        assert {key.key for key in left} == {*keys} - mine
        pair.owner_server._closed = False
        (number,) = pair.a.owns(pair.group)
        pair.owner_server.came(pair.place(number))
        await pair.parked(0)
        again = await http.post(path, json={"decision": "release", "key": left[0].key})
        assert (again.status_code, again.json()["code"]) == (409, "not_parked")


@at_any_gateway
async def test_a_decision_follows_its_partition_to_the_next_owner(pair: Pair) -> None:
    """R15, R20: The letter is of an epoch that ends before any gateway has read it. The next owner
    of the partition decides: a consumer of A or B, or B itself if there is none."""
    await pair.make()
    _, consumer = await pair.park("k")
    for comes in ("a", "b", None):
        pair.owner_server._closed = True
        deciding = asyncio.ensure_future(pair.decide("retry"))
        await pair.written()
        if comes is not None:
            at = pair.a if comes == "a" else pair.b
            session, following = await at.consumer(pair.group, f"a-session-that-is-{comes}")
        consumer.leave()
        pair.owner_server._closed = False
        done = await deciding
        assert [key.key for key in done.keys] == ["k"]
        if comes is None:
            break
        consumer = following
        ((place, *_),) = await session.take(1)
        consumer.nack(delivery(place), 0, None)
        await pair.parked(1)
        if comes == "b":  # and back, for the last one
            session, consumer = await pair.a.consumer(pair.group, "a-session-that-is-back")
            following.leave()
            await becomes(lambda: pair.a.owns(pair.group) == {0})
    session, _ = await pair.b.consumer(pair.group, "a-session-at-the-end__")
    assert [body for _, body, _ in await session.take(1)] == [0]


@at_any_gateway
async def test_a_letter_that_was_answered_and_lost_is_not_decided_again(pair: Pair) -> None:
    """R24: The store fails over after the answer, and its inboxes are empty. The key was parked
    again meanwhile. A request repeated under the same id has the same answer, and skips nothing."""
    await pair.make()
    session, consumer = await pair.park("k")
    (line,) = await pair.b.broker.storage.parked(pair.place())
    epoch = session.given[0][0][1]
    keys = [(f"{line.key_hash:016x}", line.since_unix_ms, line.head)]
    letter = Unpark(verb="retry", epoch=epoch, keys=keys)
    assert await answered(pair, "a" * 32, letter) == "1"
    await session.take(2)
    await becomes(lambda: int(time.time() * 1000) > line.since_unix_ms)  # it tells them apart
    consumer.nack(delivery(session.given[1][0]), 0, None)
    await pair.parked(1)
    pair.empty_inboxes()
    assert await answered(pair, "a" * 32, letter) == "1"
    pair.owner_server._said.clear()  # there were many others since
    pair.empty_inboxes()
    assert await answered(pair, "a" * 32, letter) == "0", "what was parked anew is another one"
    assert await answered(pair, "b" * 32, letter) == "0"
    (again,) = (await pair.parked(1)).keys
    assert again.since_unix_ms > line.since_unix_ms
    assert len(session.given) == 2


async def answered(pair: Pair, letter_id: str, letter: Unpark) -> str:
    """Put the letter into the inbox until it is answered."""
    while True:
        said = await pair.inbox.post(pair.place(), letter_id, letter)
        if said is not None:
            return said
        await asyncio.sleep(0.005)


@at_any_gateway
async def test_a_decision_that_a_frozen_gateway_reads_late_is_about_nothing_newer(
    pair: Pair,
) -> None:
    """R15: B was answered that the outcome is unknown, and the key was retried and failed again.
    Then A reads the letter. The head that it would skip is not the one that was meant."""
    await pair.make()
    session, consumer = await pair.park("k")
    (line,) = await pair.b.broker.storage.parked(pair.place())
    pair.owner_server._closed = True
    letter = Unpark(
        verb="skip",
        epoch=session.given[0][0][1],
        keys=[(f"{line.key_hash:016x}", line.since_unix_ms, line.head)],
    )
    assert await pair.inbox.post(pair.place(), "a" * 32, letter) is None
    await pair.decide("retry", at=pair.a)
    await session.take(2)
    await becomes(lambda: int(time.time() * 1000) > line.since_unix_ms)  # it tells them apart
    consumer.nack(delivery(session.given[1][0]), 0, None)
    await pair.parked(1)
    pair.owner_server._closed = False
    assert await answered(pair, "a" * 32, letter) == "0"
    await pair.parked(1)
    assert len(session.given) == 2


# --- Descriptions -------------------------------------------------------------------------------


@at_any_gateway
async def test_lags_and_parked_keys_are_those_of_all_partitions_at_any_gateway(pair: Pair) -> None:
    """Settled, parked and unparked messages of A show at B soon, though no frame reports them. This
    holds for each partition, whichever gateway owns it."""
    await pair.make(partitions=2)
    keys = [f"k{number}" for number in range(8)]

    async def at_b() -> tuple[Any, ...]:
        found: Any = await pair.b.broker.describe_group(ANYBODY, pair.b.find(), "billing")
        (listed,) = cast(Any, await pair.b.broker.describe_queue(ANYBODY, "orders"))["groups"]
        figures = found["lag"], found["keys_parked"]
        assert figures[0] == sum(one["lag"] for one in found["partitions"])
        assert figures[1] == sum(one["keys_parked"] for one in found["partitions"])
        return *figures, found["consumers"], listed["lag"], listed["keys_parked"]

    async def become(lag: int, parked: int) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        while await at_b() != (lag, parked, 1, lag, parked):
            assert loop.time() - began < stock.BELIEVED_S + 3, await at_b()
            await asyncio.sleep(0.05)

    session, consumer = await pair.park(*keys)
    await become(8, 8)
    await pair.decide("retry", at=pair.a)
    await become(8, 0)
    await session.take(16)
    for place, *_ in session.given[8:12]:
        await pair.a.confirm(consumer, delivery(place))
    await become(4, 0)
    for place, *_ in session.given[12:]:
        await pair.a.confirm(consumer, delivery(place))
    await become(0, 0)


# --- Dead letters -------------------------------------------------------------------------------


async def bury(pair: Pair, count: int) -> None:
    """Let `count` messages of four keys die at A's consumer, and wait until B knows of their
    queue."""
    await pair.make(partitions=2, on_exhausted="dead_letter")
    session, consumer = await pair.a.consumer(pair.group, "a-session-that-fails__")
    await pair.publish(*[f"k{number % 4}" for number in range(count)])
    nacked = 0
    while pair.a.broker.dead_letters.moved_total < count:
        for place, *_ in session.given[nacked:]:
            nacked += 1
            consumer.nack(delivery(place), 0, None)
        await asyncio.sleep(0.01)
    consumer.leave()
    await pair.known(DEAD)


async def stand(pair: Pair) -> dict[str, list[int]]:
    """Return by key, in order, what is in the queue after the messages that died."""
    found = await pair.b.broker.upkeep.peek(ANYBODY, pair.b.find(), Look(limit=1000), None)
    lines: dict[str, list[int]] = {}
    for one in found.messages:
        lines.setdefault(str(one.key), []).append(int(bytes(one.body or b"")))
    return lines


@at_any_gateway
async def test_letters_go_back_through_any_gateway(pair: Pair) -> None:
    """P1, P3: They go through the gateway that has moved none of them. Both gateways drop what went
    from their lists, and list dead letters from the next one on."""
    await bury(pair, 12)
    back = await pair.b.broker.upkeep.redrive(ANYBODY, pair.b.find(), Look(limit=5))
    assert back.messages == 5
    back = await pair.a.broker.upkeep.redrive(ANYBODY, pair.a.find(), Look(limit=1000))
    assert back.messages == 7
    for gateway in (pair.a, pair.b):
        again = await gateway.broker.upkeep.redrive(ANYBODY, gateway.find(), Look(limit=9))
        assert again.messages == 0
        listed = await gateway.broker.upkeep.dead_letters(ANYBODY, gateway.find(), Look(limit=9))
        assert listed.messages == []
    await check_back(pair, 12)


async def check_back(pair: Pair, count: int) -> None:
    """Check that each of `count` messages died once and went back once, in the order of its key."""
    lines = await stand(pair)
    assert sum(map(len, lines.values())) == 2 * count
    for line in lines.values():
        assert sorted(line) == sorted([*set(line), *set(line)])
        assert line[len(line) // 2 :] == sorted(set(line))


@at_any_gateway
async def test_redrives_through_two_gateways_send_each_letter_back_once(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P3, R8: They run at the same time, in many batches. Both end well, and each letter counts for
    one."""
    await bury(pair, 40)
    monkeypatch.setattr(redriving, "BATCH_BYTES_MAX", 600)
    done = await asyncio.gather(
        *(
            gateway.broker.upkeep.redrive(ANYBODY, gateway.find(), Look(limit=1000))
            for gateway in (pair.a, pair.b)
        )
    )
    assert sum(one.messages for one in done) == 40
    await check_back(pair, 40)
