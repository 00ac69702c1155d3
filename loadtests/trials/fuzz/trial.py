"""A million mutated frames against a running broker (P12), from a seed. They come over WebSockets,
as raw frames, as HTTP requests and by long poll, several at once. A witness publishes and consumes
beside them, and loses nothing."""

import asyncio
import itertools
import re
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Final

from loadtests.clients.load import LoadFailed
from loadtests.clients.rest import Rest
from loadtests.server import Process, Server, ServerFailed, raise_file_limit
from loadtests.trials import options
from loadtests.trials.fuzz.clients import Fuzz, Notes, long_poll
from loadtests.trials.fuzz.frames import SMUGGLED_NAME
from loadtests.trials.trial import MIB, Finding, Memory, Progress, broker
from loadtests.trials.witness import Witness

FRAMES: Final = 1_000_000
AT_ONCE: Final = 12
"""Number of conversations at a time."""
PER_SESSION: Final = ((4, 16), (20, 400))
"""Two pairs of bounds of the number of messages in one WebSocket session; each applies to half of
the sessions. Short sessions mostly end by themselves, and then every ref must have its answer. Long
ones mostly go on until the broker ends them."""
PER_POLL: Final = 40
TYPICAL: Final = 16
"""Typical number of messages of a session before the broker ends it."""
WITNESS_RATE: Final = 100.0
WARM_SHARE: Final = 0.1
"""The share of the run before memory is first measured."""
GROWTH_MAX: Final = 96 * MIB
"""The most growth of memory, in bytes, from its first measurement (WARM_SHARE) to the end. A third
of it is the broker's cache of the newest records, which the witness fills within minutes. Groups
and producers with the names that the frames invent take memory, too."""
SHOWN_MAX: Final = 10
_SHARES: Final = (("raw", 0.03), ("http", 0.012), ("poll", 0.012))
"""Shares of the frames; all others are messages of WebSocket sessions."""
_UNEXPECTED: Final = re.compile(rb"Traceback|ERROR|CRITICAL|unexpected|exception", re.IGNORECASE)
_TOLD_EVERY_S: Final = 10.0
_ORDERS: Final = {
    "partitions": 4, "retention_s": 60, "lease_s": 5, "backoff_s": 0.01, "attempts_max": 3,
}  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """Send mutated frames and requests over every way in. Another client must lose nothing.

    There must be no 5xx, no traceback, no stuck session, and no ref without an answer. Takes some
    minutes.
    """

    frames: int = options.whole(FRAMES, "Number of mutated frames and requests.", 100)
    seed: int = options.seed()


class _Trial:
    """A run on a server of its own."""

    def __init__(self, server: Server, plan: Plan, progress: Progress) -> None:
        self._plan = plan
        self._progress = progress
        self.notes = Notes()
        self._fuzz = Fuzz(server.url, plan.seed, self.notes)
        self.witness = Witness(server.url, WITNESS_RATE)
        self._rest = Rest(server.url)
        self._process = Process(server.pid)
        self.memory = Memory(self._process)
        self.sent = 0
        self.witnessed = 0
        self.warm = self.end = 0
        """Resident bytes of the broker after WARM_SHARE of the frames, and at the end."""

    async def run(self) -> None:
        """Send all frames, several conversations at once, beside the witness. Raises LoadFailed if
        the witness lost a message."""
        await self._rest.call("PUT", "/v1/queues/orders", _ORDERS)
        self._rest.close()
        await self.witness.open()
        self.sent = await self._fuzz.vectors()
        names = self._names()
        tellers = [asyncio.create_task(self._client(names)) for _ in range(AT_ONCE)]
        tellers.append(asyncio.create_task(self._tell()))
        try:
            await asyncio.gather(*tellers[:-1])
        finally:
            for task in tellers:
                task.cancel()
            await asyncio.wait(tellers)
        self.witnessed = await self.witness.finish()

    def _names(self) -> Iterator[tuple[str, str]]:
        """Yield (kind, name) of one conversation after the other."""
        random = self._fuzz.random("plan")
        kinds = [kind for kind, _ in _SHARES]
        weights = [share / (TYPICAL if kind == "poll" else 1) for kind, share in _SHARES]
        rest = (1 - sum(share for _, share in _SHARES)) / TYPICAL
        for number in itertools.count():
            kind = random.choices([*kinds, "session"], [*weights, rest])[0]
            yield kind, f"{kind}-{number}"

    async def _client(self, names: Iterator[tuple[str, str]]) -> None:
        fuzz = self._fuzz
        one: dict[str, Callable[[str], Awaitable[int]]] = {
            "raw": fuzz.raw,
            "http": fuzz.http,
            "poll": lambda name: long_poll(fuzz, name, PER_POLL),
            "session": lambda name: fuzz.messages(name, _length(fuzz.random(name))),
        }
        while self.sent < self._plan.frames:
            kind, name = next(names)
            sent = await one[kind](name)
            self.sent += sent  # not in one statement: the others count meanwhile
            if not self.warm and self.sent > WARM_SHARE * self._plan.frames:
                self.warm = self._process.rss_bytes()

    async def _tell(self) -> None:
        while True:
            await asyncio.sleep(_TOLD_EVERY_S)
            self._progress(
                f"fuzz: {self.sent:,} of {self._plan.frames:,} frames, {len(self.notes.wrong)} "
                f"wrong, {self.memory.now() / MIB:.0f} MiB"
            )

    async def smuggled(self) -> list[str]:
        """Return the queues that a request inside another one has created."""
        found, after = [], ""
        while True:
            page = await self._rest.call("GET", f"/v1/queues?limit=1000&after={after}")
            found += [one["name"] for one in page["queues"]]
            after = page.get("next") or ""
            if not after:
                return [name for name in found if name.startswith(SMUGGLED_NAME)]

    def close(self) -> None:
        """Disconnect, and stop the witness."""
        self._rest.close()
        self.witness.close()


def _length(random: Random) -> int:
    return random.randint(*random.choice(PER_SESSION))


async def fuzz(plan: Plan, progress: Progress) -> Finding:
    """Send `plan.frames` frames and judge the outcomes. Raises ServerFailed if the broker fails;
    RuntimeError if this is no checkout, or if too few files may be open."""
    raise_file_limit(1000)
    finding = Finding("fuzz")
    smuggled: list[str] = []
    async with broker("fuzz") as server:
        trial = _Trial(server, plan, progress)
        began = time.monotonic()
        failure = ""
        try:
            await trial.run()
            smuggled = await trial.smuggled()
        except LoadFailed as error:
            failure = str(error)
        finally:
            trial.close()
        seconds = time.monotonic() - began
        stopped = await _end(server, trial)
        log = server.log_path.read_bytes()
    notes = trial.notes
    finding.figures = {
        "frames": trial.sent, "seconds": round(seconds, 1),
        "frames_per_s": round(trial.sent / seconds),
        **{name.replace(" ", "_"): count for name, count in sorted(notes.sent.items())},
        "refs_answered": notes.answered, "witnessed": trial.witnessed,
        "rss_warm_mib": round(trial.warm / MIB, 1), "rss_end_mib": round(trial.end / MIB, 1),
        "closes": ", ".join(f"{code}: {n:,}" for code, n in sorted(notes.closes.items())),
        "errors": ", ".join(f"{code}: {n:,}" for code, n in notes.codes.most_common()),
        "statuses": ", ".join(f"{code}: {n:,}" for code, n in sorted(notes.statuses.items())),
    }  # fmt: skip
    finding.conditions = {"seed": plan.seed, "at_once": AT_ONCE, "witness_per_s": WITNESS_RATE}
    finding.check(
        "P12: no 5xx but a documented 503, no internal error, no stuck session, every ref answered",
        not notes.wrong, "\n".join([f"{len(notes.wrong)} wrong", *notes.wrong[:SHOWN_MAX]]),
    )  # fmt: skip
    finding.check("no request inside another one was done", not smuggled, smuggled or "none was")
    finding.check(
        "P1, P3: the witness lost nothing, and kept each key's order",
        not failure, failure or f"{trial.witnessed:,} messages",
    )  # fmt: skip
    finding.check(
        f"P9: memory grows by at most {GROWTH_MAX // MIB} MiB behind the first "
        f"{WARM_SHARE:.0%}", trial.end - trial.warm <= GROWTH_MAX,
        f"{(trial.end - trial.warm) / MIB:.1f} MiB",
    )  # fmt: skip
    found = _UNEXPECTED.search(log)
    finding.check(
        "nothing unexpected in the broker's log", found is None,
        log[max(0, found.start() - 500) :][:3000].decode(errors="replace") if found else "nothing",
    )  # fmt: skip
    finding.check("the broker answers afterwards, and stops cleanly", stopped == "", stopped or "0")
    return finding


async def _end(server: Server, trial: _Trial) -> str:
    """Check that the broker is still ready, measure its memory, and stop it. Return what went
    wrong, or an empty text."""
    try:
        await asyncio.to_thread(server.wait_ready, 15.0)
        trial.end = Process(server.pid).rss_bytes()
        await asyncio.to_thread(server.stop)
    except ServerFailed as error:
        return str(error)
    code = server.exit_code()
    return "" if code == 0 else f"it ended with {code}:\n{server.log_tail()}"
