"""Plant known bugs one at a time in a copy of the tree; a named test must fail for every one.

    .venv/bin/python scripts/mutants.py [name ...] [--list]

tests/mutants/mutants.toml lists them: which rule is broken, how, the history that goes wrong, and
the tests whose duty it is to notice. A mutant that survives means that nothing holds its rule; one
that no longer applies means that the list has fallen behind the code. Both end with status 1.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Final

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "tests/mutants/mutants.toml"
RUN_S_MAX = 240
"""One run of a mutant's tests. A mutant that hangs them is caught, too, and that is said: a test
that only takes long does not notice anything."""
NO_END: Final = f"no end after {RUN_S_MAX} s"
LEFT_OUT = shutil.ignore_patterns(
    ".git", ".venv", "__pycache__", ".*_cache", ".hypothesis", "build", "data", "*.egg-info"
)


@dataclass(frozen=True)
class Mutant:
    """One planted bug. `old` stands exactly once in `file`; each of `tests` must fail."""

    name: str
    rule: str
    file: str
    old: str
    new: str
    reason: str
    tests: list[str]

    def plant(self, tree: Path) -> str:
        """Apply it in `tree`; returns the original text. Raises ValueError when it cannot."""
        place = tree / self.file
        if not place.is_file():
            raise ValueError(f"{self.file} is gone")
        text = place.read_text()
        if text.count(self.old) != 1:
            raise ValueError(f"its old text stands {text.count(self.old)} times in {self.file}")
        if self.old == self.new:
            raise ValueError("it changes nothing")
        place.write_text(text.replace(self.old, self.new))
        return text


def load() -> list[Mutant]:
    """The list, in its order. Raises TypeError for an unknown or a missing field."""
    return [Mutant(**entry) for entry in tomllib.loads(LIST.read_text())["mutant"]]


def run(tree: Path, selectors: list[str], within_s: float | None) -> tuple[int, str]:
    """(pytest's exit status, its output); (1, NO_END): it took longer than that."""
    environment = os.environ | {
        "PYTHONPATH": f"{tree}{os.pathsep}{tree / 'clients/python/src'}",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "--tb=line", *selectors]
    try:
        done = subprocess.run(
            command,
            cwd=tree,
            env=environment,
            timeout=within_s,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    except subprocess.TimeoutExpired:
        return 1, NO_END
    return done.returncode, done.stdout


def judge(mutant: Mutant, tree: Path) -> tuple[bool, str]:
    """Whether every named test noticed it; how, or what is wrong."""
    verdict = "caught"
    try:
        original = mutant.plant(tree)
    except ValueError as problem:
        return False, f"no longer applies: {problem}"
    try:
        for selector in mutant.tests:
            status, output = run(tree, [selector], RUN_S_MAX)
            if status == 0:
                return False, f"survived {selector}: {mutant.reason}"
            if status != 1:
                return False, f"is broken ({selector} did not run):\n{output}"
            if output == NO_END:
                verdict = f"caught, if it hangs {selector}: {NO_END}"
    finally:
        (tree / mutant.file).write_text(original)
    return True, verdict


def main() -> None:
    """Run all mutants, or those named on the command line."""
    mutants = load()
    names = {name for name in sys.argv[1:] if not name.startswith("-")}
    if unknown := names - {mutant.name for mutant in mutants}:
        sys.exit(f"no such mutant: {', '.join(sorted(unknown))}")
    chosen = [mutant for mutant in mutants if not names or mutant.name in names]
    say = sys.stdout.write
    if "--list" in sys.argv[1:]:
        say("".join(f"{m.rule:5} {m.name}  ({m.file})\n" for m in chosen))
        return
    failures = 0
    with tempfile.TemporaryDirectory(prefix="tocsin-mutants-") as folder:
        tree = Path(folder) / "tree"
        shutil.copytree(ROOT, tree, ignore=LEFT_OUT, symlinks=True)
        tests = sorted({test for mutant in chosen for test in mutant.tests})
        status, output = run(tree, tests, None)
        if status:
            sys.exit(f"without any mutant, the tests already fail:\n{output}")
        for number, mutant in enumerate(chosen, 1):
            began = monotonic()
            is_caught, verdict = judge(mutant, tree)
            failures += not is_caught
            took_s = monotonic() - began
            say(f"{number}/{len(chosen)} {mutant.rule} {mutant.name}: {verdict} ({took_s:.0f} s)\n")
            sys.stdout.flush()
    say(f"{len(chosen) - failures} of {len(chosen)} caught\n")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
