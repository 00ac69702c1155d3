"""The demo's figures and its screen; the whole of it runs in tests/system."""

import asyncio
from pathlib import Path
from typing import Any, cast

import httpx2
import msgspec
import pytest
from tocsin.proto import wire
from tocsin.proto.message import ReadMessage

from gateway.broker import Broker
from gateway.config import Config
from gateway.demo import demo
from gateway.demo.board import Board, Device, Machine, Meter, plain_line, table
from gateway.demo.demo import _sent, _show
from gateway.server import OnFatal, Server
from tests.gateway.conftest import never
from tests.histories.house import eventually

BEFORE = {
    "stat": "cpu  20 0 20 160 0 0 0 0 0 0\ncpu0 10 0 10 80 0 0 0 0 0 0\ncpu1 10 0 10 80 0 0 0 0\n",
    "meminfo": "MemTotal:  1024000 kB\nMemFree: 1 kB\nMemAvailable:  512000 kB\n",
    "diskstats": " 254 0 vda 1 0 100 0 1 0 200 0 0 0 0\n 254 1 vda1 1 0 100 0 1 0 200 0 0 0 0\n"
    " 7 0 loop0 1 0 100 0 1 0 200 0 0 0 0\n",
    "net/dev": "Inter-| Receive\n face |bytes\n  eth0: 1000 1 0 0 0 0 0 0 500 1 0 0 0 0 0 0\n"
    "  sit0: 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n",
}
AFTER = {
    **BEFORE,
    "stat": "cpu0 85 0 10 105 0 0 0 0 0 0\ncpu1 10 0 10 180 0 0 0 0\n",
    "diskstats": " 254 0 vda 1 0 102 0 1 0 204 0 0 0 0\n",
    "net/dev": "  eth0: 3000 1 0 0 0 0 0 0 1500 1 0 0 0 0 0 0\n",
}


def test_figures_are_rates_between_two_looks() -> None:
    files = dict(BEFORE)
    machine = Machine(lambda name: files.get(name, ""))
    first = machine.look(10.0)
    assert set(first) == {"memory", "load"}
    assert first["memory"] == {"used_percent": 50.0, "used_mib": 500, "total_mib": 1000}
    files.update(AFTER)
    second = machine.look(12.0)
    assert second["cpu0"] == {"busy_percent": 75.0}
    assert second["cpu1"] == {"busy_percent": 0.0}
    assert second["disk-vda"] == {"read_bytes_per_s": 512, "written_bytes_per_s": 1024}
    assert second["net-eth0"] == {"received_bytes_per_s": 1000, "sent_bytes_per_s": 500}
    assert set(second) == {"cpu0", "cpu1", "memory", "disk-vda", "net-eth0", "load"}


def test_machine_without_proc_still_has_a_load() -> None:
    assert set(Machine(lambda _: "").look(1.0)) == {"load"}


def test_meter_forgets_what_is_older_than_its_window() -> None:
    meter = Meter()
    for number in range(10):
        meter.count(float(number), latency_s=number / 1000)
    assert meter.total == 10
    assert meter.per_s(9.0, since=0.0) == 6 / 5
    assert meter.percentile_ms(9.0, 50) == 7.0
    assert (meter.per_s(99.0, since=0.0), meter.percentile_ms(99.0, 50)) == (0.0, 0.0)


def board() -> Board:
    made = Board(
        "http://127.0.0.1:8081", 0.0, "cpu0", {"terminal-1": Meter(), "terminal-2": Meter()}
    )
    made.workers["terminal-1"].count(9.0, 0.002)
    made.receipts.count(9.0, 0.001)
    made.owners[3] = ("terminal-1", 9.0)
    for number in (10, 2, 0):
        made.devices[f"cpu{number}"] = Device({"busy_percent": 12.5}, 3, "terminal-1", 9.0)
    made.devices["net-lo"] = Device({"sent_bytes_per_s": 2048.0}, 3, "terminal-1", 9.0)
    return made


@pytest.mark.parametrize(
    ("body", "sent_s"),
    [
        (b'{"run":"r","at_ns":2000000000}', 2.0),
        (b'{"run":"other","at_ns":2000000000}', None),
        (b"1e400", None),
        (b"[]", None),
    ],
)
def test_what_others_publish_to_its_queue_does_not_end_the_demo(
    body: bytes, sent_s: float | None
) -> None:
    message = wire.PushedMessage(body=msgspec.Raw(body))
    assert _sent(ReadMessage(wire.Push(subscription=1), 0, message), "r") == sent_s


async def test_lines_begin_with_the_brokers_address(capsys: pytest.CaptureFixture[str]) -> None:
    """Who runs it without a terminal wants to use the broker, too."""
    for token, more in ((None, ""), ("s3cret", "; `tocsin ticket --page demo` prints an address")):
        config = Config(data_dir=Path(), token=token)
        showing = asyncio.create_task(_show(board(), cast(Any, None), config))
        await asyncio.sleep(0)
        showing.cancel()
        said = capsys.readouterr().out
        assert said.startswith(f"Tocsin demo: open http://127.0.0.1:8081/demo in a browser{more}")
        assert said.count("\n") == 1
        assert "s3cret" not in said


def test_line_says_what_flows_and_who_owns_what() -> None:
    line = plain_line(board(), 10.0)
    assert "delivered 1" in line
    assert "p50 2.0 ms" in line
    assert "terminal-1 owns 3" in line
    assert "terminal-2 owns none yet" in line
    assert "cpu0 12.5 % busy" in line


def test_table_keeps_to_the_screen() -> None:
    for width, height in ((40, 8), (80, 24), (200, 60)):
        lines = table(board(), 10.0, width, height)
        assert len(lines) <= height
        assert all(len(line) <= width for line in lines)


@pytest.mark.parametrize(("width", "is_whole"), [(80, True), (72, True), (71, False), (40, False)])
def test_table_has_one_address_and_never_half_a_ticket(width: int, is_whole: bool) -> None:
    made = board()
    assert "Open http://127.0.0.1:8081/demo" in table(made, 10.0, 80, 24)
    made.address = f"http://127.0.0.1:8081/demo#ticket={'t' * 33}"
    lines = table(made, 10.0, width, 24)
    assert (f"Open {made.address}" in lines) == is_whole
    assert is_whole or not any("#ticket" in line for line in lines)
    assert len([line for line in lines if "/demo" in line]) == 1


async def test_the_address_on_the_screen_lets_a_browser_in_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "TICKET_PERIOD_S", 0.01)
    config = Config(data_dir=tmp_path / "data", port=0, token="s3cret")

    async def build(config: Config, on_fatal: OnFatal) -> Broker:
        return await Broker.open(config, on_fatal=on_fatal)

    server = await Server.open(config, build, on_fatal=never)
    made = Board(server.url, 0.0, "cpu0", {})
    keeping = asyncio.create_task(demo._keep_address(server.url, config, made))
    seen = set()
    for _ in range(2):
        await eventually(lambda: "#ticket=" in made.address and made.address not in seen)
        seen.add(made.address)
        ticket = made.address.partition("#ticket=")[2]
        async with httpx2.AsyncClient(base_url=server.url) as browser:
            answer = await browser.post("/v1/access", json={"ticket": ticket})
            assert answer.status_code == 200, answer.text
            assert (await browser.get("/v1/access")).json()["principal"] == "operator"
    await server.stop()
    assert not keeping.done()  # a broker that is gone is not its to tell
    keeping.cancel()


def test_table_sorts_devices_as_people_do_and_teaches_the_next_step() -> None:
    text = "\n".join(table(board(), 10.0, 120, 40))
    places = [text.index(name) for name in ("\ncpu0", "\ncpu2", "\ncpu10", "\nnet-lo")]
    assert places == sorted(places)
    assert "2 KiB/s" in text
    assert "export TOCSIN_URL=http://127.0.0.1:8081" in text
    assert "tocsin consume machine --read --keys cpu0" in text
