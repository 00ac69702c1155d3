"""Node and Chromium: what is named is used or refused with a sentence, and nothing is skipped."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtests import chromium, node
from tests.layout.tree import ROOT


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    """Forget earlier findings, so that they count neither in a test nor after it."""
    chromium.executable.cache_clear()
    node.node.cache_clear()
    yield
    chromium.executable.cache_clear()
    node.node.cache_clear()


def program(path: Path, says: str, *, code: int = 0) -> Path:
    """A program that prints this and ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{says}'\nexit {code}\n")
    path.chmod(0o755)
    return path


def test_a_chromium_that_is_named_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = program(tmp_path / "browser", "Chromium 150.0")
    monkeypatch.setenv("TOCSIN_CHROMIUM", str(named))
    assert chromium.executable() == str(named)


def test_another_name_on_the_path_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path / "chromium-browser", "install the snap", code=1)
    found = program(tmp_path / "google-chrome", "Google Chrome 150.0")
    monkeypatch.delenv("TOCSIN_CHROMIUM", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert chromium.executable() == str(found)


@pytest.mark.parametrize(
    ("says", "code"), [("Chromium 150.0", 1), ("something else", 0)], ids=["fails", "is another"]
)
def test_a_chromium_that_does_not_start_is_refused(
    says: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOCSIN_CHROMIUM", str(program(tmp_path / "browser", says, code=code)))
    with pytest.raises(chromium.ChromiumMissing, match="does not start"):
        chromium.executable()


def test_a_snap_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snap = program(tmp_path / "bin/snap", "Chromium 150.0 snap")
    (tmp_path / "chromium").symlink_to(snap)
    monkeypatch.delenv("TOCSIN_CHROMIUM", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(chromium.ChromiumMissing, match=r"apt install chromium.*a snap"):
        chromium.executable()


@pytest.mark.parametrize("version", ["v20.19.0", "none"])
def test_a_node_that_is_too_old_is_refused(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOCSIN_NODE", str(program(tmp_path / "node", version)))
    with pytest.raises(node.NodeMissing, match="need Node 22 or newer"):
        node.node()


def test_a_node_that_is_named_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = program(tmp_path / "node", "v22.0.0")
    monkeypatch.setenv("TOCSIN_NODE", str(named))
    assert node.node() == str(named)


def test_what_is_missing_is_said_and_ends_nothing() -> None:
    """`make test` goes on, and the tests in a browser fail."""
    environment = {**os.environ, "TOCSIN_CHROMIUM": "/nowhere/chromium"}
    ran = subprocess.run(
        [ROOT / "scripts/needs", "chromium"],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0
    assert "TOCSIN_CHROMIUM=/nowhere/chromium: " in ran.stderr
    assert "the tests in a browser will fail" in ran.stderr


def test_what_is_there_is_not_spoken_of() -> None:
    ran = subprocess.run(
        [ROOT / "scripts/needs", "chromium"], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0
    assert "hromium" not in ran.stderr
