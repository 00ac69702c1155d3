"""What operators do by `tocsin queue`, by `tocsin dead-letters` and by the SDK, over the whole
broker on a socket."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import tocsin
from click.testing import CliRunner, Result
from tocsin.cli.main import cli

from gateway.auth.auth import Authenticator
from gateway.publish.tombstones import REASON
from gateway.rest.app import Application
from metadata.catalog import ANYBODY, Queue
from push import limits
from runtime.listener import Listener, bind
from tests.gateway.operator.test_upkeep import die
from tests.histories.house import House, message
from tests.histories.test_deleted_queues import arrives, deleted

Run = Callable[..., Awaitable[Result]]


@pytest.fixture
async def queue(house: House) -> Queue:
    """With a group `billing`, and four messages of the keys user-7 and user-8."""
    queue = await house.queue(attempts_max=1)
    await house.group(queue)
    await house.publish(queue, [message(n, f"user-{7 + n % 2}", id=f"i{n}") for n in range(4)])
    return queue


@pytest.fixture
async def url(house: House) -> AsyncIterator[str]:
    """Where the house is served."""
    bound = bind("127.0.0.1", 0)
    listener = Listener(Application(house.broker, Authenticator(None)), bound)
    port = bound.getsockname()[1]
    await listener.start()
    yield f"http://127.0.0.1:{port}"
    await listener.finish(1)


@pytest.fixture
def run(url: str) -> Run:
    """The command, in a thread: the socket is answered by this loop."""

    async def command(*arguments: str, given: str | None = None) -> Result:
        invoke: Callable[..., Result] = CliRunner().invoke
        return await asyncio.to_thread(
            invoke, cli, ["--url", url, *arguments], given, env={"TOCSIN_TOKEN": None}
        )

    return command


@pytest.fixture
async def http(url: str) -> AsyncIterator[tocsin.Http]:
    """The SDK's HTTP interface."""
    async with tocsin.Http(url) as http:
        yield http


# --- The commands -------------------------------------------------------------------------------


async def test_a_queue_is_paused_and_resumed(house: House, queue: Queue, run: Run) -> None:
    done = await run("queue", "pause", "orders")
    assert (done.exit_code, done.stdout) == (
        0, "Queue orders is paused. `tocsin queue resume orders` resumes it.\n",
    )  # fmt: skip
    assert house.find().paused
    assert "no deliveries until" in (await run("queue", "show", "orders")).output
    assert "orders (paused)" in (await run("queue", "list")).output
    done = await run("queue", "resume", "orders", "--json")
    assert json.loads(done.stdout)["paused"] is False
    assert not house.find().paused
    assert "paused" not in (await run("queue", "show", "orders")).output


async def test_a_purge_asks_for_the_name(
    house: House, queue: Queue, run: Run, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a terminal it wants --yes; another name deletes nothing."""
    refused = await run("queue", "purge", "orders")
    assert (refused.exit_code, "Give --yes" in refused.output) == (2, True)
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda _: True, raising=False)
    refused = await run("queue", "purge", "orders", given="others\n")
    assert (refused.exit_code, "Nothing was done" in refused.output) == (1, True)
    assert "deletes all messages in orders, 4 messages, at" in refused.output
    refused = await run("queue", "purge", "orders", "--group", "billing", given="others\n")
    assert "all that the group billing has not settled in orders, 4 messages, at" in refused.output
    group = house.broker.metadata.find_group(ANYBODY, queue, "billing")
    assert await house.lag(queue, group) == 4
    done = await run("queue", "purge", "orders", "--group", "billing", given="orders\n")
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (
        0,
        f"Deleted 4 messages of orders at {url}.",
    )
    assert await house.lag(queue, group) == 0
    done = await run("queue", "purge", "orders", "--yes", "--json")
    assert json.loads(done.stdout) == {"messages": 4}
    assert "No messages." in (await run("queue", "peek", "orders")).output


async def test_messages_are_shown(queue: Queue, run: Run) -> None:
    shown = (await run("queue", "peek", "orders", "--group", "billing", "-n", "3")).output
    head, *rows = shown.splitlines()
    assert head.split() == [
        "PARTITION", "OFFSET", "PUBLISHED", "KEY", "STATE", "ATTEMPTS", "BODY",
    ]  # fmt: skip
    assert [row.split()[-4:] for row in rows] == [
        ["user-7", "ready", "0", "0"], ["user-8", "ready", "0", "1"], ["user-7", "ready", "0", "2"],
    ]  # fmt: skip
    keyed = await run("queue", "peek", "orders", "--key", "user-8", "--offset", "2", "--json")
    (line,) = map(json.loads, keyed.stdout.splitlines())
    assert (line["body"], line["id"], "state" in line) == (3, "i3", False)


async def test_a_body_cannot_play_with_the_terminal(house: House, run: Run) -> None:
    """P12: control characters and new lines of a key are blanks, and what is long is cut."""
    queue = await house.queue()
    await house.publish(queue, [message("x" * 100, "a\x1b[2Jb\n"), message(0, "k" * 50)])
    output = (await run("queue", "peek", "orders")).output
    assert "\x1b" not in output
    assert len(output.splitlines()) == 3
    assert "a [2Jb" in output
    assert "k" * 39 + "…" in output
    assert '"' + "x" * 58 + "…" in output


async def test_dead_letters_are_listed_and_sent_back(house: House, queue: Queue, run: Run) -> None:
    assert (await run("dead-letters", "list", "orders")).stdout == "orders has no dead letters.\n"
    await die(house, queue, 3)
    head, *rows = (await run("dead-letters", "list", "orders")).stdout.splitlines()
    assert head.split()[:4] == ["DIED", "REASON", "ATTEMPTS", "GROUP"]
    assert [row.split()[-7:] for row in rows] == [
        ["exhausted", "1", "billing", f"user-{7 + n % 2}", f"i{n}", "declined", str(n)]
        for n in range(3)
    ]
    short = (await run("dead-letters", "list", "orders", "--limit", "2")).output
    assert short.splitlines()[-1] == "There are more. Raise --limit to see them."
    shown = await run("dead-letters", "list", "orders", "--key", "user-8", "--json")
    (line,) = map(json.loads, shown.stdout.splitlines())
    assert (line["id"], line["origin"]["group"], line["nack"]) == ("i1", "billing", "declined")
    done = await run("dead-letters", "redrive", "orders", "--key", "user-8")
    assert (done.exit_code, done.stdout) == (0, "Sent back 1 message.\n")
    done = await run("dead-letters", "redrive", "orders", "--reason", "expired", "--json")
    assert json.loads(done.stdout) == {"messages": 0}
    assert (await run("dead-letters", "redrive", "orders", "-n", "1")).output.startswith(
        "Sent back 1"
    )
    assert (await run("dead-letters", "redrive", "orders")).stdout == "Sent back 1 message.\n"
    assert (await run("dead-letters", "list", "orders")).stdout == "orders has no dead letters.\n"


async def test_a_redrive_that_is_refused_says_how_far_it_came(
    house: House, queue: Queue, run: Run
) -> None:
    await die(house, queue, 3)
    await house.broker.upkeep.purge(ANYBODY, queue, None)
    await house.queue(attempts_max=1, messages_max=2)
    done = await run("dead-letters", "redrive", "orders")
    assert done.exit_code == 1
    assert "2 messages went back, and then" in done.output
    assert (await run("dead-letters", "list", "orders")).output.count("exhausted") == 1


async def test_what_is_wrong_is_said_in_a_sentence(queue: Queue, run: Run) -> None:
    """P12."""
    for arguments, code, text in (
        (("queue", "pause", "other"), 1, "`tocsin queue create` creates it"),
        (("queue", "purge", "orders", "--group", "other", "--yes"), 1, "no group 'other'"),
        (("queue", "peek", "orders", "--offset", "3"), 2, "needs --partition or --key"),
        (("queue", "peek", "orders", "--partition", "9"), 1, "has no partition 9"),
        (("queue", "peek", "orders", "-n", "0"), 2, "--limit"),
        (("dead-letters", "list", "other"), 1, "queue_not_found"),
        (("dead-letters", "redrive", "orders", "--reason", "bored"), 2, "--reason"),
    ):
        result = await run(*arguments)
        assert (result.exit_code, text in result.output) == (code, True), result.output


@pytest.mark.parametrize(
    "verb",
    ["queue pause", "queue resume", "queue purge", "queue peek", "dead-letters list",
     "dead-letters redrive"],
)  # fmt: skip
async def test_every_verb_teaches_with_examples(run: Run, verb: str) -> None:
    shown = (await run(*verb.split(), "--help")).output
    assert f"tocsin {verb} orders" in shown
    assert "--json" in shown


# --- The SDK ------------------------------------------------------------------------------------


async def test_the_sdk_pauses_purges_and_peeks(
    house: House, queue: Queue, http: tocsin.Http
) -> None:
    assert (await http.pause_queue("orders"))["paused"] is True
    assert (await http.resume_queue("orders"))["paused"] is False
    first, *_ = found = await http.peek("orders", group="billing", limit=3)
    assert [one.body for one in found] == [0, 1, 2]
    assert (first.id, first.key, first.offset, first.state, first.attempts) == (
        "i0", "user-7", 0, "ready", 0,
    )  # fmt: skip
    assert [one.offset for one in await http.peek("orders", key="user-8", offset=2)] == [3]
    assert await http.purge_queue("orders", group="billing") == 4
    assert await http.purge_queue("orders", group=None) == 4
    assert await http.peek("orders") == []
    with pytest.raises(tocsin.GroupNotFound):
        await http.purge_queue("orders", group="other")
    with pytest.raises(tocsin.InvalidRequest, match="is not a name"):
        await http.pause_queue("..")


async def test_a_peek_goes_from_answer_to_answer(
    house: House, queue: Queue, http: tocsin.Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LOOK_ANSWER_BYTES_MAX", 1)
    assert [one.offset for one in await http.peek("orders", limit=3)] == [0, 1, 2]
    assert [one.offset for one in await http.peek("orders")] == [0, 1, 2, 3]


async def test_the_sdk_lists_dead_letters_and_sends_them_back(
    house: House, queue: Queue, http: tocsin.Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over several answers of the broker."""
    await die(house, queue, 4)
    monkeypatch.setattr(limits, "LOOK_ANSWER_BYTES_MAX", 1)
    found = [letter async for letter in http.dead_letters("orders")]
    assert [(letter.id, letter.body, letter.reason) for letter in found] == [
        (f"i{n}", n, "exhausted") for n in range(4)
    ]
    assert (found[1].origin.partition, found[1].origin.offset, found[1].nack) == (0, 1, "declined")
    monkeypatch.setattr("tocsin.api.admin.PER_CALL_MAX", 1)
    told: list[int] = []
    assert await http.redrive_dead_letters("orders", key="user-7", progress=told.append) == 2
    assert (told, await http.redrive_dead_letters("orders", limit=1)) == ([1, 2], 1)
    assert await http.redrive_dead_letters("orders") == 1
    assert [letter async for letter in http.dead_letters("orders")] == []


async def test_letters_of_a_queue_that_was_deleted_are_selected(house: House, run: Run) -> None:
    """[`--reason queue_deleted` was no reason.]"""
    await deleted(house)
    await arrives(house, [message("late", "k")])
    await house.queue()
    listed = await run("dead-letters", "list", "orders", "--reason", REASON)
    assert (listed.exit_code, REASON in listed.output) == (0, True), listed.output
    sent = await run("dead-letters", "redrive", "orders", "--reason", REASON)
    assert (sent.exit_code, sent.stdout) == (0, "Sent back 1 message.\n"), sent.output


async def test_the_sdk_decides_about_parked_keys(house: House, http: tocsin.Http) -> None:
    queue = await house.queue(on_exhausted="park", attempts_max=1)
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group)
    await house.publish(queue, [message(0, "a"), message(1, "b")])
    for place, _, _ in await session.take(2):
        consumer.nack([[*place, place[3]]], 0, None)
    await house.broker.cursor_writer.drain()
    found = await http.parked_keys("orders", "billing")
    assert (found["keys_parked"], {one["key"] for one in found["keys"]}) == (2, {"a", "b"})
    done = await http.decide_parked("orders", "billing", "skip", key="a")
    assert [one["key"] for one in done["keys"]] == ["a"]
    with pytest.raises(tocsin.Conflict):
        await http.decide_parked("orders", "billing", "skip", key="a")
    done = await http.decide_parked("orders", "billing", "release")
    assert [one["key"] for one in done["keys"]] == ["b"]
