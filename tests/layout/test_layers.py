"""A boundary that nothing checks is a name. What import-linter cannot see is checked here."""

import ast
from pathlib import Path

from tests.layout.tree import OUTSIDE, ROOT, SERVER, each, files, imports, parsed

PURE = (
    *files(".py", "push"),
    *(Path(f"gateway/{name}.py") for name in ("frames", "session", "together", "outbox", "usage")),
    *(
        Path(f"gateway/deliverylog/{name}.py")
        for name in ("chunks", "clock", "deliveries", "lines", "publishes", "reads", "slot_log")
    ),
)
CLIENTS_IN_THE_SERVER = {Path("gateway/demo.py")}
"""The only modules of the server that may use the SDK: they are clients that ship with it."""
COMMANDS_IN_THE_SERVER = {
    *(path for path in files(".py", "gateway") if path.name.endswith("commands.py")),
    Path("gateway/admin_options.py"),
}
"""Verbs that the client's `tocsin` command loads. They may use what its own verbs share, so that
all of them confirm, read times and end in the same way; of the SDK they may use nothing else."""


@each([path for path in PURE if (ROOT / path).exists()])
def test_pure_modules_never_wait(path: Path) -> None:
    waiting = (ast.AsyncFunctionDef, ast.Await, ast.AsyncFor, ast.AsyncWith)
    # A Protocol says what the world offers; its `async def` is a shape, not an act.
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


@each([path for path in PURE if (ROOT / path).exists()])
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
    """Else the client would come into the server through them."""
    modules = {path.with_suffix("").as_posix().replace("/", ".") for path in COMMANDS_IN_THE_SERVER}
    users = {path for path in files(".py", *SERVER) if imports(path) & modules}
    assert users - COMMANDS_IN_THE_SERVER - CLIENTS_IN_THE_SERVER == set()
