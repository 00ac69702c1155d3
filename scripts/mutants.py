"""Plant known bugs one at a time in a copy of the tree; a named test must fail for every one.

    .venv/bin/python scripts/mutants.py [NAME ...] [--list] [--shard 1/4] [--again] [--jobs 2]

    --list        only list them
    --shard I/N   every Nth of them, from the Ith on: parts of a run that may be days apart
    --again       run also those whose verdict is known
    --jobs J      this many at the same time, each in its own copy (1)

tests/mutants/mutants.toml lists them: the rule that is broken, how, the history that goes wrong,
and the tests whose duty it is to notice. A mutant that survives means that nothing holds its rule.
One that no longer applies means that the list is older than the code. Both end with status 1. So
does a mutant that is caught for a name that its text plants and that does not exist, because a
NameError would be noticed whatever the rule.

A verdict is kept in build/mutants/verdicts.jsonl. It holds while nothing changes that it rests on:
the mutant's entry, and every file of this checkout that its tests import, directly or not. If these
start programs, it rests on the whole checkout. In a Python file, comments, docstrings and layout do
not count. So a run that was broken off continues, and after a change only the mutants concerned are
run again.
"""

import argparse
import ast
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from time import monotonic
from typing import Final

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "tests/mutants/mutants.toml"
VERDICTS = ROOT / "build/mutants/verdicts.jsonl"
RUN_S_MAX = 240
"""The time limit of one run of a mutant's tests, in seconds. A mutant that hangs them is caught,
too, and reported so, because a test that only takes long does not notice anything."""
NO_END: Final = f"no end after {RUN_S_MAX} s"
LEFT_OUT = shutil.ignore_patterns(
    ".git", ".venv", "__pycache__", ".*_cache", ".hypothesis", "build", "data", "*.egg-info"
)
SOURCES: Final = (ROOT, ROOT / "clients/python/src")
"""The folders in which modules are searched."""
STARTS_PROGRAMS: Final = re.compile(r"\b(?:subprocess|create_subprocess|Popen|multiprocessing)\b")
SERVERS: Final = ROOT / "tests/servers"
"""The folder of tests that start servers that are not ours."""
BESIDE: Final = (".sql", ".lua", ".toml", ".js", ".html", ".css", ".json")
"""The suffixes of files that code reads beside modules. Every verdict rests on those of the
server's folders."""
MISSING_NAME: Final = re.compile(
    r"(?P<kind>NameError|AttributeError|ImportError|ModuleNotFoundError|UnboundLocalError"
    r"|SyntaxError|IndentationError): (?P<words>.*)"
)


@dataclass(frozen=True)
class Mutant:
    """A planted bug. `old` occurs exactly once in `file`; each of `tests` must fail."""

    name: str
    rule: str
    file: str
    old: str
    new: str
    reason: str
    tests: list[str]

    def plant(self, tree: Path) -> str:
        """Apply the bug in `tree`; returns the original text. Raises ValueError if that is
        impossible."""
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

    def planted_name(self, output: str) -> str | None:
        """Return the error of a name that this text plants and that does not exist, or None.

        An AttributeError counts if the attribute occurs in `new` and not in `old`. The value None
        in place of an object is no missing name.
        """
        for found in MISSING_NAME.finditer(output):
            kind, words = found["kind"], found["words"]
            if kind in {"SyntaxError", "IndentationError", "ImportError", "ModuleNotFoundError"}:
                return f"{kind}: {words}"
            quoted = re.findall(r"'([^']+)'", words)
            if kind == "AttributeError" and quoted[:1] == ["NoneType"]:
                continue
            name = quoted[-1] if quoted else ""
            planted = set(re.findall(r"\w+", self.new)) - set(re.findall(r"\w+", self.old))
            if kind == "NameError" or name in planted:
                return f"{kind}: {words}"
        return None


@dataclass(frozen=True)
class Verdict:
    """The outcome of a mutant."""

    name: str
    is_caught: bool
    words: str
    rests_on: str
    """A digest of everything that could change it."""


def load() -> list[Mutant]:
    """Return the list, in its order. Raises TypeError for an unknown or a missing field."""
    return [Mutant(**entry) for entry in tomllib.loads(LIST.read_text())["mutant"]]


# --- What a verdict rests on ---


@cache
def imported(path: Path) -> frozenset[Path]:
    """Return the files of this checkout that a Python file imports, anywhere in it."""
    found: set[Path] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: Iterable[str] = ()
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            found |= set(_files_of(name))
    return frozenset(found)


@cache
def _files_of(name: str) -> tuple[Path, ...]:
    """Return the files that importing a dotted name runs; none if it is not ours."""
    parts = name.split(".")
    for source in SOURCES:
        if not (source / parts[0]).exists() and not (source / f"{parts[0]}.py").is_file():
            continue
        found = [
            source.joinpath(*parts[:count], "__init__.py") for count in range(1, len(parts) + 1)
        ]
        found.append(source.joinpath(*parts).with_suffix(".py"))
        return tuple(path for path in found if path.is_file())
    return ()


@cache
def reached(path: Path) -> frozenset[Path]:
    """Return a test file, the fixtures of its folders, and everything that these import, directly
    or not.

    Fixtures of all tests are left out. They are added to every verdict, and start nothing of ours.
    """
    folders = [folder for folder in path.parents if ROOT / "tests" in folder.parents]
    todo = [path, *(folder / "conftest.py" for folder in folders)]
    seen: set[Path] = set()
    while todo:
        one = todo.pop()
        if one in seen or not one.is_file() or one.suffix != ".py":
            continue
        seen.add(one)
        todo += imported(one)
    return frozenset(seen)


@cache
def digest_of(path: Path) -> bytes:
    """Return a digest of a file's name and content; of a Python file, of its meaning."""
    content = path.read_bytes()
    if path.suffix == ".py":
        content = meaning(content).encode()
    return hashlib.sha256(f"{path.relative_to(ROOT)}\0".encode() + content).digest()


def meaning(source: bytes) -> str:
    """Return a program's syntax tree without comments, docstrings and positions, as text."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            body[:] = [one for one in body if not _is_docstring(one)]
    return ast.dump(tree)


def _is_docstring(node: ast.AST) -> bool:
    """Whether a statement is only a text, which documents a module, a class, or an attribute."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


@cache
def tracked() -> tuple[Path, ...]:
    """Return all files of the checkout without documents, records of measurements, the list of
    mutants, and this script."""
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    left_out = (".md", ".jsonl", ".png")
    return tuple(
        ROOT / name
        for name in listed
        if not name.endswith(left_out)
        and (ROOT / name).is_file()
        and (ROOT / name) not in {LIST, Path(__file__).resolve()}
    )


@cache
def rests_on(files: tuple[str, ...]) -> bytes:
    """Return a digest of everything that these test files reach."""
    paths: set[Path] = set()
    for name in files:
        place = ROOT / name
        paths |= reached(place) if place.suffix == ".py" else {place}
    own = {path for path in paths if path.parent != SERVERS or path.stem.startswith("test_")}
    own = {path for path in own if path.parts[len(ROOT.parts)] in {"tests", "loadtests", "spark"}}
    if any(STARTS_PROGRAMS.search(path.read_text(encoding="utf-8")) for path in own):
        paths |= set(tracked())
    else:
        paths |= {path for path in tracked() if path.suffix in BESIDE and "tests" not in path.parts}
        paths |= reached(ROOT / "tests/conftest.py")
    whole = hashlib.sha256()
    for path in sorted(paths):
        whole.update(digest_of(path))
    return whole.digest()


def key_of(mutant: Mutant) -> str:
    """Return one digest of everything that a mutant's verdict rests on."""
    files = tuple(sorted({test.partition("::")[0] for test in mutant.tests}))
    entry = json.dumps(asdict(mutant), sort_keys=True).encode()
    return hashlib.sha256(entry + rests_on(files) + digest_of(ROOT / mutant.file)).hexdigest()[:32]


def known() -> dict[str, Verdict]:
    """Return the stored verdicts, by the digest that they rest on."""
    if not VERDICTS.is_file():
        return {}
    lines = VERDICTS.read_text().splitlines()
    verdicts = [Verdict(**json.loads(line)) for line in lines if line.endswith("}")]
    return {verdict.rests_on: verdict for verdict in verdicts if verdict.is_caught}


# --- One mutant ---


def run(tree: Path, selectors: list[str], within_s: float | None) -> tuple[int, str]:
    """Return (pytest's exit status, its output), or (1, NO_END) if it took longer than `within_s`.
    `selectors` may begin with options of pytest."""
    environment = os.environ | {"PYTHONPATH": f"{tree}{os.pathsep}{tree / 'clients/python/src'}"}
    # Kept bytecode saves a third of a short run. Python compiles a planted file again, because its
    # time of writing differs.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-m", "pytest", "-q", "--no-header", "--tb=line", *selectors]
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


def without_any(tree: Path, tests: list[str]) -> str:
    """Run all tests without a mutant. Returns the output if some fail, and fail again when they
    run without the others: on a busy machine a test may exceed its time once."""
    status, output = run(tree, tests, None)
    if status == 1:
        status, output = run(tree, ["--last-failed", *tests], None)
    return output if status else ""


def judge(mutant: Mutant, tree: Path) -> tuple[bool, str]:
    """Return whether every named test noticed it, and how, or what is wrong."""
    verdict = "caught"
    try:
        original = mutant.plant(tree)
    except ValueError as problem:
        return False, f"no longer applies: {problem}"
    try:
        for selector in mutant.tests:
            status, output = run(tree, ["-x", selector], RUN_S_MAX)
            if status == 0:
                return False, f"survived {selector}: {mutant.reason}"
            if missing := mutant.planted_name(output):
                return False, f"is caught for its own text, not for the rule: {missing}"
            if status != 1:
                return False, f"is broken ({selector} did not run):\n{output}"
            if output == NO_END:
                verdict = f"caught, if it hangs {selector}: {NO_END}"
    finally:
        (tree / mutant.file).write_text(original)
    return True, verdict


# --- All of them ---


class Trees:
    """Copies of the checkout, one for each mutant that runs at a time."""

    def __init__(self, folder: Path, count: int) -> None:
        self._free: SimpleQueue[Path] = SimpleQueue()
        self.first = folder / "tree-0"
        for number in range(count):
            tree = folder / f"tree-{number}"
            shutil.copytree(ROOT, tree, ignore=LEFT_OUT, symlinks=True)
            self._free.put(tree)

    def judge(self, mutant: Mutant) -> tuple[Mutant, bool, str, float]:
        """Run a mutant in a free copy: returns (mutant, is it caught, how, seconds)."""
        tree = self._free.get()
        began = monotonic()
        try:
            is_caught, words = judge(mutant, tree)
        finally:
            self._free.put(tree)
        return mutant, is_caught, words, monotonic() - began


def selected(options: argparse.Namespace) -> list[Mutant]:
    """Return the mutants that the command line names. An unknown name ends the process."""
    mutants = load()
    if unknown := set(options.names) - {mutant.name for mutant in mutants}:
        sys.exit(f"no such mutant: {', '.join(sorted(unknown))}")
    chosen = [mutant for mutant in mutants if not options.names or mutant.name in options.names]
    number, count = options.shard
    return chosen[number - 1 :: count]


def shard(text: str) -> tuple[int, int]:
    """Parse `2/4` as (2, 4). Raises ValueError for anything else."""
    number, count = map(int, text.split("/"))
    if not 1 <= number <= count:
        raise ValueError(text)
    return number, count


def main() -> None:
    """Run all mutants, or those that the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--shard", type=shard, default=(1, 1), metavar="I/N")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--jobs", type=int, default=1, metavar="J")
    options = parser.parse_args()
    chosen = selected(options)
    say = sys.stdout.write
    if options.list:
        say("".join(f"{m.rule:5} {m.name}  ({m.file})\n" for m in chosen))
        return
    verdicts = {} if options.again or options.names else known()
    keys = {mutant.name: key_of(mutant) for mutant in chosen if (ROOT / mutant.file).is_file()}
    todo = [mutant for mutant in chosen if keys.get(mutant.name) not in verdicts]
    say(f"{len(chosen)} mutants, {len(chosen) - len(todo)} known to be caught\n")
    failures = run_all(todo, keys, options.jobs) if todo else 0
    say(f"{len(chosen) - failures} of {len(chosen)} caught\n")
    sys.exit(1 if failures else 0)


def run_all(todo: list[Mutant], keys: dict[str, str], jobs: int) -> int:
    """Run these mutants, print and store each verdict. Returns the number of mutants not caught."""
    failures = 0
    VERDICTS.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="tocsin-mutants-") as folder:
        trees = Trees(Path(folder), jobs)
        tests = sorted({test for mutant in todo for test in mutant.tests})
        if output := without_any(trees.first, tests):
            sys.exit(f"without any mutant, the tests already fail:\n{output}")
        with ThreadPoolExecutor(jobs) as pool, VERDICTS.open("a") as kept:
            for number, (mutant, is_caught, words, took_s) in enumerate(
                pool.map(trees.judge, todo), 1
            ):
                failures += not is_caught
                name = f"{mutant.rule} {mutant.name}"
                sys.stdout.write(f"{number}/{len(todo)} {name}: {words} ({took_s:.0f} s)\n")
                sys.stdout.flush()
                verdict = Verdict(mutant.name, is_caught, words, keys.get(mutant.name, ""))
                kept.write(json.dumps(asdict(verdict)) + "\n")
                kept.flush()
    return failures


if __name__ == "__main__":
    main()
