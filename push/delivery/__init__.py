"""Rules of one group-partition: what is given to which consumer, and what has been settled. Pure.

`Delivery` is the only door. The other names here are the values that it takes and returns, and
functions that inspect a delivery, or let a session come back to one. `push.delivery.checks` is for
tests, and is imported apart.
"""

from push.delivery.delivery import Delivery
from push.delivery.inspect import (
    InFlight,
    Standings,
    State,
    Waits,
    holds_up,
    in_flight_of,
    inherited_until,
    is_open,
    lease,
    left_of,
    log_bound,
    waiting_in,
    waiting_of,
    waits_for,
    waits_of,
)
from push.delivery.key_lines import Line, loose
from push.delivery.leases import Push, offsets_of, ranges_of
from push.delivery.resume import (
    adopt,
    can_adopt,
    extent,
    hold,
    keys_wanted,
)
from push.delivery.scan import Share, kept, share
from push.delivery.values import (
    COUNTED,
    DeliverySettings,
    Judged,
    Notices,
    Taken,
    Tally,
    append_offset,
)
from push.delivery.waiting import DeadLetter

__all__ = [
    "COUNTED",
    "DeadLetter",
    "Delivery",
    "DeliverySettings",
    "InFlight",
    "Judged",
    "Line",
    "Notices",
    "Push",
    "Share",
    "Standings",
    "State",
    "Taken",
    "Tally",
    "Waits",
    "adopt",
    "append_offset",
    "can_adopt",
    "extent",
    "hold",
    "holds_up",
    "in_flight_of",
    "inherited_until",
    "is_open",
    "kept",
    "keys_wanted",
    "lease",
    "left_of",
    "log_bound",
    "loose",
    "offsets_of",
    "ranges_of",
    "share",
    "waiting_in",
    "waiting_of",
    "waits_for",
    "waits_of",
]
