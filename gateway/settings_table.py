"""The table of settings: of each its name, what it may be and what it is for. The environment, the
flags and the help are read from it."""

from typing import Final

from gateway.encryption import key_file
from gateway.limits import limit_values
from gateway.setting import Setting
from gateway.setting_values import (
    LOG_LEVELS,
    parse_algorithms,
    parse_auth,
    parse_byte_count,
    parse_header,
    parse_host,
    parse_jwt_keys,
    parse_limit_text,
    parse_log_level,
    parse_metadata,
    parse_origins,
    parse_path,
    parse_port,
    parse_provider,
    parse_proxies,
    parse_seconds,
    parse_storage,
    parse_switch,
    parse_templates,
    parse_token,
    parse_word,
)
from gateway.watching_settings import WATCHING

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
    *WATCHING,
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
