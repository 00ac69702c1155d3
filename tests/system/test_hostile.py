"""Hostile clients, in short; the whole trials are `make trials`.

Checked is only what also holds on a busy machine: answers, losses, and the broker's log.
"""

from loadtests.trials.fuzz import schema
from loadtests.trials.fuzz import trial as fuzz
from loadtests.trials.hostile import trial as hostile
from loadtests.trials.hostile.clients import Attack
from tests.system.test_trials import hold


async def test_what_is_answered_is_what_the_document_says() -> None:
    """P12, P11: requests made from /openapi.json, good and bad ones."""
    hold(await schema.schema(schema.Plan(cases=150), print))


async def test_mutated_frames_get_their_errors_and_cost_nobody_a_message() -> None:
    """P12, P1, P3: over WebSockets, as raw frames, as HTTP requests and by long poll."""
    hold(await fuzz.fuzz(fuzz.Plan(frames=4000), print))


async def test_who_means_harm_is_answered_and_costs_bounded_memory() -> None:
    """P9, P12: slow, large, compressed, deaf, and too frequent, all at once."""
    few = Attack(
        leaves_cores=False, slow=60, readers=60, header_mib=2, large=2, hoards=25, bombs=1, floods=1
    )
    plan = hostile.Plan(seconds=1.0, rounds=1, nice_seconds=0.0, attack=few, apart=False)
    hold(await hostile.hostile(plan, print))
