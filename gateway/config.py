"""The settings of `tocsin serve`: environment, flags, defaults, and a sentence for what is wrong.

One table says of each setting its name, what it may be and what it is for; the environment, the
flags and the help are read from it. A flag goes before the environment.
"""

import difflib
import ipaddress
import math
import os
import re
import resource
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from push import limits

PREFIX: Final = "TOCSIN_"
ELSEWHERE: Final = frozenset({"TOCSIN_URL", "TOCSIN_SOAK"})
"""Variables that the client commands and the tests of this project read, and `serve` does not."""
TOKEN_CHARS_ADVISED: Final = 16
SQLITE: Final = "sqlite:"
IN_PROCESS: Final = "in-process"
LOG_LEVELS: Final = ("debug", "info", "warning", "error")


class ConfigError(Exception):
    """A setting is wrong. The text is one sentence that names it, what it was, what it may be."""


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """What a gateway runs with. Made by `load`, or directly where values are known to be right."""

    host: str = "127.0.0.1"
    port: int = 8080
    """0: any free one; the start line says which."""
    data_dir: Path
    storage: str = SQLITE
    metadata: str = IN_PROCESS
    token: str | None = None
    auto_create: bool = False
    """Publishing to an unknown queue creates it."""
    origins: tuple[str, ...] = ()
    """Web origins whose pages may talk to the broker, beside its own."""
    free_bytes_reserve: int = limits.FREE_BYTES_RESERVE
    drain_s: float = limits.DRAIN_S
    """From SIGTERM to the exit, at the latest."""
    log_level: str = "info"
    heartbeat_s: float = limits.HEARTBEAT_S

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches the address."""
        return is_loopback(self.host)


@dataclass(frozen=True, slots=True)
class Setting:
    """One line of the table. `parse` raises ValueError for what is not `allowed`."""

    field: str
    parse: Callable[[str], object]
    allowed: str
    help: str
    is_flag: bool = False
    """A switch: `--name` and `--no-name`."""
    is_secret: bool = False
    """Its value is never shown."""

    @property
    def variable(self) -> str:
        """Its name in the environment."""
        return PREFIX + self.field.upper()

    @property
    def flag(self) -> str:
        """Its name on the command line."""
        return "--" + self.field.replace("_", "-")


def is_loopback(host: str) -> bool:
    """Whether `host` names this machine to itself only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def default_data_dir(environ: Mapping[str, str]) -> Path:
    """`$XDG_DATA_HOME/tocsin`, else `~/.local/share/tocsin`: the same wherever it is started."""
    base = environ.get("XDG_DATA_HOME", "")
    # The XDG specification: a relative path there is to be ignored.
    root = Path(base) if base.startswith("/") else Path.home() / ".local" / "share"
    return root / "tocsin"


# --- What a text may be ------------------------------------------------------------------------


def _host(text: str) -> str:
    bare = text.strip("[]")
    if not re.fullmatch(r"[A-Za-z0-9._:%-]{1,255}", bare):
        raise ValueError
    return bare


def _port(text: str) -> int:
    return _whole(text, 0, 65_535)


def _whole(text: str, least: int, most: int) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", text) or not least <= int(text) <= most:
        raise ValueError
    return int(text)


def _path(text: str) -> Path:
    if not text or "\0" in text:
        raise ValueError
    return Path(text).expanduser().absolute()


def _storage(text: str) -> str:
    if text != SQLITE:
        raise ValueError
    return text


def _metadata(text: str) -> str:
    if text != IN_PROCESS:
        raise ValueError
    return text


def _token(text: str) -> str:
    # What can stand in a header behind "Bearer " and is one word.
    if not re.fullmatch(r"[!-~]{1,4096}", text):
        raise ValueError
    return text


def _switch(text: str) -> bool:
    return {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}[
        text.lower()
    ]


def _origins(text: str) -> tuple[str, ...]:
    origins = tuple(part.strip().lower() for part in text.split(","))
    for origin in origins:
        if not re.fullmatch(r"https?://(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]{1,5})?", origin):
            raise ValueError
    return origins


def _bytes(text: str) -> int:
    return _whole(text, 0, 1 << 50)


def _seconds(least: float, most: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        number = float(text)
        if not math.isfinite(number) or not least <= number <= most:
            raise ValueError
        return number

    return parse


def _log_level(text: str) -> str:
    if text.lower() not in LOG_LEVELS:
        raise ValueError
    return text.lower()


SETTINGS: Final = (
    Setting(
        "host",
        _host,
        "a host name or an IP address",
        "Where to listen. Anything but loopback needs a token. [127.0.0.1]",
    ),
    Setting("port", _port, "a whole number from 0 (any free one) to 65535", "The TCP port. [8080]"),
    Setting(
        "data_dir",
        _path,
        "a path",
        "Where messages are kept. [$XDG_DATA_HOME/tocsin, else ~/.local/share/tocsin]",
    ),
    Setting(
        "storage",
        _storage,
        "'sqlite:', which keeps messages in the data folder; this build stores in SQLite only",
        "The store. [sqlite:]",
    ),
    Setting(
        "metadata",
        _metadata,
        "'in-process', which keeps the catalog in the data folder; this build knows no other",
        "The metadata service. [in-process]",
    ),
    Setting(
        "token",
        _token,
        "1 to 4096 visible ASCII characters without spaces",
        "The bearer token clients present; it has all rights. Better in the environment: "
        "other users of this machine see flags.",
        is_secret=True,
    ),
    Setting(
        "auto_create",
        _switch,
        "one of 1, true, yes, 0, false, no",
        "Create a queue when something is published to it. [no]",
        is_flag=True,
    ),
    Setting(
        "origins",
        _origins,
        "web origins separated by commas, each like https://app.example or http://localhost:3000",
        "Origins of web pages that may talk to the broker, separated by commas. [none]",
    ),
    Setting(
        "free_bytes_reserve",
        _bytes,
        "a whole number of bytes, at least 0",
        "Publishing stops while the disk has less free bytes; acks go on. [268435456]",
    ),
    Setting(
        "drain_s",
        _seconds(1, 3600),
        "seconds from 1 to 3600",
        "How long a stop by SIGTERM may take. [30]",
    ),
    Setting("log_level", _log_level, "one of " + ", ".join(LOG_LEVELS), "What is logged. [info]"),
    Setting(
        "heartbeat_s",
        _seconds(1, 300),
        "seconds from 1 to 300",
        "A WebSocket that was quiet for so long is asked for a sign of life. [20]",
    ),
)


def load(
    environ: Mapping[str, str], flags: Mapping[str, str | None] | None = None
) -> tuple[Config, list[str]]:
    """The settings, and warnings (a sentence each). `flags` has texts by field name.

    Raises:
        ConfigError: the first setting that is wrong, in the table's order.
    """
    values: dict[str, object] = {}
    for setting in SETTINGS:
        flag = (flags or {}).get(setting.field)
        if flag is not None:
            values[setting.field] = _parse(setting, setting.flag, flag)
        elif setting.variable in environ:
            values[setting.field] = _parse(setting, setting.variable, environ[setting.variable])
    values.setdefault("data_dir", default_data_dir(environ))
    config = msgspec.convert(values, Config, strict=True)
    _check_reach(config)
    return config, [*_unknown(environ), *_doubts(config)]


def _parse(setting: Setting, name: str, text: str) -> object:
    try:
        return setting.parse(text)
    except (ValueError, KeyError, OverflowError, RuntimeError):  # RuntimeError: ~nobody
        shown = _shown(setting, text)
        raise ConfigError(f"{name} is {shown}; it must be {setting.allowed}.") from None


def _shown(setting: Setting, text: str) -> str:
    if not text:
        return "empty"
    if setting.is_secret:
        return f"a text of {len(text)} characters"
    # A URL may hold a password; what comes before it shows well enough what was meant.
    scheme, separator, _ = text.partition("://")
    if separator and "@" in text:
        return repr(f"{scheme}://…")
    return repr(text if len(text) <= 100 else text[:100] + "…")


def _check_reach(config: Config) -> None:
    if not config.is_loopback and config.token is None:
        raise ConfigError(
            f"TOCSIN_HOST is {config.host!r}, which other machines may reach, and there is no "
            "token: set TOCSIN_TOKEN to a long random text that clients present, or listen on "
            "127.0.0.1."
        )


def _unknown(environ: Mapping[str, str]) -> list[str]:
    known = [setting.variable for setting in SETTINGS]
    warnings = []
    for name in sorted(environ):
        if name.startswith(PREFIX) and name not in known and name not in ELSEWHERE:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            warnings.append(f"{name} is no setting of Tocsin and changes nothing{hint}")
    return warnings


def _doubts(config: Config) -> list[str]:
    warnings = []
    if config.token is not None and len(config.token) < TOKEN_CHARS_ADVISED:
        warnings.append(
            f"TOCSIN_TOKEN has less than {TOKEN_CHARS_ADVISED} characters: it can be guessed"
        )
    if config.token is not None and not config.is_loopback:
        warnings.append(
            f"clients reach {config.host} without encryption: put a proxy with TLS in front"
        )
    return warnings


def describe(config: Config) -> dict[str, object]:
    """What is in effect, for the log at start and for `tocsin admin status`; no secrets."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    shown: dict[str, object] = {
        setting.field: getattr(config, setting.field)
        for setting in SETTINGS
        if not setting.is_secret
    }
    shown["data_dir"] = os.fspath(config.data_dir)
    return {
        **shown,
        "token": "set" if config.token is not None else "none",
        "files_max": files if files != resource.RLIM_INFINITY else "unlimited",
        "frame_bytes_max": limits.FRAME_BYTES_MAX,
        "messages_per_publish_max": limits.MESSAGES_PER_PUBLISH_MAX,
        "pending_messages_max": limits.PENDING_MESSAGES_MAX,
        "pending_bytes_max": limits.PENDING_BYTES_MAX,
        "tail_cache_bytes_max": limits.TAIL_CACHE_BYTES_MAX,
        "write_buffer_bytes_max": limits.WRITE_BUFFER_BYTES_MAX,
    }
