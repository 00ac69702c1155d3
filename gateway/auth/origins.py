"""Web origins: the page of a request, and whether it is one of the broker's own. Pure.

A browser writes an origin in one way (RFC 6454, and the URL standard): lower case, no default
port, no zero in front of a port, an IP address in its shortest form. A configured origin is
converted to that form, or refused if no browser ever sends it.
"""

import re
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final, NamedTuple

from push.errors import Refused

_HOST: Final = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::([0-9]{1,5}))?", re.IGNORECASE)
_ORIGIN: Final = re.compile(r"(https?)://(\S+)", re.IGNORECASE)
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")
_PORTS: Final = {"http": 80, "https": 443}
PORT_MAX: Final = 65535
SHOWN_CHARS_MAX: Final = 100
"""Largest number of characters of a header that an error repeats."""


class WebOrigin(NamedTuple):
    """An origin in its parts. `port` is the default one if none was written."""

    scheme: str
    host: str
    port: int

    def __str__(self) -> str:
        """The origin as a browser writes it."""
        port = "" if self.port == _PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{self.host}{port}"


def parse_origin(text: str) -> WebOrigin | None:
    """Return the parts of an origin; None if the text is none (`null`, a path, another scheme)."""
    match = _ORIGIN.fullmatch(text)
    place = split_host(match[2]) if match else None
    if match is None or place is None:
        return None
    scheme = match[1].lower()
    port = _PORTS[scheme] if place[1] is None else place[1]
    return WebOrigin(scheme, place[0], port)


def configured_origin(text: str) -> str:
    """Return a configured origin in the form in which a browser writes it.

    Raises:
        ValueError: it is no origin, or no page can have it. Examples are a port on which no server
            can listen, and a name that ends in a dot (a page at `app.example.` is another site than
            one at `app.example`).
    """
    origin = parse_origin(text)
    if origin is None or not 0 < origin.port <= PORT_MAX:
        raise ValueError(text)
    return str(origin._replace(host=_written_by_browsers(origin.host)))


def _written_by_browsers(host: str) -> str:
    """Return a host in the form in which a browser writes it. Raises ValueError if no browser can
    have a page from there."""
    if host.startswith("["):
        address = IPv6Address(host[1:-1])
        mapped = address.ipv4_mapped
        if mapped is None:
            return f"[{address}]"
        high, low = divmod(int(mapped), 1 << 16)
        return f"[::ffff:{high:x}:{low:x}]"
    labels = host.split(".")
    if "" in labels:
        raise ValueError(host)
    # To a browser, a name whose last label is a number is an IPv4 address, in whatever form.
    return str(IPv4Address(host)) if _NUMBER.fullmatch(labels[-1]) else host


def split_host(host: str | None) -> tuple[str, int | None] | None:
    """Return name (lower case) and port of a Host header; None if it is no valid one. The port is
    None if it is not written."""
    match = _HOST.fullmatch(host) if host is not None else None
    if match is None:
        return None
    return match[1].lower(), int(match[2]) if match[2] else None


def is_loopback(host: str | None) -> bool:
    """Whether a Host header names this machine. Any port counts, because an SSH tunnel or a
    container may have changed it."""
    parts = split_host(host)
    if parts is None:
        return False
    name = parts[0]
    if name == "localhost":
        return True
    try:
        return ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False


def is_own(text: str, host: str | None, *, is_tls: bool) -> bool:
    """Whether a page of this origin was served by `host`. A page of https counts even if we see no
    TLS, because a proxy in front may have removed it. A page of http does not count over TLS,
    because anybody on the way may have written it."""
    page, server = parse_origin(text), split_host(host)
    if page is None or server is None or (is_tls and page.scheme != "https"):
        return False
    return page[1:] == (server[0], server[1] or _PORTS[page.scheme])


def wrong_host_refusal(host: str | None) -> Refused:
    """Return the refusal of a request for another name than this machine's, by a broker that
    requires no credentials."""
    return Refused(
        "origin_refused",
        "without TOCSIN_TOKEN this broker answers only to localhost, 127.0.0.1 and [::1], but the "
        f"Host header says {_shorten(host)}. Set TOCSIN_TOKEN. If a proxy on this machine writes "
        "that header, let it pass on the client's Host header",
    )


def foreign_page_refusal(text: str, host: str | None, *, is_tls: bool) -> Refused:
    """Return the refusal of a page whose origin is neither ours nor configured. It says what was
    received and what to set."""
    page = parse_origin(text)
    if page is None:
        return Refused(
            "origin_refused",
            f"a page of the origin {_shorten(text)} may not connect. Open it from a web server, "
            "and set TOCSIN_ORIGINS to the origin of that server",
        )
    if is_tls and is_own(text, host, is_tls=False):
        return Refused(
            "origin_refused",
            f"a page of {page} may not connect over TLS, because anybody on the way may have "
            f"written it. Open https://{host}",
        )
    return Refused(
        "origin_refused",
        f"a page of another origin may not connect: its origin is {_shorten(str(page))}, but the "
        f"Host header says {_shorten(host)}. To allow the page, set "
        f"TOCSIN_ORIGINS={_shorten(str(page))}. If it is the broker's own page behind a proxy, let "
        "the proxy pass on the client's Host header (nginx: proxy_set_header Host $http_host)",
    )


def _shorten(text: str | None) -> str:
    if text is None:
        return "nothing"
    return text if len(text) <= SHOWN_CHARS_MAX else f"{text[:SHOWN_CHARS_MAX]}…"
