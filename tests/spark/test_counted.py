"""Every message of a load is in every book, through kills and steps of the clock."""

import os

import pytest

from loadtests.trials.counted import ENDS, End, Plan, counted
from tests.system.test_trials import hold


@pytest.mark.skipif(
    not os.environ.get("TOCSIN_SOAK"), reason="minutes of JVMs that begin: make soak has it"
)
@pytest.mark.parametrize("end", ENDS)
async def test_every_message_is_in_every_book(end: End) -> None:
    """P1, P5: the clients', the broker's, the delivery log's, the usage log's; `make test` has the
    same in small, part by part."""
    hold(await counted(Plan(messages=200_000, ends=(end,)), print))
