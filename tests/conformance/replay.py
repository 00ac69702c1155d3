"""The replay of a transcript: one side is under test, the transcript is the other one."""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from tests.conformance.transcript import (
    SIDES,
    WITHIN_S,
    Captures,
    Deviation,
    Line,
    Transcript,
    places_of,
)

QUIET_S = 0.001
"""Virtual time in which everything can happen that is already due."""
EARLY_S = 0.01
"""Tolerance for rounding: an event may come this much before its `at`."""
Kind = Literal["frame", "close", "cut", "open"]
Role = Literal["does", "shows", "skips"]


@dataclass(frozen=True)
class Event:
    """An act of the side under test."""

    kind: Kind
    over: str
    what: Any
    at: float


class Replay(ABC):
    """A replay of a transcript against one side, which `side` names."""

    side: str

    def __init__(self, transcript: Transcript, transport: str) -> None:
        self.transcript = transcript
        self.transport = transport
        self.captures = Captures()
        self.over = ""
        """The connection that was opened last."""
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._events: deque[Event] = deque()
        self._news = asyncio.Event()
        self._rests: dict[int, set[tuple[int, int, int, int]]] = {}
        self._connections = 0

    # --- implemented by each side ---------------------------------------------------------------

    @abstractmethod
    async def start(self) -> None:
        """Create everything that must exist before the first line."""

    @abstractmethod
    async def stop(self) -> None:
        """Take everything down, whatever happened."""

    @abstractmethod
    async def do(self, line: Line) -> None:
        """Do the act of a line of the other side, or of the world around."""

    @abstractmethod
    async def see(self, line: Line) -> None:
        """Await the result that a line shows, which is no event. Raises Deviation."""

    @abstractmethod
    def is_free(self, event: Event) -> bool:
        """Whether the side under test may do this at any time. The event is noted."""

    def role(self, line: Line) -> Role:
        """Return the treatment of a line in this replay."""
        return role_of(line, self.side)

    # --- playing --------------------------------------------------------------------------------

    async def play(self) -> None:
        """Play from the first line to the last. Raises Deviation, which names the line."""
        line: Line | None = None
        await self.start()
        try:
            for block in self._blocks():
                line = block[0]
                await self._step(block)
            await self._until(self.now + WITHIN_S)
            await self._rest()
        except Deviation as why:
            number = line.number if line is not None else 1
            raise Deviation(f"{self.transcript.name}.jsonl:{number}: {why}") from None
        finally:
            await self.stop()

    def _blocks(self) -> Iterator[list[Line]]:
        """Yield the lines in blocks; neighbours whose order does not count share a block."""
        block: list[Line] = []
        for line in self.transcript.lines:
            if self.role(line) == "skips":
                continue
            if block and not self._goes_with(block[-1], line):
                yield block
                block = []
            block.append(line)
        if block:
            yield block

    def _goes_with(self, line: Line, following: Line) -> bool:
        if line.order is None or line.order != following.order:
            return False
        return line.order == "crossing" or self.role(line) == self.role(following)

    async def _step(self, block: list[Line]) -> None:
        shown = [line for line in block if self.role(line) == "shows"]
        done = [line for line in block if self.role(line) == "does"]
        if done:
            await self._until(done[0].at)
            await (asyncio.sleep(QUIET_S) if shown else self._rest())
            for line in done:
                await self.do(line)
        if shown and shown[0].who in ("user", "world"):
            await self.see(shown[0])
        elif shown:
            await self._await(shown)

    async def _await(self, wanted: list[Line]) -> None:
        """Wait until every one of these lines has come."""
        for line in list(wanted):
            if self._is_known(line):
                wanted.remove(line)
        while wanted:
            event = await self._next(max(line.by for line in wanted))
            if event is None:
                raise Deviation(f"does not come by {wanted[0].by} s: {wanted[0].fields}")
            self._judge(event, wanted)

    def _judge(self, event: Event, wanted: list[Line]) -> None:
        reasons = []
        for line in wanted:
            why = self._compare(line, event)
            if why is None:
                self.matched(line, event)
                if not self._rests.get(line.number):
                    wanted.remove(line)
                return
            reasons.append(why)
        if not self.is_free(event):
            raise Deviation(
                f"{event.kind} over {event.over}: {event.what}\n  " + "; ".join(reasons)
            )
        for line in list(wanted):
            if self._is_known(line):
                wanted.remove(line)

    def _compare(self, line: Line, event: Event) -> str | None:
        """Compare an event with a line. Return None if the line shows it in time, otherwise why
        not."""
        why = self.compare(line, event)
        if why is None and not line.at - EARLY_S <= event.at <= line.by:
            return f"it came at {event.at:.3f} s, and not from {line.at} to {line.by}"
        return why

    def compare(self, line: Line, event: Event) -> str | None:
        """Compare an event with a line, whenever it came. Return None if the line shows it,
        otherwise why not. May be called again."""
        if event.kind != "open" and event.over != line.get("over", self.over):
            return f"it is to come over {line.get('over', self.over)}"
        if event.kind == "frame" and "frame" in line:
            if self._is_part(line, event.what):
                return None
            return self.captures.match(line["frame"], event.what)
        if event.kind == "close" and "close" in line:
            return self.captures.match(line["close"], event.what)
        if event.kind == "cut" and "cut" in line:
            return None
        return f"{sorted(set(line.fields) - {'who', 'at', 'by'})} is wanted"

    def _is_part(self, line: Line, frame: dict[str, Any]) -> bool:
        """Whether a frame is a part of an ack without answer, which may come in several parts."""
        shown = line["frame"]
        if shown["type"] != "ack" or "ref" in shown or frame["type"] != "ack" or "ref" in frame:
            return False
        rest = self._rests.get(line.number)
        if rest is None:
            rest = places_of(self.captures.fill(shown["deliveries"]))
        named = places_of(frame["deliveries"])
        if not named <= rest or frame["subscription"] != self.captures.fill(shown["subscription"]):
            return False
        if "started" in shown or named == rest == places_of(
            self.captures.fill(shown["deliveries"])
        ):
            return False  # compared as a whole
        self._rests[line.number] = rest - named
        return True

    def _is_known(self, line: Line) -> bool:
        """Whether an event that was free has already shown the same as a line."""
        return False

    @abstractmethod
    def matched(self, line: Line, event: Event) -> None:
        """Note that an event matched a line."""

    # --- events ---------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        """Return seconds from the beginning of the replay."""
        return self._loop.time() - self._began

    def happened(self, kind: Kind, over: str, what: Any) -> None:
        """Note an act of the side under test."""
        self._events.append(Event(kind, over, what, self.now))
        self._news.set()

    def connection(self, line: Line) -> str:
        """Return the name of the connection that a line opens."""
        self._connections += 1
        self.over = str(line.get("as", f"c{self._connections}"))
        return self.over

    async def _next(self, by: float) -> Event | None:
        if not self._events:
            self._news.clear()
            try:
                async with asyncio.timeout_at(self._began + by + EARLY_S):
                    await self._news.wait()
            except TimeoutError:
                return None
        return self._events.popleft()

    async def _until(self, when: float) -> None:
        """Let time pass, and handle free events meanwhile."""
        while self.now < when - QUIET_S:
            event = await self._next(when - EARLY_S)
            if event is None:
                await asyncio.sleep(max(0.0, when - self.now))
            elif not self.is_free(event):
                raise Deviation(f"nothing of the kind is shown: {event}")

    async def _rest(self) -> None:
        """Let everything happen that is already due. Raises Deviation for an event that is not
        shown."""
        await asyncio.sleep(QUIET_S)
        while self._events:
            event = self._events.popleft()
            if not self.is_free(event):
                raise Deviation(f"nothing of the kind is shown: {event}")
            await asyncio.sleep(0)

    def where(self, line: Line) -> None:
        """Check the relations of a line: ["#e2", ">", "#e1"]. Raises Deviation."""
        for left, sign, right in line.get("where", []):
            numbers = self.captures.number(left), self.captures.number(right)
            if not (numbers[0] > numbers[1] if sign == ">" else numbers[0] == numbers[1]):
                raise Deviation(f"{left} {sign} {right} does not hold: {numbers}")


def role_of(line: Line, side: str) -> Role:
    """Return the treatment of a line in the replay against this side."""
    assert side in SIDES
    if line.get("only", side) != side:
        return "skips"
    if line.who == side:
        return "shows"
    if line.who in SIDES:
        return "does"
    if line.who == "carrier":
        if side == "broker":
            return "skips" if line["do"] == "refuse" else "does"
        return "shows" if line["do"] in ("open", "refuse") else "does"
    if (line.who == "user") is (side == "client"):
        return "shows" if "told" in line or line.get("do") == "given" else "does"
    return "skips"
