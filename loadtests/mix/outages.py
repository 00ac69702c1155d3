"""The times at which the brokers of a run could not be reached, and why.

Users notice outages too, but each by itself and late: a socket that hangs says nothing for a
minute, and a broken one may be the only one. So each broker is asked repeatedly whether it is
ready.
"""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple, Self

import msgspec

from loadtests.mix.calls import Gone, Http

ASK_EVERY_S: Final = 0.5
ANSWER_S: Final = 3.0
"""A broker that has not answered for this time is out. Together with ASK_EVERY_S, an outage is
reported within five seconds."""
FILE: Final = "outages.json"


class Change(NamedTuple):
    """The start or the end of an outage."""

    url: str
    is_out: bool
    text: str
    """The report, for people."""


class Outage(msgspec.Struct, frozen=True):
    """A time in which a broker could not be reached."""

    url: str
    why: str
    """The first reason, unless `Outages.blame` replaced it."""
    began_unix_s: float
    began_s: float
    """The beginning, in seconds since the run began."""
    lasted_s: float
    is_over: bool
    """False: it lasted until the end of the run."""

    def __str__(self) -> str:
        began, ended = (
            f"{datetime.fromtimestamp(at, UTC):%H:%M:%S}"
            for at in (self.began_unix_s, self.began_unix_s + self.lasted_s)
        )
        until = ended if self.is_over else f"{ended}, the end of the run"
        return f"{self.url} from {began} to {until} (UTC), {self.lasted_s:.1f} s: {self.why}"


class Outages:
    """The known outages. Pure: the caller passes times, in seconds since the run began."""

    def __init__(self) -> None:
        self._ended: list[Outage] = []
        self._out: dict[str, Outage] = {}

    def seen(self, url: str, at_s: float, unix_s: float, why: str | None) -> Change | None:
        """Note the result of a readiness check: `why` it failed, or None. Return the change that it
        makes, or None."""
        out = self._out.get(url)
        if why is not None and out is None:
            self._out[url] = Outage(url, why, unix_s, at_s, 0.0, False)
            return Change(url, True, f"{url} cannot be reached: {why}")
        if why is None and out is not None:
            del self._out[url]
            self._ended.append(_lasted(out, at_s, is_over=True))
            return Change(url, False, f"{url} is back, after {self._ended[-1].lasted_s:.1f} s")
        return None

    def blame(self, url: str, at_s: float, unix_s: float, why: str) -> Change:
        """Note that a broker cannot be reached, and why. This reason replaces an earlier one,
        because the caller knows it better."""
        out = self._out.get(url, Outage(url, why, unix_s, at_s, 0.0, False))
        self._out[url] = msgspec.structs.replace(out, why=why)
        return Change(url, True, f"{url} cannot be reached: {why}")

    def out_s(self, at_s: float) -> float | None:
        """Return how many seconds the longest of the current outages has lasted by now; None if all
        brokers can be reached."""
        return max((at_s - one.began_s for one in self._out.values()), default=None)

    def all(self, at_s: float) -> list[Outage]:
        """Return all outages up to now, in order of their beginning."""
        found = [*self._ended, *(_lasted(one, at_s, is_over=False) for one in self._out.values())]
        return sorted(found, key=lambda one: one.began_s)


def _lasted(one: Outage, at_s: float, *, is_over: bool) -> Outage:
    return msgspec.structs.replace(one, lasted_s=at_s - one.began_s, is_over=is_over)


def figures(outages: Iterable[Outage]) -> dict[str, float]:
    """Return the figures `outages`, their number, and `outage_s`, their total duration in
    seconds."""
    lasted = [one.lasted_s for one in outages]
    return {"outages": len(lasted), "outage_s": sum(lasted)}


def write(outages: Sequence[Outage], path: Path) -> None:
    """Write outages into a file."""
    path.write_bytes(msgspec.json.encode(outages))


def read(path: Path) -> list[Outage]:
    """Read the outages that `write` wrote; empty without a file. Raises msgspec.DecodeError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[Outage])
    except FileNotFoundError:
        return []


class Watch:
    """A watch that asks brokers whether they are ready, each in a thread of its own, and reports
    changes. It ends with its context."""

    def __init__(
        self, urls: Sequence[str], token: str | None, say: Callable[[Change], None], *,
        began_s: float,
    ) -> None:  # fmt: skip
        """`began_s`: when the run began, by time.monotonic. `say` is called in other threads."""
        self._urls = urls
        self._token = token
        self._say = say
        self._began_s = began_s
        self._outages = Outages()
        self._lock = threading.Lock()
        self._over = threading.Event()

    def start(self) -> None:
        """Start asking."""
        for url in self._urls:
            threading.Thread(target=self._follow, args=(url,), daemon=True).start()

    def stop(self) -> None:
        """Stop reporting; the threads end."""
        self._over.set()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def blame(self, url: str, why: str) -> None:
        """Report that a broker cannot be reached from now on, and why, without asking it."""
        with self._lock:
            change = self._outages.blame(url, self._now_s(), time.time(), why)
        self._say(change)

    def _follow(self, url: str) -> None:
        while not self._over.is_set():
            at_s, unix_s = self._now_s(), time.time()
            why = ask(url, self._token)
            self._seen(url, at_s if why else self._now_s(), unix_s, why)
            self._over.wait(ASK_EVERY_S)

    def _seen(self, url: str, at_s: float, unix_s: float, why: str | None) -> None:
        if self._over.is_set():
            return
        with self._lock:
            change = self._outages.seen(url, at_s, unix_s, why)
        if change is not None:
            self._say(change)

    def _now_s(self) -> float:
        return time.monotonic() - self._began_s

    def out_s(self) -> float | None:
        """Return how many seconds the longest of the current outages has lasted by now; None if all
        brokers can be reached."""
        with self._lock:
            return self._outages.out_s(self._now_s())

    def outages(self) -> list[Outage]:
        """Return all outages up to now."""
        with self._lock:
            return self._outages.all(self._now_s())


def ask(url: str, token: str | None) -> str | None:
    """Ask a broker whether it is ready. Return why it is not, or None if it answers with a status
    below 500."""
    http = Http(url, token)
    try:
        status, _ = http.request("GET", "/readyz", timeout_s=ANSWER_S)
    except Gone as error:
        return error.reason
    finally:
        http.close()
    return f"it answers {status}" if status >= 500 else None
