"""This gateway among the others: when it is alone, and what it hears of them."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import cast

import pytest

from gateway.catalog.guarded import GuardedMetadata
from gateway.delivery.presence import Presence
from metadata.catalog import ANYBODY, GroupSettings, QueueSettings
from metadata.heartbeats import BEAT_S, GONE_S
from metadata.port import Metadata
from push.errors import Refused, TocsinError, Unknown
from tests.catalogs import open_catalog
from tests.conformance.virtual import VirtualLoop, run
from tests.histories.gateways import SharedMetadata


class Beats:
    """A metadata that only counts beats; `others` move by themselves."""

    is_shared = True

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.others: set[str] = set()
        self.is_away = False
        self.answers_after_s = 0.0

    async def beat(
        self, gateway: str, number: int, forget: Mapping[str, int], says: str = ""
    ) -> dict[str, int]:
        if self.is_away:
            raise Refused("metadata_unavailable")
        if gateway:
            self.numbers[gateway] = max(number, self.numbers.get(gateway, 0))
        for one in self.others:
            self.numbers[one] = self.numbers.get(one, 0) + 1
        for one, stands_at in forget.items():
            if self.numbers.get(one) == stands_at:
                del self.numbers[one]
        answer = dict(self.numbers)
        await asyncio.sleep(self.answers_after_s)
        return answer


async def at_once() -> None:
    """Catch up, where nothing is to be caught up with."""


def nothing() -> None:
    """Resume, where nothing is to be given."""


def ignore(dead: set[str]) -> None:
    """Take over nothing from dead gateways."""


def presence_of(
    metadata: object,
    on_return: Callable[[], Awaitable[None]] = at_once,
    on_resume: Callable[[], None] = nothing,
    on_dead: Callable[[set[str]], None] = ignore,
) -> Presence:
    return Presence(
        cast(Metadata, metadata), on_return=on_return, on_resume=on_resume, on_dead=on_dead
    )


def presence(
    on_return: Callable[[], Awaitable[None]] = at_once,
    on_resume: Callable[[], None] = nothing,
    on_dead: Callable[[set[str]], None] = ignore,
) -> tuple[Presence, Beats]:
    beats = Beats()
    made = presence_of(beats, on_return, on_resume, on_dead)
    made.start()
    return made, beats


def test_who_is_not_answered_is_alone_and_looks_before_it_goes_on() -> None:
    """R14: from the moment on from which others must take it for gone, and not a beat later."""

    async def main() -> None:
        loop, looks, goes = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()

        async def until_looked() -> None:
            await looks.wait()

        one, beats = presence(until_looked, goes.set)
        await asyncio.sleep(10.5)
        assert not one.is_alone
        asked_at = loop.time() - 0.5
        beats.is_away = True
        await asyncio.sleep(GONE_S - 0.6)
        assert not one.is_alone
        await asyncio.sleep(0.1)
        assert one.is_alone
        assert one.gives_until == asked_at + GONE_S
        beats.is_away = False
        await asyncio.sleep(3 * BEAT_S)
        assert one.is_alone, "the groups' rows are still being read"
        looks.set()
        await goes.wait()
        assert not one.is_alone
        await one.stop()
        assert beats.numbers == {}

    run(main())


def test_an_answer_that_waited_while_the_process_was_stopped_is_old() -> None:
    """It says nothing about now: neither that this gateway is there nor that others are not."""

    async def main() -> None:
        loop = cast(VirtualLoop, asyncio.get_running_loop())
        told: list[set[str]] = []
        one, beats = presence(on_dead=told.append)
        beats.others = {"x"}
        await asyncio.sleep(2.5)
        beats.others, beats.answers_after_s = set(), 0.2
        await asyncio.sleep(0.6)  # a beat is under way; the other one's comes a moment later
        beats.others, beats.answers_after_s = {"x"}, 0.0
        loop.now += 90
        assert one.is_alone
        await asyncio.sleep(0.001)
        assert (one.dead(["x"]), told) == (set(), [])
        await asyncio.sleep(2 * BEAT_S)
        assert not one.is_alone
        assert one.dead(["x", "never-seen"]) == set()
        beats.others = set()
        await asyncio.sleep(GONE_S + 2 * BEAT_S)
        assert one.dead(["x", one.gateway]) == {"x"}
        await one.stop()

    run(main())


def test_beats_that_a_failover_took_back_make_nobody_gone() -> None:
    """R14: the one who looks last after it would see the other at the number at which it saw it
    last before, if that number were the lost beats done again; and take over from a gateway that is
    there, knows of nothing, and goes on giving what the new owner's consumers have settled (P5)."""

    async def main() -> None:
        told: list[set[str]] = []
        (one, beats), (other, others_beats) = presence(), presence(on_dead=told.append)
        others_beats.numbers = beats.numbers  # one store; each reaches it or does not
        await asyncio.sleep(10.5)
        copied = dict(beats.numbers)
        await asyncio.sleep(2 * BEAT_S)  # a replica lags behind
        beats.is_away = others_beats.is_away = True
        await asyncio.sleep(GONE_S)
        beats.numbers.update(copied)  # and is the primary now
        beats.is_away = False
        await asyncio.sleep(2 * BEAT_S)
        others_beats.is_away = False
        await asyncio.sleep(BEAT_S / 2)
        assert beats.numbers[one.gateway] != copied[one.gateway]
        await asyncio.sleep(BEAT_S / 2)
        assert told == []
        assert not one.is_alone
        await asyncio.gather(one.stop(), other.stop())

    run(main())


def test_all_gateways_choose_the_same_one() -> None:
    """Of those that are there: for each group one, and not for all the same."""

    async def main() -> None:
        beats = Beats()
        all_of_them = [presence_of(beats) for _ in range(3)]
        for one in all_of_them:
            one.start()
        await asyncio.sleep(3)
        chosen = [
            [one.is_chosen(f"group-{n}") for one in all_of_them].index(True) for n in range(30)
        ]
        assert set(chosen) == {0, 1, 2}
        for n in range(30):
            assert sum(one.is_chosen(f"group-{n}") for one in all_of_them) == 1
        for one in all_of_them:
            await one.stop()

    run(main())


def test_one_gateway_alone_does_nothing() -> None:
    async def main() -> None:
        beats = Beats()
        beats.is_shared = False
        one = presence_of(beats)
        one.start()
        await asyncio.sleep(100)
        assert (one.gateway, one.is_alone, one.facts(), beats.numbers) == ("", False, {}, {})
        assert one.is_chosen("g")
        await one.stop()

    run(main())


def test_a_gateway_is_present_while_the_server_of_the_rows_is_away(tmp_path: Path) -> None:
    """A metadata service is away, and beats go to the storage (R14)."""

    async def main() -> None:
        mad = SharedMetadata(await open_catalog(tmp_path), [])
        guard = GuardedMetadata(cast(Metadata, mad))
        made = presence_of(guard)
        made.start()
        away = Refused("metadata_unavailable")
        mad.fail = lambda name: away if name in {"membership", "glance"} else None
        for _ in range(600):
            for asked in (guard.membership, guard.glance):
                with suppress(TocsinError):
                    await asked("g")
            await asyncio.sleep(0.1)
            assert not made.is_alone
        await made.stop()
        await guard.close()
        await mad.real.close()

    run(main())


@pytest.mark.parametrize("how", ["fails", "stalls"])
def test_a_gateway_is_there_while_changes_alone_are_not_confirmed(tmp_path: Path, how: str) -> None:
    """A replica is away: changes wait for every copy, beats and looks do not (R14, R29)."""

    async def main() -> None:
        mad = SharedMetadata(await open_catalog(tmp_path), [])
        guard = GuardedMetadata(cast(Metadata, mad))
        queue, _ = await guard.put_queue(ANYBODY, "orders", QueueSettings())
        group, _ = await guard.put_group(ANYBODY, queue, "billing", GroupSettings())
        made = presence_of(guard)
        made.start()
        changes: list[asyncio.Task[None]] = []
        loop = asyncio.get_running_loop()

        async def change(name: str) -> None:
            with suppress(TocsinError):
                await guard.put_queue(ANYBODY, name, QueueSettings())

        async def for_s(seconds: float) -> None:
            until = loop.time() + seconds
            while loop.time() < until:
                changes.append(loop.create_task(change(f"q{len(changes)}")))
                await asyncio.sleep(0.01)

        few = Unknown("1 of 2 replicas have confirmed it")
        mad.fail = lambda name: few  # the primary is gone, and another one is elected
        await for_s(2 * GONE_S)
        assert made.is_alone
        mad.fail = lambda name: few if how == "fails" and name == "put_queue" else None
        if how == "stalls":
            mad.stall("put_queue")
        await for_s(3 * BEAT_S)
        for _ in range(60):
            await for_s(1.0)
            assert not made.is_alone
            assert (await guard.membership(group.group_id)).group_id == group.group_id
        assert guard.facts()["breaker"] != "closed"
        mad.well()
        await asyncio.gather(*changes)
        await made.stop()
        await guard.close()
        await mad.real.close()

    run(main())
