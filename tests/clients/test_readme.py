"""The examples in the SDK's README run, as they stand there."""

import asyncio
import re
import sqlite3
from pathlib import Path

import pytest
import tocsin

from tests.clients.fake_broker import FakeBroker
from tests.layout.tree import text

README = text(Path("clients/python/README.md"))
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
URL = "http://127.0.0.1:8080"


def example(word: str) -> str:
    """The one example with this word in it."""
    (found,) = [code for code in EXAMPLES if word in code]
    return str(found)


async def run(broker: FakeBroker, code: str, *, ends: bool) -> None:
    """Run it as a program against the fake broker. One that goes on for ever is ended, when it has
    nothing left to do, by a broker that sends it away."""
    assert URL in code
    program = compile(code.replace(URL, broker.url), "README.md", "exec")
    running = asyncio.ensure_future(asyncio.to_thread(exec, program, {"__name__": "__main__"}))
    if ends:
        await running
        return
    await broker.until(lambda: any(socket.consumers for socket in broker.sockets))
    await broker.until(lambda: not any(g.waiting or g.given for g in broker.groups.values()))
    broker.close(4501, "enough")
    with pytest.raises((tocsin.SessionEnded, ExceptionGroup)):
        await running


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Examples write into the current folder."""
    monkeypatch.chdir(tmp_path)


def test_every_example_is_run_here() -> None:
    words = ["async for message in messages:\n                print(message.key", "FilePositions",
             "SqliteEffects", "blocking",
             "cancel_scheduled"]  # fmt: skip  # run by tests/system/test_scheduled_sdk.py
    assert sorted(map(example, words)) == sorted(EXAMPLES)


async def test_the_first_example(broker: FakeBroker, capsys: pytest.CaptureFixture[str]) -> None:
    await run(broker, example("await message.ack()"), ends=False)
    assert capsys.readouterr().out == "user-7 {'total': 12}\n"
    assert len(broker.groups["orders", "billing"].settled) == 1


async def test_the_reader_that_goes_on_where_it_was(
    broker: FakeBroker, client: tocsin.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was being done when the program ended comes again, and nothing of before."""
    show = "print(message.offset, message.body)"
    code = example("FilePositions")
    assert show in code
    for number in range(2):
        await client.publish("orders", number, key="k")
        with pytest.raises(LookupError, match=str(number)):
            await run(broker, code.replace(show, "raise LookupError(message.body)"), ends=True)
        await run(broker, code.replace(show, f"{show}; break"), ends=True)
        assert capsys.readouterr().out == f"{number} {number}\n"


async def test_the_effects_that_happen_once(broker: FakeBroker, client: tocsin.Client) -> None:
    for total in (1, 2, 3):
        await client.publish("orders", {"total": total}, key="k")
    await run(broker, example("SqliteEffects"), ends=False)
    database = sqlite3.connect("billing.sqlite")
    assert database.execute("SELECT * FROM booked ORDER BY total").fetchall() == [
        ("k", 1), ("k", 2), ("k", 3),
    ]  # fmt: skip
    database.close()


async def test_the_client_without_an_event_loop(
    broker: FakeBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    code = example("blocking").replace("idle_s=2", "idle_s=0.2")
    await run(broker, code, ends=True)
    assert capsys.readouterr().out == "user-7 {'total': 12}\n12\n"
