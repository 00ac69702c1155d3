"""The address of a client, whether its bytes were encrypted, and its certificate.

A connection shows the address of its other end. If that is a trusted proxy, the headers that it
adds name the client behind it. From anybody else these headers are not read.

    X-Forwarded-For     each proxy appends its caller's address. From the right, the first address
                        that is no trusted proxy is the client, because the addresses left of it are
                        claims of that client. (RFC 7239, section 8.1, has the reasons.)
    X-Forwarded-Proto   https only if every value says so: one plain hop is enough to be read

Limits count an address under its name (`name_of`). The kernel knows how much of the data sent to it
the other end has confirmed.
"""

import asyncio
import re
import socket
import struct
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, Final, NamedTuple

Network = IPv4Network | IPv6Network
Headers = Iterable[tuple[bytes, bytes]]
"""Lower-case names and values, as ASGI has them."""
CLIENT: Final = "tocsin.client"
"""Key of a request's ClientAddress in the ASGI scope."""
PROXIES_MAX: Final = 32
"""Number of proxies through which a client is followed, because a header may be long."""
CERTIFICATE_NAME_CHARS_MAX: Final = 255
_FORWARDED_FOR: Final = b"x-forwarded-for"
_FORWARDED_PROTO: Final = b"x-forwarded-proto"
_WITH_PORT: Final = re.compile(r"\[([0-9A-Fa-f:.]+)\](?::[0-9]{1,5})?|([0-9.]+):[0-9]{1,5}")


class ClientAddress(NamedTuple):
    """The other end of a connection, as far as the network shows it."""

    text: str
    """An IP address in its canonical form, without a port; empty if unknown."""
    is_tls: bool
    """Whether the connection between the client and us, or our trusted proxy, is encrypted."""
    certificate_name: str | None = None
    """Name in the client certificate that was verified; None if there was none."""


UNKNOWN: Final = ClientAddress("", False)


class Addresses:
    """Decide which proxies are trusted. `certificate_header`: their header that holds the name of a
    verified client certificate; None for none. `is_plain_allowed`: whether every machine may
    connect without TLS; otherwise only trusted proxies and this machine may."""

    __slots__ = ("_certificate_header", "_is_plain_allowed", "_trusted")

    def __init__(
        self,
        trusted: Sequence[Network] = (),
        *,
        certificate_header: str | None = None,
        is_plain_allowed: bool = True,
    ) -> None:
        self._trusted = tuple(trusted)
        self._certificate_header = certificate_header and certificate_header.lower().encode()
        self._is_plain_allowed = is_plain_allowed

    def trusts(self, peer: ClientAddress) -> bool:
        """Whether this peer is a trusted proxy, whose headers count."""
        address = parse_address(peer.text)
        return address is not None and self._is_trusted(address)

    def may_enter(self, peer: ClientAddress) -> bool:
        """Whether this peer may connect as it does, with or without TLS."""
        if peer.is_tls or self._is_plain_allowed or not peer.text:
            return True
        address = parse_address(peer.text)
        return address is not None and (address.is_loopback or self._is_trusted(address))

    def behind(self, peer: ClientAddress, headers: Headers) -> ClientAddress:
        """Return the client behind a trusted peer; the peer itself if its headers say nothing or
        nonsense."""
        hops: list[str] = []
        schemes: list[str] = []
        names: list[str] = []
        for name, value in headers:
            if name == _FORWARDED_FOR:
                hops.extend(value.decode("latin-1").split(","))
            elif name == _FORWARDED_PROTO:
                schemes.extend(value.decode("latin-1").split(","))
            elif name == self._certificate_header:
                names.append(value.decode("latin-1").strip())
        is_tls = peer.is_tls
        if schemes:
            is_tls = all(scheme.strip().lower() == "https" for scheme in schemes)
        return ClientAddress(self._client(peer.text, hops), is_tls, _one_name(names))

    def _client(self, nearest: str, hops: list[str]) -> str:
        """Return the client's address, which is the first that is no trusted proxy, going through
        `hops` from the right. If all are proxies, or one before it is invalid, return the last
        address that a trusted proxy vouches for; `nearest` if there is none."""
        for text in reversed(hops[-PROXIES_MAX:]):
            address = parse_address(text)
            if address is None:
                break
            nearest = str(address)
            if not self._is_trusted(address):
                break
        return nearest

    def _is_trusted(self, address: IPv4Address | IPv6Address) -> bool:
        return any(address in network for network in self._trusted)


NO_PROXIES: Final = Addresses()
"""Addresses that trust no proxy and let every machine come without TLS."""


def _one_name(names: list[str]) -> str | None:
    """Return the only name; None if there are several, because then a proxy passes on what a client
    has sent."""
    if len(names) != 1 or not 0 < len(names[0]) <= CERTIFICATE_NAME_CHARS_MAX:
        return None
    return names[0]


def parse_address(text: str) -> IPv4Address | IPv6Address | None:
    """Parse an IP address, also with brackets, a port or a zone, which are dropped; None if it is
    none. An IPv4 address in the form of IPv6 (`::ffff:192.0.2.1`) is the IPv4 address."""
    text = text.strip().strip('"')
    match = _WITH_PORT.fullmatch(text)
    if match is not None:
        text = match[1] or match[2]
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def parse_networks(text: str) -> tuple[Network, ...]:
    """Parse addresses and networks (`10.0.0.0/8`) separated by commas.

    Raises:
        ValueError: one is neither, or has bits below its mask.
    """
    return tuple(ip_network(part.strip()) for part in text.split(","))


def peer_of(extra_info: Callable[[str], Any]) -> ClientAddress:
    """Return the other end of a connection. `extra_info`: its transport's `get_extra_info`."""
    peername = extra_info("peername")
    address = parse_address(str(peername[0])) if isinstance(peername, tuple) and peername else None
    text = "" if address is None else str(address)
    tls = extra_info("ssl_object")
    if tls is None:
        return ClientAddress(text, False)
    return ClientAddress(text, True, certificate_name(tls.getpeercert()))


def certificate_name(certificate: Mapping[str, Any] | None) -> str | None:
    """Return the holder of a verified certificate, from `SSLObject.getpeercert`: the first URI of
    its subject alternative names, else the first DNS name, else the first e-mail address, else the
    last common name of its subject. None if it has none of them, or the first is too long."""
    if not certificate:
        return None
    alternatives: Sequence[tuple[str, Any]] = certificate.get("subjectAltName", ())
    names = [
        text
        for wanted in ("URI", "DNS", "email")
        for kind, text in alternatives
        if kind == wanted and isinstance(text, str)
    ]
    if not names:
        subject: Sequence[Sequence[tuple[str, str]]] = certificate.get("subject", ())
        names = [text for part in subject for name, text in part if name == "commonName"][-1:]
    return _one_name(names[:1])


def client_address(scope: Mapping[str, Any]) -> ClientAddress:
    """Return the sender of a request, by its ASGI scope. In tests, where no socket of ours brought
    it, that is the client that the scope names."""
    found: ClientAddress | None = scope.get(CLIENT)
    if found is not None:
        return found
    host, _ = scope.get("client") or ("", 0)
    return ClientAddress(host, scope.get("scheme") == "https")


_TCP_INFO: Final[int | None] = socket.TCP_INFO if sys.platform == "linux" else None
_NUMBER, _COUNT = struct.Struct("=I"), struct.Struct("=Q")
_UNCONFIRMED_AT, _CONFIRMED_AT, _UNSENT_AT, _INFO_BYTES = 24, 120, 144, 148
"""Linux's struct tcp_info: tcpi_unacked, tcpi_bytes_acked, tcpi_notsent_bytes."""
TRANSPORT: Final = "tocsin.transport"
"""Key of a request's transport in the ASGI scope."""


def taken_bytes(transport: asyncio.BaseTransport, *, has_more: bool) -> int | None:
    """Return how many bytes the other end of the TCP connection has confirmed. None if it has all
    of them, or this system cannot say. `has_more`: whether bytes wait that the kernel has not got
    yet; then the other end has not all."""
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
    """Return what `taken_bytes` does, for the connection of an HTTP request, by its ASGI scope,
    after the whole answer was written to the transport."""
    transport: asyncio.Transport | None = scope.get(TRANSPORT)
    if transport is None:
        return None
    return taken_bytes(transport, has_more=transport.get_write_buffer_size() > 0)


_SITE_BITS: Final = 64
"""Number of leading bits by which IPv6 addresses are counted as one, because a host has a whole /64
of them (RFC 4291, 2.5.4), and may take a new one each time."""


@lru_cache(maxsize=4096)
def name_of(text: str) -> str | None:
    """Return the name under which limits count this address: an IPv4 address, or the /64 of an IPv6
    address. None: it is not counted, because loopback and Unix sockets are this machine, whose
    programs share one address, and one of them must not use up the limits of the others."""
    address = parse_address(text)
    if address is None or address.is_loopback:
        return None
    if isinstance(address, IPv6Address):
        site = int(address) >> (128 - _SITE_BITS) << (128 - _SITE_BITS)
        return f"{IPv6Address(site)}/{_SITE_BITS}"
    return str(address)
