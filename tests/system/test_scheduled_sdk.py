"""Scheduled messages from the Python SDK and the command, against a broker process."""

import asyncio
import json
import re
import shlex
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
import tocsin
import tocsin.blocking
from click.testing import CliRunner, Result
from tocsin.cli.main import cli
from tocsin.proto.connect_policy import Transport

from loadtests.server import Server
from tests.clients.test_readme import URL, example
from tests.layout.tree import text
from tests.system.talk import running

WAIT_S = 60.0
HOUR_S = 3600.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("broker")) as found:
        yield found


def run(server: Server, *arguments: str, given: str | None = None) -> Result:
    """Run the command `tocsin`, here, where the broker's address is known."""
    return CliRunner().invoke(cli, ["--url", server.url, *arguments], input=given)


@pytest.mark.parametrize("transport", ["websocket", "long-poll"])
async def test_a_scheduled_message_comes_when_it_is_due(
    server: Server, transport: Transport
) -> None:
    queue = f"due-{transport}"
    async with (
        asyncio.timeout(WAIT_S),
        tocsin.connect(server.url, transport=transport) as client,
    ):
        await client.create_queue(queue, partitions=1)
        async with client.subscribe(queue, group="g") as messages:
            at = datetime.now(UTC) + timedelta(seconds=0.5)
            later = await client.publish(queue, "later", key="k", deliver_at=at)
            now = await client.publish(queue, "now", key="k")
            assert (later.is_scheduled, later.offset, later.id) == (True, None, later.ticket)
            assert (now.is_scheduled, now.offset, now.ticket, now.due) == (False, 0, None, None)
            assert later.due is not None
            assert timedelta(0) <= later.due - at < timedelta(milliseconds=1)
            first = await anext(messages)
            await first.ack()
            second = await anext(messages)
            assert time.time() * 1000 >= (later.due_unix_ms or 0)
            assert (first.body, first.deliver_at_unix_ms) == ("now", None)
            assert (second.body, second.id) == ("later", later.ticket)
            assert second.deliver_at_unix_ms == later.due_unix_ms


async def test_a_time_of_a_publish_is_checked_before_it_is_sent(server: Server) -> None:
    async with tocsin.connect(server.url) as client:
        await client.create_queue("checked", partitions=1)
        now = datetime.now(UTC)
        with pytest.raises(tocsin.InvalidRequest, match="deliver_at has no time zone"):
            await client.publish("checked", 1, deliver_at=now.replace(tzinfo=None))
        with pytest.raises(tocsin.InvalidRequest, match="exclude each other"):
            await client.publish("checked", 1, deliver_at=now, delay_s=1)
        with pytest.raises(tocsin.InvalidRequest, match="delay_s must be a number"):
            await client.publish("checked", 1, delay_s=-1)
        with pytest.raises(tocsin.InvalidRequest, match="400 days"):
            await client.publish("checked", 1, delay_s=401 * 86_400)
        assert (await client.publish("checked", 1, delay_s=0)).offset == 0


async def test_scheduled_messages_are_listed_shown_moved_and_cancelled(server: Server) -> None:
    async with asyncio.timeout(WAIT_S), tocsin.connect(server.url) as client:
        await client.create_queue("calls", partitions=3)
        receipts = await client.publish_many(
            "calls",
            [
                {"body": n, "key": f"k{n % 2}", "id": f"é? {n}", "delay_s": HOUR_S - n}
                for n in range(5)
            ]
            + [tocsin.NewMessage(b"\x00", ttl_s=9, headers={"a": "b"}, delay_s=2 * HOUR_S)],
        )
        (again,) = await client.publish_many(
            "calls", [{"body": 0, "key": "k0", "id": "é? 0", "delay_s": 9}]
        )
        assert (again.duplicate, again.ticket, again.due) == (True, receipts[0].ticket, None)
        listed = await client.scheduled("calls", limit=2)
        assert [one.body for one in listed.messages] == [4, 3]
        assert listed.count == 6
        more = await client.scheduled("calls", after=listed.next)
        assert [one.body for one in more.messages] == [2, 1, 0, b"\x00"]
        assert more.next is None
        of_key = [one.id async for one in client.all_scheduled("calls", key="k1")]
        assert of_key == ["é? 3", "é? 1"]
        last = more.messages[-1]
        assert (last.key, last.is_binary, last.ttl_s, last.headers) == (None, True, 9, {"a": "b"})
        assert last.due == receipts[5].due
        assert last.id == receipts[5].ticket
        moved = await client.change_scheduled("calls", "é? 2", key="k0", delay_s=3 * HOUR_S)
        assert not moved.has_content
        assert moved.body is None
        shown = await client.scheduled_message("calls", moved.ticket)
        assert (shown.id, shown.body, shown.due) == ("é? 2", 2, moved.due)
        await client.change_scheduled("calls", "é? 2", key="k0", body=None, headers={"x": "y"})
        shown = await client.scheduled_message("calls", "é? 2", key="k0")
        assert (shown.body, shown.headers, shown.due) == (None, {"x": "y"}, moved.due)
        assert shown.has_content
        cancelled = await client.cancel_scheduled("calls", "é? 2", key="k0")
        assert (cancelled.id, cancelled.due_unix_ms) == ("é? 2", moved.due_unix_ms)


async def test_what_is_wrong_with_an_id_is_a_typed_error(server: Server) -> None:
    async with asyncio.timeout(WAIT_S), tocsin.connect(server.url) as client:
        await client.create_queue("wrong", partitions=1)
        for key in ("a", "b"):
            await client.publish("wrong", 1, key=key, id="x", delay_s=HOUR_S)
        with pytest.raises(tocsin.Conflict, match="ambiguous"):
            await client.cancel_scheduled("wrong", "x")
        with pytest.raises(tocsin.NotFound, match="id_unknown"):
            await client.cancel_scheduled("wrong", "x", key="c")
        await client.cancel_scheduled("wrong", "x", key="a")
        with pytest.raises(tocsin.Conflict, match="cancelled"):
            await client.cancel_scheduled("wrong", "x", key="a")
        with pytest.raises(tocsin.Conflict, match="cancelled"):
            await client.publish("wrong", 1, key="a", id="x")
        with pytest.raises(tocsin.InvalidRequest, match="a change names a time, or a body"):
            await client.change_scheduled("wrong", "x", key="b")
        async with client.subscribe("wrong", group="g") as messages:
            await client.change_scheduled("wrong", "x", key="b", delay_s=0)
            assert (await anext(messages)).id == "x"
        with pytest.raises(tocsin.Conflict, match="already_due"):
            await client.change_scheduled("wrong", "x", key="b", delay_s=1)
        with pytest.raises(tocsin.QueueNotFound):
            await client.scheduled("nowhere")
        slashed = await client.publish("wrong", 1, id="a/b", delay_s=HOUR_S)
        with pytest.raises(tocsin.InvalidRequest, match="name the message by its ticket"):
            await client.cancel_scheduled("wrong", "a/b")
        assert (await client.cancel_scheduled("wrong", slashed.ticket or "")).id == "a/b"


async def test_a_body_that_python_cannot_hold_hides_no_other(server: Server) -> None:
    async with tocsin.connect(server.url) as client:
        await client.create_queue("huge", partitions=1)
        await client.publish("huge", msgspec.Raw(b"1e400"), delay_s=HOUR_S)
        await client.publish("huge", 1, delay_s=2 * HOUR_S)
        huge, other = (await client.scheduled("huge")).messages
        assert (huge.body_bytes, other.body) == (b"1e400", 1)
        with pytest.raises(tocsin.UndecodableBody):
            _ = huge.body


def test_the_blocking_client_has_the_same_calls(server: Server) -> None:
    with tocsin.blocking.connect(server.url) as client:
        client.create_queue("blocking", partitions=1)
        receipt = client.publish("blocking", 1, id="x", delay_s=HOUR_S)
        assert receipt.is_scheduled
        at = datetime.now(UTC) + timedelta(days=1)
        client.change_scheduled("blocking", "x", deliver_at=at, body=2)
        assert client.scheduled_message("blocking", "x").body == 2
        assert [one.id for one in client.scheduled("blocking").messages] == ["x"]
        assert [one.id for one in client.all_scheduled("blocking")] == ["x"]
        assert client.cancel_scheduled("blocking", "x").ticket == receipt.ticket
        assert client.scheduled("blocking").count == 0


def test_the_command_schedules_lists_moves_and_cancels(server: Server) -> None:
    assert run(server, "queue", "create", "notes", "--partitions", "1").exit_code == 0
    assert run(server, "scheduled", "list", "notes").output == ("Nothing is scheduled in notes.\n")
    publish = ("publish", "notes", '"call back"', "--key", "user-7", "--id", "31")
    done = run(server, *publish, "--delay", "2h")
    assert done.output.startswith("Scheduled for 20")
    assert "(in 2h)" in done.output or "(in 1h 59m)" in done.output
    assert "Scheduled before" in run(server, *publish, "--delay", "2h").output
    at = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    done = run(server, "publish", "notes", "1", "--at", at, "--json")
    ticket = json.loads(done.output)["ticket"]
    listed = run(server, "scheduled", "list", "notes").output.splitlines()
    assert listed[0].split() == ["DUE", "IN", "KEY", "ID", "BYTES", "BODY"]
    assert listed[1].endswith('"call back"')
    assert ticket in listed[2]
    as_json = run(server, "scheduled", "list", "notes", "--json", "--key", "user-7")
    (one,) = map(json.loads, as_json.output.splitlines())
    assert (one["id"], one["key"], one["body"]) == ("31", "user-7", "call back")
    assert "There are more: 2 messages" in run(
        server, "scheduled", "list", "notes", "-n", "1"
    ).output  # fmt: skip
    named = ("notes", "31", "--key", "user-7")
    assert "is due at" in run(server, "scheduled", "move", *named, "--delay", "1d").output
    shown = run(server, "scheduled", "show", *named).output
    assert "user-7" in shown
    assert "call back" in shown
    assert "Cancelled 31" in run(server, "scheduled", "cancel", *named).output


def test_the_command_says_what_to_do_about_an_id(server: Server) -> None:
    run(server, "queue", "create", "errors", "--partitions", "1")
    for key in ("a", "b"):
        run(server, "publish", "errors", "1", "--key", key, "--id", "x", "--delay", "1h")
    several = run(server, "scheduled", "cancel", "errors", "x")
    assert (several.exit_code, "Give --key." in several.output) == (1, True)
    unknown = run(server, "scheduled", "show", "errors", "y")
    assert (unknown.exit_code, "`tocsin scheduled list`" in unknown.output) == (1, True)
    run(server, "scheduled", "cancel", "errors", "x", "--key", "a")
    gone = run(server, "scheduled", "move", "errors", "x", "--key", "a", "--delay", "1h")
    assert (gone.exit_code, "publish it with another id" in gone.output) == (1, True)


def test_the_example_of_the_readme_runs(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    code = example("cancel_scheduled")
    program = compile(code.replace(URL, server.url), "README.md", "exec")
    exec(program, {"__name__": "__main__"})
    published, listed = capsys.readouterr().out.splitlines()
    assert "-t0 20" in published
    assert listed.endswith(" user-7 call")


def test_lines_are_scheduled_too(server: Server, tmp_path: Path) -> None:
    run(server, "queue", "create", "lines", "--partitions", "1")
    path = tmp_path / "lines"
    path.write_text("one\ntwo\n")
    done = run(server, "publish", "lines", "--file", str(path), "--delay", "1h")
    assert done.exit_code == 0, done.output
    listed = run(server, "scheduled", "list", "lines", "--json").output.splitlines()
    assert [json.loads(line)["body"] for line in listed] == ["one", "two"]


async def test_the_example_of_the_page_runs(server: Server) -> None:
    """docs/scheduling.md, as it stands there."""
    page = text(Path("docs/scheduling.md"))
    (code,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(code, "docs/scheduling.md", "exec"), names)
    ticket = await names["remind"](server.url)
    shell = re.findall(r"^```sh\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[0]
    for line in shell.replace("\\\n", "").splitlines():
        if line.startswith("tocsin "):
            done = await asyncio.to_thread(run, server, *shlex.split(line)[1:])
            assert done.exit_code == 0, done.output
    async with tocsin.connect(server.url) as client:
        waiting = [one async for one in client.all_scheduled("reminders")]
    assert [one.body for one in waiting] == [{"text": "and Ben"}, {"text": "call Ann"}]
    assert all(one.ticket != ticket for one in waiting)
