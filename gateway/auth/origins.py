"""Web origins: which page asks, and whether it is one of the broker's own. Pure.

A browser writes an origin in one way (RFC 6454, and the URL standard): lower case, no default
port, no zero in front of a port, an IP address in its shortest form. An origin that is configured
is brought into that form, or refused when no browser ever sends it.
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
"""Characters of a header that an error repeats."""


class WebOrigin(NamedTuple):
    """An origin in its parts; `port` is the default one where none was written."""

    scheme: str
    host: str
    port: int

    def __str__(self) -> str:
        """Write it as a browser does."""
        port = "" if self.port == _PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{self.host}{port}"


def parse_origin(text: str) -> WebOrigin | None:
    """The parts of an origin; None if it is none (`null`, a path, another scheme)."""
    match = _ORIGIN.fullmatch(text)
    place = split_host(match[2]) if match else None
    if match is None or place is None:
        return None
    scheme = match[1].lower()
    port = _PORTS[scheme] if place[1] is None else place[1]
    return WebOrigin(scheme, place[0], port)


def configured_origin(text: str) -> str:
    """An origin that somebody has written, as a browser writes it.

    Raises:
        ValueError: it is none, or no page has it: a port that no server listens on, a name that
            ends in a dot (a page at `app.example.` is another site than one at `app.example`).
    """
    origin = parse_origin(text)
    if origin is None or not 0 < origin.port <= PORT_MAX:
        raise ValueError(text)
    return str(origin._replace(host=_written_by_browsers(origin.host)))


def _written_by_browsers(host: str) -> str:
    """Raises ValueError: no browser has a page from there."""
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
    # What ends in a number is an IPv4 address to a browser, in whatever form.
    return str(IPv4Address(host)) if _NUMBER.fullmatch(labels[-1]) else host


def split_host(host: str | None) -> tuple[str, int | None] | None:
    """Name and port of a Host header; None if it is none."""
    match = _HOST.fullmatch(host) if host is not None else None
    if match is None:
        return None
    return match[1].lower(), int(match[2]) if match[2] else None


def is_loopback(host: str | None) -> bool:
    """Whether a Host header names this machine. An SSH tunnel or a container may have changed the
    port, so any will do."""
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
    """Whether a page of this origin was served by `host`. It may be of https where we see no TLS: a
    proxy in front may have taken it off. One of http is not ours where TLS is: anybody on the way
    may have written it."""
    page, server = parse_origin(text), split_host(host)
    if page is None or server is None or (is_tls and page.scheme != "https"):
        return False
    return page[1:] == (server[0], server[1] or _PORTS[page.scheme])


def wrong_host_refusal(host: str | None) -> Refused:
    """The answer of a broker without credentials to a request for another name than this
    machine's."""
    return Refused(
        "origin_refused",
        "without TOCSIN_TOKEN this broker answers to localhost, 127.0.0.1 and [::1] only, and the "
        f"Host header says {_shorten(host)}; set TOCSIN_TOKEN, or, where a proxy on this machine "
        "writes that header, have it pass on what the client has sent",
    )


def foreign_page_refusal(text: str, host: str | None, *, is_tls: bool) -> Refused:
    """The answer to a page of an origin that is neither ours nor configured, with what was seen and
    what to set."""
    page = parse_origin(text)
    if page is None:
        return Refused(
            "origin_refused",
            f"a page of the origin {_shorten(text)} may not connect: open it from a web server, "
            "whose origin TOCSIN_ORIGINS can name",
        )
    if is_tls and is_own(text, host, is_tls=False):
        return Refused(
            "origin_refused",
            f"a page of {page} may not connect over TLS, because anybody on the way may have "
            f"written it: open https://{host}",
        )
    return Refused(
        "origin_refused",
        f"a page of another origin may not connect: it is of {_shorten(str(page))}, and the Host "
        f"header says {_shorten(host)}; where a proxy has written that header and the page is the "
        "broker's own, have it pass on the client's (nginx: proxy_set_header Host $http_host); "
        f"else allow the page by TOCSIN_ORIGINS={_shorten(str(page))}",
    )


def _shorten(text: str | None) -> str:
    if text is None:
        return "nothing"
    return text if len(text) <= SHOWN_CHARS_MAX else f"{text[:SHOWN_CHARS_MAX]}…"
