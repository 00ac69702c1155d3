"""The choice of a Python by `scripts/setup`: optimisation counts more than the place."""

import shutil
import subprocess
from pathlib import Path

from tests.layout.tree import ROOT

_ANSWERS = """\
#!/bin/sh
case "$*" in
*version_info*) exit {old} ;;
*sysconfig*) exit {slow} ;;
*ensurepip*) exit {bare} ;;
"-m venv"*) echo "$0 is taken"; exit 1 ;;
*) echo "Python 3.0" ;;
esac
"""


def taken(folder: Path, *found: str) -> tuple[str, str]:
    """Return the name of the Python that was to make the .venv, among these, and all output. A name
    states its kind: old, slow (without optimisation), bare (it cannot make venvs)."""
    (folder / "clients/python").mkdir(parents=True)
    (folder / "scripts").mkdir()
    for path in ("scripts/setup", "pyproject.toml", "clients/python/pyproject.toml"):
        shutil.copy(ROOT / path, folder / path)
    for lock in ROOT.glob("requirements*.lock"):
        shutil.copy(lock, folder)
    for name in found:
        what = {fault: int(fault in name) for fault in ("old", "slow", "bare")}
        (folder / name).write_text(_ANSWERS.format(**what))
        (folder / name).chmod(0o755)
    done = subprocess.run(
        [folder / "scripts/setup", "run"],
        env={"PATH": "/usr/bin:/bin", "PYTHON": " ".join(str(folder / name) for name in found)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    chosen = [line for line in done.stderr.splitlines() if line.endswith(" is taken")]
    path = chosen[0].removesuffix(" is taken").removeprefix("tocsin: ") if chosen else ""
    return Path(path).name, done.stderr


def test_the_first_that_was_compiled_with_optimisation_is_taken(tmp_path: Path) -> None:
    name, said = taken(tmp_path, "slow", "fine", "fine-too")
    assert name == "fine"
    assert "slow was compiled without optimisation, and is left aside" in said


def test_where_none_was_the_first_is_taken_and_it_says_so(tmp_path: Path) -> None:
    name, said = taken(tmp_path, "old", "slow", "slow-too")
    assert name == "slow"
    assert "slow was compiled without optimisation: a message costs" in said


def test_one_that_makes_no_venvs_is_passed_over(tmp_path: Path) -> None:
    name, said = taken(tmp_path, "bare", "fine")
    assert name == "fine"
    assert "optimisation" not in said


def test_an_old_one_is_never_taken(tmp_path: Path) -> None:
    name, said = taken(tmp_path, "old")
    assert name == ""
    assert "needs Python 3.11 or newer and found Python 3.0" in said
