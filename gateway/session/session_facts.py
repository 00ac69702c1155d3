"""A session, as it is described to operators."""

import asyncio
import time
from typing import Protocol

from gateway.delivery.delivery_ports import Link
from gateway.facts_values import SessionDescription
from gateway.session.link import Outlet
from gateway.session.sessions import Lingering
from gateway.session.subscriptions import Subscriptions


class Described(Link, Protocol):
    """A conversation, as this module sees it."""

    @property
    def opened_unix_ms(self) -> int: ...


def describe(
    session: Described,
    outlet: Outlet,
    subscriptions: Subscriptions,
    heard_at: float,
    draining: bool,
) -> SessionDescription:
    """What is known of it here. `heard_at`: by the loop's clock."""
    silent_s = asyncio.get_running_loop().time() - heard_at
    return SessionDescription(
        session=session.session_id,
        client=session.client,
        principal=session.principal.name,
        transport=outlet.transport,
        linger_s=session.linger_s,
        linger_until_unix_ms=outlet.until_unix_ms if isinstance(outlet, Lingering) else None,
        draining=draining,
        opened_unix_ms=session.opened_unix_ms,
        heard_unix_ms=int((time.time() - silent_s) * 1000),
        unsent_bytes=outlet.unsent_bytes,
        subscriptions=subscriptions.described(),
    )
