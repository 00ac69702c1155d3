"""Ratchets: figures of the code that may only fall. Each is recorded in ratchets.toml.

    .venv/bin/python -m tests.layout.ratchets              the figures, measured and recorded
    .venv/bin/python -m tests.layout.ratchets NAME         what a figure counts, one a line
    .venv/bin/python -m tests.layout.ratchets --lower      record what has fallen; raises nothing
    .venv/bin/python -m tests.layout.ratchets --record NAME    record it whatever it is; only for a
                                                       new layout of the tree

A reason in ratchets.toml exempts one thing from one figure. It must be removed with the thing.
"""

import argparse
import ast
import re
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from tests.layout.tree import OUTSIDE, ROOT, SERVER, files, parsed, section, table_rows, text

TABLE: Final = ROOT / "tests/layout/ratchets.toml"
SPLINTER_LINES: Final = 120
MODULE_LINES_MAX: Final = 800
FOLDER_MODULES_MAX: Final = 20
CELL_MAX: Final = 160
COLUMNS_MAX: Final = 100
NOUNS: Final = {"ring"}
FORBIDDEN: Final = {
    "As", "See", "It", "Its", "These", "Those", "That", "They", "What", "Who", "Of", "By", "So",
    "One", "Nobody",
}  # fmt: skip
"""Words with which no docstring begins. It names its object, or is an imperative."""

LIBRARY_HOOKS: Final = {
    "text_factory": "sqlite3.Connection",
    "sni_callback": "ssl.SSLContext",
}
"""Attributes that hold a function by the definition of a class of the standard library."""

Found = list[str]
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def name_of(path: Path) -> str:
    """Return a module's name with its dots."""
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


@cache
def modules() -> dict[str, Path]:
    """Return every module of the server that is no `__init__`, by name."""
    return {name_of(p): p for p in files(".py", *SERVER) if p.name != "__init__.py"}


@cache
def imported(path: Path) -> frozenset[str]:
    """Return the modules of the server that a file imports, for types alone included."""
    found = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            below = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (below & modules().keys()) or {node.module}
    return frozenset(found & modules().keys())


def classes() -> Iterator[tuple[str, ast.ClassDef]]:
    """Yield every class of the server with its module."""
    for path in files(".py", *SERVER):
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef):
                yield name_of(path), node


# --- Modules ----------------------------------------------------------------------------------


def server_modules() -> Found:
    """Modules of the server, without `__init__`."""
    return sorted(modules())


def modules_in_gateway() -> Found:
    """Modules that are directly in gateway/, in no room."""
    return [name for name in sorted(modules()) if re.fullmatch(r"gateway\.\w+", name)]


def splinters() -> Found:
    """Modules below 120 lines with one importer, which is in the same folder."""
    importers = defaultdict(set)
    for path in files(".py", *SERVER):
        for name in imported(path):
            importers[name].add(path)
    return [
        name
        for name, path in sorted(modules().items())
        if len(text(path).splitlines()) < SPLINTER_LINES
        and [one.parent for one in importers[name]] == [path.parent]
    ]


def long_modules() -> Found:
    """Modules above 800 lines."""
    sizes = {name: len(text(path).splitlines()) for name, path in modules().items()}
    return [name for name, size in sorted(sizes.items()) if size > MODULE_LINES_MAX]


def full_folders() -> Found:
    """Folders with more than 20 modules, of the server or of the load tests."""
    paths = [p for p in files(".py", *SERVER, "loadtests") if p.name != "__init__.py"]
    counts = Counter(str(path.parent) for path in paths)
    return sorted(name for name, count in counts.items() if count > FOLDER_MODULES_MAX)


def gerund_modules() -> Found:
    """Modules whose name ends in -ing and is no noun."""
    last = {name: name.rpartition(".")[2] for name in sorted(modules())}
    return [name for name, word in last.items() if word.endswith("ing") and word not in NOUNS]


def busy_inits() -> Found:
    """`__init__` modules that hold more than a docstring, imports and `__all__`."""
    return [
        str(path)
        for path in files(".py", *SERVER)
        if path.name == "__init__.py" and any(not _is_door(node) for node in parsed(path).body)
    ]


def _is_door(node: ast.stmt) -> bool:
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return [ast.unparse(one) for one in targets] == ["__all__"]
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return is_text or isinstance(node, ast.Import | ast.ImportFrom)


def unformatted() -> Found:
    """`# fmt: skip` and `# fmt: off` in the server."""
    return [
        f"{path}:{number}"
        for path in files(".py", *SERVER)
        for number, line in enumerate(text(path).splitlines(), 1)
        if re.search(r"# fmt: (?:skip|off)", line)
    ]


def unchecked_pure() -> Found:
    """Modules that say "Pure." and are not checked as pure, because they have a reason."""
    return sorted(reasons("pure"))


# --- Objects ----------------------------------------------------------------------------------


def reaches() -> Found:
    """Attribute chains through two objects, such as `slot.delivery.scan.rests`: three more names
    after a variable, or after an attribute of `self`. Names of modules and classes are no
    objects."""
    found = []
    for path in files(".py", *SERVER):
        inner = {
            id(node.value) for node in ast.walk(parsed(path)) if isinstance(node, ast.Attribute)
        }
        spaces = _imported_names(path)
        for node in ast.walk(parsed(path)):
            if not isinstance(node, ast.Attribute) or id(node) in inner:
                continue
            root, *parts = _chain(node)
            if root in ("self", "cls"):
                root, *parts = parts
            if root and root not in spaces and not root[0].isupper() and len(parts) >= 3:
                found.append(f"{path}:{node.lineno} {ast.unparse(node)}")
    return found


def _chain(node: ast.expr) -> list[str]:
    """Return the names of `a.b.c`; the first is empty if the root is no name."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return [node.id if isinstance(node, ast.Name) else "", *reversed(parts)]


def _imported_names(path: Path) -> set[str]:
    return {
        (alias.asname or alias.name).partition(".")[0]
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }


def class_names() -> Found:
    """Names of classes that are defined in more than one module, private ones left out."""
    homes = defaultdict(set)
    for module, node in classes():
        if not node.name.startswith("_"):
            homes[node.name].add(module)
    return [
        f"{name} {', '.join(sorted(found))}"
        for name, found in sorted(homes.items())
        if len(found) > 1
    ]


def foreign_wires() -> Found:
    """Assignments of a function or a collaborator to an attribute of another object.

    These are `x.y = v` and `self.x.y = v`, where v is, or chooses between, a lambda, a function of
    this module, a method of this or another class, `partial(…)`, an object that is made there, or
    `self`. Hooks of the standard library are left out, because they cannot be set otherwise.
    """
    found = []
    for path in files(".py", *SERVER):
        functions = {n.name for n in ast.walk(parsed(path)) if isinstance(n, _Function)}
        for node in ast.walk(parsed(path)):
            value = getattr(node, "value", None)
            if not isinstance(node, ast.Assign | ast.AnnAssign) or value is None:
                continue
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                chain = _chain(target)
                is_own = chain[0] in ("self", "cls") and len(chain) == 2
                if len(chain) < 2 or is_own or not isinstance(target, ast.Attribute):
                    continue
                if target.attr in LIBRARY_HOOKS:
                    continue
                if _is_collaborator(value, functions):
                    found.append(f"{path}:{node.lineno} {ast.unparse(node)[:90]}")
    return found


def _is_collaborator(value: ast.expr, functions: set[str]) -> bool:
    match value:
        case ast.Lambda():
            return True
        case ast.IfExp(body=body, orelse=orelse):
            return any(_is_collaborator(one, functions) for one in (body, orelse))
        case ast.BoolOp(values=values):
            return any(_is_collaborator(one, functions) for one in values)
        case ast.Await(value=inner):
            return _is_collaborator(inner, functions)
        case ast.Name(id=name):
            return name == "self" or name in functions
        case ast.Attribute(attr=attr):
            return attr in _methods()
        case ast.Call(func=function):
            made = _chain(function)[-1].lstrip("_")
            return made == "partial" or made[:1].isupper()
    return False


@cache
def _methods() -> frozenset[str]:
    """Return names of methods that are nowhere the name of a property or of another attribute."""
    methods: set[str] = set()
    others: set[str] = set()
    for _, node in classes():
        for one in node.body:
            if isinstance(one, _Function):
                is_value = any("property" in ast.unparse(d) for d in one.decorator_list)
                (others if is_value else methods).add(one.name)
        others |= _attributes(node)
    return frozenset(methods - others)


def _attributes(node: ast.ClassDef) -> set[str]:
    """Return the attributes that a class body declares or its methods assign to `self`."""
    found = {
        one.target.id
        for one in node.body
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
    }
    for one in node.body:
        if isinstance(one, ast.Assign):
            found |= {target.id for target in one.targets if isinstance(target, ast.Name)}
    for inner in ast.walk(node):
        if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store):
            found |= {inner.attr} if _chain(inner)[0] == "self" else set()
    return found


# --- Protocols --------------------------------------------------------------------------------


def protocols() -> dict[str, list[str]]:
    """Return each protocol of the server, `module.Name`, with the names of the server's classes
    that have all its members. Protocols with only `__call__` are left out, because functions
    implement them."""
    known = {node.name: node for _, node in classes()}
    members = {name: _members(node, known) for name, node in known.items()}
    found = {}
    for module, node in classes():
        if not _is_protocol(node):
            continue
        wanted = _members(node, known)
        if not wanted or wanted == {"__call__"}:
            continue
        found[f"{module}.{node.name}"] = [
            name for name, has in members.items() if wanted <= has and not _is_protocol(known[name])
        ]
    return found


def _is_protocol(node: ast.ClassDef) -> bool:
    return any(ast.unparse(base).partition("[")[0] == "Protocol" for base in node.bases)


def _members(node: ast.ClassDef, known: dict[str, ast.ClassDef]) -> set[str]:
    own = {one.name for one in node.body if isinstance(one, _Function)} | _attributes(node)
    for base in node.bases:
        above = known.get(ast.unparse(base).partition("[")[0].rpartition(".")[2])
        if above is not None and above is not node:
            own |= _members(above, known)
    return own if not _is_protocol(node) else own - {"__slots__"}


def lonely_protocols() -> Found:
    """Protocols with fewer than two implementations in the server."""
    return sorted(f"{name} {len(found)}" for name, found in protocols().items() if len(found) < 2)


# --- Words ------------------------------------------------------------------------------------


def words_in_server() -> Found:
    """Docstrings of the server that begin with a forbidden word, those of attributes included."""
    return _forbidden(*SERVER)


def words_elsewhere() -> Found:
    """Docstrings of SDKs, load tests and analytics that begin with a forbidden word."""
    return _forbidden(*OUTSIDE)


def _forbidden(*folders: str) -> Found:
    return [
        f"{path}:{line} {said.splitlines()[0][:70]}"
        for path in files(".py", *folders)
        for line, said, is_bool in docstrings(parsed(path))
        if (word := re.match(r"\w*", said)[0]) in FORBIDDEN  # type: ignore[index]
        or (word == "Whether" and is_bool is False)
    ]


def pointers() -> Found:
    """Docstrings that only point elsewhere, such as "See Tokens."."""
    return [
        f"{path}:{line} {said}"
        for path in files(".py", *SERVER, *OUTSIDE)
        for line, said, _ in docstrings(parsed(path))
        if re.fullmatch(r"(?:[Aa]s|[Ss]ee) [\w.`: ]{1,60}\.?", said)
    ]


@cache
def calques() -> re.Pattern[str]:
    """The words that CONTRIBUTING.md has a better one for: the first column of its table."""
    rows = table_rows(section("CONTRIBUTING.md", "Words"))
    words = [word for row in rows for word in re.findall(r"`([^`]+)`", row[0])]
    assert words
    return re.compile(rf"\b(?:{'|'.join(map(re.escape, words))})\b(?! (?:for|still)\b)")


def calques_in_server() -> Found:
    """Calques in docstrings and comments of the server."""
    return _calques_in_code(*SERVER)


def calques_elsewhere() -> Found:
    """Calques in docstrings and comments of SDKs, load tests and analytics."""
    return _calques_in_code(*OUTSIDE)


def calques_in_documents() -> Found:
    """Calques in documents, what stands in backquotes, fences or quotes left out."""
    found = []
    for path in documents():
        plain = re.sub(r"```.*?```|`[^`]*`|“[^”]*”|\"[^\"\n]*\"", _blank, text(path), flags=re.S)
        found += _calques_in(str(path), 1, plain)
    return found


def _calques_in_code(*folders: str) -> Found:
    found = []
    for path in files(".py", *folders):
        for line, said, _ in docstrings(parsed(path)):
            found += _calques_in(str(path), line, said)
        for number, line_text in enumerate(text(path).splitlines(), 1):
            if comment := re.match(r"\s*# (.*)", line_text):
                found += _calques_in(str(path), number, comment[1])
    return found


def _calques_in(path: str, first_line: int, said: str) -> Found:
    plain = re.sub(r"`[^`]*`|“[^”]*”|\"[^\"\n]*\"", _blank, said)
    return [
        f"{path}:{first_line + plain.count(chr(10), 0, hit.start())} {hit[0]}"
        for hit in calques().finditer(plain)
    ]


def _blank(found: re.Match[str]) -> str:
    """Return blanks in place of a match, without changing its line ends."""
    return re.sub(r"[^\n]", " ", found[0])


def docstrings(node: ast.AST) -> Iterator[tuple[int, str, bool | None]]:
    """Yield (line, text, whether it describes a bool; None if unknown) of each docstring below a
    node."""
    body = getattr(node, "body", None)
    if not isinstance(body, list):
        return
    before: ast.AST | None = None
    for one in body:
        if isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant):
            if isinstance(one.value.value, str):
                yield one.lineno, one.value.value.strip(), _is_bool(before or node)
        else:
            yield from docstrings(one)
        before = one


def _is_bool(node: ast.AST) -> bool | None:
    kind = getattr(node, "returns", None) or getattr(node, "annotation", None)
    if kind is None or isinstance(node, ast.ClassDef | ast.Module):
        return None
    return "bool" in ast.unparse(kind) or "TypeGuard" in ast.unparse(kind)


# --- Documents --------------------------------------------------------------------------------


@cache
def documents() -> tuple[Path, ...]:
    """All pages but CONTRIBUTING.md, whose list of words names what is wrong, and the records of
    measurements."""
    here = {path.relative_to(ROOT) for path in ROOT.glob("*.md") if path.name != "CONTRIBUTING.md"}
    below = {*files(".md", "docs", "deploy", "clients", "spark")}
    return tuple(sorted(here | {path for path in below if "benchmarks" not in path.parts}))


def long_cells() -> Found:
    """Cells of tables above 160 characters."""
    return [
        f"{path}:{number} {len(cell.strip())}"
        for path in documents()
        for number, line in enumerate(text(path).splitlines(), 1)
        if line.startswith("|")
        for cell in re.split(r"(?<!\\)\|", line)
        if len(cell.strip()) > CELL_MAX
    ]


def long_lines() -> Found:
    """Lines of documents above 100 columns, outside tables."""
    return [
        f"{path}:{number}"
        for path in documents()
        for number, line in enumerate(text(path).splitlines(), 1)
        if len(line) > COLUMNS_MAX and not line.startswith("|")
    ]


# --- The table --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Figure:
    """A ratchet: the function that counts, and the number to reach."""

    measure: Callable[[], Found]
    aim: int

    @property
    def name(self) -> str:
        """The figure's name in ratchets.toml, and on the command line."""
        return self.measure.__name__


FIGURES: Final = {
    figure.name: figure
    for figure in (
        Figure(server_modules, 230),
        Figure(modules_in_gateway, 6),
        Figure(splinters, 0),
        Figure(long_modules, 0),
        Figure(full_folders, 0),
        Figure(gerund_modules, 0),
        Figure(busy_inits, 0),
        Figure(unformatted, 0),
        Figure(unchecked_pure, 0),
        Figure(reaches, 0),
        Figure(class_names, 0),
        Figure(foreign_wires, 0),
        Figure(lonely_protocols, 0),
        Figure(words_in_server, 10),
        Figure(words_elsewhere, 10),
        Figure(pointers, 0),
        Figure(calques_in_server, 0),
        Figure(calques_elsewhere, 0),
        Figure(calques_in_documents, 0),
        Figure(long_cells, 0),
        Figure(long_lines, 0),
    )
}


def table() -> dict[str, Any]:
    """Return the recorded table: `figures` by name, the `life` of a message by journey."""
    return tomllib.loads(TABLE.read_text())


def reasons(name: str) -> dict[str, str]:
    """Return the exempted things of a figure, each with its reason."""
    found: dict[str, str] = tomllib.loads(TABLE.read_text()).get("reasons", {}).get(name, {})
    return found


def counted(name: str) -> Found:
    """Return the things that a figure counts now, without those that have a reason."""
    exempt = reasons(name)
    return [one for one in FIGURES[name].measure() if one.partition(" ")[0] not in exempt]


def judge(name: str, measured: float, recorded: float, slack: float = 0) -> str:
    """Return what is wrong with a figure; empty if nothing is."""
    if measured > recorded:
        return f"{name} has risen from {recorded} to {measured}: it may only fall"
    if measured < recorded - slack:
        return f"{name} has fallen: lower the recorded number from {recorded} to {measured}"
    return ""


def record(names: Sequence[str], *, is_rise_allowed: bool = False) -> list[str]:
    """Record these figures as they are. Returns the changes."""
    content, changed = TABLE.read_text(), []
    recorded = table()["figures"]
    for name in names:
        measured = len(counted(name))
        if measured < recorded[name] or (is_rise_allowed and measured > recorded[name]):
            content = re.sub(rf"^{name} = \d+", f"{name} = {measured}", content, flags=re.M)
            changed.append(f"{name} {recorded[name]} -> {measured}")
    TABLE.write_text(content)
    return changed


def main(arguments: Sequence[str]) -> int:
    """Print figures, or what one counts, or lower the recorded ones."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.layout.ratchets",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", nargs="?", choices=[*FIGURES, "protocols"])
    parser.add_argument("--lower", action="store_true", help="record what has fallen")
    parser.add_argument("--record", nargs="+", choices=[*FIGURES], metavar="NAME", default=[])
    said = parser.parse_args(arguments)
    if said.lower or said.record:
        lines = record(said.record or list(FIGURES), is_rise_allowed=bool(said.record))
    elif said.name == "protocols":
        lines = [f"{len(found):3} {name}: {', '.join(found[:6])}"
                 for name, found in sorted(protocols().items())]  # fmt: skip
    elif said.name:
        lines = counted(said.name)
    else:
        recorded = table()["figures"]
        lines = [
            f"{len(counted(name)):6} {recorded.get(name, '?'):>6}  aim {one.aim:<4} {name}: "
            f"{(one.measure.__doc__ or '').splitlines()[0]}"
            for name, one in FIGURES.items()
        ]
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
