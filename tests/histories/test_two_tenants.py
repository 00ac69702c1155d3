"""Histories of several tenants, whose principals have the same names and other rights. They request
everything, also with names of others' objects. Nothing is delivered, settled, listed, described or
changed against the rights, and a principal without rights does not learn what exists (P11).

A naive model (rights_model) says of each step whether it is allowed. `make soak` does the whole
run, 100,000 steps.
"""

import asyncio
import itertools
import os
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from gateway.rest.app import OPERATIONS
from gateway.wire import frames
from tests.conformance.virtual import VirtualLoop, run
from tests.histories.house import House
from tests.histories.rights_acts import OTHERS, REST, Choice, Undone, on_queue
from tests.histories.rights_frames import FRAMES
from tests.histories.rights_model import ACTORS, GHOST, KEYS, NAMES, Actor
from tests.histories.rights_world import World
from tests.memory import memory

WHOLE = bool(os.environ.get("TOCSIN_SOAK"))
STEPS_WHOLE, STEPS_SHORT, STEPS_PER_HISTORY = 100_000, 300, 100
GROUPS: Final = ("billing", "audit", "extra")
OFTEN: Final = [actor for actor in ACTORS if actor.name in ("boss", "worker")]
"""Actors with many rights, which reach states that others do not."""
Seen = Counter[tuple[str, bool]]
"""Counts by (operation or frame, allowed)."""
T = TypeVar("T")


def _rest(name: str) -> Callable[[World, Actor, Choice], Awaitable[bool]]:
    return lambda world, actor, choice: on_queue(world, actor, name, choice)


ACTS: Final[dict[str, Callable[[World, Actor, Choice], Awaitable[bool]]]] = {
    **{f"HTTP {name}": _rest(name) for name in REST},
    **{f"HTTP {name}": act for name, act in OTHERS.items()},
    **{f"frame {name}": act for name, act in FRAMES.items()},
}
EVERYTHING: Final = {
    *(f"HTTP {operation.name}" for operation in OPERATIONS if not operation.public),
    *(f"frame {kind.__struct_config__.tag}" for kind in frames.ClientFrame.__args__),
}


ENDING: Final = ("frame unsubscribe", "frame auth", "HTTP delete_group")
"""Acts that leave less to request."""


def test_every_operation_and_every_frame_is_among_the_acts() -> None:
    assert set(ACTS) == EVERYTHING


async def step(world: World, actor: Actor, name: str, choice: Choice, seen: Seen) -> None:
    """Do the step and check its changes: nothing of another tenant, and nothing at all if it was
    refused."""
    if world.is_over:
        return
    before = await world.state()
    try:
        allowed = await ACTS[name](world, actor, choice)
    except Undone:
        allowed = None
    await world.settle()
    after = await world.state()
    for tenant, now in after.items():
        if tenant != actor.tenant or allowed is False:
            changed = [pair for pair in zip(before[tenant], now, strict=True) if pair[0] != pair[1]]
            assert not changed, f"{actor.token}: {name} changed {tenant}: {changed}"
    if allowed is not None:
        seen[name, allowed] += 1


async def opened() -> World:
    """Open a broker of its own."""
    folder = tempfile.TemporaryDirectory(dir=memory())
    house = House(Path(folder.name), "memory")
    await house.open()
    world = World(house)
    world.folder = folder
    await world.open()
    return world


async def closed(world: World) -> None:
    """Close the world and its broker."""
    await world.close()
    await world.house.stop()
    world.folder.cleanup()


def test_everything_is_allowed_to_some_and_refused_to_others() -> None:
    """Each act is done by each actor of a tenant, on a queue with rights and on one without."""
    seen: Seen = Counter()

    async def sweep() -> None:
        world = await opened()
        count = itertools.count()
        names = [*(name for name in ACTS if name not in ENDING), *ENDING]
        for name, foreign, queue in itertools.product(names, (False, True), ("orders", "feed")):
            for actor in ACTORS[: len(ACTORS) // 3] if not foreign else ACTORS[::5]:
                if world.is_over:
                    await closed(world)
                    world = await opened()
                choice = Choice(queue, "billing", "k1", foreign, next(count))
                await step(world, actor, name, choice, seen)
        await closed(world)

    run(sweep())
    assert_all_seen(seen)


def test_a_position_of_another_tenant_is_none() -> None:
    async def subscribe() -> None:
        world = await opened()
        choice = Choice("orders", "billing", None, foreign=True, number=0)
        with pytest.raises(Undone):  # position_unknown
            await ACTS["frame subscribe"](world, ACTORS[0], choice)
        await closed(world)

    run(subscribe())


def assert_all_seen(seen: Seen) -> None:
    """Check that every operation and frame has been allowed, and refused."""
    wanted = {(name, allowed) for name in EVERYTHING for allowed in (True, False)}
    assert wanted - set(seen) == set()


class Tenants(RuleBasedStateMachine):
    """Any history."""

    seen: Seen = Counter()

    def __init__(self) -> None:
        super().__init__()
        self._runner = asyncio.Runner(loop_factory=VirtualLoop)
        self._unexpected: list[dict[str, Any]] = []
        self._world: World | None = None

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        result = self._runner.run(work)
        assert not self._unexpected, self._unexpected
        return result

    @initialize()
    def begin(self) -> None:
        """Give the tenants their queues."""
        loop = self._runner.get_loop()
        loop.set_exception_handler(lambda _, context: self._unexpected.append(context))
        self._world = self._run(opened())

    @rule(
        actor=st.sampled_from([*ACTORS, *OFTEN, *OFTEN, *OFTEN]),
        name=st.sampled_from(list(ACTS)),
        queue=st.sampled_from([*["orders", "feed"] * 4, *NAMES, GHOST, "orders.dead-letters"]),
        group=st.sampled_from([*["billing"] * 4, *GROUPS]),
        key=st.sampled_from(KEYS),
        foreign=st.booleans(),
        number=st.integers(0, 1000),
    )
    def act(self, actor: Actor, name: str, **choice: Any) -> None:
        """Let an actor do one act."""
        assert self._world is not None
        self._run(step(self._world, actor, name, Choice(**choice), self.seen))

    def teardown(self) -> None:
        """Close everything."""
        if self._world is not None:
            self._run(closed(self._world))
        self._runner.close()


def play(steps: int) -> Seen:
    """Run `steps` steps. Return what was seen of them."""
    Tenants.seen = Counter()
    run_state_machine_as_test(
        Tenants,
        settings=settings(
            max_examples=max(1, steps // STEPS_PER_HISTORY),
            stateful_step_count=STEPS_PER_HISTORY,
            suppress_health_check=list(HealthCheck),
        ),
    )
    return Tenants.seen


def test_nothing_crosses_in_some_histories() -> None:
    assert play(STEPS_SHORT)


@pytest.mark.skipif(not WHOLE, reason="the whole run: make soak (TOCSIN_SOAK=1)")
def test_nothing_crosses_in_a_hundred_thousand_steps() -> None:
    seen: Seen = Counter()
    while seen.total() < STEPS_WHOLE:
        seen += play(STEPS_WHOLE - seen.total() + STEPS_PER_HISTORY)
    assert_all_seen(seen)
