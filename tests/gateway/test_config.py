"""Settings: what is wrong stops the start with a sentence that helps."""

import base64
from pathlib import Path

import pytest

from gateway.config import Config, ConfigError, default_data_dir, describe, load
from gateway.settings import SETTINGS
from push import limits

HOME = {"XDG_DATA_HOME": "/tmp/share"}


def test_nothing_set_is_a_broker_for_this_machine() -> None:
    config, warnings = load(HOME)
    assert config == Config(data_dir=Path("/tmp/share/tocsin"))
    assert (config.host, config.port, config.storage) == ("127.0.0.1", 8080, "sqlite:")
    assert not config.auto_create
    assert config.token is None
    assert warnings == []


TEXTS = {
    "TOCSIN_HOST": "::1",
    "TOCSIN_PORT": "0",
    "TOCSIN_DATA_DIR": "/tmp/t",
    "TOCSIN_STORAGE": "sqlite:",
    "TOCSIN_METADATA": "in-process",
    "TOCSIN_METADATA_TOKEN": "fedcba9876543210",
    "TOCSIN_METADATA_CA_FILE": "/tmp/service.pem",
    "TOCSIN_TOKEN": "0123456789abcdef",
    "TOCSIN_TLS_CERT": "/tmp/c.pem",
    "TOCSIN_TLS_KEY": "/tmp/k.pem",
    "TOCSIN_TLS_CLIENT_CA": "/tmp/ca.pem",
    "TOCSIN_PLAIN": "no",
    "TOCSIN_TRUSTED_PROXIES": "10.1.2.3, FD00::/8",
    "TOCSIN_CLIENT_CERTIFICATE_HEADER": "X-Client-Name",
    "TOCSIN_AUTO_CREATE": "Yes",
    "TOCSIN_ORIGINS": "https://App.example, http://localhost:3000",
    "TOCSIN_FREE_BYTES_RESERVE": "0",
    "TOCSIN_DRAIN_S": "2.5",
    "TOCSIN_DRAIN_NOTICE_S": "3",
    "TOCSIN_AUTH": "required",
    "TOCSIN_JWT_KEYS": "keys.json",
    "TOCSIN_JWT_AUDIENCE": "tocsin",
    "TOCSIN_JWT_ISSUER": "https://issuer.example",
    "TOCSIN_JWT_ALGORITHMS": "EdDSA, HS256",
    "TOCSIN_JWT_RIGHTS": "read:feed:{sub}  publish:inbox",
    "TOCSIN_JWT_RIGHTS_CLAIM": "rights",
    "TOCSIN_JWT_TENANT_CLAIM": "org",
    "TOCSIN_JWT_REFRESH_S": "60",
    "TOCSIN_LOG_LEVEL": "DEBUG",
    "TOCSIN_HEARTBEAT_S": "5",
    "TOCSIN_ENCRYPTION": "off",
    "TOCSIN_MASTER_KEY_FILE": "/etc/tocsin.key",
    "TOCSIN_USAGE": "no",
    "TOCSIN_USAGE_BYTES_MAX": "65536",
    "TOCSIN_AUDIT_BYTES_MAX": "1000000",
    "TOCSIN_DELIVERY_LOG": "no",
    "TOCSIN_DELIVERY_LOG_BYTES_MAX": "2000000",
    "TOCSIN_DELIVERY_LOG_AGE_S": "3600",
    "TOCSIN_DELIVERY_LOG_FILE_BYTES": "100000",
    "TOCSIN_DELIVERY_LOG_FILE_S": "5",
    "TOCSIN_LIMIT_PRINCIPAL": "messages=1000/s+5000, sessions=100",
    "TOCSIN_LIMIT_ADDRESS": "",
    "TOCSIN_LIMIT_QUEUE": "bytes=10M/min",
    "TOCSIN_LIMIT_SESSION": "frames=100/s+1000",
    "TOCSIN_OTEL": "no",
    "TOCSIN_ALERT_WEBHOOKS": "pager=https://p.example/x ops=http://10.0.0.9:8000/",
    "TOCSIN_METRICS_HOST": "10.0.0.1",
    "TOCSIN_METRICS_PORT": "9100",
    "TOCSIN_METRICS_TOKEN": "abcdef0123456789",
    "TOCSIN_METRICS_QUEUES_MAX": "0",
    "TOCSIN_METRICS_GROUPS_MAX": "10000",
}
"""Every setting as a text, but for keys."""


def test_every_setting_is_read_from_the_environment() -> None:
    others = {"TOCSIN_MASTER_KEY", "TOCSIN_MASTER_KEY_PROVIDER"}
    assert set(TEXTS) | others == {setting.variable for setting in SETTINGS}
    config, warnings = load(TEXTS)
    assert config == Config(
        host="::1",
        port=0,
        data_dir=Path("/tmp/t"),
        metadata_token="fedcba9876543210",
        metadata_ca_file=Path("/tmp/service.pem"),
        token="0123456789abcdef",
        tls_cert=Path("/tmp/c.pem"),
        tls_key=Path("/tmp/k.pem"),
        tls_client_ca=Path("/tmp/ca.pem"),
        trusted_proxies=("10.1.2.3/32", "fd00::/8"),
        client_certificate_header="x-client-name",
        auto_create=True,
        origins=("https://app.example", "http://localhost:3000"),
        free_bytes_reserve=0,
        drain_s=2.5,
        drain_notice_s=3,
        auth="required",
        jwt_keys=str(Path("keys.json").absolute()),
        jwt_audience="tocsin",
        jwt_issuer="https://issuer.example",
        jwt_algorithms=("EdDSA", "HS256"),
        jwt_rights=("read:feed:{sub}", "publish:inbox"),
        jwt_rights_claim="rights",
        jwt_tenant_claim="org",
        jwt_refresh_s=60,
        log_level="debug",
        heartbeat_s=5,
        encryption=False,
        master_key_file=Path("/etc/tocsin.key"),
        usage=False,
        usage_bytes_max=65_536,
        audit_bytes_max=1_000_000,
        delivery_log=False,
        delivery_log_bytes_max=2_000_000,
        delivery_log_age_s=3600,
        delivery_log_file_bytes=100_000,
        delivery_log_file_s=5,
        limit_principal="messages=1000/s+5000, sessions=100",
        limit_address="",
        limit_queue="bytes=10M/min",
        limit_session="frames=100/s+1000",
        alert_webhooks={"pager": "https://p.example/x", "ops": "http://10.0.0.9:8000/"},
        metrics_host="10.0.0.1",
        metrics_port=9100,
        metrics_token="abcdef0123456789",
        metrics_queues_max=0,
        metrics_groups_max=10_000,
    )
    assert warnings == []


def test_a_metadata_service_is_for_brokers_that_share_a_store() -> None:
    urls = {"TOCSIN_METADATA": " https://a:8090/  http://b:8090", **HOME}
    with pytest.raises(ConfigError, match="TOCSIN_STORAGE is 'sqlite:'"):
        load(urls)
    config, warnings = load({**urls, "TOCSIN_STORAGE": "redis://127.0.0.1"})
    assert config.metadata_urls == ("https://a:8090", "http://b:8090")
    assert warnings == []
    shown = {"TOCSIN_STORAGE": "redis://127.0.0.1", "TOCSIN_METADATA_TOKEN": "0123456789"}
    assert "can be read on the way" in load({**urls, **shown})[1][0]
    own = {"TOCSIN_METADATA": "https://a:8090 http://127.0.0.1:8090"}
    assert load({**HOME, **shown, **own})[1] == []
    assert Config(data_dir=Path("/tmp")).metadata_urls == ()


def test_the_master_key_is_in_one_place() -> None:
    one, two = bytes(range(32)), bytes(32)
    key = f"{one.hex()},{base64.b64encode(two).decode()}"
    config, _ = load({**HOME, "TOCSIN_MASTER_KEY": key})
    assert config.master_key == (one, two)
    assert (describe(config)["master_key"], key[:8] in str(describe(config))) == ("set", False)
    config, _ = load({**HOME, "TOCSIN_MASTER_KEY_PROVIDER": "our.kms:key"})
    assert config.master_key_provider == "our.kms:key"
    with pytest.raises(ConfigError, match=r"_KEY and TOCSIN_MASTER_KEY_FILE are both set"):
        load({**HOME, "TOCSIN_MASTER_KEY": key, "TOCSIN_MASTER_KEY_FILE": "k"})


@pytest.mark.parametrize(
    "text", ["", "k", "00" * 31, "00" * 33, "A" * 42, f"{'00' * 32},", "ä" * 43]
)
def test_a_master_key_that_is_none_is_not_shown(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^TOCSIN_MASTER_KEY is (empty|a text of)"):
        load({**HOME, "TOCSIN_MASTER_KEY": text})


@pytest.mark.parametrize("text", ["kms", "our.kms:", ":key", "our kms:key", "../kms:key"])
def test_a_provider_is_a_module_and_a_factory(text: str) -> None:
    with pytest.raises(ConfigError, match="TOCSIN_MASTER_KEY_PROVIDER"):
        load({**HOME, "TOCSIN_MASTER_KEY_PROVIDER": text})


def test_a_flag_goes_before_the_environment() -> None:
    config, _ = load({**HOME, "TOCSIN_PORT": "1"}, {"port": "2", "host": None})
    assert config.port == 2
    with pytest.raises(ConfigError, match=r"^--port is 'x'; it must be a whole number"):
        load({**HOME, "TOCSIN_PORT": "1"}, {"port": "x"})


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("TOCSIN_HOST", ""),
        ("TOCSIN_HOST", "a b"),
        ("TOCSIN_HOST", "http://127.0.0.1"),
        ("TOCSIN_PORT", ""),
        ("TOCSIN_PORT", "-1"),
        ("TOCSIN_PORT", "65536"),
        ("TOCSIN_PORT", "80.0"),
        ("TOCSIN_PORT", "٨٠"),
        ("TOCSIN_PORT", "9" * 5000),
        ("TOCSIN_DATA_DIR", ""),
        ("TOCSIN_DATA_DIR", "~nobody-of-this-name/x"),
        ("TOCSIN_STORAGE", "postgres://x"),
        ("TOCSIN_STORAGE", "sqlite:/elsewhere"),
        ("TOCSIN_METADATA", "127.0.0.1:9"),
        ("TOCSIN_METADATA", "ftp://127.0.0.1"),
        ("TOCSIN_METADATA", "http://a:8090 http://b:8090/v1"),
        ("TOCSIN_METADATA", "http://user:secret@a:8090"),
        ("TOCSIN_METADATA_TOKEN", "two words"),
        ("TOCSIN_METADATA_CA_FILE", ""),
        ("TOCSIN_TLS_CERT", ""),
        ("TOCSIN_TLS_KEY", "a\0b"),
        ("TOCSIN_PLAIN", "perhaps"),
        ("TOCSIN_TRUSTED_PROXIES", ""),
        ("TOCSIN_TRUSTED_PROXIES", "proxy.example"),
        ("TOCSIN_TRUSTED_PROXIES", "10.1.2.3/8"),
        ("TOCSIN_TRUSTED_PROXIES", "10.1.2.3, 0.0.0.0/0"),
        ("TOCSIN_TRUSTED_PROXIES", "::/0"),
        ("TOCSIN_CLIENT_CERTIFICATE_HEADER", "X Client"),
        ("TOCSIN_CLIENT_CERTIFICATE_HEADER", "X-Forwarded-For"),
        ("TOCSIN_CLIENT_CERTIFICATE_HEADER", "Sec-WebSocket-Protocol"),
        ("TOCSIN_AUTH", "maybe"),
        ("TOCSIN_AUTH", ""),
        ("TOCSIN_AUTO_CREATE", "maybe"),
        ("TOCSIN_AUTO_CREATE", ""),
        ("TOCSIN_ORIGINS", "*"),
        ("TOCSIN_ORIGINS", "https://app.example/"),
        ("TOCSIN_ORIGINS", "app.example"),
        ("TOCSIN_ORIGINS", "https://a,"),
        ("TOCSIN_ORIGINS", "https://app.example."),
        ("TOCSIN_ORIGINS", "https://app..example"),
        ("TOCSIN_ORIGINS", "https://app.example:0"),
        ("TOCSIN_ORIGINS", "https://app.example:65536"),
        ("TOCSIN_ORIGINS", "https://127.1"),
        ("TOCSIN_ORIGINS", "https://10.0.0.256"),
        ("TOCSIN_ORIGINS", "https://0x7f000001"),
        ("TOCSIN_ORIGINS", "https://[::1"),
        ("TOCSIN_ORIGINS", "https://[1:2]"),
        ("TOCSIN_ORIGINS", "https://bücher.example"),
        ("TOCSIN_ORIGINS", "https://user@app.example"),
        ("TOCSIN_FREE_BYTES_RESERVE", "1G"),
        ("TOCSIN_FREE_BYTES_RESERVE", "-1"),
        ("TOCSIN_DRAIN_S", "0"),
        ("TOCSIN_DRAIN_S", "nan"),
        ("TOCSIN_DRAIN_S", "inf"),
        ("TOCSIN_DRAIN_S", "soon"),
        ("TOCSIN_LOG_LEVEL", "loud"),
        ("TOCSIN_HEARTBEAT_S", "0.5"),
        ("TOCSIN_LIMIT_PRINCIPAL", "messages=1000"),
        ("TOCSIN_LIMIT_PRINCIPAL", "failures=1/s"),
        ("TOCSIN_LIMIT_ADDRESS", "messages=1000/s+0"),
        ("TOCSIN_LIMIT_QUEUE", "sessions=10"),
        ("TOCSIN_LIMIT_SESSION", "messages=1000/s"),
        ("TOCSIN_ALERT_WEBHOOKS", "https://p.example/x"),
        ("TOCSIN_ALERT_WEBHOOKS", "pager=ftp://p.example/x"),
        ("TOCSIN_ALERT_WEBHOOKS", "pager=https://user@p.example/x"),
        ("TOCSIN_ALERT_WEBHOOKS", "a=https://p.example/ a=https://q.example/"),
        ("TOCSIN_METRICS_QUEUES_MAX", "10001"),
        ("TOCSIN_LIMIT_SESSION", "frames=1000/s+511"),
    ],
)
def test_a_wrong_value_is_named_with_what_it_may_be(variable: str, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load({**HOME, variable: text})
    sentence = str(caught.value)
    assert sentence.startswith(f"{variable} is ")
    assert "; it must be " in sentence
    assert sentence.count("\n") == 0
    assert len(sentence) < 300


@pytest.mark.parametrize("token", ["", "two words", "schlüssel-der-stadt", "x" * 5000, "a\n"])
def test_a_wrong_token_is_refused_and_not_shown(token: str) -> None:
    """An empty one too: an unset variable of a compose file must not open the broker."""
    with pytest.raises(ConfigError) as caught:
        load({**HOME, "TOCSIN_TOKEN": token})
    assert not token or token not in str(caught.value)


def test_a_store_is_named_without_its_password() -> None:
    config, _ = load({**HOME, "TOCSIN_STORAGE": "redis+sentinel://user:hunter2@a,b"})
    assert config.storage_shown == "redis+sentinel://user@a:26379,b:26379/tocsin"
    assert "hunter2" not in str(describe(config))
    with pytest.raises(ConfigError, match="redis") as caught:
        load({**HOME, "TOCSIN_STORAGE": "redis://user:hunter2@db:0"})
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.1", "broker.example"])
def test_other_machines_are_let_in_only_with_a_token(host: str) -> None:
    with pytest.raises(ConfigError, match="set TOCSIN_TOKEN"):
        load({**HOME, "TOCSIN_HOST": host})
    with pytest.raises(ConfigError, match="set TOCSIN_TOKEN"):
        load({**HOME, "TOCSIN_HOST": host, "TOCSIN_PLAIN": "yes"})


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.1", "broker.example"])
def test_what_other_machines_say_is_encrypted_or_that_is_said(host: str) -> None:
    reached = {**HOME, "TOCSIN_HOST": host, "TOCSIN_TOKEN": "0123456789abcdef"}
    with pytest.raises(ConfigError) as caught:
        load(reached)
    for way in ("TOCSIN_TLS_CERT and TOCSIN_TLS_KEY", "TOCSIN_TRUSTED_PROXIES", "TOCSIN_PLAIN=yes"):
        assert way in str(caught.value)
    for out in (
        {"TOCSIN_TLS_CERT": "/c.pem", "TOCSIN_TLS_KEY": "/k.pem"},
        {"TOCSIN_TRUSTED_PROXIES": "10.1.2.3"},
    ):
        config, warnings = load({**reached, **out})
        assert config.host == host
        assert warnings == []
    _, (warning,) = load({**reached, "TOCSIN_PLAIN": "yes"})
    assert "without encryption" in warning


@pytest.mark.parametrize(
    ("environ", "sentence"),
    [
        ({"TOCSIN_TLS_CERT": "/c"}, "TOCSIN_TLS_CERT is set and TOCSIN_TLS_KEY is not"),
        ({"TOCSIN_TLS_KEY": "/k"}, "TOCSIN_TLS_KEY is set and TOCSIN_TLS_CERT is not"),
        ({"TOCSIN_TLS_CLIENT_CA": "/a"}, "TOCSIN_TLS_CLIENT_CA is set and TOCSIN_TLS_CERT is not"),
        (
            {"TOCSIN_CLIENT_CERTIFICATE_HEADER": "X-Client"},
            "TOCSIN_CLIENT_CERTIFICATE_HEADER is set and TOCSIN_TRUSTED_PROXIES is not",
        ),
    ],
)
def test_half_a_setting_is_none(environ: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        load({**HOME, **environ})


def test_a_switch_that_changes_nothing_is_reported() -> None:
    environ = {"TOCSIN_TLS_CERT": "/c", "TOCSIN_TLS_KEY": "/k", "TOCSIN_PLAIN": "yes"}
    _, (warning,) = load({**HOME, **environ})
    assert "TOCSIN_PLAIN has no effect" in warning


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "[::1]", "localhost"])
def test_this_machine_needs_no_token(host: str) -> None:
    config, _ = load({**HOME, "TOCSIN_HOST": host})
    assert config.is_loopback


def test_an_unknown_variable_is_reported_with_its_neighbour() -> None:
    _, (warning,) = load({**HOME, "TOCSIN_PROT": "1", "OTHER": "x", "TOCSIN_URL": "http://x"})
    assert warning == "TOCSIN_PROT is no setting of Tocsin and has no effect; " + (
        "did you mean TOCSIN_PORT?"
    )


def test_a_short_token_is_doubted() -> None:
    _, (warning,) = load({**HOME, "TOCSIN_TOKEN": "secret"})
    assert "can be guessed" in warning
    assert "secret" not in warning


def test_the_data_folder_does_not_depend_on_where_it_is_started() -> None:
    assert default_data_dir({}) == Path.home() / ".local/share/tocsin"
    assert default_data_dir({"XDG_DATA_HOME": "relative"}) == Path.home() / ".local/share/tocsin"
    config, _ = load({**HOME, "TOCSIN_DATA_DIR": "here"})
    assert config.data_dir.is_absolute()


def test_what_is_in_effect_is_told_without_the_token() -> None:
    config, _ = load({**HOME, "TOCSIN_TOKEN": "0123456789abcdef"})
    told = describe(config)
    assert "0123456789abcdef" not in str(told)
    assert told["token"] == "set"
    assert told["frame_bytes_max"] == limits.FRAME_BYTES_MAX
    assert told["files_max"]


def test_metrics_that_other_machines_reach_need_a_token() -> None:
    open_port = {"TOCSIN_METRICS_HOST": "0.0.0.0", "TOCSIN_METRICS_PORT": "9100"}
    with pytest.raises(ConfigError, match="TOCSIN_METRICS_TOKEN"):
        load(open_port)
    load({**open_port, "TOCSIN_METRICS_TOKEN": "abcdef0123456789"})
    load({**open_port, "TOCSIN_METRICS_HOST": "127.0.0.1"})
