"""Goldens: the surfaces that users see, recorded as files, so that a move changes none of them.

    .venv/bin/python -m tests.layout.goldens                  print the differences
    .venv/bin/python -m tests.layout.goldens --renew NAME     record these again, on purpose
    .venv/bin/python -m tests.layout.goldens --renew          record all of them again

Each golden is one file of tests/layout/recorded, made from the present code by the function of the
same name in `GOLDENS`. test_goldens.py compares; nothing but this command writes.
"""

import argparse
import ast
import asyncio
import contextlib
import difflib
import hashlib
import inspect
import json
import logging
import os
import re
import runpy
import secrets
import sqlite3
import sys
import tempfile
import tomllib
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin
from unittest import mock

import click
import msgspec
import tocsin
import tocsin.blocking
import tocsin.effects
from tocsin.cli.main import cli
from tocsin.proto import wire

from gateway.accounting.audit import AuditEntry
from gateway.accounting.usage import UsageLine
from gateway.broker import Broker
from gateway.config import Config
from gateway.deliverylog.lines import SCHEMA, Line
from gateway.rest.app import OPERATIONS
from gateway.rest.openapi import document
from gateway.server import OnFatal, Server
from gateway.settings import SETTINGS
from gateway.wire import frames
from push.errors import CODES
from runtime.metrics.registry import METRICS
from storage.redis.library import library
from tests.layout.tree import ROOT, SERVER, files, parsed, text

RECORDED = ROOT / "tests/layout/recorded"
PROGRAMS = (
    "loadtests.mix", "loadtests.swarm", "loadtests.peers", "loadtests.trials", "tests.chaos",
    "spark", "scripts.cluster",
)  # fmt: skip
"""Modules that users run with `python -m`."""
COLUMNS = 100
_PROSE = {"description", "summary", "title"}
"""Keys of schemas that hold docstrings, which may be reworded at any time."""


def _json(value: Any) -> str:
    """Return JSON with sorted names; everything that fits into one line is on one."""
    return _broken(value, "") + "\n"


def _broken(value: Any, indent: str) -> str:
    whole = json.dumps(value, sort_keys=True, ensure_ascii=False)
    if len(indent) + len(whole) <= COLUMNS or not isinstance(value, dict | list | tuple):
        return whole
    inner = indent + " "
    if isinstance(value, dict):
        parts = [
            f"{json.dumps(str(name))}: {_broken(part, inner)}"
            for name, part in sorted(value.items(), key=lambda item: str(item[0]))
        ]
        return "{\n" + ",\n".join(inner + part for part in parts) + f"\n{indent}}}"
    return "[\n" + ",\n".join(inner + _broken(part, inner) for part in value) + f"\n{indent}]"


def _without_prose(value: Any) -> Any:
    """Remove docstrings, but keep a property with such a name."""
    if isinstance(value, list):
        return [_without_prose(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {
        name: {key: _without_prose(one) for key, one in part.items()}
        if name in ("properties", "schemas")
        else _without_prose(part)
        for name, part in value.items()
        if name not in _PROSE or not isinstance(part, str)
    }


def _structs(*kinds: Any) -> dict[str, Any]:
    """Return the tags, names, types and defaults of structs and of all structs that they name."""
    found: dict[str, Any] = {}
    open_kinds = list(kinds)
    while open_kinds:
        kind = open_kinds.pop()
        open_kinds += get_args(kind)
        if (
            not (inspect.isclass(kind) and issubclass(kind, msgspec.Struct))
            or kind.__name__ in found
        ):
            continue
        fields = msgspec.structs.fields(kind)
        open_kinds += [field.type for field in fields]
        found[kind.__name__] = {
            "tag": kind.__struct_config__.tag,
            "fields": {
                field.encode_name: [
                    _type(field.type),
                    "required" if field.required else _short(field.default),
                ]
                for field in fields
            },
        }
    return found


# --- HTTP, frames, lines ----------------------------------------------------------------------


def openapi() -> str:
    """Return paths, methods, operationIds, parameters and schemas, and the right that each
    operation needs."""
    acts = {
        f"{one.method} {one.path}": {"act": one.act, "needs": one.needs, "public": one.public}
        for one in OPERATIONS
    }
    return _json({"document": _without_prose(document(OPERATIONS)), "operations": acts})


def wire_frames() -> str:
    """Return frames that clients send and receive, and the codes of errors and closes."""
    return _json(
        {
            "sent": _structs(*frames.ClientFrame.__args__),
            "received": _structs(*wire.ReceivedFrame.__args__),
            "errors": {code.name: [code.http_status, code.retry] for code in CODES.values()},
            "closes": {close.code: close.reason for close in frames.CLOSES},
        }
    )


def records() -> str:
    """Return lines of the delivery log, the audit trail and the usage log, and every audited
    act."""
    return _json(
        {
            "delivery log": {"schema": SCHEMA, "lines": _lines()},
            "audit": {"Entry": _structs(AuditEntry)["AuditEntry"]},
            "acts": sorted({one.act for one in OPERATIONS if one.act} | set(_acts())),
            "usage": _structs(UsageLine),
        }
    )


def _lines() -> dict[str, object]:
    return {name.removesuffix("Line"): kind for name, kind in _structs(*get_args(Line)).items()}


def _acts() -> Iterator[str]:
    for path in files(".py", *SERVER):
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
                first = node.args[0]
                if node.func.attr in ("act", "note") and isinstance(first, ast.Constant):
                    yield from [str(first.value)] if "." in str(first.value) else []


# --- Commands and settings --------------------------------------------------------------------


def commands() -> str:
    """Return every command, argument and option of `tocsin` and of the programs."""
    return _json({name: _declared(top) for name, top in _tops()})


def helps() -> str:
    """Return the text that each `--help` prints."""
    shown = [one for name, top in _tops() for one in _printed(name, top)]
    return "\n".join(f"$ {name} --help\n{text.rstrip()}\n" for name, text in shown)


def settings() -> str:
    """Return names, variables, flags, help and defaults of the gateway's settings."""
    defaults = {field.name: field.default for field in msgspec.structs.fields(Config)}
    shown = [
        {
            "name": one.field,
            "variable": one.variable,
            "flag": one.flag if one.has_flag else None,
            "switch": one.is_flag,
            "secret": one.is_secret,
            "allowed": one.allowed,
            "help": one.help,
            "default": _default(defaults.get(one.field)),
        }
        for one in SETTINGS
    ]
    return _json(shown)


def _tops() -> Iterator[tuple[str, click.Command | argparse.ArgumentParser]]:
    """Yield `tocsin` without the server's verbs, each of these, and each program."""
    yield "tocsin", click.Group("tocsin", commands=cli.commands, params=cli.params, help=cli.help,
                                epilog=cli.epilog)  # fmt: skip
    project = tomllib.loads(text(Path("pyproject.toml")))["project"]
    for group, points in sorted(project["entry-points"].items()):
        for name, value in sorted(points.items()):
            yield f"tocsin {name}", EntryPoint(name, value, group).load()
    for module in PROGRAMS:
        yield f"python -m {module}", _program(module)


class _Reached(BaseException):
    """A program has reached its command line."""


def _program(module: str) -> Any:
    """Return the command line of a module that users run."""
    reached: list[Any] = []
    logger = logging.getLogger("tocsin")

    def stop(top: Any, *_: Any, **__: Any) -> None:
        reached.append(top)
        raise _Reached

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(click.Command, "main", stop))
        stack.enter_context(mock.patch.object(click.Command, "__call__", stop))
        stack.enter_context(mock.patch.object(argparse.ArgumentParser, "parse_args", stop))
        stack.enter_context(mock.patch.object(sys, "argv", [module]))
        stack.callback(logger.setLevel, logger.level)  # programs quieten it
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore", RuntimeWarning)  # from runpy: it was imported before
        stack.enter_context(contextlib.suppress(_Reached))
        runpy.run_module(module, run_name="__main__")
    return reached[0]


def _declared(top: click.Command | argparse.ArgumentParser) -> dict[str, Any]:
    if isinstance(top, argparse.ArgumentParser):
        options = [_action(one) for one in top._actions if one.dest != "help"]
        return _said({"options": options, "commands": {n: _declared(p) for n, p in _below(top)}})
    below = top.commands if isinstance(top, click.Group) else {}
    return _said(
        {
            "hidden": top.hidden,
            "options": [_option(one) for one in top.params],
            "commands": {name: _declared(one) for name, one in sorted(below.items())},
        }
    )


def _option(param: click.Parameter) -> dict[str, Any]:
    kind = param.type
    shown: dict[str, Any] = {
        "name": param.name,
        "kind": param.param_type_name,
        "declared": [*param.opts, *param.secondary_opts],
        "type": kind.name,
        "range": [getattr(kind, "min", None), getattr(kind, "max", None)],
        "choices": list(getattr(kind, "choices", ())),
        "required": param.required,
        "nargs": None if param.nargs == 1 else param.nargs,
        "default": _default(param.default),
        "variable": param.envvar,
        "metavar": param.metavar,
    }
    if isinstance(param, click.Option):
        shown |= {"flag": param.is_flag, "multiple": param.multiple, "hidden": param.hidden}
    return _said(shown)


def _said(shown: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in shown.items()
        if value not in (None, [], {}, [None, None]) and value is not False
    }


def _action(action: argparse.Action) -> dict[str, Any]:
    kind = getattr(action.type, "__name__", None)
    shown = {
        "name": action.dest,
        "declared": list(action.option_strings),
        "type": kind,
        "choices": sorted(map(str, action.choices or ())),
        "required": action.required,
        "nargs": action.nargs,
        "default": _default(action.default),
    }
    return _said(shown)


def _default(value: Any) -> Any:
    if callable(value) or isinstance(value, type):
        return "computed"
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple | list):
        return [_default(one) for one in value]
    if "UNSET" in repr(value).upper() or "NODEFAULT" in repr(value):
        return None
    return repr(value)


def _below(top: argparse.ArgumentParser) -> list[tuple[str, argparse.ArgumentParser]]:
    return [
        (name, parser)
        for action in top._actions
        if isinstance(action, argparse._SubParsersAction)
        for name, parser in sorted(action.choices.items())
    ]


def _printed(
    name: str, top: click.Command | argparse.ArgumentParser, above: click.Context | None = None
) -> Iterator[tuple[str, str]]:
    if isinstance(top, argparse.ArgumentParser):
        with mock.patch.dict(os.environ, {"COLUMNS": str(COLUMNS)}):
            yield name, top.format_help()
        for below, parser in _below(top):
            yield from _printed(f"{name} {below}", parser)
        return
    named = name if above is None else name.rpartition(" ")[2]
    context = click.Context(
        top, info_name=named, parent=above, terminal_width=COLUMNS, max_content_width=COLUMNS
    )
    with mock.patch.object(top, "_help_option", None):  # a command that has run keeps its own
        yield name, top.get_help(context)
    for below, command in sorted((top.commands if isinstance(top, click.Group) else {}).items()):
        yield from _printed(f"{name} {below}", command, context)


# --- Metrics and loggers ----------------------------------------------------------------------


def metrics() -> str:
    """Return names, kinds, labels, processes and help of all metrics."""
    return _json(
        {
            name: {
                "kind": one.kind, "labels": one.labels, "of": one.of, "help": one.help,
                "holders": one.is_for_holders,
            }
            for name, one in METRICS.items()
        }
    )  # fmt: skip


def loggers() -> str:
    """Return the names of all loggers of the server; `__name__` counts as its present value."""
    return "".join(f"{name}\n" for name in sorted(set(_loggers())))


def _loggers() -> Iterator[str]:
    for path in files(".py", *SERVER):
        for node in ast.walk(parsed(path)):
            if not isinstance(node, ast.Call) or not ast.unparse(node.func).endswith("getLogger"):
                continue
            name = node.args[0] if node.args else ast.Constant("")
            if isinstance(name, ast.Constant):
                yield str(name.value) or "(root)"
            elif ast.unparse(name) == "__name__":
                yield ".".join(path.with_suffix("").parts).removesuffix(".__init__")
            else:
                yield ast.unparse(name)


# --- SDKs -------------------------------------------------------------------------------------


def python_sdk() -> str:
    """Return the exports of `tocsin`, `tocsin.blocking` and `tocsin.effects`, with signatures."""
    lines: list[str] = []
    for module in (tocsin, tocsin.blocking, tocsin.effects):
        for name in sorted(module.__all__):
            lines += _exported(f"{module.__name__}.{name}", getattr(module, name))
    return "\n".join(lines) + "\n"


def _exported(name: str, value: Any) -> Iterator[str]:
    if not inspect.isclass(value):
        yield f"{name}{_signature(value)}" if callable(value) else f"{name}: {_short(value)}"
        return
    known = [base.__name__ for base in value.__mro__[1:] if base.__name__ in tocsin.__all__]
    yield f"class {name}({', '.join(known)})"
    ours = [base for base in value.__mro__ if base.__module__.partition(".")[0] == "tocsin"]
    members: dict[str, str] = {}
    for base in reversed(ours):
        for word, kind in getattr(base, "__annotations__", {}).items():
            members[word] = f": {_type(kind)}"
        for word, found in vars(base).items():
            if isinstance(found, property):
                shown = inspect.signature(found.fget).return_annotation if found.fget else Any
                members[word] = f": {_type(shown)}"
            elif isinstance(found, staticmethod | classmethod) or inspect.isfunction(found):
                members[word] = _signature(getattr(value, word))
    special = ("__init__", "__aenter__", "__aiter__", "__anext__", "__enter__", "__iter__")
    for word, shown in sorted(members.items()):
        if word in special or not word.startswith("_"):
            yield f"    {word}{shown}"


def _signature(value: Any) -> str:
    """Return names, kinds, types and defaults of a callable's parameters, the same on every
    Python."""
    try:
        signature = inspect.signature(value)
    except ValueError:
        return "(…)"
    shown, kinds = [], [one.kind for one in signature.parameters.values()]
    for number, (name, one) in enumerate(signature.parameters.items()):
        if one.kind is one.KEYWORD_ONLY and not {one.KEYWORD_ONLY, one.VAR_POSITIONAL} & set(
            kinds[:number]
        ):
            shown.append("*")
        star = "*" * int(one.kind is one.VAR_POSITIONAL) + "**" * int(one.kind is one.VAR_KEYWORD)
        kind = "" if one.annotation is one.empty else f": {_type(one.annotation)}"
        default = "" if one.default is one.empty else f" = {_short(one.default)}"
        shown.append(f"{star}{name}{kind}{default}")
    answer = signature.return_annotation
    coroutine = "async " if inspect.iscoroutinefunction(value) else ""
    return f"({', '.join(shown)}) -> {coroutine}{_type(answer)}"


def _type(kind: Any) -> str:
    """Return a type as it is written in code, without modules."""
    origin, parts = get_origin(kind), get_args(kind)
    if kind is None or kind is type(None):
        return "None"
    if origin in (Union, UnionType):
        return " | ".join(map(_type, parts))
    if origin is Literal:
        return f"Literal[{', '.join(map(repr, parts))}]"
    if origin is Annotated:
        return f"Annotated[{', '.join([_type(parts[0]), *map(_short, parts[1:])])}]"
    if parts and origin is not None:
        name = getattr(origin, "__name__", str(origin))
        return f"{name}[{', '.join(map(_type, parts))}]"
    if isinstance(kind, list | tuple):  # a callable's parameters
        return f"[{', '.join(map(_type, kind))}]"
    if isinstance(kind, str):
        return _plain(kind)
    return str(getattr(kind, "__name__", None) or _short(kind))


def _short(value: Any) -> str:
    shown = repr(value)
    return _plain(re.sub(r" at 0x[0-9a-f]+", "", shown))


def _plain(shown: str) -> str:
    """Remove the modules of names, because they may move."""
    return re.sub(r"\b(?:[a-z_]\w*\.)+(?=\w)", "", shown)


def javascript_sdk() -> str:
    """Return the exports of the package's entry point, and its types without comments."""
    package = json.loads(text(Path("clients/javascript/package.json")))
    entry = text(Path("clients/javascript", package["main"]))
    names = [
        name.strip()
        for group in re.findall(r"^export \{(.*?)\}", entry, re.M | re.S)
        for name in group.split(",")
        if name.strip()
    ]
    names += re.findall(r"^export (?:const|function|class|async function) (\w+)", entry, re.M)
    types = re.sub(r"/\*.*?\*/|^\s*//.*?$", "", text(Path("clients/javascript/index.d.ts")),
                   flags=re.M | re.S)  # fmt: skip
    shown = {key: package[key] for key in ("name", "type", "main", "types", "exports", "files")}
    body = "\n".join(line.rstrip() for line in types.splitlines() if line.strip())
    return f"{_json(shown)}\nexports: {', '.join(sorted(names))}\n\n{body}\n"


# --- Formats on disk --------------------------------------------------------------------------


def formats() -> str:
    """Return digests of all SQL and Lua, by file name, and the name of the library inside Redis."""
    digests = sorted(
        f"{path.name} {hashlib.sha256(text(path).encode()).hexdigest()}"
        for suffix in (".sql", ".lua")
        for path in files(suffix, *SERVER)
    )
    return "\n".join([f"library {library().name}", *digests]) + "\n"


def data_folder() -> str:
    """Return the files that a gateway makes in its data folder, and the schemas of its
    databases."""
    with tempfile.TemporaryDirectory(prefix="tocsin-golden-") as name:
        key, folder = Path(name, "key"), Path(name, "data")
        key.touch(mode=0o600)
        key.write_text(secrets.token_hex(32))
        config = Config(data_dir=folder, port=0, master_key_file=key)
        running = asyncio.run(_started_once(config))
        stopped = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        databases = [path for path in stopped if path.read_bytes().startswith(b"SQLite format 3")]
        schemas = "\n".join(line for path in databases for line in _schema(path))
    return f"files: {' '.join(running)}\n\n{schemas}\n"


async def _started_once(config: Config) -> list[str]:
    async def build(config: Config, on_fatal: OnFatal) -> Broker:
        return await Broker.open(config, on_fatal=on_fatal)

    server = await Server.open(config, build, on_fatal=sys.exit)
    names = _names(config.data_dir)
    await server.stop()
    return sorted(names | _names(config.data_dir))


def _names(folder: Path) -> set[str]:
    """Return the files below a folder, with N for numbers; of a database only its main file."""
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*")}
    return {re.sub(r"\d[\dT]+", "N", one) for one in found if not one.endswith(("-wal", "-shm"))}


def _schema(path: Path) -> Iterator[str]:
    with contextlib.closing(sqlite3.connect(path)) as database:
        for pragma in ("application_id", "user_version"):
            yield f"{path.name} {pragma} {database.execute(f'PRAGMA {pragma}').fetchone()[0]}"
        made = database.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name")
        yield from [f"{path.name} {' '.join(sql.split())}" for (sql,) in made]


GOLDENS: dict[str, Callable[[], str]] = {
    "openapi.json": openapi,
    "wire_frames.json": wire_frames,
    "records.json": records,
    "commands.json": commands,
    "helps.txt": helps,
    "settings.json": settings,
    "metrics.json": metrics,
    "loggers.txt": loggers,
    "python_sdk.txt": python_sdk,
    "javascript_sdk.txt": javascript_sdk,
    "formats.txt": formats,
    "data_folder.txt": data_folder,
}
"""File → the function that makes its content."""


def differences(name: str) -> str:
    """Return how the present code differs from a golden, as a unified diff; empty if it does
    not."""
    path = RECORDED / name
    before = path.read_text().splitlines() if path.exists() else []
    after = GOLDENS[name]().splitlines()
    return "\n".join(difflib.unified_diff(before, after, "recorded", "now", lineterm="", n=2))


def main(arguments: Sequence[str]) -> int:
    """Print the differences, or record again. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.layout.goldens",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--renew", nargs="*", metavar="NAME", choices=[*GOLDENS], default=None)
    wanted = parser.parse_args(arguments).renew
    if wanted is None:
        shown = [found for name in GOLDENS if (found := differences(name))]
        sys.stdout.write("\n".join(shown) + "\n" if shown else "")
        return 1 if shown else 0
    for name in wanted or GOLDENS:
        (RECORDED / name).write_text(GOLDENS[name]())
        sys.stdout.write(f"recorded {name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
