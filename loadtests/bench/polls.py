"""The scenario `polls` of `tocsin bench`: sessions by long poll that hold one reader and wait."""

import asyncio
import json
import time
from typing import Final

from loadtests.bench.load_run import Bench, Figures
from loadtests.clients.load import LoadFailed
from loadtests.clients.rest import Rest

WARM_UP: Final = 200
WAIT_S: Final = 20.0
"""How long a poll waits, as the SDK's do."""
_OPENING_AT_ONCE: Final = 64
_QUEUE: Final = "polls"


class Waiting:
    """A session over one keep-alive connection: polls, one after another, that bring nothing."""

    def __init__(self, bench: Bench) -> None:
        self.polls = 0
        self._rest = Rest(bench.url, bench.token)
        self._path = ""
        self._batch = 0
        self._task: asyncio.Task[None] | None = None

    async def open(self, first_wait_s: float) -> None:
        """Say hello, become a reader, and begin to wait. The first poll is the shorter one, so
        that not all sessions poll again at the same time."""
        hello = {"type": "hello", "client": "bench"}
        opened = await self._rest.call("POST", "/v1/sessions", hello)
        self._path, self._batch = f"/v1/sessions/{opened['session']}/frames", opened["batch"]
        subscribe = {"type": "subscribe", "ref": 1, "subscription": 1, "queue": _QUEUE, "credit": 9}
        await self._rest.call("POST", f"{self._path}?number=1", subscribe)
        frames = await self._poll(WAIT_S)
        if [frame["type"] for frame in frames] != ["ok"]:
            raise LoadFailed(f"a subscribe by long poll was answered {frames}")
        self._task = asyncio.create_task(self._wait(first_wait_s))

    async def _wait(self, wait_s: float) -> None:
        while True:
            if frames := await self._poll(wait_s):
                raise LoadFailed(f"an idle poll was answered {frames}")
            self.polls += 1
            wait_s = WAIT_S

    async def _poll(self, wait_s: float) -> list[dict[str, object]]:
        path = f"{self._path}?after={self._batch}&wait_s={wait_s:.3f}"
        status, answer = await self._rest.request("GET", path)
        if status != 200:
            raise LoadFailed(f"a poll was answered {status}: {answer.decode(errors='replace')}")
        batch = json.loads(answer)
        self._batch = batch["batch"]
        frames: list[dict[str, object]] = batch["frames"]
        return frames

    def check(self) -> None:
        """Raise what went wrong."""
        if self._task is not None and self._task.done():
            self._task.result()

    async def close(self) -> None:
        """Wait no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
        self._rest.close()


async def polls(bench: Bench) -> Figures:
    """Resident memory of the server per session by long poll that holds one reader, and the CPU
    time it takes to hold them all open."""
    if bench.server is None:
        raise LoadFailed("polls needs the server's pid (--pid)")
    rest = Rest(bench.url, bench.token)
    try:
        await rest.call("PUT", f"/v1/queues/{_QUEUE}", {"partitions": 1, "retention_s": 60})
    finally:
        rest.close()
    sessions: list[Waiting] = []
    try:
        await _open(bench, sessions, WARM_UP)
        await asyncio.sleep(1.0)
        before = bench.server.rss_bytes()
        await _open(bench, sessions, bench.connections)
        await asyncio.sleep(2.0)
        kib = (bench.server.rss_bytes() - before) / bench.connections / 1024
        began, cpu_s, polled = time.monotonic(), bench.cpu_s(), _polled(sessions)
        await asyncio.sleep(bench.seconds)
        elapsed = time.monotonic() - began
        share = (bench.cpu_s() - cpu_s) / elapsed
        rate = (_polled(sessions) - polled) / elapsed
    finally:
        for session in sessions:
            await session.close()
    bench.progress(f"polls: {kib:.1f} KiB a session, {share:.1%} of a CPU, {rate:.0f} polls/s")
    figures = Figures()
    figures.more = {
        "kib_per_session": round(kib, 2),
        "server_cpu_share": round(share, 4),
        "polls_per_s": round(rate, 1),
    }
    figures.conditions = {
        "counted": f"VmRSS of the server, growth over {bench.connections} sessions by long poll "
        f"(after {WARM_UP} uncounted) that hold one reader and one waiting poll; no kernel memory",
        "wait_s": WAIT_S,
    }
    return figures


async def _open(bench: Bench, sessions: list[Waiting], count: int) -> None:
    """`count` more."""
    done = 0
    while done < count:
        fresh = [Waiting(bench) for _ in range(min(_OPENING_AT_ONCE, count - done))]
        sessions += fresh
        waits = [bench.random.uniform(1.0, WAIT_S) for _ in fresh]
        await asyncio.gather(
            *(session.open(wait_s) for session, wait_s in zip(fresh, waits, strict=True))
        )
        done += len(fresh)
        if done // _OPENING_AT_ONCE % 16 == 0:
            bench.progress(f"polls: {done:,} of {count:,} sessions")


def _polled(sessions: list[Waiting]) -> int:
    """Polls that ended. Raises what went wrong with any session."""
    for session in sessions:
        session.check()
    return sum(session.polls for session in sessions)
