"""The table of settings with their names, allowed values and purposes. The environment, the flags
and the help are read from it.

The parsers of their texts come first; each raises ValueError (or KeyError, OverflowError,
RuntimeError) for a text that it does not allow.
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
    """Check a text that another system has defined, such as the name of a claim: 1 to 1024
    printable characters, not only blanks."""
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
    """Parse a bound of the bytes of a log's files: 65,536 or more."""
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
    """A line of the table of settings. `parse` raises ValueError, KeyError, OverflowError or
    RuntimeError for a text that is not `allowed`."""

    field: str
    parse: Callable[[str], object]
    allowed: str
    help: str
    is_flag: bool = False
    """Whether it is a switch, with `--name` and `--no-name`."""
    is_secret: bool = False
    """Whether the value is never shown in logs and errors."""
    has_flag: bool = True
    """Whether it has a flag; False keeps it in the environment, where other users of the machine do
    not see it."""

    @property
    def variable(self) -> str:
        """Name of the setting's environment variable, such as TOCSIN_PORT."""
        return PREFIX + self.field.upper()

    @property
    def flag(self) -> str:
        """Name of the setting's option, such as --port."""
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
        "The address to listen on. Any but loopback needs a token, and TLS or a proxy. [127.0.0.1]",
    ),
    Setting(
        "port", parse_port, "a whole number from 0 (any free one) to 65535", "The TCP port. [8080]"
    ),
    Setting(
        "data_dir",
        parse_path,
        "a path",
        "The folder of this broker's files. [$XDG_DATA_HOME/tocsin, else ~/.local/share/tocsin]",
    ),
    Setting(
        "storage",
        parse_storage,
        "'sqlite:', or the address of Redis or Valkey: redis://user:password@host:6379, "
        "redis+sentinel://user:password@host,host,host/name or redis+cluster://user:…@host,host; "
        "over TLS rediss… with ?ca_file=…; or several, each with its ?cluster=NAME",
        "The store: sqlite:, in the data folder; or redis://…, redis+sentinel://… or "
        "redis+cluster://…, which any number of brokers share; or several of these, each with its "
        "?cluster=NAME&zone=ZONE, of which the first has the catalog. Put an address with a "
        "password into the environment, because other users of this machine see flags. [sqlite:]",
    ),
    Setting(
        "metadata",
        parse_metadata,
        "'in-process', which keeps the catalog in the store of the messages, or addresses of the "
        "metadata service, such as http://host:8090 or https://…, with blanks between them",
        "The catalog: in-process, in the store of the messages; or the addresses of tocsin "
        "metadata serve, with blanks between them, and its token in TOCSIN_METADATA_TOKEN. "
        "[in-process]",
    ),
    Setting(
        "metadata_token",
        parse_token,
        "1 to 4096 visible ASCII characters without spaces",
        "The token of the metadata service.",
        is_secret=True,
        has_flag=False,
    ),
    Setting(
        "metadata_ca_file",
        parse_path,
        "a path",
        "A PEM file with the authorities that issued the metadata service's certificates. "
        "[those of this machine]",
    ),
    Setting(
        "token",
        parse_token,
        "1 to 4096 visible ASCII characters without spaces",
        "The bearer token that clients present; it has all rights. Put it into the environment, "
        "because other users of this machine see flags.",
        is_secret=True,
    ),
    Setting(
        "tls_cert",
        parse_path,
        "a path",
        "A PEM file with the certificate and those between it and its authority. With it and "
        "--tls-key the broker serves https and wss only. Changed files are noticed. [none]",
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
        "A PEM file with the authorities whose client certificates are accepted; needs TLS 1.3. "
        "Clients may still come without a certificate. [none]",
    ),
    Setting(
        "plain",
        parse_switch,
        "one of 1, true, yes, 0, false, no",
        "Let other machines talk to the broker without encryption, tokens included. [no]",
        is_flag=True,
    ),
    Setting(
        "trusted_proxies",
        parse_proxies,
        "addresses or networks separated by commas, each like 10.1.2.3, 10.1.0.0/16 or fd00::/8, "
        "and no network of all addresses",
        "Proxies whose X-Forwarded-For and X-Forwarded-Proto are trusted, separated by commas; "
        "they may come without TLS. [none]",
    ),
    Setting(
        "client_certificate_header",
        parse_header,
        "the name of a header with no other meaning, like X-Client-Name",
        "The header in which trusted proxies send the name of a client certificate that they have "
        "verified. They must remove this header from clients' requests. [none]",
    ),
    Setting(
        "auth",
        parse_auth,
        "'auto', which needs credentials as soon as a token or JWT keys are set, or 'required', "
        "which always needs them; tocsin admin token create makes tokens",
        "When clients need credentials: with required, always; with auto, once the broker has a "
        "token of its own or an issuer of JWTs. [auto]",
    ),
    Setting(
        "jwt_keys",
        parse_jwt_keys,
        "the path of a file with a JWK set, or its https address",
        "The keys of the issuer of JWTs for this broker, in a file or at an https address. A "
        "changed file is noticed. [none]",
    ),
    Setting(
        "jwt_audience",
        parse_word,
        "the text in the aud of the JWTs",
        "The issuer's name for this broker; needed with --jwt-keys. [none]",
    ),
    Setting(
        "jwt_issuer",
        parse_word,
        "the text in the iss of the JWTs",
        "The name of the issuer of JWTs. [any that has the keys]",
    ),
    Setting(
        "jwt_algorithms",
        parse_algorithms,
        "some of EdDSA, ES256, RS256 and HS256, separated by commas",
        "The accepted algorithms of signatures of JWTs. [EdDSA,ES256,RS256]",
    ),
    Setting(
        "jwt_rights",
        parse_templates,
        "rights separated by blanks, each like read:feed:{sub} or publish,consume:orders.*, with "
        "names of claims in braces",
        "The rights of every holder of a JWT; a claim in braces stands for its value. [none]",
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
        "Publishing stops while the disk has fewer free bytes; acks go on. [268435456]",
    ),
    Setting(
        "drain_s",
        parse_seconds(1, 3600),
        "seconds from 1 to 3600",
        "The longest time for a stop by SIGTERM. [30]",
    ),
    Setting(
        "drain_notice_s",
        parse_seconds(0, 60),
        "seconds from 0 to 60",
        "The time before that for which a stopping broker works as usual, but /readyz answers 503, "
        "so that load balancers send no new clients. [0]",
    ),
    Setting(
        "encryption",
        parse_switch,
        "one of 1, true, yes, on, 0, false, no, off",
        "Encrypt messages in the store. Encrypted ones are read either way. [yes]",
        is_flag=True,
    ),
    Setting(
        "master_key",
        key_file.parse_keys,
        "32 bytes as 64 hexadecimal digits or as base64; after it, separated by commas, former "
        "keys",
        "The key that wraps the keys under which messages are encrypted.",
        is_secret=True,
        has_flag=False,
    ),
    Setting(
        "master_key_file",
        parse_path,
        "the path of a file with the key in it",
        "A file with the master key. [$XDG_CONFIG_HOME/tocsin/master.key, else "
        "~/.config/tocsin/master.key, made at the first start]",
    ),
    Setting(
        "master_key_provider",
        parse_provider,
        "package.module:factory, which returns an object with key_id, wrap and unwrap",
        "A key management service instead of a key.",
    ),
    Setting(
        "log_level",
        parse_log_level,
        "one of " + ", ".join(LOG_LEVELS),
        "The lowest level of messages that are logged. [info]",
    ),
    Setting(
        "heartbeat_s",
        parse_seconds(1, 300),
        "seconds from 1 to 300",
        "The time of silence after which a client is asked for a sign of life. [20]",
    ),
    Setting(
        "usage",
        parse_switch,
        "one of 1, true, yes, 0, false, no",
        "Record, minute by minute, what each principal uses of each queue. [yes]",
        is_flag=True,
    ),
    Setting(
        "usage_bytes_max",
        parse_journal_bytes,
        "a whole number of bytes, at least 65536",
        "The largest size of the usage files; the oldest are deleted. [268435456]",
    ),
    Setting(
        "audit_bytes_max",
        parse_journal_bytes,
        "a whole number of bytes, at least 65536",
        "The largest size of the audit trail; its oldest files are deleted. [1073741824]",
    ),
    Setting(
        "delivery_log",
        parse_switch,
        "one of 1, true, yes, 0, false, no",
        "Record which messages were certified, given out and settled, and when. [yes]",
        is_flag=True,
    ),
    Setting(
        "delivery_log_bytes_max",
        parse_journal_bytes,
        "a whole number of bytes, at least 65536",
        "The largest size of the delivery log; its oldest files are deleted. [1073741824]",
    ),
    Setting(
        "delivery_log_age_s",
        parse_seconds(60, 31_622_400),
        "seconds from 60 to 31622400",
        "The age at which a file of the delivery log is deleted. [604800]",
    ),
    Setting(
        "delivery_log_file_bytes",
        parse_journal_bytes,
        "a whole number of bytes, at least 65536",
        "The size at which a file of the delivery log is finished. [67108864]",
    ),
    Setting(
        "delivery_log_file_s",
        parse_seconds(1, 3600),
        "seconds from 1 to 3600",
        "The age at which a file of the delivery log is finished. [60]",
    ),
    Setting(
        "otel",
        parse_switch,
        "one of 1, true, yes, 0, false, no",
        "Send spans to OpenTelemetry for requests with a traceparent; needs the extra otel, and "
        "the OTEL_… settings of OpenTelemetry. [no]",
        is_flag=True,
    ),
    Setting(
        "alert_webhooks",
        parse_webhooks,
        "name=https://… addresses, several with blanks between them",
        "Addresses that holders' alerts may be sent to, by name; no other address is called. "
        "[none]",
        is_secret=True,
        has_flag=False,
    ),
    Setting(
        "metrics_host",
        parse_host,
        "a host name or an IP address",
        "The address of the port for metrics, which serves all of /metrics, of all tenants. "
        "[127.0.0.1]",
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
        "The bearer token that Prometheus presents there.",
        is_secret=True,
        has_flag=False,
    ),
    Setting(
        "metrics_queues_max",
        parse_label_count,
        "a whole number from 0 to 10000",
        "The number of queues with labels of their own in /metrics; all others share one. "
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
        "The limits of each principal, like messages=1000/s+5000,sessions=100. [none]",
    ),
    Setting(
        "limit_address",
        parse_limit_text(limit_values.OF_ADDRESS),
        _LIMITS.format(", ".join(limit_values.OF_ADDRESS)),
        f"The limits of each address, except this machine's own. [{limit_values.ADDRESS_DEFAULT}]",
    ),
    Setting(
        "limit_queue",
        parse_limit_text(limit_values.OF_QUEUE),
        _LIMITS.format(", ".join(limit_values.OF_QUEUE)),
        "The limits of publishing to each queue whose settings have none of their own. [none]",
    ),
    Setting(
        "limit_session",
        parse_limit_text(limit_values.OF_SESSION),
        _LIMITS.format(", ".join(limit_values.OF_SESSION)),
        "The limits of each session's frames, except publishes and the settling of deliveries. "
        f"[{limit_values.SESSION_DEFAULT}]",
    ),
)
