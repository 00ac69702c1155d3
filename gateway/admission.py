"""Who was let in, with what rights, for how long, and by what."""

from math import inf
from typing import NamedTuple

from gateway.limit_values import NONE, Limits
from metadata.catalog import Principal
from metadata.rights import ALL_RIGHTS, Rights


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
