"""The npm package: it has all that it imports, and its types name what it exports."""

import json
import re
from pathlib import Path
from typing import Any, Final

import pytest

from loadtests.node import run_node
from tests.javascript.conftest import PACKAGE

SOURCES: Final = sorted((PACKAGE / "src").rglob("*.js"))
IMPORTED: Final = re.compile(
    r"""^\s*(?:import|export)\b[^;"'`]*?\bfrom\s*["']([^"']+)["']"""  # … from "./there.js"
    r"""|^\s*import\s*["']([^"']+)["']"""  # import "./there.js"
    r"""|\bimport\(\s*["'`]?([^)"'`]+)""",  # import("./there.js")
    re.MULTILINE,
)
DECLARED: Final = re.compile(
    r"^export (?:declare )?(?:default )?(?:abstract )?(?:async )?"
    r"(class|function|const|let|namespace|enum) (\w+)",
    re.MULTILINE,
)


def manifest() -> dict[str, Any]:
    """package.json."""
    found: dict[str, Any] = json.loads((PACKAGE / "package.json").read_text())
    return found


def without_comments(text: str) -> str:
    """A source without its comments: examples in them import what they like."""
    return re.sub(r"/\*.*?\*/|^\s*//.*?$", "", text, flags=re.DOTALL | re.MULTILINE)


def imported(path: Path) -> list[str]:
    """Return what a module imports, as it says it."""
    found = IMPORTED.findall(without_comments(path.read_text()))
    return ["".join(groups) for groups in found]


def entries() -> list[str]:
    """The files that package.json points to."""
    package = manifest()

    def leaves(value: Any) -> list[str]:
        if isinstance(value, dict):
            return [leaf for part in value.values() for leaf in leaves(part)]
        return [value]

    named = leaves(package["exports"])
    named += [package[field] for field in ("main", "module", "types") if field in package]
    return [name.removeprefix("./") for name in named]


def is_packed(path: str) -> bool:
    """Whether npm would pack it. (It always packs package.json, the README and the licence.)"""
    return path == "package.json" or any(
        path == name.rstrip("/") or path.startswith(f"{name.rstrip('/')}/")
        for name in (entry.removeprefix("./") for entry in manifest()["files"])
    )


def test_it_is_a_module_without_dependencies_or_scripts_of_installation() -> None:
    package = manifest()
    assert package["name"] == "tocsin"
    assert package["type"] == "module"
    for field in ("dependencies", "peerDependencies", "optionalDependencies"):
        assert not package.get(field)
    assert not {"preinstall", "install", "postinstall", "prepare"} & set(package.get("scripts", {}))


def test_it_packs_what_it_names() -> None:
    for name in [*entries(), *manifest()["files"]]:
        assert (PACKAGE / name).exists(), name
    assert [name for name in entries() if not is_packed(name)] == []
    assert not is_packed("test/conformance/run.js")


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_a_module_imports_only_what_is_packed(path: Path) -> None:
    assert is_packed(str(path.relative_to(PACKAGE)))
    for name in imported(path):
        assert name.startswith((".", "/")), f"{name} comes from elsewhere"
        there = (path.parent / name).resolve()
        assert there.is_file(), f"{name} is not there"
        assert there.is_relative_to(PACKAGE / "src"), f"{name} is outside"


def test_every_module_parses_and_can_be_loaded() -> None:
    script = "for (const path of process.argv.slice(1)) await import(path)"
    urls = [path.as_uri() for path in SOURCES]
    ran = run_node("--input-type=module", "--eval", script, *urls)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_every_module_is_used() -> None:
    """What nothing imports would be packed for nobody."""
    reached = [PACKAGE / entry for entry in entries() if entry.endswith(".js")]
    for path in reached:
        there = [(path.parent / name).resolve() for name in imported(path)]
        reached += [found for found in there if found not in reached]
    assert set(SOURCES) - set(reached) == set()


def exported(folder: Path) -> set[str]:
    """Return what `import "tocsin"` gives to a program in a folder of its own."""
    (folder / "node_modules").mkdir()
    (folder / "node_modules/tocsin").symlink_to(PACKAGE)
    program = folder / "program.mjs"
    program.write_text(
        'import * as tocsin from "tocsin";\nconsole.log(JSON.stringify(Object.keys(tocsin)));\n'
    )
    ran = run_node("--preserve-symlinks", program, cwd=folder)
    assert (ran.returncode, ran.stderr) == (0, "")
    return set(json.loads(ran.stdout))


def test_it_is_imported_by_its_name_and_its_types_name_what_it_exports(tmp_path: Path) -> None:
    types = [name for name in entries() if name.endswith(".d.ts")]
    assert types
    assert len(set(types)) == 1
    declared = {
        name for _, name in DECLARED.findall(without_comments((PACKAGE / types[0]).read_text()))
    }
    found = exported(tmp_path)
    assert "connect" in found
    assert found == declared


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('import { a } from "./a.js";', ["./a.js"]),
        ('import {\n  a,\n  b,\n} from "elsewhere";', ["elsewhere"]),
        ('export * from "./b.js";', ["./b.js"]),
        ('import "./c.js";', ["./c.js"]),
        ('const d = await import("node:fs");', ["node:fs"]),
        ('/** import { x } from "tocsin"; */\n// import "y";', []),
    ],
)
def test_what_counts_as_an_import(text: str, names: list[str], tmp_path: Path) -> None:
    (tmp_path / "module.js").write_text(text)
    assert imported(tmp_path / "module.js") == names
