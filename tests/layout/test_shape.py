"""Checks of style by machine: sizes, leftovers, docstrings, references to missing files."""

import ast
import re
from pathlib import Path

from tests.layout.tree import ALL, DOCUMENTS, OUTSIDE, ROOT, SERVER, each, files, parsed, text

FUNCTION_LINES_MAX = 60
COLUMNS_MAX = 100
EXCEPTIONS: dict[str, str] = {}
"""`path:function` → the reason why it may be longer. Ideally empty."""

CODE = files(".py", *ALL)
SCRIPTS = files(".js", *ALL)
PAGES = [*files(".css", *ALL), *files(".html", *ALL), *files(".d.ts", *ALL)]
PROSE = [Path(name) for name in DOCUMENTS] + [
    Path("Makefile"),
    Path("pyproject.toml"),
    Path("scripts/setup"),
    Path("scripts/needs"),
    Path(".ci/run"),
    *files(".md", "docs", *OUTSIDE),
]


@each(CODE)
def test_a_function_fits_on_a_screen(path: Path) -> None:
    long = [
        f"{path}:{node.name}"
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or node.lineno) - node.lineno + 1 > FUNCTION_LINES_MAX
    ]
    assert [name for name in long if name not in EXCEPTIONS] == []


def functions(path: Path) -> list[tuple[str, int]]:
    """Return (first line, number of lines) of each function of a script. It ends with the first
    brace that has its indentation, as the code here is written."""
    lines = text(path).splitlines()
    found = []
    for number, line in enumerate(lines):
        if BEGINS.match(line) is None:
            continue
        end = re.compile(rf"{line[: len(line) - len(line.lstrip())]}\}}")
        later = enumerate(lines[number + 1 :], 2)
        length = next((n for n, line in later if end.match(line)), len(lines) - number)
        found.append((line.strip(), length))
    return found


BEGINS = re.compile(
    r"(?!.*\bclass\b)\s*(?:\}\s*)?"
    r"(?:.*\bfunction\b.*\{|.*=> \{|\)+ (?:=> )?\{"  # a function with or without a name
    r"|(?!(?:if|for|while|switch|catch|else|do|try)\b)"  # a method
    r"(?:static |async |get |set |\*)*[#\w$]+\(.*\{)\s*$"
)


@each(SCRIPTS)
def test_a_function_of_a_script_fits_on_a_screen(path: Path) -> None:
    long = [f"{path}: {name}" for name, length in functions(path) if length > FUNCTION_LINES_MAX]
    assert long == []


def test_functions_of_scripts_are_found() -> None:
    path = Path("clients/javascript/test/conformance/clock.js")
    found = [name for name, _ in functions(path)]
    assert "async pass(untilMs, holds = () => false) {" in found
    assert "export async function settled() {" in found
    assert "setTimeout = (callback, delayMs = 0, ...args) => {" in found
    assert all(length < FUNCTION_LINES_MAX for _, length in functions(path))


@each([*CODE, *files(".sql", *SERVER), *SCRIPTS, *PAGES])
def test_a_line_has_a_hundred_columns(path: Path) -> None:
    assert [n for n, line in enumerate(text(path).splitlines(), 1) if len(line) > COLUMNS_MAX] == []


@each([*CODE, *SCRIPTS, *PAGES, *PROSE])
def test_nothing_is_left_for_later(path: Path) -> None:
    words = "T[O]DO|FIX[M]E|X[X]X|for [n]ow|NotImplemented[E]rror"
    assert re.findall(rf"\b(?:{words})\b", text(path)) == []


@each([*CODE, *SCRIPTS, *PAGES, *PROSE])
def test_nothing_refers_to_what_is_not_here(path: Path) -> None:
    """The project refers to no developer's folder, and to no document outside itself."""
    assert re.findall(r"(?<![\w.~-])/(?:work|home|Users|opt)/[\w.-]+", text(path)) == []
    named = set(re.findall(r"\b[A-Z][A-Z_]+\.md\b", text(path)))
    here = {found.name for found in ROOT.glob("*.md")} | {
        found.name for found in (ROOT / "clients").rglob("*.md")
    }
    assert named - here == set()


@each(files(".js", *SERVER, *OUTSIDE))
def test_a_script_says_what_it_is(path: Path) -> None:
    assert text(path).startswith(("/**", "//"))


@each(files(".py", *SERVER, *OUTSIDE, "scripts"))
def test_a_module_says_what_it_is(path: Path) -> None:
    assert ast.get_docstring(parsed(path))


@each(files(".py", "push"))
def test_every_public_rule_says_what_it_does(path: Path) -> None:
    def public(body: list[ast.stmt], prefix: str) -> list[tuple[str, ast.AST]]:
        found: list[tuple[str, ast.AST]] = []
        for node in body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.append((prefix + node.name, node))
                found += public(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                found.append((prefix + node.name, node))
        return found

    assert [
        name
        for name, node in public(parsed(path).body, "")
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not ast.get_docstring(node)
    ] == []
