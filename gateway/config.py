"""The settings of `tocsin serve`: environment, flags, defaults, and a sentence for each error.

`gateway.settings` has the table. A flag takes precedence over the environment.
"""

import difflib
import ipaddress
import os
import resource
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from gateway.accounting.writer import AUDIT_BYTES_MAX, USAGE_BYTES_MAX
from gateway.encryption.master_key import MasterKeySettings
from gateway.limits import spec as limit_values
from gateway.settings import AUTO, IN_PROCESS, PREFIX, REQUIRED, SETTINGS, SQLITE, Setting
from push import limits
from storage.redis import target as redis_target

ELSEWHERE: Final = frozenset(
    {
        "TOCSIN_URL",
        "TOCSIN_CA_FILE",
        "TOCSIN_CERT_FILE",
        "TOCSIN_KEY_FILE",
        "TOCSIN_SOAK",
        "TOCSIN_METADATA_HOST",
        "TOCSIN_METADATA_PORT",
        "TOCSIN_METADATA_LAYOUT",
        "TOCSIN_METADATA_ADVERTISE",
        "TOCSIN_NEW_MASTER_KEY",
        "TOCSIN_TEST_REDIS",
        "TOCSIN_CONTRACT",
        "TOCSIN_PLACING_STORAGE",
        "TOCSIN_SCALE_HOOK",
        "TOCSIN_HOT_PERCENT",
    }
)
"""Variables that other commands and the tests of this project read, and `serve` does not. `load`
does not warn of them."""
TOKEN_CHARS_ADVISED: Final = 16
_MASTER_KEYS: Final = ("master_key", "master_key_file", "master_key_provider")


class ConfigError(Exception):
    """Error: a setting is wrong, or two contradict each other. The text is a sentence that names
    them and says what they may be. It contains no secret."""


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a gateway. `load` makes it, or a caller with values that are known to be
    right."""

    host: str = "127.0.0.1"
    port: int = 8080
    """TCP port. 0: any free one, which the start line names."""
    data_dir: Path
    storage: str = SQLITE
    metadata: str = IN_PROCESS
    """IN_PROCESS, or addresses of the metadata service, separated by blanks."""
    metadata_token: str | None = None
    """Token that this gateway presents to the metadata service."""
    metadata_ca_file: Path | None = None
    """File with the authorities of the metadata service's certificates; None for those that this
    machine trusts."""
    token: str | None = None
    tls_cert: Path | None = None
    """PEM file with the certificate. If this and `tls_key` are set, clients connect only over
    TLS."""
    tls_key: Path | None = None
    tls_client_ca: Path | None = None
    plain: bool = False
    """Whether other machines may connect without TLS."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses and networks of proxies whose X-Forwarded-… headers are trusted."""
    client_certificate_header: str | None = None
    auth: str = AUTO
    """AUTO: clients need credentials if `token` or `jwt_keys` is set. REQUIRED: always."""
    jwt_keys: str | None = None
    """A path or an https address; requires `jwt_audience`."""
    jwt_audience: str | None = None
    jwt_issuer: str | None = None
    jwt_algorithms: tuple[str, ...] = ("EdDSA", "ES256", "RS256")
    jwt_rights: tuple[str, ...] = ()
    jwt_rights_claim: str = "tocsin_rights"
    jwt_tenant_claim: str = "tocsin_tenant"
    jwt_refresh_s: float = 300.0
    auto_create: bool = False
    """Whether publishing to an unknown queue creates it."""
    origins: tuple[str, ...] = ()
    """Web origins whose pages may talk to the broker, in addition to its own."""
    free_bytes_reserve: int = limits.FREE_BYTES_RESERVE
    drain_s: float = limits.DRAIN_S
    """Seconds in which a stop should reach the exit, after `drain_notice_s`. Sessions are closed a
    little before that; the last writes are not cut off."""
    drain_notice_s: float = 0.0
    """Seconds after SIGTERM during which connections are still accepted, while balancers learn that
    the gateway is not ready."""
    log_level: str = "info"
    heartbeat_s: float = limits.HEARTBEAT_S
    encryption: bool = True
    """Whether payloads are sealed where they are stored."""
    master_key: tuple[bytes, ...] = ()
    """Master keys. The first one is in use; the others are former ones. Empty: the key is
    elsewhere."""
    master_key_file: Path | None = None
    """File with the master key. None: the key comes from `master_key` or `master_key_provider` or,
    if these are unset too, from gateway.encryption.master_key.default_master_key_file."""
    master_key_provider: str | None = None
    usage: bool = True
    usage_bytes_max: int = USAGE_BYTES_MAX
    audit_bytes_max: int = AUDIT_BYTES_MAX
    delivery_log: bool = True
    delivery_log_bytes_max: int = limits.LOG_BYTES_MAX
    delivery_log_age_s: float = limits.LOG_AGE_S
    delivery_log_file_bytes: int = limits.LOG_FILE_BYTES
    delivery_log_file_s: float = limits.LOG_FILE_S
    otel: bool = False
    """Whether spans go to OpenTelemetry, for requests that name a trace."""
    alert_webhooks: dict[str, str] = {}
    """Addresses that alerts may be sent to, by name."""
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = None
    """TCP port that serves only metrics; None: there is no such port."""
    metrics_token: str | None = None
    """Bearer token that `metrics_port` asks for; None if everybody may scrape."""
    metrics_queues_max: int = limits.METRICS_QUEUES_MAX
    metrics_groups_max: int = limits.METRICS_GROUPS_MAX
    limit_principal: str = ""
    """Limits of each principal, in the form of gateway.limits.spec; empty: none."""
    limit_address: str = limit_values.ADDRESS_DEFAULT
    limit_queue: str = ""
    """Limits of publishing to each queue, unless the queue's settings have their own."""
    limit_session: str = limit_values.SESSION_DEFAULT

    @property
    def master_key_settings(self) -> MasterKeySettings:
        """Settings that say where the master key is."""
        return MasterKeySettings(self.master_key, self.master_key_file, self.master_key_provider)

    @property
    def needs_credentials(self) -> bool:
        """Whether every client needs credentials."""
        return self.token is not None or self.jwt_keys is not None or self.auth == REQUIRED

    @property
    def metadata_urls(self) -> tuple[str, ...]:
        """Addresses of the metadata service; () if the catalog is where the messages are."""
        return () if self.metadata == IN_PROCESS else tuple(self.metadata.split())

    @property
    def storage_shown(self) -> str:
        """The addresses of the store or of the storage clusters, without passwords."""
        if self.storage == SQLITE:
            return SQLITE
        return " ".join(target.shown for target in redis_target.parse_all(self.storage))

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches `host`."""
        return is_loopback(self.host)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a listener on `host`. False for every name but
    localhost."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def default_data_dir(environ: Mapping[str, str]) -> Path:
    """Return `$XDG_DATA_HOME/tocsin`, else `~/.local/share/tocsin`, wherever the process is
    started."""
    base = environ.get("XDG_DATA_HOME", "")
    # The XDG specification: a relative path there is to be ignored.
    root = Path(base) if base.startswith("/") else Path.home() / ".local" / "share"
    return root / "tocsin"


def load(
    environ: Mapping[str, str], flags: Mapping[str, str | None] | None = None
) -> tuple[Config, list[str]]:
    """Read the settings; return them, and warnings (a sentence each). `flags` has texts by field
    name.

    Raises:
        ConfigError: a setting is wrong, the first one in the table's order, or settings contradict
            each other.
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
    _check_tls(config)
    _check_master_key(config)
    _check_jwts(config)
    _check_metadata(config)
    _check_metrics(config)
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
    # A URL may hold a password; its beginning shows well enough what was meant.
    scheme, separator, _ = text.partition("://")
    if separator and "@" in text:
        return repr(f"{scheme}://…")
    return repr(text if len(text) <= 100 else text[:100] + "…")


def _check_reach(config: Config) -> None:
    if not config.is_loopback and not config.needs_credentials:
        raise ConfigError(
            f"TOCSIN_HOST is {config.host!r}, which other machines may reach, and there is no "
            "token: set TOCSIN_TOKEN to a long random text that clients present, or "
            "TOCSIN_AUTH=required and make tokens by `tocsin admin token create`, or listen on "
            "127.0.0.1."
        )
    if not (config.is_loopback or config.tls_cert or config.plain or config.trusted_proxies):
        raise ConfigError(
            f"TOCSIN_HOST is {config.host!r}, which other machines may reach, and nothing would "
            "encrypt their traffic: set TOCSIN_TLS_CERT and TOCSIN_TLS_KEY, or name your proxy "
            "with TLS in TOCSIN_TRUSTED_PROXIES, or set TOCSIN_PLAIN=yes to accept that tokens and "
            "messages can be read on the way."
        )


def _check_tls(config: Config) -> None:
    if (config.tls_cert is None) != (config.tls_key is None):
        here, missing = ("TOCSIN_TLS_CERT", "TOCSIN_TLS_KEY")
        if config.tls_cert is None:
            here, missing = missing, here
        raise ConfigError(
            f"{here} is set and {missing} is not; TLS needs both, the certificate and its key."
        )
    if config.tls_client_ca is not None and config.tls_cert is None:
        raise ConfigError(
            "TOCSIN_TLS_CLIENT_CA is set and TOCSIN_TLS_CERT is not; only a broker with TLS of its "
            "own receives client certificates."
        )
    if config.client_certificate_header is not None and not config.trusted_proxies:
        raise ConfigError(
            "TOCSIN_CLIENT_CERTIFICATE_HEADER is set and TOCSIN_TRUSTED_PROXIES is not; the header "
            "is trusted only from trusted proxies."
        )


def _check_master_key(config: Config) -> None:
    given = [name for name in _MASTER_KEYS if getattr(config, name)]
    if len(given) > 1:
        names = " and ".join(PREFIX + name.upper() for name in given)
        raise ConfigError(f"{names} are both set: the master key has one place, so unset one.")


def _check_jwts(config: Config) -> None:
    if config.jwt_keys is not None and config.jwt_audience is None:
        raise ConfigError(
            "TOCSIN_JWT_KEYS is set and TOCSIN_JWT_AUDIENCE is not; without it the broker would "
            "accept tokens that were issued for other services."
        )
    if config.jwt_keys is None and config.jwt_audience is not None:
        raise ConfigError(
            "TOCSIN_JWT_AUDIENCE is set and TOCSIN_JWT_KEYS is not; JWTs need both, the keys and "
            "the issuer's name for this broker."
        )


def _check_metadata(config: Config) -> None:
    if config.metadata_urls and config.storage == SQLITE:
        raise ConfigError(
            "TOCSIN_METADATA names a metadata service and TOCSIN_STORAGE is 'sqlite:', which only "
            "one broker can use; set TOCSIN_STORAGE to a store that brokers share."
        )


def _check_metrics(config: Config) -> None:
    if config.metrics_port is None or config.metrics_token or is_loopback(config.metrics_host):
        return
    raise ConfigError(
        f"TOCSIN_METRICS_HOST is {config.metrics_host!r}, which other machines may reach, and "
        "there is no token: set TOCSIN_METRICS_TOKEN to a long random text for Prometheus."
    )


def _unknown(environ: Mapping[str, str]) -> list[str]:
    known = [setting.variable for setting in SETTINGS]
    warnings = []
    for name in sorted(environ):
        if name.startswith(PREFIX) and name not in known and name not in ELSEWHERE:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            warnings.append(f"{name} is no setting of Tocsin and has no effect{hint}")
    return warnings


def _doubts(config: Config) -> list[str]:
    warnings = []
    if config.token is not None and len(config.token) < TOKEN_CHARS_ADVISED:
        warnings.append(
            f"TOCSIN_TOKEN has less than {TOKEN_CHARS_ADVISED} characters: it can be guessed"
        )
    if config.metadata_token is not None and any(map(_is_readable, config.metadata_urls)):
        warnings.append(
            "TOCSIN_METADATA has an address without https on another machine: the token of the "
            "metadata service can be read on the way"
        )
    if config.plain and config.tls_cert is not None:
        warnings.append("TOCSIN_PLAIN has no effect, because TOCSIN_TLS_CERT is set")
    elif config.plain and not config.is_loopback:
        warnings.append(
            f"clients reach {config.host} without encryption: tokens and messages can be read on "
            "the way"
        )
    return warnings


def _is_readable(url: str) -> bool:
    """Whether requests to this URL can be read on the way."""
    parts = urlsplit(url)
    return parts.scheme == "http" and not is_loopback(parts.hostname or "")


def describe(config: Config) -> dict[str, object]:
    """Return the settings in effect, for the log and the audit trail at the start; no secrets."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    shown: dict[str, object] = {
        setting.field: getattr(config, setting.field)
        for setting in SETTINGS
        if not setting.is_secret
    }
    for name, value in shown.items():
        if isinstance(value, Path):
            shown[name] = os.fspath(value)
    shown["data_dir"] = os.fspath(config.data_dir)
    shown["storage"] = config.storage_shown
    shown["master_key_file"] = str(config.master_key_file or "none")
    return {
        **shown,
        "token": "set" if config.token is not None else "none",
        "alert_webhooks": sorted(config.alert_webhooks),
        "metrics_token": "set" if config.metrics_token is not None else "none",
        "metadata_token": "set" if config.metadata_token is not None else "none",
        "master_key": "set" if config.master_key else "none",
        "files_max": files if files != resource.RLIM_INFINITY else "unlimited",
        "frame_bytes_max": limits.FRAME_BYTES_MAX,
        "messages_per_publish_max": limits.MESSAGES_PER_PUBLISH_MAX,
        "pending_messages_max": limits.PENDING_MESSAGES_MAX,
        "pending_bytes_max": limits.PENDING_BYTES_MAX,
        "tail_cache_bytes_max": limits.TAIL_CACHE_BYTES_MAX,
        "write_buffer_bytes_max": limits.WRITE_BUFFER_BYTES_MAX,
    }
