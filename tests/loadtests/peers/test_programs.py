"""Brokers are found where they may be, and one that is not there is told with what to do."""

import re
import sys
from pathlib import Path

import pytest

from loadtests.peers import programs
from loadtests.peers.entrants import ENTRANTS
from loadtests.peers.programs import SYNC_ALWAYS_MIN, Missing, numbers
from tests.layout.tree import ROOT


@pytest.fixture(autouse=True)
def nothing_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without any of them."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("TOCSIN_TEST_REDIS", raising=False)
    monkeypatch.setattr(programs, "VENV", tmp_path / "venv")
    monkeypatch.setattr(programs, "roots", lambda package: [tmp_path / package])
    (tmp_path / "bin").mkdir()


def program(path: Path, says: str, code: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{sys.executable}\nimport sys\nprint({says!r})\nsys.exit({code})\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("nats-server: v2.9.10\n", (2, 9, 10)),
        ("Redis server v=7.0.15 sha=00000000:0", (7, 0, 15)),
        ("rabbitmq_server-3.10.8", (3, 10, 8)),
        ("2.14", (2, 14)),
        ("7", ()),
        ("", ()),
    ],
)
def test_versions_are_read(text: str, version: tuple[int, ...]) -> None:
    assert numbers(text) == version


def test_who_is_not_here_says_what_to_do() -> None:
    for find in (programs.nats, programs.rabbit):
        with pytest.raises(Missing, match="scripts/peers"):
            find()
    with pytest.raises(Missing, match="scripts/needs redis"):
        programs.redis()


def test_everybody_who_needs_what_is_not_here_is_left_out_with_a_reason() -> None:
    for entrant in ENTRANTS:
        if entrant.name == "tocsin":
            assert entrant.version().startswith("Tocsin ")
        else:
            with pytest.raises(Missing, match="there is no"):
                entrant.version()


def test_the_packages_of_who_is_not_here_are_named(tmp_path: Path) -> None:
    assert programs.missing() == ["nats-server", "rabbitmq-server"]
    program(tmp_path / "bin/nats-server", "nats-server: v2.11.0")
    assert programs.missing() == ["rabbitmq-server"]


def test_a_nats_that_cannot_sync_each_message_is_replaced(tmp_path: Path) -> None:
    program(tmp_path / "bin/nats-server", "nats-server: v2.9.10")
    assert programs.missing() == ["nats-server", "rabbitmq-server"]
    assert str(programs.nats()) == "nats-server 2.9.10"
    unpacked = tmp_path / "nats-server/usr/sbin/nats-server"
    program(unpacked, "nats-server: v2.10.27")
    assert programs.missing() == ["rabbitmq-server"]
    assert programs.nats().path == programs.nats_sync().path == unpacked


def test_the_script_unpacks_a_nats_that_can_sync_each_message() -> None:
    script = (ROOT / "scripts/peers").read_text()
    assert f"\nnats_min={'.'.join(map(str, SYNC_ALWAYS_MIN))}\n" in script
    (version,) = re.findall(r"^nats_version=(.*)$", script, re.MULTILINE)
    assert numbers(version) >= SYNC_ALWAYS_MIN
    digests = re.findall(r"^ +(amd64|arm64)\) echo ([0-9a-f]{64}) ;;$", script, re.MULTILINE)
    assert [architecture for architecture, _ in digests] == ["amd64", "arm64"]


def test_nats_is_found_on_the_path_and_where_it_was_unpacked(tmp_path: Path) -> None:
    unpacked = tmp_path / "nats-server/usr/sbin/nats-server"
    program(unpacked, "nats-server: v2.9.10")
    assert programs.nats().path == unpacked
    program(tmp_path / "bin/nats-server", "nats-server: v2.11.0")
    assert programs.nats().path == tmp_path / "bin/nats-server"
    assert str(programs.nats()) == "nats-server 2.11.0"


def test_a_program_that_does_not_start_is_none(tmp_path: Path) -> None:
    program(tmp_path / "bin/nats-server", "nats-server: v2.11.0", code=1)
    with pytest.raises(Missing):
        programs.nats()


@pytest.mark.parametrize(("version", "takes_part"), [("2.9.25", False), ("2.10.0", True)])
def test_who_cannot_sync_each_message_is_left_out_by_its_version(
    tmp_path: Path, version: str, takes_part: bool
) -> None:
    assert SYNC_ALWAYS_MIN == (2, 10)
    program(tmp_path / "bin/nats-server", f"nats-server: v{version}")
    (synced,) = (entrant for entrant in ENTRANTS if entrant.name == "nats-sync")
    if takes_part:
        assert synced.version() == f"nats-server {version}"
    else:
        with pytest.raises(Missing, match="cannot sync each message"):
            synced.version()


def test_rabbit_needs_an_erlang_as_well(tmp_path: Path) -> None:
    root = tmp_path / "rabbitmq-server"
    script = root / "usr/lib/rabbitmq/lib/rabbitmq_server-3.10.8/sbin/rabbitmq-server"
    program(script, "")
    program(root / "usr/lib/erlang/erts-13.1.5/bin/erlexec", "")
    found = programs.rabbit()
    assert (found.script, found.version, str(found)) == (script, (3, 10, 8), "RabbitMQ 3.10.8")
    assert found.binaries == root / "usr/lib/erlang/erts-13.1.5/bin"


@pytest.mark.parametrize(("version", "is_enough"), [("6.2.9", False), ("7.0.0", True)])
def test_an_old_redis_is_none(tmp_path: Path, version: str, is_enough: bool) -> None:
    program(tmp_path / "venv/redis/redis-server", f"Redis server v={version} sha=0")
    if is_enough:
        assert str(programs.redis()) == f"Redis {version}"
    else:
        with pytest.raises(Missing, match="older than"):
            programs.redis()


def test_valkey_comes_before_redis_and_what_is_named_before_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path / "bin/redis-server", "Redis server v=7.0.15 sha=0")
    program(tmp_path / "venv/valkey/valkey-server", "Valkey server v=8.0.1 sha=0")
    assert str(programs.redis()) == "Valkey 8.0.1"
    program(tmp_path / "named/redis-server", "Redis server v=7.2.1 sha=0")
    monkeypatch.setenv("TOCSIN_TEST_REDIS", str(tmp_path / "named/redis-server"))
    assert str(programs.redis()) == "Redis 7.2.1"
