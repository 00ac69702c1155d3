"""The contract of `push.letters.Inbox`, in memory and over a real server."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence

import pytest

from push import limits
from push.errors import Fenced, Refused
from push.letters import ASKER_CHARS, PERHAPS, SETTLED, STALE, Inbox, Letter, Unpark, letter_of
from push.places import CursorPlace
from storage.memory import MemoryStorage
from storage.redis.connection import Address
from storage.redis.discovery import fixed
from storage.redis.ops.provision import provision
from storage.redis.shard import Marks, RedisShard, Settings
from storage.redis.store import RedisStorage
from tests.contract.stores import G0, P0, P1, TOKEN, Clock, with_group
from tests.memory import in_memory
from tests.memory_inbox import MemoryInbox
from tests.servers.binaries import Binary
from tests.servers.layouts import single
from tests.servers.node import Node

ASKER, OTHER = "a" * ASKER_CHARS, "b" * ASKER_CHARS
ONE = Letter(verb="ack", epoch=1, runs=[(1, 0, 0)])
G1 = CursorPlace("g-1", P1)


@pytest.fixture(scope="module")
def node(redis_binary: Binary) -> Iterator[Node]:
    """A server of its own."""
    with in_memory() as folder, single(redis_binary, folder) as started:
        yield started


class Side:
    """View of a store that a gateway has: its inbox, and the calls that change epochs."""

    def __init__(self, store: RedisStorage | MemoryStorage, inbox: Inbox) -> None:
        self.inbox = inbox
        self.own = store.own
        self.cursors = store.cursors
        self.create_group, self.drop_group = store.create_group, store.drop_group
        self.drop_queue, self.close = store.drop_queue, store.close


class Gateways:
    """Two gateways over one store, whose partition 0 is owned under epoch 1."""

    def __init__(self, sides: list[Side], shards: Sequence[RedisShard] = ()) -> None:
        self.store, self.other = sides
        self.shards = shards

    @property
    def inbox(self) -> Inbox:
        """The first gateway's inbox."""
        return self.store.inbox


@pytest.fixture(params=["memory", "redis"])
async def two(request: pytest.FixtureRequest, node: Node) -> AsyncIterator[Gateways]:
    """Two gateways' view of an empty store."""
    if request.param == "memory":
        store = MemoryStorage(wall=Clock())
        inbox = MemoryInbox(store.epoch_of)
        await with_group(store, messages=4)
        yield Gateways([Side(store, inbox), Side(store, inbox)])
        return
    async for found in _served(node):
        yield found


@pytest.fixture
async def served(node: Node) -> AsyncIterator[Gateways]:
    """Two gateways' view of a store on a server, for effects that are visible only there."""
    async for found in _served(node):
        yield found


async def _served(node: Node) -> AsyncIterator[Gateways]:
    node.ask("FLUSHALL")
    settings = Settings(fixed(Address(node.address, node.port)))
    await provision(settings, "incarnation-1", 0)
    shards = [await RedisShard.open(settings, Marks("incarnation-1")) for _ in range(2)]
    stores = [RedisStorage(shard, "incarnation-1", wall=Clock()) for shard in shards]
    await with_group(stores[0], messages=4)
    yield Gateways([Side(store, store.inbox) for store in stores], shards)
    for store in stores:
        await store.close()


async def test_a_letter_waits_for_its_answer_and_both_sides_learn_of_it(two: Gateways) -> None:
    """R24: through whichever gateway it came. One id has one letter, and one answer."""
    came: asyncio.Queue[CursorPlace] = asyncio.Queue()
    told: asyncio.Queue[str] = asyncio.Queue()
    not_told: list[str] = []
    two.store.inbox.on_letter(came.put_nowait)
    two.other.inbox.on_answer(ASKER, told.put_nowait)
    two.other.inbox.on_answer(OTHER, not_told.append)
    for shard in two.shards:
        await shard.wait_subscribed()
    letter_id = ASKER + "1"
    for _ in range(2):
        assert await two.other.inbox.post(G0, letter_id, ONE) is None
        async with asyncio.timeout(10):
            assert await came.get() == G0  # also the second time, as the first may be lost
    ((name, text),) = await two.inbox.letters(G0)
    assert (name, letter_of(text)) == (letter_id, ONE)
    assert await two.inbox.places("q-1") == [G0]
    assert await two.inbox.answer(G0, {letter_id: SETTLED}, None)
    async with asyncio.timeout(10):
        assert await told.get() == letter_id
    assert await two.inbox.letters(G0) == []
    assert await two.inbox.places("q-1") == []
    assert await two.inbox.answer(G0, {letter_id: STALE}, None)  # the first answer is kept
    for _ in range(2):
        assert await two.other.inbox.post(G0, letter_id, ONE) == SETTLED
    assert await two.inbox.letters(G0) == []
    assert not_told == []


async def test_what_is_of_an_epoch_that_has_ended_is_not_put_in(two: Gateways) -> None:
    """R15, R21: the cursor's epoch is stored beside it. Letters of an earlier epoch go, and earlier
    answers stay."""
    done, left = ASKER + "1", ASKER + "2"
    assert await two.inbox.post(G0, done, ONE) is None
    assert await two.inbox.post(G0, left, ONE) is None
    await two.inbox.answer(G0, {done: SETTLED}, None)
    await two.store.own(G0, token=b"next", assignment=2)
    assert await two.other.inbox.post(G0, done, ONE) == SETTLED
    for letter_id in (left, ASKER + "3"):
        with pytest.raises(Fenced, match="epoch 1 has ended"):
            await two.other.inbox.post(G0, letter_id, ONE)
    assert await two.inbox.letters(G0) == []


async def test_an_owner_of_before_answers_only_what_is_durable(two: Gateways) -> None:
    """R15. [A paused owner wakes up and says that it has prolonged a lease.]"""
    letter_id = ASKER + "1"
    extend = Letter(verb="extend", epoch=1, runs=[(1, 0, 0)], seconds=5.0)
    assert await two.inbox.post(G0, letter_id, extend) is None
    assert await two.inbox.answer(G0, {ASKER + "9": SETTLED}, 1)
    await two.other.own(G0, token=b"next", assignment=2)
    assert not await two.inbox.answer(G0, {letter_id: SETTLED}, 1)
    assert [name for name, _ in await two.inbox.letters(G0)] == [letter_id]
    with pytest.raises(Fenced):
        await two.other.inbox.post(G0, letter_id, extend)
    assert await two.inbox.answer(G0, {ASKER + "2": SETTLED}, None)


async def test_a_decision_is_put_in_and_answered_as_a_settlement_is(two: Gateways) -> None:
    """R24: settlements and decisions share one inbox; the epoch counts for both."""
    letter = Unpark(verb="skip", epoch=1, keys=[("00c0ffee00c0ffee", 1763690400123, 4)])
    assert await two.other.inbox.post(G0, ASKER + "1", letter) is None
    ((_, text),) = await two.inbox.letters(G0)
    assert letter_of(text) == letter
    await two.inbox.answer(G0, {ASKER + "1": PERHAPS}, None)
    assert await two.other.inbox.post(G0, ASKER + "1", letter) == PERHAPS
    await two.store.own(G0, token=b"next", assignment=2)
    with pytest.raises(Fenced):
        await two.other.inbox.post(G0, ASKER + "2", letter)


async def test_of_a_group_that_is_gone_there_is_no_inbox(two: Gateways) -> None:
    """R1."""
    assert await two.inbox.post(G0, ASKER + "1", ONE) is None
    await two.store.drop_group("g-1", "q-1")
    with pytest.raises(Refused, match="group_not_found"):
        await two.inbox.post(G0, ASKER + "1", ONE)
    assert not await two.inbox.answer(G0, {ASKER + "1": SETTLED}, None)
    assert await two.inbox.letters(G0) == []


@pytest.mark.parametrize("bound", ["INBOX_LETTERS_MAX", "INBOX_BYTES_MAX"])
async def test_an_inbox_is_bounded_in_letters_and_in_bytes(
    two: Gateways, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    """P9: on both sides, for each place by itself. A letter that is in the inbox already is not
    refused."""
    size = len(ONE.encode())
    monkeypatch.setattr(limits, bound, 3 if bound == "INBOX_LETTERS_MAX" else 3 * size)
    ids = [f"{ASKER}{number}" for number in range(4)]
    for letter_id in ids[:3]:
        assert await two.inbox.post(G0, letter_id, ONE) is None
    with pytest.raises(Refused, match="overloaded"):
        await two.inbox.post(G0, ids[3], ONE)
    assert await two.inbox.post(G0, ids[0], ONE) is None
    assert await two.inbox.post(G1, ids[3], ONE) is None
    assert len(await two.inbox.letters(G0)) == 3
    await two.inbox.answer(G0, {ids[1]: STALE}, None)
    assert await two.inbox.post(G0, ids[3], ONE) is None
    if bound == "INBOX_BYTES_MAX":
        with pytest.raises(Refused, match="overloaded"):
            await two.inbox.post(G1, ids[0], wide())


def wide() -> Letter:
    """Return a letter that is larger than three small ones."""
    return Letter(verb="ack", epoch=1, runs=[(push, push, push) for push in range(100)])


async def test_answers_are_kept_up_to_a_bound(
    two: Gateways, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P9: the oldest go. A letter whose answer has gone is judged again, which is safe."""
    monkeypatch.setattr(limits, "ANSWERS_KEPT_MAX", 2)
    ids = [f"{ASKER}{number}" for number in range(3)]
    for letter_id in ids:
        assert await two.inbox.post(G0, letter_id, ONE) is None
        await two.inbox.answer(G0, {letter_id: SETTLED}, None)
    assert [await two.inbox.post(G0, letter_id, ONE) for letter_id in ids] == [
        None, SETTLED, SETTLED,
    ]  # fmt: skip


async def test_what_nobody_takes_expires(
    served: Gateways, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P9: letters of dead askers, answers for them, and the list of places."""
    before = set(node.ask("KEYS", "{q-1}:*"))
    for kept_s in (limits.LETTERS_KEPT_S, 0.05):
        monkeypatch.setattr(limits, "LETTERS_KEPT_S", kept_s)
        for letter_id in (ASKER + f"1 {kept_s}", ASKER + f"2 {kept_s}"):
            await served.inbox.post(G0, letter_id, ONE)
            await served.inbox.post(G1, letter_id, ONE)
        await served.inbox.answer(G0, {ASKER + f"1 {kept_s}": SETTLED}, None)
        if kept_s > 1:
            made = set(node.ask("KEYS", "{q-1}:*")) - before
            assert len(made) == 5  # two inboxes, the answers and their order, the places
            assert all(0 < node.ask("PTTL", key) <= kept_s * 1000 for key in made)
    async with asyncio.timeout(10):
        while set(node.ask("KEYS", "{q-1}:*")) != before:  # noqa: ASYNC110 (nobody tells)
            await asyncio.sleep(0.01)


async def test_with_its_group_or_queue_an_inbox_goes(served: Gateways, node: Node) -> None:
    """R1. A place that does not exist has no inbox."""
    for letter_id in (ASKER + "1", ASKER + "2"):
        await served.inbox.post(G0, letter_id, ONE)
    await served.inbox.answer(G0, {ASKER + "1": SETTLED}, None)
    await served.store.drop_group("g-1", "q-1")
    assert node.ask("KEYS", "{q-1}:i*:0:g-1") == []
    with pytest.raises(Refused, match="group_not_found"):
        await served.inbox.post(G0, ASKER + "3", ONE)
    assert not await served.inbox.answer(G0, {ASKER + "3": SETTLED}, None)
    await served.store.create_group("g-2", "q-1", ["earliest"] * 2)
    place = CursorPlace("g-2", P0)
    await served.store.own(place, token=TOKEN, assignment=1)
    await served.inbox.post(place, ASKER + "1", ONE)
    await served.store.drop_queue("q-1")
    assert [key for key in node.ask("KEYS", "{q-1}:*") if ":i" in key] == []


async def test_an_inbox_takes_letters_while_the_memory_is_full(
    served: Gateways, node: Node
) -> None:
    """R29: a full store still drains, through whichever gateway an ack comes."""
    node.ask("CONFIG", "SET", "maxmemory", "1")
    try:
        assert await served.inbox.post(G0, ASKER + "1", ONE) is None
        assert len(await served.inbox.letters(G0)) == 1
        assert await served.inbox.places("q-1") == [G0]
        assert await served.inbox.answer(G0, {ASKER + "1": SETTLED}, 1)
    finally:
        node.ask("CONFIG", "SET", "maxmemory", "0")


async def test_an_act_of_an_inbox_leaves_the_cursor_alone(two: Gateways) -> None:
    """R24: only the owner decides; only its cursor write settles."""
    before = await two.store.cursors("q-1", "g-1")
    await two.inbox.post(G0, ASKER + "1", ONE)
    await two.inbox.answer(G0, {ASKER + "1": SETTLED}, 1)
    assert await two.store.cursors("q-1", "g-1") == before
