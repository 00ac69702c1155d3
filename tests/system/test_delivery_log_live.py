"""The delivery log of a running broker, against its clients' acts and answers: exact after a clean
stop, and after a kill -9 exact except for what it reports as missing."""

import asyncio
import contextlib
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import tocsin

from gateway.deliverylog.lines import (
    CertifiedLine,
    DispatchedLine,
    EndLine,
    Line,
    SettledLine,
    UnloggedLine,
    messages_of,
)
from gateway.deliverylog.writer import FOLDER
from loadtests.clients.rest import Rest
from loadtests.mix.transports import Poll
from loadtests.server import Server
from loadtests.trials.stalled.sockets import Narrow
from tests.system.talk import running
from tests.waiting import becomes

MESSAGES = 2000
TASKS = 40
BODIES = [1_000] * 20 + [250_000] * 30
"""Sizes. A socket takes the small ones, and not even the first large one whole."""
WAITS_S = 0.3
_DECODE = msgspec.json.Decoder(Line).decode
Place = tuple[int, int]


def log_of(server: Server) -> list[Any]:
    """Return every line of every finished file. Each file must be whole, and no other file may
    exist."""
    lines: list[Any] = []
    for path in sorted((server.data_dir / FOLDER).iterdir()):
        assert path.suffix == ".jsonl", path
        *body, last = path.read_bytes().splitlines(keepends=True)
        end = _DECODE(last)
        assert isinstance(end, EndLine)
        assert (end.lines, end.crc32) == (len(body), zlib.crc32(b"".join(body)))
        lines += map(_DECODE, body)
    return lines


def places(lines: list[Any], kind: type[Any]) -> list[Place]:
    """Return (partition, offset) of every message in the lines of a kind."""
    return [
        (number, offset)
        for line in lines
        if isinstance(line, kind)
        for number, first, count in line.runs
        for offset in range(first, first + count)
    ]


async def test_after_a_clean_stop_the_log_has_what_the_clients_saw(tmp_path: Path) -> None:
    """Every message is certified, given and acked once, in order of time. The client's clock, which
    is this machine's, says when it was produced."""
    with running(tmp_path) as server:
        async with tocsin.connect(server.url) as client:
            await client.create_queue("orders", partitions=4)
            async with client.subscribe("orders", group="billing") as messages:
                batch = [{"body": n, "key": f"k{n % 100}"} for n in range(MESSAGES)]
                for first in range(0, MESSAGES, 200):
                    await client.publish_many("orders", batch[first : first + 200])
                count = 0
                async for message in messages:
                    count += 1
                    await message.ack(confirm=count == MESSAGES)
                    if count == MESSAGES:
                        break
    lines = log_of(server)
    assert not [line for line in lines if isinstance(line, UnloggedLine)]
    certified, given = places(lines, CertifiedLine), places(lines, DispatchedLine)
    settled = places(lines, SettledLine)
    assert len(certified) == len(set(certified)) == MESSAGES
    assert Counter(given) == Counter(certified) == Counter(settled)
    for line in lines:
        if isinstance(line, CertifiedLine):
            assert line.clock_offset_us is not None
            assert line.produced_unix_us is not None
            assert line.asked_unix_us is not None
            assert line.certified_unix_us is not None
            # The clocks are one; the difference is the error of the estimate.
            assert line.produced_unix_us <= line.accepted_unix_us + 100_000
            assert line.accepted_unix_us <= line.asked_unix_us <= line.certified_unix_us
        if isinstance(line, DispatchedLine):
            assert line.written_unix_us is not None
            assert line.written_unix_us >= line.dispatched_unix_us


async def test_what_a_client_does_not_read_is_not_written(tmp_path: Path) -> None:
    """The client has stopped reading, and leaves without reading more. A message that its socket
    did not take has no time of writing; earlier ones have. The sockets of others go on."""
    with running(tmp_path) as server:
        async with tocsin.connect(server.url) as client:
            await client.create_queue("orders", partitions=1)
            stalled = Narrow("stalled", "orders")
            await stalled.open(server.url, None)
            await stalled.subscribe()
            stalled.stall()
            async with client.read("orders", start="latest") as messages:
                for size in BODIES:
                    await client.publish("orders", "x" * size)
                    await anext(messages)
            stalled.close()
    given = [line for line in log_of(server) if isinstance(line, DispatchedLine)]
    names = {name for line in given for name in (*line.sessions, line.session) if name is not None}
    assert len(names) == 2
    written: dict[str, int] = dict.fromkeys(names, 0)
    lost = dict(written)
    for line in given:
        for name in line.sessions or [str(line.session)]:
            counted = lost if line.written_unix_us is None else written
            counted[name] += messages_of(line.runs)
    assert sorted(lost.values())[0] == 0
    (name,) = (name for name in names if lost[name])
    assert written[name] > 0
    assert lost[name] + written[name] < len(BODIES)
    (other,) = names - {name}
    assert written[other] == len(BODIES)


async def test_a_session_by_long_poll_has_what_it_polled(tmp_path: Path) -> None:
    """Messages of a group and of a reader are written when a poll took it, however long after it
    was given."""
    with running(tmp_path) as server:
        async with tocsin.connect(server.url) as client:
            await client.create_queue("orders", partitions=1)
            rest = Rest(server.url, None)
            await rest.call("PUT", "/v1/queues/orders/groups/billing", {})
            rest.close()
            poll = Poll(server.url, None)
            await asyncio.to_thread(poll.open, {"type": "hello", "client": "c"})
            said: list[dict[str, object]] = [
                {"type": "subscribe", "ref": 1, "subscription": 1, "queue": "orders",
                 "group": "billing", "credit": 100},
                {"type": "subscribe", "ref": 2, "subscription": 2, "queue": "orders",
                 "start": "latest", "credit": 100},
            ]  # fmt: skip
            await asyncio.to_thread(poll.send, said)
            answers: list[object] = []
            while len(answers) < 2:
                answers += await asyncio.to_thread(poll.receive, 5.0)
            await client.publish("orders", 1)
            await asyncio.sleep(WAITS_S)
            pushed: list[object] = []
            while len(pushed) < 2:
                pushed += await asyncio.to_thread(poll.receive, 5.0)
            await client.publish("orders", 2)
            await asyncio.sleep(WAITS_S)
            await asyncio.to_thread(poll.close)
    given = [line for line in log_of(server) if isinstance(line, DispatchedLine)]
    assert {line.transport for line in given} == {"long_poll"}
    for group in ("billing", None):
        first, second = (line for line in given if line.group == group)
        assert first.written_unix_us is not None
        assert first.written_unix_us - first.dispatched_unix_us >= WAITS_S * 900_000
        assert second.written_unix_us is None


async def test_after_a_kill_the_log_lacks_what_it_says_it_lacks(server: Server) -> None:
    """A message that a client knows to be stored has a line, or is counted as missing."""
    told: set[Place] = set()

    async def publish(client: tocsin.Client) -> None:
        while True:
            receipt = await client.publish("orders", {"n": 1}, key="k", timeout_s=30)
            if not receipt.duplicate and receipt.offset is not None:
                told.add((receipt.partition, receipt.offset))

    async with tocsin.connect(server.url) as client:
        await client.create_queue("orders", partitions=4)
        tasks = [asyncio.create_task(publish(client)) for _ in range(TASKS)]
        await becomes(lambda: len(told) >= MESSAGES)
        await asyncio.to_thread(server.kill)
        for task in tasks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks)
    await asyncio.to_thread(server.start)
    await asyncio.to_thread(server.stop)
    lines = log_of(server)
    missing = told - set(places(lines, CertifiedLine))
    killed = [line for line in lines if isinstance(line, UnloggedLine)]
    assert {line.reason for line in killed} <= {"killed"}
    counted = sum(line.certified for line in killed)
    assert len(missing) <= counted <= len(missing) + TASKS


async def test_a_folder_that_nobody_may_write_stops_nothing(tmp_path: Path) -> None:
    """This is reported, and counted."""
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    (data_dir / FOLDER).write_text("not a folder")
    with Server(data_dir, level="warning") as server:
        async with tocsin.connect(server.url) as client:
            await client.create_queue("orders")
            assert (await client.publish("orders", 1)).offset == 0
        await asyncio.to_thread(server.stop)
        assert "the delivery log" in server.log_path.read_text()
        assert server.exit_code() == 0
