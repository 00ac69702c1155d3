"""The `tocsin` command as its users meet it: in a process of its own, against a fake broker."""

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, NamedTuple, get_args

import click
import msgspec
import pytest
import tocsin
from click.testing import CliRunner
from tocsin.cli import main as command
from tocsin.cli.common import plural
from tocsin.cli.consume import WAITS_FOR
from tocsin.cli.durations import format_duration, parse_duration
from tocsin.cli.lines import LINE_BYTES_MAX, LineSplitter
from tocsin.cli.progress import Progress

from gateway.models import PartitionWaits
from gateway.wire import frames
from tests.clients.fake_broker import FakeBroker

SOURCE = Path(tocsin.__file__).parents[1]


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


async def start(broker: FakeBroker, *arguments: str) -> Process:
    """The command, in a process of its own, without a terminal."""
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", "from tocsin_command import main; main()", *arguments,
        stdin=PIPE, stdout=PIPE, stderr=PIPE,
        env={**os.environ, "TOCSIN_URL": broker.url, "PYTHONPATH": str(SOURCE)},
    )  # fmt: skip


async def tocsin_(broker: FakeBroker, *arguments: str, given: bytes = b"") -> Ended:
    """Run it to its end."""
    process = await start(broker, *arguments)
    async with asyncio.timeout(30):
        out, err = await process.communicate(given)
    assert b"Traceback" not in err, err.decode()
    return Ended(process.returncode or 0, out.decode(), err.decode())


async def test_a_queue_is_made_listed_and_shown(broker: FakeBroker) -> None:
    made = await tocsin_(
        broker, "queue", "create", "new", "--partitions", "4", "--retention", "1h 30m",
        "--on-exhausted", "park", "--lease", "90",
    )  # fmt: skip
    assert made == Ended(0, "Queue new is created, with 4 partitions.\n", "")
    _, _, settings = broker.calls[-1]
    assert settings == {
        "partitions": 4,
        "retention_s": 5400.0,
        "on_exhausted": "park",
        "lease_s": 90.0,
    }
    listed = await tocsin_(broker, "queue", "list")
    assert [line.split()[0] for line in listed.out.splitlines()] == ["QUEUE", "new", "orders"]
    as_json = await tocsin_(broker, "queue", "list", "--json")
    assert [json.loads(line)["name"] for line in as_json.out.splitlines()] == ["new", "orders"]
    shown = await tocsin_(broker, "queue", "show", "orders")
    assert "No groups." in shown.out


async def test_none_means_no_value_where_a_queue_is_made_as_where_it_is_changed(
    broker: FakeBroker,
) -> None:
    """[`create --dead-letter-queue none` named a queue `none`.]"""
    none = ("--dead-letter-queue", "none", "--message-ttl", "none")
    made = await tocsin_(broker, "queue", "create", "new", *none)
    assert made.code == 0, made.err
    assert broker.calls[-1][2] == {"dead_letter_queue": None, "message_ttl_s": None}


async def test_groups_are_made_sought_shown_and_deleted(broker: FakeBroker) -> None:
    await tocsin_(broker, "group", "create", "orders", "g", "--start", "latest")
    assert broker.calls[-1][2] == {"start": "latest"}
    assert (await tocsin_(broker, "group", "list", "orders")).out.split()[-4:] == list("g000")
    shown = await tocsin_(broker, "group", "show", "orders", "g")
    assert shown.out.splitlines()[0].split() == ["group", "g"]
    await tocsin_(broker, "group", "seek", "orders", "g", "0")
    assert broker.calls[-1][2] == {"to": {"offset": 0}}
    refused = await tocsin_(broker, "group", "delete", "orders", "g", given=b"n\n")
    assert (refused.code, "--yes" in refused.err) == (2, True)
    assert ("orders", "g") in broker.groups
    deleted = await tocsin_(broker, "group", "delete", "orders", "g", "--yes", "--json")
    assert (deleted.code, json.loads(deleted.out)) == (0, {"deleted": "g", "messages": 0})
    assert ("orders", "g") not in broker.groups


async def test_a_ticket_makes_an_address(broker: FakeBroker) -> None:
    """On stdout the address alone, so that a script can open it."""
    broker.ticket = "t-1"
    made = await tocsin_(broker, "ticket")
    assert made.out == f"{broker.url}/console#ticket=t-1\n"
    assert (made.code, made.err) == (0, "Good once, and for 30 seconds.\n")
    assert broker.calls[-1][:2] == ("POST", "/v1/tickets")
    as_json = await tocsin_(broker, "ticket", "--page", "demo", "--json")
    assert json.loads(as_json.out) == {"url": f"{broker.url}/demo#ticket=t-1", "ticket": "t-1"}
    assert (await tocsin_(broker, "ticket", "--page", "other")).code == 2


async def test_a_broker_without_a_token_needs_no_ticket(broker: FakeBroker) -> None:
    assert await tocsin_(broker, "ticket") == Ended(0, f"{broker.url}/console\n", "")


async def test_a_body_is_json_where_it_is_json(broker: FakeBroker) -> None:
    stored = await tocsin_(broker, "publish", "orders", ' {"total": 1.50}', "--key", "k")
    assert stored.code == 0
    assert "offset 0" in stored.out
    await tocsin_(broker, "publish", "orders", "hello", "--key", "k", "--header", "a=b=c")
    answer = await tocsin_(broker, "publish", "orders", "12", "--text", "--key", "k", "--json")
    assert json.loads(answer.out)["offset"] == 2
    messages = [message for _, _, message in broker.logs["orders"]]
    assert [bytes(m.body) for m in messages] == [b'{"total": 1.50}', b'"hello"', b'"12"']
    assert messages[1].headers == {"a": "b=c"}


async def test_lines_of_a_pipe_are_texts(broker: FakeBroker) -> None:
    done = await tocsin_(broker, "publish", "orders", "--key", "k", given="a\r\n\nü\nend".encode())
    assert broker.bodies("orders") == ["a", "", "ü", "end"]
    assert done.out.startswith("Published 4 messages in ")


async def test_a_pipe_is_published_as_it_comes(broker: FakeBroker) -> None:
    process = await start(broker, "publish", "orders")
    assert process.stdin is not None
    process.stdin.write(b"first\n")
    await broker.until(lambda: broker.bodies("orders") == ["first"])
    process.stdin.write(b"second\n")
    await broker.until(lambda: broker.bodies("orders") == ["first", "second"])
    process.stdin.close()
    out, err = await process.communicate()
    assert (process.returncode, err) == (0, b"")
    assert out.startswith(b"Published 2 messages")


async def test_a_file_of_json_lines_keeps_its_order_per_key(
    broker: FakeBroker, tmp_path: Path
) -> None:
    path = tmp_path / "orders.jsonl"
    rows = [{"n": n, "user": f"u{n % 7}", "order": n} for n in range(5000)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = await tocsin_(
        broker, "publish", "orders", "--file", str(path), "--json-lines",
        "--key-field", "user", "--id-field", "order", "--json",
    )  # fmt: skip
    assert json.loads(done.out)["published"] == 5000
    assert broker.bodies("orders") == rows
    assert {m.key for _, _, m in broker.logs["orders"]} == {f"u{n}" for n in range(7)}
    assert broker.logs["orders"][17][2].id == "17"


BAD = b'{"k":"a"}\nnot json\n{"k":"b"}\n\n{"x":1}\n[1]\n{"k":"c"}\n'


async def test_a_bad_line_stops_and_is_named(broker: FakeBroker) -> None:
    done = await tocsin_(broker, "publish", "orders", "--key-field", "k", given=BAD)
    assert done.code == 1
    assert "line 2: not JSON" in done.err
    assert broker.bodies("orders") == [{"k": "a"}]


async def test_bad_lines_are_skipped_each_with_its_number(broker: FakeBroker) -> None:
    done = await tocsin_(
        broker, "publish", "orders", "--key-field", "k", "--on-error", "skip", given=BAD
    )
    assert done.code == 1
    assert [line.split(":")[1] for line in done.err.splitlines()[:3]] == [
        " line 2", " line 5", " line 6",
    ]  # fmt: skip
    assert "3 lines could not be published" in done.err
    assert broker.bodies("orders") == [{"k": "a"}, {"k": "b"}, {"k": "c"}]


async def test_a_line_that_the_broker_refuses_is_named(broker: FakeBroker) -> None:
    broker.refuse(lambda message: "message_too_large" if bytes(message.body) == b"2" else None, 9)
    done = await tocsin_(broker, "publish", "orders", "--json-lines", given=b"1\n2\n3\n")
    assert done.code == 1
    assert "line 2: a message is larger" in done.err


async def test_consumed_messages_are_printed_then_acked(broker: FakeBroker) -> None:
    await tocsin_(broker, "publish", "orders", "--key", "k", given=b"a\nb\nc\n")
    done = await tocsin_(broker, "consume", "orders", "--group", "g", "--count", "2")
    assert done == Ended(0, "a\nb\n", "")
    assert len(broker.groups["orders", "g"].settled) == 2
    rest = await tocsin_(broker, "consume", "orders", "--group", "g", "--until-idle", "100ms")
    assert rest == Ended(0, "c\n", "")


@pytest.mark.parametrize("body", [b"1e400", b"1" * 4301, b'{"a":1e400}'], ids=len)
async def test_bodies_that_python_cannot_hold_are_printed_as_they_are(
    broker: FakeBroker, body: bytes
) -> None:
    """By all three, in both forms: printing decodes nothing."""
    text = body.decode()
    async with tocsin.connect(broker.url) as client:
        for key in "abcd":
            await client.publish("orders", msgspec.Raw(body), key=key)
    assert {bytes(m.body) for _, _, m in broker.logs["orders"]} == {body}
    consume = "consume", "orders", "--group", "g", "--count", "1"
    assert await tocsin_(broker, *consume) == Ended(0, f"{text}\n", "")
    assert f'"body":{text},' in (await tocsin_(broker, *consume, "--json")).out
    assert (await tocsin_(broker, "pull", "orders", "g", "-n", "1", "--ack")).out == f"{text}\n"
    pulled = await tocsin_(broker, "pull", "orders", "g", "-n", "1", "--ack", "--json")
    assert f'"body":{text},' in pulled.out
    read = await tocsin_(
        broker, "consume", "orders", "--read", "--start", "earliest", "--count", "1"
    )
    assert read.out == f"{text}\n"


async def test_consuming_as_json_tells_everything(broker: FakeBroker) -> None:
    await tocsin_(broker, "publish", "orders", '{"a": 1.50}', "--key", "k", "--id", "i")
    done = await tocsin_(broker, "consume", "orders", "--group", "g", "--count", "1", "--json")
    assert '"body":{"a": 1.50}' in done.out
    row = json.loads(done.out)
    assert {"key", "body", "offset", "partition", "id", "attempt"} <= set(row)
    assert (row["key"], row["id"], row["attempt"]) == ("k", "i", 1)


async def test_a_reader_prints_some_keys_and_settles_nothing(broker: FakeBroker) -> None:
    for key in "aba":
        await tocsin_(broker, "publish", "orders", key, "--key", key)
    done = await tocsin_(
        broker, "consume", "orders", "--read", "--keys", "a,x", "--start", "earliest",
        "--until-idle", "100ms",
    )  # fmt: skip
    assert done == Ended(0, "a\na\n", "")
    assert broker.received(frames.Ack) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_ends_consuming_cleanly(broker: FakeBroker, number: signal.Signals) -> None:
    process = await start(broker, "consume", "orders", "--group", "g")
    await broker.until(lambda: broker.received(frames.Subscribe))
    process.send_signal(number)
    out, err = await process.communicate()
    assert (process.returncode, out, err) == (128 + number, b"", b"")
    assert broker.received(frames.Unsubscribe) != []


async def test_what_a_closed_pipe_did_not_take_returns_to_the_group(broker: FakeBroker) -> None:
    lines = b"".join(b"%d %s\n" % (n, b"x" * 500) for n in range(2000))
    await tocsin_(broker, "publish", "orders", given=lines)
    process = await start(broker, "consume", "orders", "--group", "g")
    assert process.stdout is not None
    await process.stdout.readline()
    process.stdout._transport.close()  # type: ignore[attr-defined]  # as `head -1` does
    assert process.stderr is not None
    assert await process.stderr.read() == b""
    await process.wait()
    group = broker.groups["orders", "g"]
    await broker.until(lambda: not group.given)
    assert len(group.settled) + len(group.waiting) == 2000
    assert group.waiting


async def test_pulled_messages_are_printed_and_settled_if_asked(broker: FakeBroker) -> None:
    await tocsin_(broker, "publish", "orders", "--key", "k", given=b"a\nb\n")
    done = await tocsin_(broker, "pull", "orders", "g", "-n", "1", "--json")
    assert json.loads(done.out)["receipt"]
    assert (await tocsin_(broker, "pull", "orders", "g", "--ack")).out == "b\n"
    assert len(broker.groups["orders", "g"].settled) == 1
    nothing = await tocsin_(broker, "pull", "orders", "g", "--wait", "1s")
    assert nothing == Ended(0, "", "No messages.\n")


async def test_errors_are_a_sentence_that_says_what_to_do(broker: FakeBroker) -> None:
    unknown = await tocsin_(broker, "publish", "nowhere", "1")
    assert unknown.code == 1
    assert unknown.err.startswith("Error: ")
    assert "tocsin queue create" in unknown.err
    nobody = await tocsin_(broker, "--url", "http://127.0.0.1:9", "queue", "list")
    assert nobody.code == 1
    assert "tocsin serve" in nobody.err
    elsewhere = await tocsin_(broker, "queue", "list", "--url", "ftp://x")
    assert elsewhere.code == 2
    broker.refuse_connections = 401
    stranger = await tocsin_(broker, "publish", "orders", "1")
    assert stranger.code == 1
    assert "TOCSIN_TOKEN" in stranger.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("consume", "orders"),
        ("consume", "orders", "--group", "g", "--read"),
        ("consume", "orders", "--group", "g", "--keys", "a"),
        ("consume", "orders", "--read", "--start", "yesterday"),
        ("consume", "orders", "--read", "--until-idle", "soon"),
        ("publish", "orders", "1", "--json-lines"),
        ("publish", "orders", "--lines", "--key-field", "k"),
        ("publish", "orders", "--key", "a", "--key-field", "k"),
        ("publish", "orders", "--id", "i"),
        ("publish", "orders", "1", "--header", "x"),
        ("queue", "create", "orders", "--lease", "-1s"),
        ("consume", "orders", "--group", "g", "--credit", "0"),
        ("queue", "list", "--url", "http://127.0.0.1:65536"),
        ("publish", "orders", "1", "--url", "http://127.0.0.1:65536"),
        ("queue", "list", "--url", "http://[::1"),
        ("queue", "list", "--token", "of-a-file\n"),
        ("publish", "orders", "1", "--token", "schlüssel"),
        ("publish", "orders", "1", "--url", "http://[::1"),
    ],
    ids=" ".join,
)
def test_what_makes_no_sense_is_a_usage_error(arguments: tuple[str, ...]) -> None:
    done = CliRunner().invoke(command.cli, arguments)
    assert done.exit_code == 2, done.output
    assert "Error: " in done.output


def test_every_verb_teaches_with_help() -> None:
    def verbs(group: click.Command, *path: str) -> list[tuple[str, ...]]:
        if not isinstance(group, click.Group):
            return [path]
        return [found for name, one in group.commands.items() for found in verbs(one, *path, name)]

    for path in verbs(command.cli):
        done = CliRunner().invoke(command.cli, [*path, "--help"])
        assert done.exit_code == 0
        if len(path) == 1 or path[1] in ("create", "seek"):
            assert "Examples:" in done.output


def test_a_verb_that_cannot_be_loaded_does_not_break_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    points = [
        EntryPoint("serve", "nowhere.at.all:serve", command.ENTRY_POINTS),
        EntryPoint("odd", "json:dumps", command.ENTRY_POINTS),
        EntryPoint("fine", "tocsin.cli.pull:pull", command.ENTRY_POINTS),
    ]
    monkeypatch.setattr(command, "entry_points", lambda group: points)
    shown = CliRunner().invoke(command.cli, ["--help"])
    assert shown.exit_code == 0
    assert {"serve", "odd", "fine", "publish"} <= {
        line.split()[0] for line in shown.output.splitlines() if line.strip()
    }
    broken = CliRunner().invoke(command.cli, ["serve", "--port", "1"])
    assert broken.exit_code == 1
    assert "cannot be loaded" in broken.output
    assert "nowhere" in broken.output
    assert CliRunner().invoke(command.cli, ["fine", "--help"]).exit_code == 0


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("1h 30m", 5400),
        ("1h30m", 5400),
        ("250ms", 0.25),
        ("1.5s", 1.5),
        ("2w", 1209600),
    ],
)
def test_durations_are_read(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-1s", "1q", "1 2 x", "h"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (0.25, "250ms"), (4.567, "4.57s"), (90, "1m 30s"), (93784, "1d 2h")],
)
def test_durations_are_written(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_nouns_have_their_plurals() -> None:
    told = [plural(count, noun) for count, noun in ((1, "copy"), (2, "copy"), (2, "data key"))]
    assert told == ["1 copy", "2 copies", "2 data keys"]


def test_lines_are_split_across_chunks_and_long_ones_are_not_held() -> None:
    splitter = LineSplitter()
    assert splitter.feed(b"a\nb") == [b"a"]
    assert splitter.feed(b"c\r\n\n") == [b"bc", b""]
    for _ in range(3):
        assert splitter.feed(b"x" * LINE_BYTES_MAX) == []
    assert splitter.feed(b"x\nnext") == [None]
    assert splitter.finish() == [b"next"]
    assert splitter.finish() == []


class Screen:
    """A stream that remembers."""

    def __init__(self, is_terminal: bool) -> None:
        self.text = ""
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        pass


def progress(screen: Any, times: list[float], total: int | None = 1000) -> Progress:
    clock: Callable[[], float] = iter([0.0, *times]).__next__
    return Progress(screen, total=total, clock=clock)


def test_progress_is_a_live_line_on_a_terminal() -> None:
    screen = Screen(True)
    shown = progress(screen, [0.5, 2.0, 2.1, 4.0])
    for count in (10, 200, 210, 400):
        shown.update(count, count)
    shown.close()
    lines = [line.strip() for line in screen.text.split("\r")]
    assert lines[1:3] == [
        "published 200 messages, 20%, 100/s, 8s to go",
        "published 400 messages, 40%, 100/s, 6s to go",
    ]
    assert screen.text.endswith("\r")


def test_progress_is_plain_lines_without_a_terminal() -> None:
    screen = Screen(False)
    shown = progress(screen, [1.0, 6.0, 7.0, 12.0], total=None)
    for count in (100, 600, 700, 1200):
        shown.update(count, count)
    shown.close()
    assert screen.text == "published 600 messages, 100/s\npublished 1,200 messages, 100/s\n"


# --- Bytes that are not what they seem ------------------------------------------------------------


@pytest.mark.parametrize("flags", [("--lines",), ("--json-lines", "--key-field", "k")], ids=str)
async def test_a_byte_order_mark_is_no_part_of_the_first_line(
    broker: FakeBroker, flags: tuple[str, ...]
) -> None:
    line = b'{"k":"a"}'
    done = await tocsin_(
        broker, "publish", "orders", *flags, given=b"\xef\xbb\xbf" + line + b"\n" + line
    )
    assert done.code == 0, done.err
    first, second = broker.bodies("orders")
    assert first == second


def test_a_byte_order_mark_within_a_file_stays() -> None:
    splitter = LineSplitter()
    mark = b"\xef\xbb\xbf"
    assert [*splitter.feed(mark[:2]), *splitter.feed(mark[2:] + b"a\n" + mark + b"b\n")] == [
        b"a", mark + b"b",
    ]  # fmt: skip


async def test_a_negative_number_is_an_argument(broker: FakeBroker) -> None:
    for arguments in (
        ("publish", "orders", "-5"),
        ("publish", "orders", "-1.5e3", "--key", "k"),
        ("publish", "--key", "-7", "orders", "-6"),
        ("publish", "orders", "--", "-4"),
    ):
        assert (await tocsin_(broker, *arguments)).code == 0
    assert broker.bodies("orders") == [-5, -1.5e3, -6, -4]
    assert [message.key for _, _, message in broker.logs["orders"]] == [None, "k", "-7", None]
    assert (await tocsin_(broker, "publish", "orders", "-x")).code == 2
    await tocsin_(broker, "queue", "explain", "orders", "-5", "--json")
    assert "-5" in broker.calls[-1][1]


async def test_a_key_may_have_a_comma(broker: FakeBroker) -> None:
    for key in ("a,b", "a", "b", "c"):
        await tocsin_(broker, "publish", "orders", key, "--key", key)
    read = ("consume", "orders", "--read", "--start", "earliest", "--until-idle", "100ms")
    assert (await tocsin_(broker, *read, "--key", "a,b", "--keys", "c")).out == "a,b\nc\n"
    assert (await tocsin_(broker, *read, "--keys", "a,b")).out == "a\nb\n"
    assert (await tocsin_(broker, *read, "--key", "")).code == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("publish", "orders", "1", "--key", "k\udcff"), "key: "),
        (("publish", "orders", "1", "--id", "k\udcff"), "id: "),
        (("publish", "orders", "1", "--header", "a=\udcff"), "headers: "),
        (("publish", "orders", "k\udcff"), "body: "),
        (("queue", "explain", "orders", "k\udcff"), "is not Unicode text"),
        (("queue", "show", "k\udcff"), "is not Unicode text"),
        (("queue", "peek", "orders", "--key", "k\udcff"), "is not Unicode text"),
        (("dead-letters", "list", "orders", "--key", "k\udcff"), "is not Unicode text"),
        (("group", "show", "orders", "k\udcff"), "is not Unicode text"),
        (("pull", "orders", "k\udcff"), "is not Unicode text"),
        (("consume", "orders", "--group", "k\udcff"), "is not Unicode text"),
        (("consume", "orders", "--read", "--keys", "k\udcff"), "is not Unicode text"),
        (("publish", "k\udcff", "1"), "is not Unicode text"),
    ],
)
async def test_bad_bytes_are_blamed_on_what_has_them(
    broker: FakeBroker, arguments: tuple[str, ...], said: str
) -> None:
    done = await tocsin_(broker, *arguments)
    assert done.code == 1
    assert said in done.err
    assert done.err.count("\n") == 1, done.err


async def test_a_line_that_no_queue_takes_is_named_with_the_bound(broker: FakeBroker) -> None:
    done = await tocsin_(broker, "publish", "orders", given=b"x" * (1_048_576 + 1) + b"\n")
    assert done.code == 1
    assert "longer than 1 MiB (1,048,576 bytes), which no queue takes" in done.err


def test_a_partition_waits_for_nothing_that_the_command_has_no_words_for() -> None:
    """[`consume --until-empty` printed the codes `full`, `commit` and `read`.]"""
    assert set(WAITS_FOR) == {*get_args(PartitionWaits)} - {""}
