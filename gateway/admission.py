"""Admission of a client: with what rights, for how long and by what; or its refusal."""

from math import inf
from typing import Final, NamedTuple

from gateway.limits.limit_values import NONE, Limits
from metadata.catalog import Principal
from metadata.rights import ALL_RIGHTS, Rights
from push.errors import Refused

DETAIL: Final = (
    "no valid credentials: this broker wants a token that it knows, in the header "
    "Authorization: Bearer <token> or in a WebSocket's hello; `tocsin ticket` lets a browser in"
)
"""All that anybody learns who has none or wrong ones."""


class Admission(NamedTuple):
    """What a credential that was presented amounts to, at that moment."""

    principal: Principal
    lasts_s: float = inf
    """So many seconds more; infinity: until its credential is revoked."""
    rights: Rights = ALL_RIGHTS
    credential: str = "operator"
    """What admits it, without any secret: whatever ends this ends all that it has admitted."""
    is_cookie: bool = False
    """By way of a cookie, which makes neither tickets nor cookies: access would never end."""
    limits: Limits = NONE
    """What this credential may at most, beside what its principal and address may."""


class NotLetIn(Refused):
    """A credential that is not good. `why` is a word for the audit trail and the log; whoever
    presents it is told DETAIL, whatever is wrong."""

    def __init__(self, why: str, credential: str | None = None) -> None:
        """`credential`: the name of the one that was presented, where that is certain."""
        self.why = why
        self.credential = credential
        super().__init__("unauthorized", DETAIL)
