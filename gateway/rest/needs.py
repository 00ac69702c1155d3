"""What an operation needs: the one vocabulary in which each of them says which right lets it run.

Pure. `check_need` is called in one place, before the handler of an operation; frames, which name a
queue each, are judged where they are carried out: see gateway.session.publishing and
gateway.session.subscriptions.
"""

from collections.abc import Mapping
from typing import Final, Literal, cast

from metadata.rights import VERBS, Rights, Verb

Need = Literal[
    "publish", "consume", "read", "manage", "consume or manage", "consume or manage or observe",
    "manage every", "observe every", "any", "own", "nothing",
]  # fmt: skip
NEEDS: Final[Mapping[Need, str]] = {
    "publish": "`publish` on the queue, for each message on its key",
    "consume": "`consume` on the queue",
    "read": "`read` on the queue; where it is one on some keys only, for one of these",
    "manage": "`manage` on the queue",
    "consume or manage": "`consume` or `manage` on the queue",
    "consume or manage or observe": "`consume`, `manage` or `observe` on the queue",
    "manage every": "`manage` on every queue: `manage:*`",
    "observe every": "`observe` or `manage` on every queue: `observe:*`",
    "any": "any right on the queue, which decides what is shown of it",
    "own": "nothing: it is about what is one's own",
    "nothing": "nothing beyond being let in",
}
"""What each of them means, for the documents."""
EVERY: Final = "*"
"""No queue is called so: only a right whose pattern it is, or one as wide, fits it."""


def check_need(need: Need, rights: Rights, queue: str | None) -> None:
    """Raises Refused(forbidden), which names the right that is missing. `queue` None: the operation
    names none, and shows only what there is a right to."""
    if need == "manage every":
        rights.check("manage", EVERY)
    if need == "observe every":
        rights.check_one_of(("observe", "manage"), EVERY)
    if queue is None:
        return
    match need:
        case "any":
            rights.check_one_of(VERBS, queue)
        case "own" | "nothing" | "manage every" | "observe every":
            pass
        case _:
            rights.check_one_of(cast(list[Verb], need.split(" or ")), queue)
