"""The commands of `tocsin` against a running broker, in a shell. The server's commands behave as
tests/clients shows it for the client's, and a command ends when its work does."""

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import tocsin

from loadtests.server import Server, free_port
from loadtests.server import tocsin as command
from tests.layout.tree import files, text
from tests.waiting import becomes

README = text(Path("README.md"))
UNWANTED = re.compile("Traceback|Exception ignored|Task exception|never awaited")
FULL = "Error: the output cannot be written: No space left on device.\n"
CLOSED = "Error: the output cannot be written: it is closed.\n"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("broker") / "data") as server:
        assert run(server, "queue", "create", "orders", "--partitions", "1").returncode == 0
        yield server


def environment(server: Server) -> dict[str, str]:
    plain = {name: text for name, text in os.environ.items() if not name.startswith("TOCSIN_")}
    return plain | {"TOCSIN_URL": server.url, "TOCSIN_DATA_DIR": str(server.data_dir)}


def run(
    server: Server, *arguments: str, redirect: str = "", given: str = ""
) -> "subprocess.CompletedProcess[str]":
    """Run the command to its end in a shell, with a redirection."""
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {redirect}', "sh", *command(*arguments)],
        env=environment(server), input=given, text=True, capture_output=True, check=False,
        timeout=60,
    )  # fmt: skip
    assert not UNWANTED.search(done.stderr), done.stderr
    return done


SERVERS_COMMANDS = [
    ("admin", "status"),
    ("admin", "token", "list"),
    ("admin", "token", "create", "ci", "--right", "read:*"),
    ("admin", "master-key", "show"),
    ("admin", "audit"),
    ("admin", "partitions", "orders"),
    ("admin", "park", "list", "orders", "nightly"),
    ("admin", "delete-queue", "--help"),
    ("serve", "--help"),
    ("bench", "--help"),
    ("report", "--help"),
]


@pytest.mark.parametrize("arguments", SERVERS_COMMANDS, ids=" ".join)
def test_servers_commands_whose_output_cannot_be_written_say_so(
    broker: Server, arguments: tuple[str, ...]
) -> None:
    run(broker, "group", "create", "orders", "nightly")
    for redirect, said in ((">/dev/full", FULL), (">&-", CLOSED)):
        done = run(broker, *arguments, redirect=redirect)
        assert (done.returncode, done.stderr[-len(said) :]) == (1, said)


def test_a_broker_serves_without_an_output(tmp_path: Path) -> None:
    """A server must serve its clients, even if its first line cannot be written."""
    for redirect in (">&-", ">/dev/full", "<&- >&- 2>&-"):
        port = free_port()
        process = subprocess.Popen(
            ["sh", "-c", f'exec "$@" {redirect}', "sh", *command("serve", "--port", str(port))],
            env=os.environ
            | {"TOCSIN_DATA_DIR": str(tmp_path / "data"), "TOCSIN_ENCRYPTION": "off"},
            stderr=subprocess.DEVNULL,
        )
        try:
            asyncio.run(_answers(f"http://127.0.0.1:{port}", process))
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 0
        finally:
            process.kill()
            process.wait()


async def _answers(url: str, process: "subprocess.Popen[bytes]") -> None:
    async def there() -> bool:
        assert process.poll() is None, process.returncode
        with contextlib.suppress(tocsin.CannotConnect):
            async with tocsin.connect(url) as client:
                return client.is_connected
        return False

    await becomes(there, 30)


def test_the_first_commands_of_the_readme_work_whatever_files_are_called(
    broker: Server, tmp_path: Path
) -> None:
    """systemd names its files with a backslash; others have quotes, or bytes of no text."""
    folder = os.fsencode(tmp_path / "usr")
    os.mkdir(folder)
    names = [b"dev-disk-by\\x2did.swap", b'a "quoted" one', b"two\nlines", b"caf\xe9", b"plain"]
    for name in names:
        Path(os.fsdecode(os.path.join(folder, name))).touch()
    (made,) = re.findall(r"^python3 - > /tmp/files.jsonl <<'END'\n.*?^END\n", README, re.M | re.S)
    out = tmp_path / "files.jsonl"
    script = made.replace("/tmp/files.jsonl", str(out)).replace("/usr", os.fsdecode(folder))
    subprocess.run(["sh", "-c", script], check=True)
    assert len({json.loads(line)["file"] for line in out.read_text().splitlines()}) == len(names)
    assert run(broker, "queue", "create", "files", "--retention", "1d").returncode == 0
    done = run(
        broker, "publish", "files", "--file", str(out), "--json-lines", "--key-field", "folder"
    )
    assert (done.returncode, done.stdout.split(" in ")[0]) == (0, "Published 5 messages")


def test_pages_for_operators_use_no_token_before_it_is_there() -> None:
    for page in (Path("README.md"), *files(".md", "docs/operations")):
        shown = "\n".join(re.findall(r"^```sh\n(.*?)^```", text(page), re.M | re.S))
        first_use = shown.find("$TOCSIN_TOKEN")
        assert first_use == -1 or shown.find("export TOCSIN_TOKEN=") in range(first_use), page
        assert "/backup/" not in shown


async def test_until_empty_is_by_lag_and_not_by_silence(broker: Server) -> None:
    """Another consumer owns the one partition and handles nothing. Nothing comes here, and yet the
    group has unsettled messages."""
    arguments = ("consume", "orders", "--group", "nightly")
    async with tocsin.connect(broker.url) as client:
        for number in range(3):
            await client.publish("orders", number, key="k")
        async with client.subscribe("orders", "nightly", credit=1) as messages:
            await anext(messages)
            idle = await asyncio.to_thread(run, broker, *arguments, "--until-idle", "300ms")
            assert (idle.returncode, idle.stdout) == (0, "")
            assert "has not settled 3 messages" in idle.stderr
            assert "--until-empty waits for them" in idle.stderr
            waiting = asyncio.create_task(
                asyncio.to_thread(run, broker, *arguments, "--until-empty")
            )

            async def is_there() -> bool:
                found = await client.group("orders", "nightly")
                return found["consumers"] == 2

            await becomes(is_there)
            assert not waiting.done()
        done = await waiting
        assert (done.returncode, done.stdout, done.stderr) == (0, "0\n1\n2\n", "")
    at_once = await asyncio.to_thread(run, broker, *arguments, "--until-empty")
    assert (at_once.returncode, at_once.stdout, at_once.stderr) == (0, "", "")
