"""Histories of settlements that reach another gateway than the owner's (R24). A pulls, so that it
owns everything, and B gets the acks. One real store of one engine is between them."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.delivery.remote_owner import OwnerClient, OwnerServer
from gateway.models import PulledMessage, PullSettled, WhichKey
from metadata.catalog import ANYBODY, Group, Queue
from push import limits
from push.errors import Refused, Unknown
from push.letters import ASKER_CHARS, PERHAPS, SETTLED, STALE, Inbox, Letter
from push.places import CursorPlace, Partition
from push.storage_port import CursorWrite
from storage.redis.store import RedisInbox
from tests.histories.house import delivery, eventually, message, numbered
from tests.histories.redis_gateways import Gateway, a_server, emptied
from tests.histories.test_pulling import bodies, pull
from tests.servers.node import Node


@pytest.fixture(scope="session")
def node() -> Iterator[Node]:
    """Server for all histories of this module. Kill -9 and power loss are not tested here."""
    with a_server() as started:
        yield started


@dataclass
class Two:
    """Two gateways, and a queue and a group that both know. A owns what is pulled."""

    a: Gateway
    b: Gateway
    queue: Queue
    group: Group

    @property
    def place(self) -> CursorPlace:
        """Return the place of partition 0."""
        return CursorPlace(self.group.group_id, Partition(self.queue.queue_id, 0))

    @property
    def inbox(self) -> Inbox:
        """Return the inbox as B sees it."""
        found = self.b.broker.storage.inbox
        assert found is not None
        return found

    @property
    def owner_server(self) -> OwnerServer:
        """Return the server through which A takes letters."""
        found = self.a.broker.owner_server
        assert found is not None
        return found

    async def pull(self, count: int = 10, wait_s: float = 2) -> list[PulledMessage]:
        """Pull through A."""
        return await pull(self.a, self.queue, self.group, count, wait_s)

    async def ack(self, *receipts: str) -> PullSettled:
        """Ack through B."""
        return await self.b.broker.pulls.ack(self.queue, self.group, list(receipts))

    async def lag(self) -> int:
        """Return the durable lag that A reports."""
        return await self.a.lag(self.queue, self.group)


Make = Callable[..., Awaitable[Two]]


@pytest.fixture
async def two(node: Node, folder: Path) -> AsyncIterator[Make]:
    """Factory of two gateways with their queue and group."""
    unexpected: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: unexpected.append(context))
    url = await emptied(node)
    houses: list[Gateway] = []

    async def make(partitions: int = 1, lease_s: float = 30) -> Two:
        for name in ("a", "b"):
            houses.append(Gateway(folder / name, url))
            await houses[-1].open()
        a, b = houses
        queue = await a.queue(partitions=partitions)
        group = await a.group(queue)
        await b.learn()
        # shorter than the catalog takes, which is how A's pulls come to know it
        settings_now = msgspec.structs.replace(group.settings, lease_s=lease_s)
        return Two(a, b, queue, msgspec.structs.replace(group, settings=settings_now))

    yield make
    for house in houses:
        await house.stop()
    assert not unexpected, unexpected


# --- Outcomes -----------------------------------------------------------------------------------


async def timely_ack(here: Two) -> PulledMessage:
    """Ack through B while A's lease lasts. The key is open again at once, and nothing comes again
    when the lease would have ended."""
    await here.a.publish(here.queue, numbered(2))
    (one,) = await here.pull(1)
    done = await here.ack(one.receipt)
    assert (done.settled, done.stale, done.invalid) == (1, [], [])
    behind = await here.pull(wait_s=0.4)
    assert bodies(behind) == [1], "the key stays closed"
    assert (await here.ack(behind[0].receipt)).settled == 1
    assert await here.pull(wait_s=0.8) == []
    assert await here.lag() == 0
    return one


async def test_an_ack_through_another_gateway_settles_at_the_owner(two: Make) -> None:
    """R24. [The ack through G2 is durable; G1's timer redelivers.] The owner after a restart knows
    it, too."""
    here = await two(lease_s=0.7)
    one = await timely_ack(here)
    done = await here.ack(one.receipt)  # settled again, under the same epoch (R21)
    assert (done.settled, done.stale) == (1, [])
    await here.a.restart()
    here.queue, here.group = await here.a.learn()
    assert await here.pull(wait_s=0.2) == []
    await eventually(lambda: here.a.broker.groups.runtimes[here.group.group_id].owned_partitions)
    assert (await here.ack(one.receipt)).stale == [one.receipt]


async def test_a_nack_through_another_gateway_returns_the_message_after_its_delay(
    two: Make,
) -> None:
    """Later messages of its key in the same pull return with it (R17)."""
    here = await two()
    await here.a.publish(here.queue, numbered(2))
    first, second = await here.pull()
    began = asyncio.get_running_loop().time()
    nack = here.b.broker.pulls.nack
    assert (await nack(here.queue, here.group, [first.receipt], 0.3)).settled == 1
    assert (await here.ack(second.receipt)).stale == [second.receipt]
    again = await here.pull()
    assert asyncio.get_running_loop().time() - began >= 0.3
    assert (bodies(again)[0], again[0].attempt) == (0, 2)


async def test_an_extend_through_another_gateway_prolongs_the_lease(two: Make) -> None:
    """R20."""
    here = await two(lease_s=0.3)
    await here.a.publish(here.queue, numbered(1))
    (one,) = await here.pull()
    extend = here.b.broker.pulls.extend
    assert (await extend(here.queue, here.group, [one.receipt], 30)).settled == 1
    assert await here.pull(wait_s=0.6) == []
    assert (await here.ack(one.receipt)).settled == 1


async def late_ack(here: Two) -> None:
    """Send the first ack through B after the lease has ended and the message was given again."""
    await here.a.publish(here.queue, numbered(1))
    (old,) = await here.pull()
    (new,) = await here.pull()
    assert new.attempt == 2
    done = await here.ack(old.receipt)
    assert await here.lag() == 1, "the next delivery is settled while it is worked on"
    assert (done.settled, done.stale) == (0, [old.receipt])
    owned = here.a.broker.groups.runtimes[here.group.group_id].owned_partitions[0]
    assert owned.delivery.leases.open_count == 1
    assert (await here.b.broker.pulls.extend(here.queue, here.group, [new.receipt], 9)).settled == 1
    assert (await here.ack(new.receipt)).settled == 1
    assert await here.lag() == 0


async def test_a_late_ack_through_another_gateway_settles_nothing_of_the_next_delivery(
    two: Make,
) -> None:
    """R21."""
    await late_ack(await two(lease_s=0.2))


@pytest.mark.parametrize(
    ("history", "found"),
    [(timely_ack, "the key stays closed"), (late_ack, "the next delivery is settled")],
)
async def test_a_gateway_that_settles_what_it_does_not_own_is_found_out(
    two: Make,
    monkeypatch: pytest.MonkeyPatch,
    history: Callable[[Two], Awaitable[object]],
    found: str,
) -> None:
    """Negative control of these histories: B writes the cursor itself, in A's name."""
    here = await two(lease_s=0.7)
    tokens: list[bytes] = []
    storage = here.a.broker.storage
    own = storage.own

    async def owned(place: CursorPlace, *, token: bytes, **named: Any) -> Any:
        tokens.append(token)
        return await own(place, token=token, **named)

    async def ask(_: OwnerClient, place: CursorPlace, letter: Letter) -> str:
        write = CursorWrite(place, letter.epoch, tokens[-1], settled=((0, 0),))
        (written,) = await here.b.broker.storage.write_cursors([write])
        assert not written.fenced
        return SETTLED * len(letter.deliveries())

    monkeypatch.setattr(storage, "own", owned)
    monkeypatch.setattr(OwnerClient, "ask", ask)
    with pytest.raises(AssertionError, match=found):
        await history(here)


async def test_receipts_of_one_request_go_to_each_partition_and_are_answered_in_their_order(
    two: Make,
) -> None:
    """A single answer covers valid receipts, ended ones, and texts that are no receipts."""
    here = await two(partitions=4)
    await here.a.publish(here.queue, [message(n, f"k{n}") for n in range(40)])
    pulled: list[PulledMessage] = []
    while len(pulled) < 40:
        pulled += await here.pull(50)
    assert {one.partition for one in pulled} == {0, 1, 2, 3}
    gone, *rest = pulled
    await here.a.broker.pulls.nack(here.queue, here.group, [gone.receipt], 30)
    receipts = [one.receipt for one in [*rest[:20], gone, *rest[20:]]]
    mixed = [*receipts[:10], "no receipt", *receipts[10:]]
    done = await here.b.broker.pulls.nack(here.queue, here.group, mixed, 30)
    assert (done.settled, done.stale, done.invalid) == (39, [gone.receipt], ["no receipt"])
    assert (await here.ack(*receipts)).settled == 40  # none was given again since (R21)
    assert await here.lag() == 0


# --- Asking again -------------------------------------------------------------------------------


def letter_of(one: PulledMessage, two: Two, verb: Any = "ack") -> Letter:
    """Return a letter about this one message."""
    receipt = two.a.broker.pulls._receipts.decode(
        two.queue.queue_id, two.group.group_id, one.receipt
    )
    assert receipt is not None
    run = (receipt.push, receipt.offset, receipt.offset)
    return Letter(verb=verb, epoch=receipt.epoch, runs=[run])


async def comes_to(ask: Callable[[], Awaitable[object]], *, something: bool) -> None:
    """Wait until the answer is something, or nothing. No notice reports it."""
    async with asyncio.timeout(10):
        while bool(await ask()) != something:  # noqa: ASYNC110 (nobody tells)
            await asyncio.sleep(0.005)


async def answered(inbox: Inbox, place: CursorPlace, letter_id: str, letter: Letter) -> str:
    """Put the letter into the inbox until it is answered."""
    async with asyncio.timeout(10):
        while True:
            said = await inbox.post(place, letter_id, letter)
            if said is not None:
                return said
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("verb", ["ack", "nack"])
async def test_what_is_asked_twice_is_judged_once_and_answered_twice(two: Make, verb: str) -> None:
    """Both have one id. This holds for a nack too, which would be stale if it were judged again."""
    here = await two()
    await here.a.publish(here.queue, numbered(1))
    (one,) = await here.pull()
    letter = letter_of(one, here, verb)
    place, inbox = here.place, here.inbox
    said = await asyncio.gather(*(answered(inbox, place, "a" * 32, letter) for _ in range(4)))
    assert said == [SETTLED] * 4
    assert await answered(inbox, place, "a" * 32, letter) == SETTLED
    tally = here.a.broker.groups.runtimes[here.group.group_id].owned_partitions[0].delivery.tally
    assert (tally.settled, tally.nacked) == ((1, 0) if verb == "ack" else (0, 1))
    if verb == "nack":
        assert await answered(inbox, place, "b" * 32, letter) == STALE


async def test_a_letter_that_was_read_before_its_answer_is_not_judged_again(
    two: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R21: m is nacked, and m+1 returns with it. An ack of m+1, m finds m+1 stale and settles m. A
    slow look at the inbox, or one after a failover, finds the letter once more. If it were judged
    now, it would settle m+1, although its consumer was told that it comes again."""
    here = await two()
    await here.a.publish(here.queue, numbered(2))
    first, second = await here.pull()
    assert (await here.b.broker.pulls.nack(here.queue, here.group, [first.receipt], 30)).settled
    real, read, returned = RedisInbox.letters, list[tuple[str, bytes]](), 0

    async def letters(self: RedisInbox, place: CursorPlace) -> list[tuple[str, bytes]]:
        nonlocal returned
        found = await real(self, place)
        if found:
            read.extend(found)
            return found
        returned += len(read)
        return read

    monkeypatch.setattr(RedisInbox, "letters", letters)
    done = await here.ack(second.receipt, first.receipt)
    assert (done.settled, done.stale) == (1, [second.receipt])
    here.owner_server.came(here.place)
    await eventually(lambda: returned and not here.owner_server._taking)
    assert bodies(await here.pull()) == [1]


async def test_an_answer_that_did_not_reach_the_inbox_is_given_again_and_not_judged_again(
    two: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R5: The first answer of the owner is lost on its way. The nack has counted all the same."""
    here = await two()
    await here.a.publish(here.queue, numbered(1))
    (one,) = await here.pull()
    real, calls = RedisInbox.answer, 0

    async def answer(*args: Any) -> bool:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise Unknown("the answer was lost")
        return await real(*args)

    monkeypatch.setattr(RedisInbox, "answer", answer)
    monkeypatch.setattr(limits, "LETTER_AGAIN_S", 0.05)
    nack = here.b.broker.pulls.nack
    assert (await nack(here.queue, here.group, [one.receipt], 30)).settled == 1
    assert calls >= 2


@pytest.fixture(params=["on_letter", "on_answer"])
def deaf(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Suppress the notices of arrivals in an inbox."""
    monkeypatch.setattr(RedisInbox, request.param, lambda *_: None)
    monkeypatch.setattr(limits, "LETTERS_LOOK_S", 0.05)
    monkeypatch.setattr(limits, "LETTER_AGAIN_S", 0.05)


@pytest.mark.usefixtures("deaf")
async def test_messages_between_gateways_may_be_lost(two: Make) -> None:
    """R10: The owner looks by itself, and the gateway that waits for an answer asks again."""
    here = await two()
    await here.a.publish(here.queue, numbered(1))
    (one,) = await here.pull()
    assert (await here.ack(one.receipt)).settled == 1


@pytest.mark.usefixtures("deaf")
async def test_messages_about_parked_keys_may_be_lost(two: Make) -> None:
    """R10: The same holds for them."""
    here = await two()
    await here.a.group(here.queue, "billing", on_exhausted="park", attempts_max=1)
    session, consumer = await here.a.subscribe(here.queue, (await here.a.learn())[1])
    await here.a.publish(here.queue, numbered(1))
    consumer.nack(delivery((await session.take(1))[0][0]), 0, None)
    await comes_to(lambda: here.b.broker.storage.parked(here.place), something=True)
    decided = await here.b.broker.parking.decide(
        here.queue, here.group, "retry", WhichKey(every=True)
    )
    assert len(decided.keys) == 1


# --- Dead owners --------------------------------------------------------------------------------


async def test_an_owner_that_does_not_answer_makes_an_honest_answer(
    two: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R5: It is unknown, within its time, and to be sent again. Over HTTP it is 503. Under a new
    owner it is stale, at once, and the message comes again."""
    monkeypatch.setattr(limits, "LETTER_DEADLINE_S", 0.4)
    here = await two()
    await here.a.publish(here.queue, numbered(1))
    (one,) = await here.pull()
    here.owner_server.close()  # frozen
    path = "/v1/queues/orders/groups/billing/ack"
    async with asyncio.timeout(4), here.b.http() as http:
        refused = await http.post(path, json={"receipts": [one.receipt]})
    problem = refused.json()
    assert (refused.status_code, problem["code"], problem["retry"]) == (503, "unknown", True)
    assert "partition 0" in problem["detail"]
    assert await here.lag() == 1

    monkeypatch.setattr(limits, "LETTER_DEADLINE_S", 20)
    await here.a.restart()
    here.queue, here.group = await here.a.learn()
    (again,) = await here.pull()
    async with asyncio.timeout(20), here.b.http() as http:
        stale = await http.post(path, json={"receipts": [one.receipt]})
        settled = await http.post(path, json={"receipts": [again.receipt]})
    assert (stale.status_code, stale.json()) == (200, {"settled": 0, "stale": [one.receipt]})
    assert settled.json() == {"settled": 1, "stale": []}


async def test_where_one_owner_is_silent_the_whole_request_is_unknown_and_may_be_sent_again(
    two: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A confirmed ack is of all of its receipts. Those that counted the first time count again."""
    monkeypatch.setattr(limits, "LETTER_DEADLINE_S", 0.4)
    here = await two(partitions=2)
    await here.a.publish(here.queue, [message(n, f"k{n}") for n in range(20)])
    pulled: list[PulledMessage] = []
    while len(pulled) < 20:
        pulled += await here.pull(50)
    receipts = [one.receipt for one in pulled]
    real = RedisInbox.letters

    async def letters(self: RedisInbox, place: CursorPlace) -> list[tuple[str, bytes]]:
        if place.partition.number == 1:
            raise Refused("storage_unavailable")
        return await real(self, place)

    monkeypatch.setattr(RedisInbox, "letters", letters)
    with pytest.raises(Unknown, match="partition 1"):
        await here.ack(*receipts)
    assert await here.lag() == sum(one.partition for one in pulled)
    monkeypatch.setattr(RedisInbox, "letters", real)
    monkeypatch.setattr(limits, "LETTER_DEADLINE_S", 20)
    assert (await here.ack(*receipts)).settled == 20
    assert await here.lag() == 0


async def test_what_another_epoch_gave_is_stale_at_once(
    two: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R15: The inbox is stored beside the cursor, which knows the epoch. No gateway is asked."""
    here = await two()
    await here.a.publish(here.queue, numbered(1))
    (old,) = await here.pull()
    here.owner_server.close()
    await here.a.broker.seek_group(ANYBODY, here.queue, "billing", "earliest")
    done = await here.ack(old.receipt)
    assert (done.settled, done.stale) == (0, [old.receipt])
    assert await here.inbox.letters(here.place) == []


async def test_letters_of_before_are_answered_stale_by_the_owner_of_now(two: Make) -> None:
    """Letters of a dead gateway do not pile up. The present owner of the place takes them out,
    judged by their own epoch."""
    here = await two()
    await here.a.publish(here.queue, numbered(1))
    (old,) = await here.pull()
    letter = letter_of(old, here)
    here.owner_server._closed = True  # it does not look for a while
    dead = "d" * ASKER_CHARS
    assert await here.inbox.post(here.place, dead + "1", letter) is None
    await here.a.broker.seek_group(ANYBODY, here.queue, "billing", "earliest")
    (new,) = await here.pull()
    here.owner_server._closed = False
    here.owner_server.came(here.place)
    await comes_to(lambda: here.inbox.letters(here.place), something=False)
    assert await here.inbox.post(here.place, dead + "1", letter) == STALE
    assert (await here.ack(new.receipt)).settled == 1


async def test_what_the_pulls_have_left_is_stale_and_nobody_waits_for_it(
    two: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R20, R24: A's pulls were idle and have drained, and no gateway has owned the place since. A
    knows that its epoch has ended, and says so."""
    monkeypatch.setattr(limits, "PULL_IDLE_S", 0.1)
    here = await two()
    await here.a.publish(here.queue, numbered(1))
    (one,) = await here.pull()
    assert (await here.ack(one.receipt)).settled == 1
    runtime = here.a.broker.groups.runtimes[here.group.group_id]
    await eventually(lambda: not runtime.members and not runtime.owned_partitions)
    for gateway in (here.a, here.b):
        done = await gateway.broker.pulls.ack(here.queue, here.group, [one.receipt])
        assert (done.settled, done.stale) == (0, [one.receipt])


async def test_what_is_for_an_owner_to_come_is_left_to_it(two: Make) -> None:
    """R15: A gives under epoch 1, and the letter is of a later one, which A may not know yet. It is
    neither judged nor called stale. Letters beside it are answered."""
    here = await two()
    await here.a.publish(here.queue, numbered(1))
    (one,) = await here.pull()
    later = Letter(verb="ack", epoch=2, runs=letter_of(one, here).runs)
    assert await here.inbox.post(here.place, "f" * 32, later) is None
    assert (await here.ack(one.receipt)).settled == 1
    assert [name for name, _ in await here.inbox.letters(here.place)] == ["f" * 32]


async def test_a_gateway_asks_no_more_at_a_time_than_it_may(
    two: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P9: This is tested on both sides of the bound. A refused letter was not put in."""
    monkeypatch.setattr(limits, "LETTERS_UNDER_WAY_MAX", 1)
    monkeypatch.setattr(limits, "LETTER_DEADLINE_S", 20)
    here = await two()
    await here.a.publish(here.queue, [message(n, f"k{n}") for n in range(2)])
    first, second = await here.pull()
    here.owner_server._closed = True
    acking = asyncio.ensure_future(here.ack(first.receipt))
    await comes_to(lambda: here.inbox.letters(here.place), something=True)
    with pytest.raises(Refused, match="overloaded"):
        await here.ack(second.receipt)
    here.owner_server._closed = False
    assert (await acking).settled == 1
    assert (await here.ack(second.receipt)).settled == 1


# --- Bounds and bad letters ---------------------------------------------------------------------


async def test_a_full_inbox_refuses_and_takes_more_when_there_is_room(
    two: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P9: This is tested on both sides of the bound. A refused letter changes nothing."""
    monkeypatch.setattr(limits, "INBOX_LETTERS_MAX", 2)
    monkeypatch.setattr(limits, "LETTER_DEADLINE_S", 5)
    here = await two()
    await here.a.publish(here.queue, [message(n, f"k{n}") for n in range(3)])
    pulled = await here.pull()
    here.owner_server._closed = True
    acks = [asyncio.ensure_future(here.ack(one.receipt)) for one in pulled]
    done, waiting = await asyncio.wait(acks, return_when=asyncio.FIRST_COMPLETED)
    (refused,) = done
    error = refused.exception()
    assert isinstance(error, Refused)
    assert (error.code.name, error.code.retry) == ("overloaded", True)
    here.owner_server._closed = False
    here.owner_server.came(here.place)
    assert [(await one).settled for one in waiting] == [1, 1]
    assert await here.lag() == 1
    assert (await here.ack(pulled[acks.index(refused)].receipt)).settled == 1


async def test_what_is_no_letter_is_passed_over_and_reported(
    two: Make, node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    """P12, P13: Valid letters in the same inbox are answered."""
    here = await two()
    await here.a.publish(here.queue, numbered(1))
    (one,) = await here.pull()
    key = f"{{{here.queue.queue_id}}}:in:0:{here.group.group_id}"
    node.ask("HSET", key, "x", "{", "y" * 32, '{"verb":"ack","epoch":1,"runs":[[1,0,99999999]]}')
    node.ask("HSET", key, "\xff\xfe", "\x00\xff", "z", '{"verb":"drop","epoch":1,"runs":[]}')
    with caplog.at_level(logging.WARNING, logger="tocsin.inbox"):
        assert (await here.ack(one.receipt)).settled == 1
        await eventually(lambda: node.ask("EXISTS", key) == 0)
    assert here.owner_server.unreadable_total == 4
    assert caplog.text.count("no letter") == 4


async def test_an_ack_waits_until_it_is_durable(two: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """R21: This holds for a confirmed ack, through whichever gateway. A repeated request is not
    answered sooner."""
    monkeypatch.setattr(limits, "LETTER_AGAIN_S", 0.02)
    here = await two()
    await here.a.publish(here.queue, numbered(1))
    (one,) = await here.pull()
    goes, asked = asyncio.Event(), asyncio.Event()
    real = here.a.broker.storage.write_cursors

    async def write_cursors(writes: Any) -> Any:
        asked.set()
        await goes.wait()
        return await real(writes)

    monkeypatch.setattr(here.a.broker.cursor_writer._storage, "write_cursors", write_cursors)
    acking = asyncio.ensure_future(here.ack(one.receipt))
    try:
        async with asyncio.timeout(10):
            await asked.wait()
        await asyncio.wait((acking,), timeout=0.2)
        assert not acking.done()
        assert await here.lag() == 1
    finally:
        goes.set()
    assert (await acking).settled == 1


# --- Owners that ended before they could say ----------------------------------------------------


async def test_an_ack_that_counted_as_its_owner_was_fenced_is_not_called_stale(
    two: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R5: The write took effect, the answer was lost, and others took A for dead."""
    here = await two()
    await here.a.publish(here.queue, numbered(1))
    (one,) = await here.pull()
    storage = here.a.broker.storage
    real = storage.write_cursors

    async def lost(writes: Sequence[CursorWrite]) -> Any:
        await real(writes)
        monkeypatch.setattr(storage, "write_cursors", real)
        owned_partitions[0].fenced()
        raise Unknown("the answer was lost")

    owned_partitions = here.a.broker.groups.runtimes[here.group.group_id].owned_partitions
    monkeypatch.setattr(storage, "write_cursors", lost)
    monkeypatch.setattr(limits, "LETTER_AGAIN_S", 2.0)
    asking = asyncio.create_task(here.ack(one.receipt))
    await eventually(lambda: 0 in owned_partitions and owned_partitions[0].delivery.epoch == 2)
    here.owner_server.came(here.place)  # before it is asked again
    with pytest.raises(Unknown):
        await asking
    assert await here.lag() == 0


async def test_an_ack_whose_answer_was_lost_with_its_epoch_is_not_called_stale(
    two: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The asker gets the newer epoch, and not what came before it."""

    async def answer(*_: Any) -> bool:
        raise Unknown("the answer was lost")

    monkeypatch.setattr(RedisInbox, "answer", answer)
    here = await two()
    await here.a.publish(here.queue, numbered(1))
    (one,) = await here.pull()
    asking = asyncio.create_task(here.ack(one.receipt))
    await comes_to(here.lag, something=False)
    await here.a.broker.seek_group(ANYBODY, here.queue, "billing", "earliest")
    await here.pull()
    with pytest.raises(Unknown, match="before it could say"):
        await asking
    assert (await here.ack(one.receipt)).stale == [one.receipt]  # a new request says so


async def test_letters_that_a_dead_owner_may_have_judged_are_looked_up(two: Make) -> None:
    """Settled messages were perhaps settled by them. The others were not, and never will be."""
    here = await two()
    await here.a.publish(here.queue, numbered(2))
    settled, left = await here.pull()
    here.owner_server._closed = True
    runs = [run for one in (settled, left) for run in letter_of(one, here).runs]
    letter = Letter(verb="ack", epoch=letter_of(left, here).epoch, runs=runs)
    assert await here.inbox.post(here.place, "d" * 32, letter) is None
    await here.a.broker.pulls.ack(here.queue, here.group, [settled.receipt])
    await here.a.restart()
    here.queue, here.group = await here.a.learn()
    (again,) = await here.pull()
    here.owner_server.came(here.place)
    await comes_to(lambda: here.inbox.letters(here.place), something=False)
    assert await here.inbox.post(here.place, "d" * 32, letter) == PERHAPS + STALE
    assert (await here.ack(again.receipt)).settled == 1
