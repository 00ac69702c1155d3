"""What the text of a setting may be: parsers, each raising ValueError (or KeyError, OverflowError)
for what it is not."""

import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from metadata.rights import PLACEHOLDER, parse_right
from storage.redis import redis_target

from gateway.auth.jwt_keys import ALGORITHMS
from gateway.auth.origins import configured_origin
from gateway.limits import limit_values
from runtime.addresses import parse_networks

SQLITE: Final = "sqlite:"
IN_PROCESS: Final = "in-process"
_OTHER_HEADERS: Final = re.compile(
    "authorization|connection|content-.*|cookie|forwarded|host|origin|sec-.*|upgrade|user-agent|"
    "x-forwarded-.*"
)
AUTO: Final = "auto"
REQUIRED: Final = "required"
LOG_LEVELS: Final = ("debug", "info", "warning", "error")


def parse_host(text: str) -> str:
    """A host name or an address, without brackets."""
    bare = text.strip("[]")
    if not re.fullmatch(r"[A-Za-z0-9._:%-]{1,255}", bare):
        raise ValueError
    return bare


def parse_port(text: str) -> int:
    """A TCP port."""
    return parse_whole(text, 0, 65_535)


def parse_webhooks(text: str) -> dict[str, str]:
    """Addresses by name: `name=https://…`, separated by blanks."""
    found: dict[str, str] = {}
    for one in text.split():
        name, separator, address = one.partition("=")
        parts = urlsplit(address)
        is_address = parts.scheme in ("http", "https") and parts.hostname and not parts.username
        if not (separator and is_address and re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name)):
            raise ValueError
        if name in found:
            raise ValueError
        found[name] = address
    return found


def parse_label_count(text: str) -> int:
    """How many have labels of their own in metrics."""
    return parse_whole(text, 0, 10_000)


def parse_whole(text: str, least: int, most: int) -> int:
    """A whole number from `least` to `most`."""
    if not re.fullmatch(r"[0-9]{1,18}", text) or not least <= int(text) <= most:
        raise ValueError
    return int(text)


def parse_path(text: str) -> Path:
    """A path, made absolute."""
    if not text or "\0" in text:
        raise ValueError
    return Path(text).expanduser().absolute()


def parse_storage(text: str) -> str:
    """Which store, or which storage clusters."""
    if text != SQLITE:
        redis_target.parse_all(text)
    return text


def parse_metadata(text: str) -> str:
    """Which metadata service: IN_PROCESS, or its addresses, separated by blanks."""
    if text == IN_PROCESS:
        return text
    urls = text.split()
    for url in urls:
        parse_service_url(url)
    if not urls:
        raise ValueError
    return " ".join(url.rstrip("/") for url in urls)


def parse_service_url(text: str) -> str:
    """The address of a node of the metadata service: a scheme, a host and a port."""
    parts = urlsplit(text)
    is_bare = parts.path in ("", "/") and not (parts.query or parts.fragment or parts.username)
    if parts.scheme not in ("http", "https") or not parts.hostname or not is_bare:
        raise ValueError
    if parts.port == 0 or re.search(r"\s", text):
        raise ValueError
    return text.rstrip("/")


def parse_token(text: str) -> str:
    """What can stand in a header behind "Bearer " and is one word."""
    if not re.fullmatch(r"[!-~]{1,4096}", text):
        raise ValueError
    return text


def parse_auth(text: str) -> str:
    """Who needs credentials."""
    if text not in (AUTO, REQUIRED):
        raise ValueError
    return text


def parse_jwt_keys(text: str) -> str:
    """A path, made absolute, or an https address."""
    if not text.startswith("https://"):
        return str(parse_path(text))
    parts = urlsplit(text)
    if not parts.hostname or parts.username is not None or parts.fragment or parts.port == 0:
        raise ValueError
    return text


def parse_word(text: str) -> str:
    """Something that is called so by somebody else."""
    if not text.strip() or not text.isprintable() or len(text) > 1024:
        raise ValueError
    return text


def parse_algorithms(text: str) -> tuple[str, ...]:
    """Of JWTs, separated by commas."""
    names = tuple(part.strip() for part in text.split(","))
    if not set(names) <= set(ALGORITHMS) or len(set(names)) < len(names):
        raise ValueError
    return names


def parse_templates(text: str) -> tuple[str, ...]:
    """Rights with `{claims}` in them, separated by blanks."""
    found = tuple(text.split())
    for template in found:
        if "\\{" in template:  # it would take the backslash from the claim: who is called * is all
            raise ValueError
        parse_right(PLACEHOLDER.sub("x", template))  # a RightsError is a ValueError
    if not found:
        raise ValueError
    return found


_SWITCH: Final = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}


def parse_switch(text: str) -> bool:
    """On or off."""
    return _SWITCH[text.lower()]


def parse_provider(text: str) -> str:
    """package.module:factory"""
    if not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", text, re.ASCII):
        raise ValueError
    return text


def parse_origins(text: str) -> tuple[str, ...]:
    """Web origins separated by commas, as browsers write them."""
    return tuple(configured_origin(part.strip()) for part in text.split(","))


def parse_proxies(text: str) -> tuple[str, ...]:
    """IP addresses and networks separated by commas, but not all the world."""
    found = parse_networks(text)
    if any(network.prefixlen == 0 for network in found):
        raise ValueError
    return tuple(map(str, found))


def parse_header(text: str) -> str:
    """The name of a header that a proxy adds, in lower case. Not one that means something else."""
    name = text.lower()
    if not re.fullmatch(r"[a-z0-9-]{1,64}", name) or _OTHER_HEADERS.fullmatch(name):
        raise ValueError
    return name


def parse_byte_count(text: str) -> int:
    """So many bytes."""
    return parse_whole(text, 0, 1 << 50)


def parse_journal_bytes(text: str) -> int:
    """So many bytes, for files of lines."""
    return parse_whole(text, 1 << 16, 1 << 50)


def parse_seconds(least: float, most: float) -> Callable[[str], float]:
    """A parser of seconds from `least` to `most`."""

    def parse(text: str) -> float:
        number = float(text)
        if not math.isfinite(number) or not least <= number <= most:
            raise ValueError
        return number

    return parse


def parse_limit_text(allowed: Sequence[str]) -> Callable[[str], str]:
    """A parser of limits, which stay the text that they are."""

    def parse(text: str) -> str:
        limit_values.parse_limits(text, allowed)
        return text.strip()

    return parse


def parse_log_level(text: str) -> str:
    """One of LOG_LEVELS."""
    if text.lower() not in LOG_LEVELS:
        raise ValueError
    return text.lower()
