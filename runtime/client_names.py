"""Under which name an address is counted. Pure."""

from functools import lru_cache
from ipaddress import IPv6Address
from typing import Final

from runtime.addresses import parse_address

_SITE_BITS: Final = 64
"""A host has a whole /64 of IPv6 addresses (RFC 4291, 2.5.4), and may take a new one each time."""


@lru_cache(maxsize=4096)
def name_of(text: str) -> str | None:
    """The name under which what comes from this address is counted; None: not at all. Loopback and
    Unix sockets are this machine, whose programs share one address: one of them must not use up
    what all the others may."""
    address = parse_address(text)
    if address is None or address.is_loopback:
        return None
    if isinstance(address, IPv6Address):
        site = int(address) >> (128 - _SITE_BITS) << (128 - _SITE_BITS)
        return f"{IPv6Address(site)}/{_SITE_BITS}"
    return str(address)
