"""What is shipped for supervisors is sound, as far as the tools that are here can tell."""

import shutil
import subprocess
from pathlib import Path

import pytest

from gateway.config import load
from tests.authority import Authority
from tests.servers.balancing import DEPLOY, Place
from tests.servers.programs import find

EXPOSURE_MAX = 11
"""In tenths, as systemd-analyze counts; what is left is that it has a network."""
ANALYZE = shutil.which("systemd-analyze")
FILLED_IN = {
    "TOCSIN_TOKEN": "0123456789abcdef",
    "TOCSIN_MASTER_KEY": "00" * 32,
    "TOCSIN_METADATA_TOKEN": "0123456789abcdef",
}
UNITS = sorted(path.name for path in (DEPLOY / "systemd").glob("*.service"))


@pytest.mark.skipif(ANALYZE is None, reason="there is no systemd-analyze here")
@pytest.mark.parametrize("unit", UNITS)
def test_a_unit_is_sound_and_hardened(tmp_path: Path, unit: str) -> None:
    """`verify` says nothing, and `security` not more than that."""
    folder = tmp_path / "etc/systemd/system"
    shutil.copytree(DEPLOY / "systemd", folder)
    program = tmp_path / "opt/tocsin/.venv/bin/tocsin"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    here = Path("/lib/systemd/system")
    for target in ("sysinit", "basic", "shutdown", "network", "network-online", "multi-user"):
        shutil.copy(here / f"{target}.target", folder)
    asked = [str(ANALYZE), f"--root={tmp_path}"]
    said = subprocess.run([*asked, "verify", unit], capture_output=True, text=True, check=False)
    assert (said.returncode, said.stdout + said.stderr) == (0, "")
    words = ["security", "--offline=true", f"--threshold={EXPOSURE_MAX}", unit]
    judged = subprocess.run([*asked, *words], capture_output=True, text=True, check=False)
    assert judged.returncode == 0, judged.stdout


@pytest.mark.parametrize("file", ["tocsin.env", "metadata.env", "manager.env"])
def test_the_shipped_settings_are_settings(file: str) -> None:
    """Also those that are only suggested; none is unknown, and all together are no mistake."""
    lines = (DEPLOY / "systemd" / file).read_text().splitlines()
    settings = {}
    for line in lines:
        name, separator, value = line.removeprefix("#").partition("=")
        if separator and name.startswith("TOCSIN_"):
            settings[name] = value
    for name, value in FILLED_IN.items():
        if name in settings:
            settings[name] = value
    _, warnings = load({**settings, "XDG_DATA_HOME": "/tmp"})
    assert warnings == []


def test_the_piece_for_the_metadata_service_is_sound(tmp_path: Path) -> None:
    piece = (DEPLOY / "haproxy/metadata.cfg").read_text()
    trusted = Authority(tmp_path).ca
    whole = Place(tmp_path, [("127.0.0.1", 1)], bind="127.0.0.1").haproxy()
    with whole.open("a") as file:
        file.write(piece.replace("/etc/haproxy/metadata.pem", str(trusted)))
    said = subprocess.run(
        [str(find("haproxy")), "-c", "-q", "-L", "balancer-1", "-f", str(whole)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (said.returncode, said.stderr) == (0, "")


def test_the_containers_balancer_is_sound() -> None:
    path = DEPLOY / "container/haproxy.cfg"
    said = subprocess.run(
        [str(find("haproxy")), "-c", "-q", "-f", str(path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (said.returncode, said.stderr) == (0, "")
