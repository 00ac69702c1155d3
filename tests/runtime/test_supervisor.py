"""What systemd hears of the process."""

import socket
from pathlib import Path

import pytest

from runtime import process as supervisor


@pytest.mark.parametrize("is_abstract", [False, True])
def test_who_started_it_and_listens_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_abstract: bool
) -> None:
    address = f"\0tocsin-test-{tmp_path}" if is_abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(address)
        listening.settimeout(10)
        monkeypatch.setenv("NOTIFY_SOCKET", address.replace("\0", "@"))
        supervisor.tell("READY=1")
        assert listening.recv(100) == b"READY=1"


def test_nobody_who_listens_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    supervisor.tell("READY=1")
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    supervisor.tell("READY=1")
