"""What systemd is told of the process (sd_notify): that it accepts, that it is going down."""

import contextlib
import os
import socket


def tell(state: str) -> None:
    """Say `READY=1` or `STOPPING=1` to who started us and listens (NOTIFY_SOCKET). Nobody does, or
    it does not take it: nothing happens."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):  # an abstract one
        address = "\0" + address[1:]
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as said,
    ):
        said.setblocking(False)
        said.sendto(state.encode(), address)
