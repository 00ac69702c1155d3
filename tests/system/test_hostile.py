"""Hostile clients, in short; the whole trials are `make trials`.

Here counts only what is true on a busy machine, too: what was answered, what was lost, what the
broker's log says.
"""

from loadtests.trial_schema import Plan as SchemaPlan
from loadtests.trial_schema import schema
from tests.system.test_trials import hold


async def test_what_is_answered_is_what_the_document_says() -> None:
    """P12, P11: requests made from /openapi.json, good and bad ones."""
    hold(await schema(SchemaPlan(cases=200), print))
