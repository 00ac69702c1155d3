"""What the kernel says of a TCP connection: how much of what was sent its other end has taken."""

import asyncio
import socket
import struct
import sys
from collections.abc import Mapping
from typing import Any, Final

_TCP_INFO: Final[int | None] = socket.TCP_INFO if sys.platform == "linux" else None
_NUMBER, _COUNT = struct.Struct("=I"), struct.Struct("=Q")
_UNCONFIRMED_AT, _CONFIRMED_AT, _UNSENT_AT, _INFO_BYTES = 24, 120, 144, 148
"""Linux's struct tcp_info: tcpi_unacked, tcpi_bytes_acked, tcpi_notsent_bytes."""
TRANSPORT: Final = "tocsin.transport"
"""Where the transport of a request stands in the ASGI scope."""


def taken_bytes(transport: asyncio.BaseTransport, *, has_more: bool) -> int | None:
    """How many bytes the other end of the TCP connection has confirmed; None: it has all of them
    (`has_more`: but for those that the kernel was not given yet), or this system does not say."""
    found = transport.get_extra_info("socket")
    if found is None or _TCP_INFO is None or transport.is_closing():
        return None
    try:
        info = found.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _INFO_BYTES)
    except OSError:
        return None
    if len(info) < _INFO_BYTES:
        return None  # an old kernel
    (unconfirmed,), (confirmed,), (unsent,) = (
        _NUMBER.unpack_from(info, _UNCONFIRMED_AT),
        _COUNT.unpack_from(info, _CONFIRMED_AT),
        _NUMBER.unpack_from(info, _UNSENT_AT),
    )
    return int(confirmed) if has_more or unconfirmed or unsent else None


def taken_of_answer(scope: Mapping[str, Any]) -> int | None:
    """The same of the connection of an HTTP request, whose answer has been handed over."""
    transport: asyncio.Transport | None = scope.get(TRANSPORT)
    if transport is None:
        return None
    return taken_bytes(transport, has_more=transport.get_write_buffer_size() > 0)
