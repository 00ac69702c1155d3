"""The queues of a run, made at a broker."""

from collections.abc import Mapping
from typing import Final

from loadtests.mix.calls import Gone, Http
from loadtests.mix.plan import CONSUMING, Plan, role_of

RETENTION_S: Final = 3600
"""Readers begin at the start: what they are to have must be there as long as a run lasts."""


_ASK_S: Final = 5.0
"""For an answer: a broker that hangs must not stop a run from telling so."""


def make(http: Http, plan: Plan, queue: str) -> None:
    """Make a queue of the plan and its group, or leave those that exist as they are.

    Raises:
        RuntimeError: with the broker's words, for anything but success; Gone.
    """
    role = role_of(queue)
    settings = {"partitions": plan.partitions(role), "retention_s": RETENTION_S}
    _put(http, f"/v1/queues/{queue}", settings)
    if plan.queues(role) and role in CONSUMING:
        _put(http, f"/v1/queues/{queue}/groups/{role}", {})


def lag(http: Http, plan: Plan) -> int:
    """Return what all groups have not settled, as durable: it may say more than there is for 20 ms.
    At least 1 where the broker does not answer: there may be something left."""
    found = 0
    for queue in plan.all_queues:
        try:
            described = http.call("GET", f"/v1/queues/{queue}", timeout_s=_ASK_S)
        except (Gone, RuntimeError):
            return 1
        groups = described["groups"]
        assert isinstance(groups, list)
        found += sum(int(group["lag"]) for group in groups)
    return found


def _put(http: Http, path: str, settings: Mapping[str, object]) -> None:
    """Make what another process may have made first: with fewer users in its plan it has asked for
    fewer partitions."""
    status, answer = http.request("PUT", path, settings)
    if status >= 400 and status != 409:
        text = answer.decode(errors="replace")
        raise RuntimeError(f"PUT {path} was answered {status}: {text}")
