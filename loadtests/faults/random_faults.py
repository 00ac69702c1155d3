"""Random faults of a network, drawn from a seed: what the proxy does to connections, and when."""

import asyncio
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Final

from loadtests.faults.proxy import HELD, PASS, SWALLOWED, How, Link, Proxy, Treatment, Upgrades, Way

PAUSE_S: Final = (0.05, 0.8)
"""Bounds of the pause between two faults."""
AT_ONCE_MAX: Final = 12
"""The most lasting faults at a time. While there are this many, no fault of any kind begins."""
_WAYS: Final[tuple[Way, Way]] = ("up", "down")
_HOWS: Final[tuple[How, How]] = ("reset", "fin")
_BLOCKS: Final[tuple[Upgrades, ...]] = ("refuse", "strip", "swallow")


class RandomFaults:
    """A source of random faults. Each lasting fault is lifted after up to `outage_s`, except those
    that the connection's own ends must notice. These are reset in the end."""

    def __init__(self, proxy: Proxy, random: Random, *, outage_s: float) -> None:
        self.counts: Counter[str] = Counter()
        self._proxy = proxy
        self._random = random
        self._outage_s = outage_s
        self._lasting: set[asyncio.Task[None]] = set()
        self._abandoned: list[Link] = []
        self._is_blocked = False
        self._kinds: dict[Callable[[], str], int] = {
            self._cut: 6,
            self._cut_within: 6,
            self._half_open: 4,
            self._hold: 4,
            self._swallow: 4,
            self._abandon: 1,
            self._delay: 4,
            self._trickle: 3,
            self._gather: 3,
            self._refuse: 1,
            self._block: 3,
            self._cut_everyone: 1,
        }

    async def run(self, seconds: float) -> None:
        """Cause faults for `seconds`; then let everything pass again."""
        random, loop = self._random, asyncio.get_running_loop()
        kinds, weights = list(self._kinds), list(self._kinds.values())
        until = loop.time() + seconds
        try:
            while loop.time() < until:
                await asyncio.sleep(random.uniform(*PAUSE_S))
                kind = random.choices(kinds, weights)[0]
                if self._proxy.links and len(self._lasting) < AT_ONCE_MAX:
                    self.counts[kind()] += 1
        finally:
            self.lift()

    def lift(self) -> None:
        """Let everything pass again, and reset the connections whose fault neither end has noticed
        yet."""
        for task in self._lasting:
            task.cancel()
        self._proxy.is_refusing, self._proxy.upgrades = False, "pass"
        self._proxy.treat_all()
        for link in self._abandoned:
            link.cut()
        self._abandoned.clear()

    # --- the kinds: each causes a fault and returns its name

    def _link(self) -> Link:
        return self._random.choice(self._proxy.links)

    def _cut(self) -> str:
        how = self._random.choice(_HOWS)
        self._link().cut(how)
        return f"cut: {how}"

    def _cut_within(self) -> str:
        way, how = self._random.choice(_WAYS), self._random.choice(_HOWS)
        self._link().cut_after(self._random.randrange(1, 4_000), way=way, how=how)
        return "cut: at a byte"

    def _cut_everyone(self) -> str:
        self._proxy.cut_all()
        return "cut: everyone"

    def _half_open(self) -> str:
        link, how = self._link(), self._random.choice(_HOWS)
        told = "client" if self._random.random() < 0.5 else "broker"
        link.half_open("client" if told == "client" else "broker", how)
        self._lasts(link.cut)
        return f"half-open: only the {told} knows"

    def _hold(self) -> str:
        return self._treated("held", HELD, both=self._random.random() < 0.5)

    def _swallow(self) -> str:
        return self._treated("swallowed", SWALLOWED, both=self._random.random() < 0.5)

    def _abandon(self) -> str:
        link = self._link()
        link.treat(up=SWALLOWED, down=SWALLOWED)
        self._abandoned.append(link)
        return "swallowed: until they notice"

    def _delay(self) -> str:
        late_s = self._random.uniform(0.005, 0.15)
        return self._treated("delayed", Treatment(delay_s=(0.0, late_s)), both=True)

    def _trickle(self) -> str:
        slow = Treatment(trickle_bytes=self._random.choice((17, 200)), trickle_s=0.002)
        return self._treated("trickled", slow, both=False)

    def _gather(self) -> str:
        slow = Treatment(gather_bytes=self._random.choice((500, 20_000)), gather_s=0.4)
        return self._treated("gathered", slow, both=False, way="down")

    def _treated(
        self, name: str, treatment: Treatment, *, both: bool, way: Way | None = None
    ) -> str:
        link, way = self._link(), way or self._random.choice(_WAYS)
        up = treatment if both or way == "up" else PASS
        down = treatment if both or way == "down" else PASS
        link.treat(up=up, down=down)
        self._lasts(link.treat)
        return f"{name}: {'both ways' if both else way}"

    def _refuse(self) -> str:
        self._proxy.is_refusing = True
        self._proxy.cut_all()
        self._lasts(self._let_in)
        return "refused"

    def _let_in(self) -> None:
        self._proxy.is_refusing = False

    def _block(self) -> str:
        if self._is_blocked:
            return self._cut()
        proxy, random = self._proxy, self._random
        self._is_blocked = True
        proxy.upgrades = random.choice(_BLOCKS)
        proxy.refusal_status = random.choice((400, 403))
        for link in proxy.links:
            if link.is_websocket and random.random() < 0.5:
                link.cut()
        self._lasts(self._unblock)
        return f"no WebSockets: {proxy.upgrades}"

    def _unblock(self) -> None:
        self._is_blocked, self._proxy.upgrades = False, "pass"

    def _lasts(self, lift: Callable[[], None]) -> None:
        seconds = self._random.uniform(0.1, self._outage_s)

        async def later() -> None:
            await asyncio.sleep(seconds)
            lift()

        task = asyncio.create_task(later())
        self._lasting.add(task)
        task.add_done_callback(self._lasting.discard)
