"""Which servers the tests take, and what is said where there is none."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.layout.tree import ROOT
from tests.servers import binaries
from tests.servers.binaries import Binary, ServerMissing


def program(folder: Path, name: str, says: str) -> str:
    """A program that says this of its version."""
    path = folder / name
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """An environment in which no server is."""
    monkeypatch.delenv("TOCSIN_TEST_REDIS", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.prefix", str(tmp_path / "venv"))
    return monkeypatch


def test_valkey_comes_first_and_the_path_before_the_venv(
    asked: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    redis = program(tmp_path, "redis-server", "Redis server v=7.0.15 sha=00000000:0")
    (tmp_path / "venv/valkey").mkdir(parents=True)
    (tmp_path / "venv/redis").mkdir()
    program(tmp_path / "venv/redis", "redis-server", "Redis server v=8.2.1 sha=00000000:0")
    valkey = program(tmp_path / "venv/valkey", "valkey-server", "Valkey server v=8.0.1 sha=0")
    assert binaries.binaries.__wrapped__() == (
        Binary(valkey, "valkey", (8, 0, 1)),
        Binary(redis, "redis", (7, 0, 15)),
    )


def test_what_is_named_is_taken_alone(asked: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program(tmp_path, "redis-server", "Redis server v=7.0.15 sha=00000000:0")
    named = program(tmp_path, "mine", "Valkey server v=8.1.0 sha=00000000:0")
    asked.setenv("TOCSIN_TEST_REDIS", named)
    assert binaries.binaries.__wrapped__() == (Binary(named, "valkey", (8, 1, 0)),)


@pytest.mark.parametrize(
    ("says", "why"),
    [("Redis server v=6.2.14 sha=0", "is redis 6.2.14"), ("hello", "is no server that starts")],
)
def test_what_is_too_old_or_no_server_is_refused_with_what_to_do(
    asked: pytest.MonkeyPatch, tmp_path: Path, says: str, why: str
) -> None:
    good = program(tmp_path, "good", "Valkey server v=8.1.0 sha=00000000:0")
    named = program(tmp_path, "named", says)
    asked.setenv("TOCSIN_TEST_REDIS", f"{good}:{named}")
    with pytest.raises(ServerMissing, match=f"scripts/needs redis.*{why}"):
        binaries.binaries.__wrapped__()


def test_where_there_is_none_both_are_missing(asked: pytest.MonkeyPatch) -> None:
    asked.setattr(binaries, "binaries", binaries.binaries.__wrapped__)
    assert binaries.missing() == ["valkey", "redis"]


def test_what_needs_looks_for_is_what_the_tests_find(redis_binary: Binary) -> None:
    """scripts/needs does nothing, and says nothing of servers, when they are all here."""
    environ = os.environ | {"TOCSIN_TEST_REDIS": redis_binary.path}
    ran = subprocess.run(
        [ROOT / "scripts/needs", "redis"], env=environ, capture_output=True, text=True, check=True
    )
    assert "-server" not in ran.stderr
