"""The swarm: sockets from several processes that are all given the same, and a storm of them."""

import asyncio
import json
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from click.testing import CliRunner, Result

from loadtests.clients.load import Shape
from loadtests.histogram import Histogram
from loadtests.server import Server
from loadtests.swarm.__main__ import main
from loadtests.swarm.coordination import News, Order, Post, decode_news, decode_order, encode
from loadtests.swarm.fleet import All, Fleet, SwarmBroke
from loadtests.swarm.part import Part, Waiting


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["--json", "--idle", "0", *arguments], catch_exceptions=False)


def test_each_socket_of_each_process_is_given_each_message_once_also_behind_a_storm() -> None:
    done = run("--sockets", "61", "--storm", "20", "--processes", "2")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert [check["ok"] for check in found["checks"]] == [True] * 6
    assert found["storm_p99_s"] <= found["storm_settled_s"] + 0.01
    assert found["kib_per_socket"] is not None


def test_nobody_at_the_url_is_a_sentence() -> None:
    done = run("--sockets", "2", "--storm", "0", "--url", "http://127.0.0.1:9")
    assert done.exit_code == 1
    assert "Error:" in done.output
    assert "Traceback" not in done.output


@pytest.mark.parametrize(
    "words", [("--sockets", "5", "--storm", "6"), ("--pid", "1"), ("--sockets", "1")]
)
def test_a_command_that_is_wrong_ends_with_2(words: tuple[str, ...]) -> None:
    assert run(*words).exit_code == 2


async def test_sockets_that_are_cut_off_by_the_broker_are_counted_as_lost(tmp_path: Path) -> None:
    server = Server(tmp_path / "data", level="warning")
    try:
        await asyncio.to_thread(server.start)
        fleet = Fleet(6, 2, [server.url], token=None, queue="swarm", body_bytes=256)
        async with fleet:
            await asyncio.to_thread(_make, server.url)
            assert (await fleet.all(Order("open", 6))).standing == 6
            server.kill()
            found = await fleet.all(Order("expect", given=1, timeout_s=0.5))
            assert (found.missing, found.standing, found.lost) == (6, 0, 6)
    finally:
        server.kill()


def _make(url: str) -> None:
    put = Request(f"{url}/v1/queues/swarm", b'{"partitions":1}', method="PUT")
    put.add_header("Content-Type", "application/json")
    with urlopen(put, timeout=30) as answer:
        assert answer.status == 201


async def test_a_process_that_ends_is_reported_and_not_waited_for() -> None:
    fleet = Fleet(2, 1, ["http://127.0.0.1:9"], token=None, queue="q", body_bytes=256)
    async with fleet:
        with pytest.raises(SwarmBroke, match="ended over dance"):
            await fleet.all(Order("dance"))


async def test_a_message_that_is_missing_or_comes_twice_is_reported() -> None:
    part = Part(Post(0, ["http://127.0.0.1:9"], None, "q", ["127.0.1.1"], 256))
    for given in (1, 1, 0, 3):
        part.readers.append(Waiting("nobody", Shape()))
        part.readers[-1].given = given
    found = await part.do(Order("expect", given=1, timeout_s=0.05))
    assert (found.standing, found.missing, found.repeated) == (4, 1, 2)
    again = await part.do(Order("expect", given=0, timeout_s=0.05))
    assert (again.missing, again.repeated) == (0, 0)


def test_what_processes_say_is_added_up() -> None:
    one, other = Histogram(), Histogram()
    one.record(5)
    other.record(9, 2)
    parts = [
        News(3, 1.5, one.buckets(), one.total, one.maximum, missing=1, tries=2),
        News(4, 0.5, other.buckets(), other.total, other.maximum, repeated=2, lost=1, error="x"),
    ]
    both = All([decode_news(encode(news)) for news in parts])
    assert (both.standing, both.took_s, both.missing, both.repeated) == (7, 1.5, 1, 2)
    assert (both.lost, both.tries, both.error) == (1, 2, "x")
    assert (both.took.count, both.took.maximum) == (3, 9)
    assert decode_order(encode(Order("cut", 5, at_once=5))) == Order("cut", 5, at_once=5)
