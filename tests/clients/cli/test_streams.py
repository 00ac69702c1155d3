"""The `tocsin` command in a shell: pipes that close, disks that are full, descriptors that are
closed, and Ctrl-C at any moment. Whatever happens, there is a sentence or nothing, and never the
place in a program."""

import asyncio
import json
import os
import pty
import random
import re
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from pathlib import Path
from typing import Any

import pytest
import tocsin

from gateway.wire import frames
from tests.clients.fake_broker import FakeBroker
from tests.waiting import becomes

SOURCE = Path(tocsin.__file__).parents[1]
COMMAND = (sys.executable, "-c", "from tocsin_command import main; main()")
UNWANTED = re.compile("Traceback|Exception ignored|Task exception|Error in sys|never retrieved")


async def start(broker: FakeBroker, *arguments: str, redirect: str = "", **how: Any) -> Process:
    """The command, started by a shell with a redirection such as `>&-`."""
    streams = {"stdin": DEVNULL, "stdout": PIPE, "stderr": PIPE} | how
    return await asyncio.create_subprocess_exec(
        "sh", "-c", f'exec "$@" {redirect}', "sh", *COMMAND, *arguments, **streams,
        env={**os.environ, "TOCSIN_URL": broker.url, "PYTHONPATH": str(SOURCE)},
    )  # fmt: skip


async def ended(process: Process, given: bytes | None = None) -> tuple[int, str, str]:
    """Exit code, output and what was said, once it has ended."""
    async with asyncio.timeout(30):
        out, err = await process.communicate(given)
    said = (err or b"").decode()
    assert not UNWANTED.search(said), said
    return process.returncode or 0, (out or b"").decode(), said


COMMANDS = [
    ("--help",),
    ("--version",),
    ("queue", "create", "new"),
    ("queue", "list"),
    ("queue", "show", "orders", "--json"),
    ("publish", "orders", "1"),
    ("publish", "orders"),
    ("consume", "orders", "--group", "g", "--count", "1"),
    ("consume", "orders", "--read", "--start", "earliest", "--count", "1"),
    ("pull", "orders", "g"),
    ("group", "list", "orders"),
    ("ticket",),
]


@pytest.mark.parametrize("redirect", [">&-", ">/dev/full"])
@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
async def test_output_that_cannot_be_written_is_a_sentence(
    broker: FakeBroker, arguments: tuple[str, ...], redirect: str
) -> None:
    async with tocsin.connect(broker.url) as client:
        await client.publish("orders", "first", key="k")
    code, _, said = await ended(await start(broker, *arguments, redirect=redirect))
    why = "it is closed" if redirect == ">&-" else "No space left on device"
    assert (code, said) == (1, f"Error: the output cannot be written: {why}.\n")


@pytest.mark.parametrize("redirect", [">&-", ">/dev/full"])
async def test_what_could_not_be_written_is_not_acked(broker: FakeBroker, redirect: str) -> None:
    async with tocsin.connect(broker.url) as client:
        await client.publish("orders", "first", key="k")
    for arguments in (("consume", "orders", "--group", "g"), ("pull", "orders", "g", "--ack")):
        assert (await ended(await start(broker, *arguments, redirect=redirect)))[0] == 1
    assert broker.groups["orders", "g"].settled == []


async def test_input_that_is_closed_is_a_sentence(broker: FakeBroker) -> None:
    code, _, said = await ended(await start(broker, "publish", "orders", redirect="<&-"))
    assert (code, said) == (1, "Error: the input cannot be read: it is closed.\n")
    listed = await ended(await start(broker, "queue", "list", redirect="<&-"))
    assert listed[0] == 0
    refused = await ended(
        await start(broker, "group", "delete", "orders", "g", redirect="<&-")
    )  # it would ask
    assert refused[0] == 2


@pytest.mark.parametrize("redirect", ["2>&-", "2>/dev/full"])
async def test_notices_that_cannot_be_written_change_nothing_else(
    broker: FakeBroker, redirect: str
) -> None:
    for arguments, wanted in (
        (("queue", "list"), 0),
        (("queue", "show", "nowhere"), 1),
        (("consume",), 2),
    ):
        assert (await ended(await start(broker, *arguments, redirect=redirect)))[0] == wanted
    broker.refuse("overloaded", times=3)
    stored = await start(broker, "publish", "orders", redirect=redirect, stdin=PIPE)
    assert (await ended(stored, b"a\nb\nc\n"))[0] == 0
    assert broker.bodies("orders") == ["a", "b", "c"]


async def test_no_socket_or_file_takes_the_place_of_a_closed_stream() -> None:
    code = (
        "import os, tocsin_command; tocsin_command.open_standard_descriptors();"
        "names = [os.readlink(f'/proc/self/fd/{n}') for n in range(3)];"
        "os.write(9, repr(names).encode())"
    )
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    process = await asyncio.create_subprocess_exec(
        "bash", "-c", f'exec 9>&{writing}; exec "$@" <&- >&- 2>&-', "bash", sys.executable, "-c",
        code, pass_fds=[writing], env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )  # fmt: skip
    await process.wait()
    os.close(writing)
    assert os.read(reading, 1000).decode() == repr(["/dev/null"] * 3)
    os.close(reading)


async def test_a_character_that_the_output_has_not_is_an_escape(broker: FakeBroker) -> None:
    broker.queue("größe→")
    process = await asyncio.create_subprocess_exec(
        *COMMAND, "queue", "list", stdin=DEVNULL, stdout=PIPE, stderr=PIPE,
        env={
            **os.environ, "TOCSIN_URL": broker.url, "PYTHONPATH": str(SOURCE),
            "PYTHONIOENCODING": "latin-1",
        },
    )  # fmt: skip
    out, said = await process.communicate()
    assert (process.returncode, said) == (0, b"")
    assert "größe\\u2192" in out.decode("latin-1")


# --- A reader that goes ---------------------------------------------------------------------------


@pytest.mark.parametrize("how", [("--group", "g"), ("--read", "--start", "earliest")], ids=" ".join)
async def test_consuming_ends_with_the_reader_of_its_output(
    broker: FakeBroker, how: tuple[str, ...]
) -> None:
    """As in `tocsin consume … | head -1`: nothing else comes that could be written."""
    async with tocsin.connect(broker.url) as client:
        await client.publish("orders", "first", key="k")
    reading, writing = os.pipe()
    process = await start(broker, "consume", "orders", *how, stdout=writing)
    os.close(writing)
    assert await asyncio.to_thread(os.read, reading, 100) == b"first\n"
    os.close(reading)
    assert await ended(process) == (141, "", "")
    await becomes(lambda: broker.received(frames.Unsubscribe))


async def test_publishing_goes_on_when_the_reader_of_its_output_has_gone(
    broker: FakeBroker,
) -> None:
    """The lines are to be stored, whoever wants to know how many they were."""
    reading, writing = os.pipe()
    process = await start(broker, "publish", "orders", stdin=PIPE, stdout=writing)
    os.close(writing)
    os.close(reading)
    assert (await ended(process, b"a\nb\n"))[0] == 141
    assert broker.bodies("orders") == ["a", "b"]


# --- Ctrl-C ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
async def test_an_interrupt_at_any_early_moment_is_quiet(broker: FakeBroker, seed: int) -> None:
    """From when the interpreter has begun: `-X importtime` tells each import, so that it is known
    when Python is there and our first line is next."""
    rng = random.Random(seed)
    process = await asyncio.create_subprocess_exec(
        COMMAND[0], "-X", "importtime", *COMMAND[1:], "consume", "orders", "--group", "g",
        stdin=DEVNULL, stdout=PIPE, stderr=PIPE,
        env={**os.environ, "TOCSIN_URL": broker.url, "PYTHONPATH": str(SOURCE)},
    )  # fmt: skip
    assert process.stderr is not None
    said = b""
    last = rng.choice(
        [b" tocsin_command\n", b" asyncio\n", b" click\n", b" tocsin.proto.wire\n", b""]
    )
    async with asyncio.timeout(30):
        while line := await process.stderr.readline():
            said += line
            if (last and line.endswith(last)) or b" tocsin.cli.main\n" in line:
                break
        await asyncio.sleep(rng.uniform(0, 0.3) if not last else rng.uniform(0, 0.02))
        process.send_signal(signal.SIGINT)
        out, rest = await process.communicate()
    said += rest
    assert (process.returncode, out) == (130, b"")
    assert not UNWANTED.search(said.decode()), said.decode()


async def interrupted_publish(broker: FakeBroker, path: Path, *flags: str) -> Process:
    """A publish of a file, when some of it is stored."""
    process = await start(broker, "publish", "orders", "--file", str(path), *flags)
    async with asyncio.timeout(30):
        await broker.until(lambda: len(broker.logs["orders"]) >= 2_000)
    process.send_signal(signal.SIGINT)
    return process


async def test_an_interrupted_file_says_how_many_are_stored(
    broker: FakeBroker, tmp_path: Path
) -> None:
    path = tmp_path / "lines"
    path.write_text("".join(f"{number}\n" for number in range(100_000)))
    process = await interrupted_publish(broker, path)
    code, out, said = await ended(process)
    stored = len(broker.logs["orders"])
    assert code == 130
    assert out.startswith(f"Published {stored:,} messages in ")
    said = "".join(line for line in said.splitlines(True) if not line.startswith("published "))
    assert said == (f"tocsin: ended after line {stored:,} of {path}. Later lines were not sent.\n")
    assert broker.bodies("orders") == [str(number) for number in range(stored)]


async def test_an_interrupted_pipe_says_how_many_are_stored(broker: FakeBroker) -> None:
    process = await start(broker, "publish", "orders", "--json", stdin=PIPE)
    assert process.stdin is not None
    process.stdin.write(b"a\nb\n")
    await broker.until(lambda: len(broker.logs["orders"]) == 2)
    process.send_signal(signal.SIGTERM)
    assert process.stdout is not None
    assert process.stderr is not None
    async with asyncio.timeout(30):  # its input stays open
        out, err = await process.stdout.read(), await process.stderr.read()
        await process.wait()
    assert process.returncode == 143
    told = json.loads(out)
    assert (told["published"], told["unanswered"], told["lines"]) == (2, 0, 2)
    assert b"ended after line 2 of the input" in err


async def test_a_second_interrupt_waits_for_no_answers(broker: FakeBroker, tmp_path: Path) -> None:
    """What was sent and not answered is distinguished from what was never sent."""
    path = tmp_path / "lines"
    path.write_text("".join(f"{number}\n" for number in range(5_000)))
    broker.silent = True
    process = await interrupted_publish(broker, path)
    await asyncio.sleep(0.2)  # it waits for answers; nothing shows that from outside
    assert process.returncode is None
    process.send_signal(signal.SIGINT)
    code, out, said = await ended(process)
    assert code == 130
    assert out.startswith("Published 0 messages in ")
    assert re.search(r"Of lines 1 to [\d,]+, [\d,]+ got no answer and may be stored", said)


async def test_an_interrupt_that_is_to_be_ignored_is_ignored(broker: FakeBroker) -> None:
    """As that of a command that a script has put into the background."""
    process = await asyncio.create_subprocess_exec(
        "sh", "-c", 'trap "" INT; exec "$@"', "sh", *COMMAND, "consume", "orders", "--group", "g",
        "--count", "1", stdin=DEVNULL, stdout=PIPE, stderr=PIPE,
        env={**os.environ, "TOCSIN_URL": broker.url, "PYTHONPATH": str(SOURCE)},
    )  # fmt: skip
    await broker.until(lambda: broker.received(frames.Subscribe))
    process.send_signal(signal.SIGINT)
    async with tocsin.connect(broker.url) as client:
        await client.publish("orders", "first", key="k")
    assert await ended(process) == (0, "first\n", "")


# --- Whoever is held back is told so --------------------------------------------------------------


async def test_what_the_broker_puts_off_is_told_at_the_end(broker: FakeBroker) -> None:
    broker.refuse("overloaded", times=2)
    process = await start(broker, "publish", "orders", "--key", "k", stdin=PIPE)
    code, out, said = await ended(process, b"a\nb\nc\n")
    assert code == 0
    assert out.startswith("Published 3 messages")
    assert said == "tocsin: put off by the broker: 3 overloaded\n"


async def test_what_the_broker_puts_off_is_told_while_it_waits(broker: FakeBroker) -> None:
    """On a terminal, in the progress line, also when nothing is answered for seconds."""
    broker.refuse("overloaded", times=100_000)
    screen, terminal = pty.openpty()
    process = await start(broker, "publish", "orders", "--key", "k", stdin=PIPE, stderr=terminal)
    os.close(terminal)
    assert process.stdin is not None
    process.stdin.write(b"a\nb\nc\n")
    process.stdin.close()
    shown = ""

    async def looked() -> bool:
        nonlocal shown
        shown += (await asyncio.to_thread(os.read, screen, 4096)).decode()
        return "published 0 messages, 0/s; put off by the broker: 3 overloaded" in shown

    await becomes(looked, 20)
    broker._refusals.clear()
    assert (await ended(process))[0] == 0
    os.close(screen)
    assert broker.bodies("orders") == ["a", "b", "c"]
