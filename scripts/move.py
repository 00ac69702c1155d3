"""Move, merge and rename modules of the server; rewrite everything that names them.

    .venv/bin/python scripts/move.py PLAN [--dry-run]

PLAN is a text file, one step a line (`#` begins a comment); all steps are carried out at once:

    move  gateway.slices      gateway.rooms.slices   the file goes there, under that name
    merge gateway.flow        gateway.http11         the first becomes a part of the second
    name  gateway.flow:LIMIT  FLOW_LIMIT             a name at the top of a module, everywhere
    data  storage/redis/a.lua storage/redis/lua/a.lua   a file that is no module

Names on the left are the present ones; a merge's right side may be a present or a future module.
The script rewrites imports, and dotted names and paths in all texts of the checkout: strings of
tests that replace a constant, docstrings, documents, pyproject.toml, Makefile, scripts and deploy.
It rewrites `file`, `old` and `new` of every mutant. It refuses plans that cannot be carried out
safely: a name that two modules of a merge give to different things, a circle between them, a module
that is used as an object. A logger that is named after its module keeps its name. Work to do by
hand is listed at the end: mutants whose text no longer occurs once, and paths made from `__file__`.
"""

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from io import StringIO
from pathlib import Path
from tokenize import COMMENT, NAME, STRING, TokenInfo, generate_tokens
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
LIST: Final = ROOT / "tests/mutants/mutants.toml"
TEXTS: Final = (
    ".py", ".md", ".toml", ".cfg", ".ini", ".service", ".env", ".sh", ".js", ".ts", ".html",
    ".json",
    ".yml", ".yaml", ".css",
)  # fmt: skip
BY_NAME: Final = ("Makefile", "Containerfile", ".ci/run", ".gitignore", ".dockerignore")
NO_MODULES: Final = {".js", ".ts", ".html", ".json", ".css", ".yml", ".yaml"}
KEPT: Final = ("CHANGELOG.md",)
"""Files about the past, which keep the names of their time."""
FILES_OF_THESE_NAMES: Final = {"storage.sqlite", "metadata.sqlite", "metadata.env", "metadata.sql"}
"""Dotted names that are also files of a data folder. In texts they are not changed."""


class RefusedError(Exception):
    """A plan that cannot be carried out."""


@dataclass
class Plan:
    """The future of each module."""

    moves: dict[str, str] = field(default_factory=dict)
    """Present module → future module, merges included."""
    merges: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Future module → the present modules that it is made of, in the order of the plan."""
    names: dict[str, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))
    """Present module → present top-level name → future name."""
    data: dict[str, str] = field(default_factory=dict)

    @cached_property
    def paths(self) -> dict[str, str]:
        """Present path → future path."""
        modules = {
            relative(path_of(old)): relative(new_path(new)) for old, new in self.moves.items()
        }
        return modules | self.data

    @cached_property
    def dotted(self) -> re.Pattern[str]:
        """A pattern that finds a present dotted name."""
        words = [old for old in self.moves if old not in FILES_OF_THESE_NAMES and "." in old]
        return any_of(words, r"(?<![\w./-])", r"(?![\w/]|\.(?:py|sql|env|md)\b)")

    @cached_property
    def placed(self) -> re.Pattern[str]:
        """A pattern that finds a present path."""
        return any_of(self.paths, r"(?<![\w.-])", r"(?!\w)")


def tracked() -> list[Path]:
    """Return all files of this checkout, including those that are not yet added."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / line for line in listed.stdout.splitlines() if (ROOT / line).is_file()]


def path_of(module: str) -> Path:
    """Return the path of a module's file, whether it exists or not."""
    base = ROOT / "clients/python/src" if module.partition(".")[0] == "tocsin" else ROOT
    path = base / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() and not is_file(path) else path.with_suffix(".py")


def is_file(path: Path) -> bool:
    """Whether a module of that path is a file rather than a package."""
    return path.with_suffix(".py").is_file()


def relative(path: Path) -> str:
    """Return a path from the root, as texts have it."""
    return path.relative_to(ROOT).as_posix()


def read_plan(text: str) -> Plan:
    """Read a plan. Raises RefusedError if the text is no plan."""
    plan = Plan()
    merged: list[tuple[str, str]] = []
    for line in text.splitlines():
        words = line.partition("#")[0].split()
        match words:
            case []:
                continue
            case ["move", old, new]:
                if old in plan.moves:
                    raise RefusedError(f"{old} is moved twice")
                plan.moves[old] = new
            case ["merge", old, new]:
                merged.append((old, new))
            case ["name", place, new]:
                module, _, old = place.partition(":")
                plan.names[module][old] = new
            case ["data", old, new]:
                plan.data[old] = new
            case _:
                raise RefusedError(f"not understood: {line}")
    targets: dict[str, list[str]] = defaultdict(list)
    for old, new in merged:
        if old in plan.moves:
            raise RefusedError(f"{old} is moved and merged")
        final = plan.moves.get(new, new)
        plan.moves[old] = final
        targets[final].append(old)
    before = {new: old for old, new in plan.moves.items() if old not in dict(merged)}
    for final, parts in targets.items():
        first = before.get(final, final)
        plan.merges[final] = [first, *parts] if path_of(first).is_file() else parts
    check(plan)
    return plan


def check(plan: Plan) -> None:
    """Raise RefusedError if a module does not exist, or if two would be one file."""
    for old in plan.moves:
        if not path_of(old).is_file():
            raise RefusedError(f"there is no module {old}")
    landing: dict[str, list[str]] = defaultdict(list)
    for old, new in plan.moves.items():
        landing[new].append(old)
    for new, olds in landing.items():
        if len(olds) > 1 and new not in plan.merges:
            raise RefusedError(f"{', '.join(olds)} would all be {new}")
        stays = path_of(new).is_file() and new not in plan.moves
        if stays and new not in plan.merges and path_of(new).suffix == ".py":
            if path_of(new).name == "__init__.py":
                raise RefusedError(f"{new} is a package already")
            raise RefusedError(f"{new} is there already")


# --- Python ---


def top_names(tree: ast.Module) -> dict[str, str]:
    """Return the names that the top of a module binds itself: name → kind. Imports are left out."""
    found: dict[str, str] = {}

    def walk(body: list[ast.stmt]) -> None:
        for node in body:
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                    found[node.name] = "def"
                case ast.Assign():
                    for target in node.targets:
                        for part in ast.walk(target):
                            if isinstance(part, ast.Name):
                                found[part.id] = ast.unparse(node)
                case ast.AnnAssign(target=ast.Name() as target):
                    found[target.id] = ast.unparse(node)
                case ast.If() | ast.Try() | ast.With():
                    walk([n for n in ast.iter_child_nodes(node) if isinstance(n, ast.stmt)])
                case _:
                    pass

    walk(tree.body)
    return found


def imported(tree: ast.Module) -> dict[str, str]:
    """Return the names that imports at the top of a module bind: name → source."""
    found: dict[str, str] = {}
    for node in tree.body:
        inner = node.body if isinstance(node, ast.If) else [node]
        for one in inner:
            if isinstance(one, ast.Import):
                for alias in one.names:
                    found[alias.asname or alias.name] = alias.name
            elif isinstance(one, ast.ImportFrom):
                for alias in one.names:
                    found[alias.asname or alias.name] = f"{one.module}:{alias.name}"
    return found


def spans(text: str) -> list[int]:
    """Return the place where each line of a text begins."""
    found = [0]
    for line in text.splitlines(keepends=True):
        found.append(found[-1] + len(line))
    return found


def offset(lines: list[str], begins: list[int], row: int, column_bytes: int) -> int:
    """Convert a place of the syntax tree (bytes) to one of the text (characters)."""
    return begins[row - 1] + len(lines[row - 1].encode()[:column_bytes].decode())


def rename_top(text: str, renames: dict[str, str], where: str) -> str:
    """Rename names of a module's top level. Raises RefusedError if one is also local."""
    if not renames:
        return text
    tree = ast.parse(text)
    for node in ast.walk(tree):
        local = set()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            arguments = node.args
            every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
            local |= {argument.arg for argument in every}
        if isinstance(node, ast.keyword) and node.arg in renames:
            local.add(node.arg)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            told = {n for g in ast.walk(node) if isinstance(g, ast.Global) for n in g.names}
            local |= {
                n.id
                for n in ast.walk(node)
                if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store) and n.id not in told
            }
        if clash := local & renames.keys():
            raise RefusedError(f"{where}: {', '.join(sorted(clash))} is also a local name")
    out: list[tuple[int, int, str]] = []
    begins = spans(text)
    last: TokenInfo | None = None
    for token in generate_tokens(StringIO(text).readline):
        is_attribute = last is not None and last.string in {".", "from"}
        if token.type == NAME and token.string in renames and not is_attribute:
            start = begins[token.start[0] - 1] + token.start[1]
            out.append((start, start + len(token.string), renames[token.string]))
        last = token
    for start, end, new in reversed(out):
        text = text[:start] + new + text[end:]
    for old, new in renames.items():  # in docstrings and comments, where it is written as code
        text = re.sub(rf"`{re.escape(old)}`", f"`{new}`", text)
    return text


def rewrite_imports(text: str, plan: Plan, own: str) -> str:
    """Return a module's text with its imports changed. Raises RefusedError if that is
    impossible."""
    tree = ast.parse(text)
    lines = text.splitlines(keepends=True)
    begins = spans(text)
    changes: list[tuple[int, int, str]] = []
    final = plan.moves.get(own, own)
    renamed_here: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            new = _from(node, plan, final, own, renamed_here)
        elif isinstance(node, ast.Import):
            new = _plain(node, plan, own)
        else:
            continue
        if new is not None:
            start = offset(lines, begins, node.lineno, node.col_offset)
            end = offset(lines, begins, node.end_lineno or 0, node.end_col_offset or 0)
            indent = " " * node.col_offset
            changes.append((start, end, f"\n{indent}".join(new.splitlines()) or "pass"))
    for start, end, new in sorted(changes, reverse=True):
        text = text[:start] + new + text[end:]
    for name, module in _objects(tree, plan).items():
        for old, new in plan.names[module].items():
            text = re.sub(rf"(?<![\w.]){name}\.{re.escape(old)}(?!\w)", f"{name}.{new}", text)
    return rename_top(text, renamed_here, own) if renamed_here else text


def _objects(tree: ast.Module, plan: Plan) -> dict[str, str]:
    """Return modules that a text uses as objects, with a renamed name: local name → module."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                if f"{node.module}.{alias.name}" in plan.names:
                    found[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return found


def _from(
    node: ast.ImportFrom, plan: Plan, final: str, own: str, renamed_here: dict[str, str]
) -> str | None:
    """Return the new text of one `from … import …`; None if it stays as it is."""
    module = node.module or ""
    groups: dict[str, list[str]] = defaultdict(list)
    changed = False
    for alias in node.names:
        whole = f"{module}.{alias.name}"
        if whole in plan.moves:  # a module as an object
            package, _, leaf = plan.moves[whole].rpartition(".")
            if plan.moves[whole] in plan.merges and plan.moves[whole] == final:
                raise RefusedError(f"{own} uses {whole} as an object and becomes one with it")
            name = alias.asname or alias.name
            groups[package].append(leaf if leaf == name else f"{leaf} as {name}")
            changed = True
            continue
        name = plan.names.get(module, {}).get(alias.name, alias.name)
        if name != alias.name:
            changed = True
            if alias.asname is None:
                renamed_here[alias.name] = name
        target = plan.moves.get(module, module)
        changed |= target != module
        if target == final and own != "":
            changed = True
            if alias.asname is not None and alias.asname != name:
                raise RefusedError(f"{own} imports {name} of {module} as {alias.asname}")
            continue
        alias_text = f" as {alias.asname}" if alias.asname else ""
        # `rename_top` of the caller renames it here, too, so the former name stays until then.
        groups[target].append((alias.name if alias.name in renamed_here else name) + alias_text)
    if not changed:
        return None
    return "\n".join(f"from {target} import {', '.join(names)}" for target, names in groups.items())


def _plain(node: ast.Import, plan: Plan, own: str) -> str | None:
    """Return the new text of one `import …`; None if it stays as it is."""
    if not any(alias.name in plan.moves for alias in node.names):
        return None
    out = []
    for alias in node.names:
        new = plan.moves.get(alias.name, alias.name)
        if new != alias.name and new in plan.merges and plan.moves.get(own) == new:
            raise RefusedError(f"{own} uses {alias.name} as an object")
        out.append(f"import {new}" + (f" as {alias.asname}" if alias.asname else ""))
    return "\n".join(out)


def loggers(text: str, own: str) -> str:
    """Give a logger that is named after its module its present name explicitly."""
    return text.replace("getLogger(__name__)", f'getLogger("{own}")')


def any_of(words: Iterable[str], behind: str, before: str) -> re.Pattern[str]:
    """Return a pattern that finds one of these words, the longest first; without words, nothing."""
    listed = "|".join(map(re.escape, sorted(words, key=len, reverse=True)))
    return re.compile(rf"{behind}({listed}){before}" if listed else r"(?!)()")


def rewrite_texts(text: str, plan: Plan, is_code: bool = True) -> str:
    """Return a text with its dotted names (not in browser scripts and JSON) and paths changed."""
    if is_code:

        def new(found: re.Match[str]) -> str:
            before = text[max(0, found.start() - 12) : found.start()]
            is_logger = re.search(r"getLogger\([\"']$", before)
            return found[1] if is_logger else plan.moves[found[1]]

        text = plan.dotted.sub(new, text)
        for module, names in plan.names.items():
            after = plan.moves.get(module, module)
            for old, name in names.items() if after in text else ():
                place = rf"(?<![\w./]){re.escape(after)}([.:]){re.escape(old)}(?!\w)"
                text = re.sub(place, rf"{after}\g<1>{name}", text)
    return plan.placed.sub(lambda found: plan.paths[found[1]], text)


def rewrite_strings(text: str, plan: Plan) -> str:
    """Change the same in the strings and comments of a module.

    Its code is left alone, because a variable may be called `gateway`. If it imports whole modules
    (`import a.b`), its code is changed, too.
    """
    if any(f"import {old}\n" in text for old in plan.moves):
        return rewrite_texts(text, plan)
    if not (plan.dotted.search(text) or plan.placed.search(text) or plan.names):
        return text
    begins = spans(text)
    out = []
    for token in generate_tokens(StringIO(text).readline):
        if token.type in {STRING, COMMENT}:
            start = begins[token.start[0] - 1] + token.start[1]
            end = begins[token.end[0] - 1] + token.end[1]
            before = text[max(0, start - 10) : start]
            if before.endswith("getLogger("):
                continue
            inner = text[start:end]  # a program of a test may be in it
            rewrite = rewrite_fragment if "import " in inner else rewrite_texts
            out.append((start, end, rewrite(inner, plan)))
    for start, end, new in reversed(out):
        text = text[:start] + new + text[end:]
    return text


def new_path(module: str) -> Path:
    """Return the path of a future module's file."""
    if module.endswith(".__init__"):
        return path_of(module.removesuffix(".__init__")).with_suffix("") / "__init__.py"
    base = ROOT / "clients/python/src" if module.partition(".")[0] == "tocsin" else ROOT
    return (base / module.replace(".", "/")).with_suffix(".py")


# --- Merges ---


@dataclass
class Part:
    """A module of a merge, with its imports rewritten already."""

    module: str
    docstring: str
    imports: list[str]
    typing: list[str]
    body: str
    uses: set[str]
    """Modules of the same merge that it needed when it was imported."""
    names: dict[str, str]
    brought: dict[str, str]


def part_of(module: str, original: str, text: str, plan: Plan, final: str) -> Part:
    """Take a module apart."""
    tree = ast.parse(text)
    lines = text.splitlines(keepends=True)
    docstring = ast.get_docstring(tree, clean=False) or ""
    imports, typing = [], []
    drop: list[ast.stmt] = []
    for number, node in enumerate(tree.body):
        if number == 0 and docstring and isinstance(node, ast.Expr):
            drop.append(node)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            imports.append(ast.get_source_segment(text, node) or "")
            drop.append(node)
        elif isinstance(node, ast.Pass):
            drop.append(node)
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            if not all(isinstance(n, ast.Import | ast.ImportFrom | ast.Pass) for n in node.body):
                raise RefusedError(f"{module}: more than imports under TYPE_CHECKING")
            typing += [
                ast.get_source_segment(text, n) or ""
                for n in node.body
                if not isinstance(n, ast.Pass)
            ]
            drop.append(node)
    gone = {row for node in drop for row in range(node.lineno, (node.end_lineno or 0) + 1)}
    body = "".join(line for row, line in enumerate(lines, 1) if row not in gone).strip("\n")
    uses = set()
    for node in ast.parse(original).body:
        if (
            isinstance(node, ast.ImportFrom)
            and plan.moves.get(node.module or "", node.module) == final
        ):
            uses.add(node.module or "")
    return Part(
        module, docstring, imports, typing, body, uses - {module}, top_names(tree), imported(tree)
    )


def ordered(parts: list[Part]) -> list[Part]:
    """Put imported modules before those that import them; otherwise keep the plan's order. Raises
    RefusedError."""
    out: list[Part] = []
    left = list(parts)
    while left:
        placed = {part.module for part in out}
        inside = {part.module for part in parts}
        for part in left:
            if part.uses & inside <= placed:
                out.append(part)
                left.remove(part)
                break
        else:
            raise RefusedError(f"a circle between {', '.join(part.module for part in left)}")
    return out


def merged(final: str, parts: list[Part]) -> str:
    """Return one text made of several modules. Raises RefusedError if a name would mean two
    things."""
    seen: dict[str, tuple[str, str]] = {}
    for part in parts:
        for name, kind in part.names.items():
            if name in seen and not (kind != "def" and seen[name][1] == kind):
                raise RefusedError(
                    f"{name} stands in {seen[name][0]} and in {part.module} ({final})"
                )
            seen.setdefault(name, (part.module, kind))
    brought: dict[str, tuple[str, str]] = {}
    for part in parts:
        for name, source in part.brought.items():
            if name in seen:
                raise RefusedError(
                    f"{part.module} imports {name} ({source}), {seen[name][0]} has one"
                )
            if name in brought and brought[name][1] != source:
                raise RefusedError(
                    f"{name} is {source} in {part.module}, {brought[name][1]} elsewhere"
                )
            brought[name] = (part.module, source)
    words = "\n\n".join(part.docstring.strip("\n").rstrip() for part in parts if part.docstring)
    if "\n" in words and not words.endswith("\n"):
        words += "\n"
    imports = dict.fromkeys(line for part in parts for line in part.imports)
    typing = dict.fromkeys(line for part in parts for line in part.typing)
    typing = {line: None for line in typing if line not in imports}
    quote = 'r"""' if "\\" in words else '"""'
    text = f'{quote}{words}"""\n\n' + "\n".join(imports) + "\n\n"
    if typing:
        text += "if TYPE_CHECKING:\n" + "\n".join(f"    {line}" for line in typing) + "\n\n"
    duplicates: set[str] = set()
    for part in ordered(parts):
        body = part.body
        for name, kind in part.names.items():
            if kind != "def" and kind in duplicates:
                body = _without(body, name)
        duplicates |= set(part.names.values())
        text += "\n\n" + body + "\n"
    return text


def _without(body: str, name: str) -> str:
    """Return a body without its equal assignment of a name; its docstring stays with the first."""
    tree = ast.parse(body)
    lines = body.splitlines(keepends=True)
    for number, node in enumerate(tree.body):
        names = top_names(ast.Module(body=[node], type_ignores=[]))
        if name in names and isinstance(node, ast.Assign | ast.AnnAssign):
            end = node.end_lineno or 0
            after = tree.body[number + 1] if number + 1 < len(tree.body) else None
            if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                end = after.end_lineno or end
            return "".join(lines[: node.lineno - 1] + lines[end:])
    return body


# --- Mutants ---


def toml_string(text: str) -> str:
    """Return a string as mutants.toml writes it."""
    return json.dumps(text, ensure_ascii=False)


def rewrite_fragment(text: str, plan: Plan) -> str:
    """Change imports and names in a piece of a module, which need not be a whole statement."""

    def line_of(found: re.Match[str]) -> str:
        module, rest = found[1], found[2]
        first = re.split(r"[\s,(]", rest.strip(" ("))[0]
        if f"{module}.{first}" in plan.moves:
            package, _, leaf = plan.moves[f"{module}.{first}"].rpartition(".")
            tail = rest.replace(first, leaf if leaf == first else f"{leaf} as {first}", 1)
            return f"from {package} import{tail}"
        return f"from {plan.moves.get(module, module)} import{rest}"

    text = re.sub(r"from ([\w.]+) import([^\n]*)", line_of, text)
    return rewrite_texts(text, plan)


def rewrite_mutants(text: str, plan: Plan, before: list[dict[str, object]]) -> str:
    """Return the list of mutants after the plan. Its form (one field a line) stays."""
    blocks = re.split(r"(?m)^(?=\[\[mutant\]\])", text)
    assert len(blocks) == len(before) + 1
    for number, mutant in enumerate(before, 1):
        block = blocks[number]
        for name in ("old", "new"):
            value = str(mutant[name])
            fresh = rewrite_fragment(value, plan)
            module = str(mutant["file"]).removesuffix(".py").replace("/", ".")
            for old, new in plan.names.get(module, {}).items():
                fresh = re.sub(rf"(?<![\w.]){re.escape(old)}(?!\w)", new, fresh)
            if fresh != value:
                found = re.search(rf"(?ms)^{name} = (.*?)\n(?=\w+ = )", block)
                assert found is not None, (mutant["name"], name)
                block = block[: found.start(1)] + toml_string(fresh) + block[found.end(1) :]
        blocks[number] = rewrite_texts(block, plan)
    text = "".join(blocks)
    names = [mutant["name"] for mutant in tomllib.loads(text)["mutant"]]
    assert names == [mutant["name"] for mutant in before]
    return text


# --- All together ---


def module_of(path: Path) -> str:
    """Return the dotted name of a file of ours."""
    place = path.relative_to(ROOT)
    parts = place.with_suffix("").parts
    if parts[:3] == ("clients", "python", "src"):
        parts = parts[3:]
    if parts[-1] == "__init__":
        parts = parts[:-1]
    return ".".join(parts)


def is_text(path: Path) -> bool:
    """Whether the file may contain names of modules that have to be changed."""
    place = relative(path)
    if place in KEPT or path.suffix in {".lua", ".sql"} or "vendor" in path.parts:
        return False
    script = not path.suffix and path.parent.name == "scripts"
    return path.suffix in TEXTS or place in BY_NAME or path.name in BY_NAME or script


def carry_out(plan: Plan) -> list[str]:
    """Carry out the plan. Returns the work to do by hand. Raises RefusedError before it writes
    anything."""
    written: dict[Path, str] = {}
    originals: dict[str, str] = {}
    texts: dict[str, str] = {}
    by_hand: list[str] = []
    mutants = tomllib.loads(LIST.read_text())["mutant"]
    for path in tracked():
        if not is_text(path):
            continue
        text = path.read_text(encoding="utf-8")
        own = module_of(path) if path.suffix == ".py" else ""
        fresh = text
        if path == LIST:
            fresh = rewrite_mutants(text, plan, mutants)
        elif path.suffix == ".py":
            fresh = rename_top(fresh, plan.names.get(own, {}), own)
            fresh = rewrite_imports(fresh, plan, own)
            if own in plan.moves:
                fresh = loggers(fresh, own)
                if "__file__" in fresh:
                    by_hand.append(f"{relative(path)} makes a path from __file__")
            fresh = rewrite_strings(fresh, plan)
        else:
            fresh = rewrite_texts(fresh, plan, path.suffix not in NO_MODULES)
        if own in plan.moves or any(own in parts for parts in plan.merges.values()):
            originals[own], texts[own] = text, fresh
        elif fresh != text:
            written[path] = fresh
    for final, modules in plan.merges.items():
        parts = [part_of(m, originals[m], texts[m], plan, final) for m in modules]
        written[new_path(final)] = merged(final, parts)
    for old, new in plan.moves.items():
        if new not in plan.merges:
            written[new_path(new)] = texts[old]
    _write(plan, written)
    return by_hand + check_mutants()


def _write(plan: Plan, written: dict[Path, str]) -> None:
    """Write, move and format the files."""
    for old, new in plan.moves.items():
        source, target = path_of(old), new_path(new)
        if source == target:
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        if new in plan.merges and plan.merges[new][0] != old:
            git("rm", "-q", "--cached", relative(source))
            source.unlink()
        else:
            target.unlink(missing_ok=True)
            git("mv", relative(source), relative(target))
    for old, new in plan.data.items():
        (ROOT / new).parent.mkdir(parents=True, exist_ok=True)
        git("mv", old, new)
    for path, text in written.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        for folder in path.parents:
            if folder in {ROOT, ROOT / "clients/python/src"}:
                break
            if path.suffix == ".py" and _is_package(path) and not (folder / "__init__.py").exists():
                (folder / "__init__.py").write_text(f'"""{folder.name}."""\n')
        path.write_text(text, encoding="utf-8")
    python = [relative(path) for path in written if path.suffix == ".py"]
    git("add", "-A")
    for command in (
        ["check", "-q", "--fix", "--select", "I,F401,F811,TC005,PIE790"],
        ["format", "-q"],
    ):
        subprocess.run([sys.executable, "-m", "ruff", *command, *python], cwd=ROOT, check=False)


def _is_package(path: Path) -> bool:
    """Whether the folders of a module have an `__init__`."""
    return path.relative_to(ROOT).parts[0] in {
        "push", "storage", "metadata", "gateway", "runtime", "services", "loadtests",
    }  # fmt: skip


def git(*words: str) -> None:
    """Run git here."""
    subprocess.run(["git", *words], cwd=ROOT, check=True)


def check_mutants() -> list[str]:
    """Return mutants whose text does not occur once in their file."""
    out = []
    for mutant in tomllib.loads(LIST.read_text())["mutant"]:
        path = ROOT / mutant["file"]
        count = path.read_text().count(mutant["old"]) if path.is_file() else 0
        if count != 1:
            out.append(
                f"mutant {mutant['name']}: its text stands {count} times in {mutant['file']}"
            )
    return out


def main() -> None:
    """Carry out the plan that the command line names."""
    words = [word for word in sys.argv[1:] if not word.startswith("-")]
    if len(words) != 1 or "--help" in sys.argv:
        sys.exit(__doc__)
    try:
        plan = read_plan(Path(words[0]).read_text())
        if "--dry-run" in sys.argv:
            sys.stdout.write("".join(f"{old} -> {new}\n" for old, new in plan.moves.items()))
            return
        left = carry_out(plan)
    except RefusedError as problem:
        sys.exit(f"refused: {problem}")
    sys.stdout.write("".join(f"by hand: {line}\n" for line in left) or "all done\n")


if __name__ == "__main__":
    main()
