"""The close codes of a session, and those after which a client reconnects. Pure.

A client reconnects after 4000-4499. It does not after 4500-4999, because the same attempt would end
the same way.
"""

from typing import Final

PROTOCOL_ERROR: Final = 1002
"""The peer has sent something that is not the protocol (RFC 6455, 7.4.1)."""
DRAINING: Final = 4000
"""The gateway is shutting down."""
HEARTBEAT: Final = 4001
"""The gateway received nothing from this client for too long."""
HELLO_LATE: Final = 4002
OVERLOADED: Final = 4003
UNAUTHORIZED: Final = 4401
"""The credentials are invalid, or have ended; reconnect with a fresh token."""
PROTOCOL: Final = 4500
REVOKED: Final = 4501
"""The client's credentials were revoked; do not reconnect."""
HELLO_FIRST: Final = 4502
REPLACED: Final = 4503
TOO_LARGE: Final = 4509


def may_reconnect(close_code: int) -> bool:
    """Whether a session that was closed with this code may be opened again.

    It may after codes below 4000, because these are the transport's: a lost connection, a proxy, or
    a restart.
    """
    return close_code < 4500 or close_code > 4999
