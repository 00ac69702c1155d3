"""The table of settings with their names, allowed values and purposes. The environment, the flags
and the help are read from it.

The parsers of their texts come first; each raises ValueError (or KeyError, OverflowError) for a
text that it does not allow.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from gateway.auth.jwt import ALGORITHMS
from gateway.auth.origins import configured_origin
from gateway.encryption import master_key as key_file
from gateway.limits import spec as limit_values
from metadata.rights import PLACEHOLDER, parse_right
from push import limits
from runtime.addresses import parse_networks
from storage.redis import target as redis_target

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
    """Parse a host name or an address; brackets are dropped."""
    bare = text.strip("[]")
    if not re.fullmatch(r"[A-Za-z0-9._:%-]{1,255}", bare):
        raise ValueError
    return bare


def parse_port(text: str) -> int:
    """Parse a TCP port."""
    return parse_whole(text, 0, 65_535)


def parse_webhooks(text: str) -> dict[str, str]:
    """Parse addresses by name: `name=https://…`, separated by blanks."""
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
    """Parse the number of queues or groups with labels of their own in metrics."""
    return parse_whole(text, 0, 10_000)


def parse_whole(text: str, least: int, most: int) -> int:
    """Parse a whole number from `least` to `most`."""
    if not re.fullmatch(r"[0-9]{1,18}", text) or not least <= int(text) <= most:
        raise ValueError
    return int(text)


def parse_path(text: str) -> Path:
    """Parse a path, and make it absolute."""
    if not text or "\0" in text:
        raise ValueError
    return Path(text).expanduser().absolute()


def parse_storage(text: str) -> str:
    """Check the address of a store, or of several storage clusters."""
    if text != SQLITE:
        redis_target.parse_all(text)
    return text


def parse_metadata(text: str) -> str:
    """Check the metadata service: IN_PROCESS, or its addresses, separated by blanks."""
    if text == IN_PROCESS:
        return text
    urls = text.split()
    for url in urls:
        parse_service_url(url)
    if not urls:
        raise ValueError
    return " ".join(url.rstrip("/") for url in urls)


def parse_service_url(text: str) -> str:
    """Check the address of a node of the metadata service: a scheme, a host and a port."""
    parts = urlsplit(text)
    is_bare = parts.path in ("", "/") and not (parts.query or parts.fragment or parts.username)
    if parts.scheme not in ("http", "https") or not parts.hostname or not is_bare:
        raise ValueError
    if parts.port == 0 or re.search(r"\s", text):
        raise ValueError
    return text.rstrip("/")


def parse_token(text: str) -> str:
    """Check a word that can follow "Bearer " in a header."""
    if not re.fullmatch(r"[!-~]{1,4096}", text):
        raise ValueError
    return text


def parse_auth(text: str) -> str:
    """Check for whom credentials are needed: AUTO or REQUIRED."""
    if text not in (AUTO, REQUIRED):
        raise ValueError
    return text


def parse_jwt_keys(text: str) -> str:
    """Parse a path, made absolute, or an https address."""
    if not text.startswith("https://"):
        return str(parse_path(text))
    parts = urlsplit(text)
    if not parts.hostname or parts.username is not None or parts.fragment or parts.port == 0:
        raise ValueError
    return text


def parse_word(text: str) -> str:
    """Check a name that another system has given."""
    if not text.strip() or not text.isprintable() or len(text) > 1024:
        raise ValueError
    return text


def parse_algorithms(text: str) -> tuple[str, ...]:
    """Parse algorithms of JWTs, separated by commas."""
    names = tuple(part.strip() for part in text.split(","))
    if not set(names) <= set(ALGORITHMS) or len(set(names)) < len(names):
        raise ValueError
    return names


def parse_templates(text: str) -> tuple[str, ...]:
    """Parse rights with `{claims}` in them, separated by blanks."""
    found = tuple(text.split())
    for template in found:
        if "\\{" in template:  # it would take the backslash from the claim: user * would be all
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
    """Parse a switch, on or off. Raises KeyError."""
    return _SWITCH[text.lower()]


def parse_provider(text: str) -> str:
    """Check a factory's place: package.module:factory."""
    if not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", text, re.ASCII):
        raise ValueError
    return text


def parse_origins(text: str) -> tuple[str, ...]:
    """Parse web origins separated by commas, as browsers write them."""
    return tuple(configured_origin(part.strip()) for part in text.split(","))


def parse_proxies(text: str) -> tuple[str, ...]:
    """Parse IP addresses and networks separated by commas; a network of all addresses is an
    error."""
    found = parse_networks(text)
    if any(network.prefixlen == 0 for network in found):
        raise ValueError
    return tuple(map(str, found))


def parse_header(text: str) -> str:
    """Parse the name of a header that a proxy adds, in lower case. Names with another meaning are
    an error."""
    name = text.lower()
    if not re.fullmatch(r"[a-z0-9-]{1,64}", name) or _OTHER_HEADERS.fullmatch(name):
        raise ValueError
    return name


def parse_byte_count(text: str) -> int:
    """Parse a number of bytes."""
    return parse_whole(text, 0, 1 << 50)


def parse_journal_bytes(text: str) -> int:
    """Parse a number of bytes for files of lines."""
    return parse_whole(text, 1 << 16, 1 << 50)


def parse_seconds(least: float, most: float) -> Callable[[str], float]:
    """Make a parser of seconds from `least` to `most`."""

    def parse(text: str) -> float:
        number = float(text)
        if not math.isfinite(number) or not least <= number <= most:
            raise ValueError
        return number

    return parse


def parse_limit_text(allowed: Sequence[str]) -> Callable[[str], str]:
    """Make a parser that checks limits and returns their text."""

    def parse(text: str) -> str:
        limit_values.parse_limits(text, allowed)
        return text.strip()

    return parse


def parse_log_level(text: str) -> str:
    """Parse one of LOG_LEVELS."""
    if text.lower() not in LOG_LEVELS:
        raise ValueError
    return text.lower()


PREFIX: Final = "TOCSIN_"


@dataclass(frozen=True, slots=True)
class Setting:
    """A line of the table. `parse` raises ValueError for a text that is not `allowed`."""

    field: str
    parse: Callable[[str], object]
    allowed: str
    help: str
    is_flag: bool = False
    """Whether it is a switch, with `--name` and `--no-name`."""
    is_secret: bool = False
    """Whether its value is never shown."""
    has_flag: bool = True
    """Whether it has a flag; False keeps it in the environment, where other users of the machine do
    not see it."""

    @property
    def variable(self) -> str:
        """Name in the environment."""
        return PREFIX + self.field.upper()

    @property
    def flag(self) -> str:
        """Name on the command line."""
        return "--" + self.field.replace("_", "-")


_LIMITS: Final = (
    "limits separated by commas, of {}: a rate like 1000/s or 10M/min+40M (with its burst; of "
    "bytes at least 2097152), for sessions and in_flight a number; or empty"
)

SETTINGS: Final = (
    Setting(
        "host",
        parse_host,
        "a host name or an IP address",
        "Where to listen. Anything but loopback needs a token, and TLS or a proxy. [127.0.0.1]",
    ),
    Setting(
        "port", parse_port, "a whole number from 0 (any free one) to 65535", "The TCP port. [8080]"
    ),
    Setting(
        "data_dir",
        parse_path,
        "a path",
        "Where this broker keeps its files. [$XDG_DATA_HOME/tocsin, else ~/.local/share/tocsin]",
    ),
    Setting(
        "storage",
        parse_storage,
        "'sqlite:', or where Redis or Valkey is: redis://user:password@host:6379, "
        "redis+sentinel://user:password@host,host,host/name or redis+cluster://user:…@host,host; "
        "over TLS rediss… with ?ca_file=…; or several, each with its ?cluster=NAME",
        "The store: sqlite:, in the data folder; or redis://…, redis+sentinel://… or "
        "redis+cluster://…, which any number of brokers share, or several of these, each with its "
        "?cluster=NAME&zone=ZONE, the first of which has the catalog. With a password it is better "
        "in the environment: other users of this machine see flags. [sqlite:]",
    ),
    Setting(
        "metadata",
        parse_metadata,
        "'in-process', which keeps the catalog where the messages are, or where the metadata "
        "service is: http://host:8090 or https://…, several with blanks between them",
        "The catalog: in-process, where the messages are; or the addresses of tocsin metadata "
        "serve, one or several with blanks between them, whose token is in TOCSIN_METADATA_TOKEN. "
        "[in-process]",
    ),
    Setting(
        "metadata_token",
        parse_token,
        "1 to 4096 visible ASCII characters without spaces",
        "What the metadata service wants to be shown.",
        is_secret=True,
        has_flag=False,
    ),
    Setting(
        "metadata_ca_file",
        parse_path,
        "a path",
        "A PEM file with the authorities that the metadata service's certificates are from. "
        "[those of this machine]",
    ),
    Setting(
        "token",
        parse_token,
        "1 to 4096 visible ASCII characters without spaces",
        "The bearer token clients present; it has all rights. Better in the environment: "
        "other users of this machine see flags.",
        is_secret=True,
    ),
    Setting(
        "tls_cert",
        parse_path,
        "a path",
        "A PEM file with the certificate and those between it and its authority. With --tls-key "
        "the broker serves https and wss only; new files are found by themselves. [none]",
    ),
    Setting(
        "tls_key",
        parse_path,
        "a path",
        "A PEM file with the certificate's private key, without a passphrase. [none]",
    ),
    Setting(
        "tls_client_ca",
        parse_path,
        "a path",
        "A PEM file with the authorities whose client certificates count; needs TLS 1.3. A client "
        "may still come without one. [none]",
    ),
    Setting(
        "plain",
        parse_switch,
        "one of 1, true, yes, 0, false, no",
        "Let other machines talk to the broker without encryption, tokens and all. [no]",
        is_flag=True,
    ),
    Setting(
        "trusted_proxies",
        parse_proxies,
        "addresses or networks separated by commas, each like 10.1.2.3, 10.1.0.0/16 or fd00::/8, "
        "and none that is everybody",
        "Proxies whose X-Forwarded-For and X-Forwarded-Proto are believed, separated by commas; "
        "they may come without TLS. [none]",
    ),
    Setting(
        "client_certificate_header",
        parse_header,
        "a header's name of its own, like X-Client-Name",
        "The header in which trusted proxies, which must remove what clients put there, tell the "
        "name of a client certificate that they have verified. [none]",
    ),
    Setting(
        "auth",
        parse_auth,
        "'auto', where credentials are wanted as soon as a token or JWT keys are set, or "
        "'required', where they always are: tokens are made by tocsin admin token create",
        "Who needs credentials: required, everybody; auto, everybody once there is a token of the "
        "broker's own or an issuer of JWTs. [auto]",
    ),
    Setting(
        "jwt_keys",
        parse_jwt_keys,
        "the path of a file with a JWK set, or its https address",
        "The keys of who issues JWTs for this broker, in a file or at an https address; a change "
        "of the file is found by itself. [none]",
    ),
    Setting(
        "jwt_audience",
        parse_word,
        "the text that stands in the aud of the JWTs",
        "What the issuer calls this broker; needed with --jwt-keys. [none]",
    ),
    Setting(
        "jwt_issuer",
        parse_word,
        "the text that stands in the iss of the JWTs",
        "Who issues the JWTs. [whoever has the keys]",
    ),
    Setting(
        "jwt_algorithms",
        parse_algorithms,
        "some of EdDSA, ES256, RS256 and HS256, separated by commas",
        "How the JWTs are signed. [EdDSA,ES256,RS256]",
    ),
    Setting(
        "jwt_rights",
        parse_templates,
        "rights separated by blanks, each like read:feed:{sub} or publish,consume:orders.*, with "
        "names of claims in braces",
        "What every holder of a JWT may; a claim in braces stands for its own value. [nothing]",
    ),
    Setting(
        "jwt_rights_claim",
        parse_word,
        "a claim's name",
        "The claim with a list of further rights of its holder. [tocsin_rights]",
    ),
    Setting(
        "jwt_tenant_claim",
        parse_word,
        "a claim's name",
        "The claim with the tenant of its holder. [tocsin_tenant]",
    ),
    Setting(
        "jwt_refresh_s",
        parse_seconds(1, 86_400),
        "seconds from 1 to 86400",
        "How often keys are read from an https address. [300]",
    ),
    Setting(
        "auto_create",
        parse_switch,
        "one of 1, true, yes, on, 0, false, no, off",
        "Create a queue when something is published to it. [no]",
        is_flag=True,
    ),
    Setting(
        "origins",
        parse_origins,
        "web origins separated by commas, each like https://app.example or http://localhost:3000, "
        "without a path and without a dot at the name's end",
        "Origins of web pages that may talk to the broker, separated by commas. [none]",
    ),
    Setting(
        "free_bytes_reserve",
        parse_byte_count,
        "a whole number of bytes, at least 0",
        "Publishing stops while the disk has less free bytes; acks go on. [268435456]",
    ),
    Setting(
        "drain_s",
        parse_seconds(1, 3600),
        "seconds from 1 to 3600",
        "How long a stop by SIGTERM may take. [30]",
    ),
    Setting(
        "drain_notice_s",
        parse_seconds(0, 60),
        "seconds from 0 to 60",
        "How long, before that, a broker that is told to stop goes on as ever but for /readyz, "
        "which says 503, so that balancers send nobody new. [0]",
    ),
    Setting(
        "encryption",
        parse_switch,
        "one of 1, true, yes, on, 0, false, no, off",
        "Seal messages where they are stored. What is sealed is read either way. [yes]",
        is_flag=True,
    ),
    Setting(
        "master_key",
        key_file.parse_keys,
        "32 bytes as 64 hexadecimal digits or as base64; behind it, separated by commas, former "
        "ones",
        "The key that wraps the keys messages are sealed under.",
        is_secret=True,
        has_flag=False,
    ),
    Setting(
        "master_key_file",
        parse_path,
        "the path of a file with the key in it",
        "A file with the master key. [$XDG_CONFIG_HOME/tocsin/master.key, else "
        "~/.config/tocsin/master.key: made at the first start]",
    ),
    Setting(
        "master_key_provider",
        parse_provider,
        "package.module:factory, which answers an object with key_id, wrap and unwrap",
        "A key management service instead of a key.",
    ),
    Setting(
        "log_level",
        parse_log_level,
        "one of " + ", ".join(LOG_LEVELS),
        "What is logged. [info]",
    ),
    Setting(
        "heartbeat_s",
        parse_seconds(1, 300),
        "seconds from 1 to 300",
        "A WebSocket that was quiet for so long is asked for a sign of life. [20]",
    ),
    Setting(
        "usage",
        parse_switch,
        "one of 1, true, yes, 0, false, no",
        "Write down, minute by minute, what each principal uses of each queue. [yes]",
        is_flag=True,
    ),
    Setting(
        "usage_bytes_max",
        parse_journal_bytes,
        "a whole number of bytes, at least 65536",
        "What the usage files take at most; the oldest go. [268435456]",
    ),
    Setting(
        "audit_bytes_max",
        parse_journal_bytes,
        "a whole number of bytes, at least 65536",
        "What the audit trail takes at most; its oldest files go. [1073741824]",
    ),
    Setting(
        "delivery_log",
        parse_switch,
        "one of 1, true, yes, 0, false, no",
        "Write down what was certified, given out and settled, and when. [yes]",
        is_flag=True,
    ),
    Setting(
        "delivery_log_bytes_max",
        parse_journal_bytes,
        "a whole number of bytes, at least 65536",
        "What the delivery log takes at most; its oldest files go. [1073741824]",
    ),
    Setting(
        "delivery_log_age_s",
        parse_seconds(60, 31_622_400),
        "seconds from 60 to 31622400",
        "How old a file of the delivery log becomes before it goes. [604800]",
    ),
    Setting(
        "delivery_log_file_bytes",
        parse_journal_bytes,
        "a whole number of bytes, at least 65536",
        "A file of the delivery log that has so many bytes is finished. [67108864]",
    ),
    Setting(
        "delivery_log_file_s",
        parse_seconds(1, 3600),
        "seconds from 1 to 3600",
        "A file of the delivery log that is so old is finished. [60]",
    ),
    Setting(
        "otel",
        parse_switch,
        "one of 1, true, yes, 0, false, no",
        "Hand spans to OpenTelemetry for requests that come with a traceparent; needs the extra "
        "otel, and its own OTEL_… settings. [no]",
        is_flag=True,
    ),
    Setting(
        "alert_webhooks",
        parse_webhooks,
        "name=https://… addresses, several with blanks between them",
        "Addresses that holders' alerts may be told to, each by its name; no other one is called. "
        "[none]",
        is_secret=True,
        has_flag=False,
    ),
    Setting(
        "metrics_host",
        parse_host,
        "a host name or an IP address",
        "Where the port for metrics is; all of /metrics is told there, of all tenants. [127.0.0.1]",
    ),
    Setting(
        "metrics_port",
        parse_port,
        "a port from 0 to 65535",
        "A port for metrics alone, over plain HTTP. [none]",
    ),
    Setting(
        "metrics_token",
        parse_token,
        "1 to 4096 visible ASCII characters without spaces",
        "The bearer token that Prometheus shows there.",
        is_secret=True,
        has_flag=False,
    ),
    Setting(
        "metrics_queues_max",
        parse_label_count,
        "a whole number from 0 to 10000",
        "How many queues have labels of their own in /metrics; all others share one. "
        f"[{limits.METRICS_QUEUES_MAX}]",
    ),
    Setting(
        "metrics_groups_max",
        parse_label_count,
        "a whole number from 0 to 10000",
        f"The same for groups. [{limits.METRICS_GROUPS_MAX}]",
    ),
    Setting(
        "limit_principal",
        parse_limit_text(limit_values.OF_PRINCIPAL),
        _LIMITS.format(", ".join(limit_values.OF_PRINCIPAL)),
        "What each principal may, like messages=1000/s+5000,sessions=100. [no limit]",
    ),
    Setting(
        "limit_address",
        parse_limit_text(limit_values.OF_ADDRESS),
        _LIMITS.format(", ".join(limit_values.OF_ADDRESS)),
        f"What each address may, but for this machine's own. [{limit_values.ADDRESS_DEFAULT}]",
    ),
    Setting(
        "limit_queue",
        parse_limit_text(limit_values.OF_QUEUE),
        _LIMITS.format(", ".join(limit_values.OF_QUEUE)),
        "What may be published to each queue whose settings do not say. [no limit]",
    ),
    Setting(
        "limit_session",
        parse_limit_text(limit_values.OF_SESSION),
        _LIMITS.format(", ".join(limit_values.OF_SESSION)),
        "What each session may say beside publishing and settling what it is given. "
        f"[{limit_values.SESSION_DEFAULT}]",
    ),
)
