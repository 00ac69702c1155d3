"""Checks of boundaries that import-linter cannot see."""

import ast
import re
from pathlib import Path

from tests.layout.ratchets import modules, name_of, reasons
from tests.layout.tree import OUTSIDE, SERVER, each, files, imports, parsed


def says_pure(path: Path) -> bool:
    """Whether a sentence of a module's docstring begins with the word "Pure"."""
    return re.search(r"\bPure\b", ast.get_docstring(parsed(path)) or "") is not None


PURE = [
    path
    for path in files(".py", *SERVER)
    if (path.parts[0] == "push" or says_pure(path)) and name_of(path) not in reasons("pure")
]
"""All rules, and every other module that says so; exceptions have their reasons in
ratchets.toml."""
PROTO = [
    path
    for path in files(".py", "clients/python/src/tocsin/proto")
    if path.name not in ("__init__.py", "message.py")
]
"""The Python SDK's ledgers. Messages are left out, because a program awaits their methods."""
CLIENTS_IN_THE_SERVER = {Path("gateway/demo/demo.py")}
"""The only modules of the server that may use the SDK: clients that ship with it."""
COMMANDS_IN_THE_SERVER = set(files(".py", "gateway/cli"))
"""Verbs that the client's `tocsin` command loads. They may use the helpers of its own verbs, so
that all of them confirm, read times and end in the same way. They may use nothing else of the
SDK."""


@each([*PURE, *PROTO])
def test_pure_modules_never_wait(path: Path) -> None:
    waiting = (ast.AsyncFunctionDef, ast.Await, ast.AsyncFor, ast.AsyncWith)
    # A Protocol describes an interface; its `async def` does not act.
    shapes = {
        id(method)
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.ClassDef)
        and any(isinstance(base, ast.Name) and base.id == "Protocol" for base in node.bases)
        for method in node.body
    }
    found = [
        f"{path}:{node.lineno}"
        for node in ast.walk(parsed(path))
        if isinstance(node, waiting) and id(node) not in shapes
    ]
    assert found == []


@each(PROTO)
def test_a_ledger_of_the_sdk_says_that_it_is_pure(path: Path) -> None:
    assert says_pure(path)


@each(PURE)
def test_pure_modules_touch_no_clock_socket_or_chance(path: Path) -> None:
    forbidden = {"asyncio", "time", "datetime", "random", "secrets", "socket", "threading"}
    forbidden |= {"logging", "os", "uuid", "importlib"}
    assert {name.partition(".")[0] for name in imports(path)} & forbidden == set()


@each(files(".py", *OUTSIDE))
def test_clients_loads_and_analytics_import_no_server_package(path: Path) -> None:
    assert {name.partition(".")[0] for name in imports(path)} & set(SERVER) == set()


@each(files(".py", *SERVER))
def test_the_server_imports_no_client_load_or_analytics(path: Path) -> None:
    allowed = {"tocsin"} if path in CLIENTS_IN_THE_SERVER else set()
    outside = {"tocsin", "loadtests", "spark", "clients", "tests"} - allowed
    found = imports(path)
    if path in COMMANDS_IN_THE_SERVER:
        found = {name for name in found if not name.startswith("tocsin.cli.")}
    assert {name.partition(".")[0] for name in found} & outside == set()


def test_nothing_but_commands_imports_commands() -> None:
    """Otherwise the client would come into the server through them."""
    modules = {path.with_suffix("").as_posix().replace("/", ".") for path in COMMANDS_IN_THE_SERVER}
    users = {path for path in files(".py", *SERVER) if imports(path) & modules}
    assert users - COMMANDS_IN_THE_SERVER - CLIENTS_IN_THE_SERVER == set()


def test_what_is_excepted_from_purity_is_there_and_says_that_it_is_pure() -> None:
    for name in reasons("pure"):
        assert name in modules(), name
        assert says_pure(modules()[name]), name
