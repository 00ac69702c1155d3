"""/openapi.json: OpenAPI 3.1, made from the operations and the msgspec structs that they name.

Nothing is described twice, so the schema says what the decoder checks.
"""

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Annotated, Any, Final, get_args, get_origin

import msgspec

from gateway.rest.operation import NEEDS, Answer, Operation
from push.errors import CODES
from runtime.operation import JSON
from runtime.problems import MEDIA_TYPE, Problem

VERSION: Final = "1"
"""Version of the API (`/v1`). The broker has its own."""
EVERYWHERE: Final = ("internal",)
BEHIND_ACCESS: Final = (
    "unauthorized",
    "forbidden",
    "origin_refused",
    "invalid_request",
    "storage_unavailable",
    "unknown",
)
"""Codes with which every operation that is not public may be refused, in addition to EVERYWHERE."""
_REFERENCE: Final = "#/components/schemas/{name}"
_PARAMETERS: Final = {
    "queue": "The queue's name: 1 to 128 of A-Z a-z 0-9 . _ - and the first a letter or digit.",
    "group": "The group's name, of the same form.",
    "session": "The `session` of the answer to `POST /v1/sessions`, not that of its `welcome`.",
    "id": "The client's id of a scheduled message, or its ticket. An id with a slash, or the id of "
    "a message without a key that looks like a ticket, is named by the ticket.",
}
_LENGTHS: Final = {"id": 1024}


def encode(operations: Sequence[Operation]) -> bytes:
    """Return the document as JSON."""
    return msgspec.json.encode(document(operations))


def document(operations: Sequence[Operation]) -> dict[str, Any]:
    """Return the document as plain dicts and lists."""
    types = _types(operations)
    schemas, components = msgspec.json.schema_components(
        [documented(kind) for kind in types], ref_template=_REFERENCE
    )
    by_type = dict(zip(types, schemas, strict=True))
    components["Code"] = _codes()
    for name in ("Problem", "Failure"):
        if name in components:
            components[name]["properties"]["code"] = {"$ref": _REFERENCE.format(name="Code")}
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        item = paths.setdefault(operation.path, {})
        item[operation.method.lower()] = _operation(operation, by_type)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Tocsin",
            "version": VERSION,
            "summary": "A push-based notification broker with durable, per-key-ordered queues.",
            "description": "Errors are problem documents (RFC 9457) with a stable `code`. A "
            "request body is JSON, whatever its Content-Type says. If a name is twice in one "
            "object, the last one counts.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "TOCSIN_TOKEN, a token that an operator made, or a JWT. A "
                    "broker without credentials answers on loopback only. A browser may use the "
                    "cookie of POST /v1/access instead.",
                }
            },
        },
        "security": [{"token": []}],
    }


def _types(operations: Sequence[Operation]) -> list[Any]:
    kinds: list[Any] = [Problem]
    for operation in operations:
        for kind in (operation.request, *(answer.body for answer in operation.answers.values())):
            if kind is not None and kind not in kinds:
                kinds.append(kind)
    return kinds


def _operation(operation: Operation, schemas: dict[Any, Any]) -> dict[str, Any]:
    words = (operation.handler.__doc__ or "").split()
    if operation.needs is not None:
        words.append(f"Needs {NEEDS[operation.needs]}.")
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "description": " ".join(words),
        "parameters": [*_path_parameters(operation.path), *_query(operation)],
        "responses": {
            **{str(status): _answer(a, schemas) for status, a in operation.answers.items()},
        },
    }
    for status, codes in _problems(operation).items():
        # A status of both kinds (503 of /readyz) keeps its answer and gains the other media type.
        response = described["responses"].setdefault(status, {"description": ", ".join(codes)})
        response.setdefault("content", {})[MEDIA_TYPE] = _problem(codes, schemas)
    if operation.request is not None:
        described["requestBody"] = {"content": {JSON: {"schema": schemas[operation.request]}}}
    if operation.public:
        described["security"] = []
    return described


def _path_parameters(path: str) -> Iterable[dict[str, Any]]:
    for part in path.split("/"):
        if part.startswith("{"):
            name = part.strip("{}")
            yield {
                "name": name,
                "in": "path",
                "required": True,
                "description": _PARAMETERS[name],
                "schema": {"type": "string", "minLength": 1, "maxLength": _LENGTHS.get(name, 128)},
            }


def _query(operation: Operation) -> Iterable[dict[str, Any]]:
    for one in operation.query:
        yield {
            "name": one.name,
            "in": "query",
            "description": one.description,
            "schema": one.schema,
        }


def _answer(answer: Answer, schemas: dict[Any, Any]) -> dict[str, Any]:
    if answer.body is None:
        return {"description": answer.description}
    content = {answer.media_type: {"schema": schemas[answer.body]}}
    return {"description": answer.description, "content": content}


def _problems(operation: Operation) -> dict[str, list[str]]:
    """Return the codes of an operation by HTTP status."""
    names = {*operation.errors, *EVERYWHERE}
    if not operation.public:
        names |= {*BEHIND_ACCESS}
    if operation.request is not None:
        # Too many bodies may be incomplete in all, and not every content coding is read.
        names |= {"overloaded", "unsupported_encoding"}
    by_status: dict[str, list[str]] = {}
    for name in sorted(names):
        by_status.setdefault(str(CODES[name].http_status), []).append(name)
    return dict(sorted(by_status.items()))


def _problem(codes: list[str], schemas: dict[Any, Any]) -> dict[str, Any]:
    return {"schema": {"allOf": [schemas[Problem], {"properties": {"code": {"enum": codes}}}]}}


def _codes() -> dict[str, Any]:
    lines = [
        f"- `{code.name}` ({code.http_status}{', retry' if code.retry else ''}): {code.meaning}"
        for code in CODES.values()
    ]
    return {"type": "string", "enum": list(CODES), "description": "\n".join(lines)}


@cache
def documented(kind: Any) -> Any:
    """Return the type, or a stand-in of the same shape if msgspec cannot describe it. A field of
    type Raw with a default (`Message.body`) has no JSON form of its default."""
    if get_origin(kind) is Annotated:
        inner, *metadata = get_args(kind)
        return Annotated[(documented(inner), *metadata)]
    if get_origin(kind) is list:
        return list[documented(get_args(kind)[0])]  # type: ignore[misc]
    if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
        return kind
    fields = msgspec.structs.fields(kind)
    types = {f.name: Any if f.type is msgspec.Raw else documented(f.type) for f in fields}
    if all(types[f.name] == f.type for f in fields):
        return kind
    columns: list[Any] = []
    for f in sorted(fields, key=lambda f: not f.required):
        default = () if f.required else (msgspec.UNSET if f.type is msgspec.Raw else f.default,)
        columns.append((f.name, types[f.name], *default))
    return msgspec.defstruct(
        kind.__name__,
        columns,
        namespace={"__doc__": kind.__doc__},
        forbid_unknown_fields=kind.__struct_config__.forbid_unknown_fields,
    )
