"""/openapi.json: valid, complete, and true."""

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from gateway.auth.auth import Authenticator
from gateway.broker import Broker
from gateway.rest.app import OPERATIONS, Application
from gateway.rest.openapi import document, encode
from metadata.catalog import GroupSettings, QueueSettings
from push.errors import CODES
from push.message import Message
from tests.gateway.asgi import client_of

HTTP_METHODS = {"get", "put", "patch", "post", "delete"}


@pytest.fixture(scope="module")
def spec() -> dict[str, Any]:
    """The document as clients read it."""
    read: dict[str, Any] = json.loads(encode(OPERATIONS))
    return read


def operations(spec: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in spec["paths"].items():
        for method, operation in item.items():
            yield method, path, operation


async def test_it_is_served_as_it_is_made(http: httpx2.AsyncClient) -> None:
    response = await http.get("/openapi.json")
    assert response.headers["content-type"] == "application/json"
    assert response.json() == json.loads(json.dumps(document(OPERATIONS)))


def test_it_has_the_form_of_openapi(spec: dict[str, Any]) -> None:
    assert spec["openapi"].startswith("3.1.")
    assert {"title", "version"} <= set(spec["info"])
    names = []
    for method, path, operation in operations(spec):
        assert path.startswith("/")
        assert method in HTTP_METHODS
        names.append(operation["operationId"])
        assert operation["summary"].endswith((".", "?")), operation["summary"]
        for status, response in operation["responses"].items():
            assert re.fullmatch("[1-5][0-9][0-9]", status)
            assert response["description"]
        for parameter in operation["parameters"]:
            assert parameter["in"] in {"path", "query"}
            assert "schema" in parameter
    assert len(set(names)) == len(names)


def test_every_route_is_present(spec: dict[str, Any]) -> None:
    described = {(method.upper(), path) for method, path, _ in operations(spec)}
    assert described == {(o.method, o.path) for o in OPERATIONS}
    assert {path for _, path in described} >= {
        "/v1/queues",
        "/v1/queues/{queue}",
        "/v1/queues/{queue}/messages",
        "/v1/queues/{queue}/groups/{group}",
        *(
            f"/v1/queues/{{queue}}/groups/{{group}}/{verb}"
            for verb in ("seek", "pull", "ack", "nack", "extend")
        ),
        "/v1/ws",
        "/healthz",
        "/readyz",
        "/openapi.json",
    }


def test_path_parameters_are_those_of_the_path(spec: dict[str, Any]) -> None:
    for _, path, operation in operations(spec):
        named = {p["name"] for p in operation["parameters"] if p["in"] == "path"}
        assert named == set(re.findall(r"{(\w+)}", path))


def test_every_reference_leads_somewhere(spec: dict[str, Any]) -> None:
    def references(value: object) -> Iterator[str]:
        if isinstance(value, dict):
            for key, inner in value.items():
                if key == "$ref":
                    yield inner
                else:
                    yield from references(inner)
        elif isinstance(value, list):
            for inner in value:
                yield from references(inner)

    targets = {f"#/components/schemas/{name}" for name in spec["components"]["schemas"]}
    assert set(references(spec)) == targets  # and none is defined for nothing


def test_every_error_code_is_listed_with_its_meaning(spec: dict[str, Any]) -> None:
    code = spec["components"]["schemas"]["Code"]
    assert code["enum"] == list(CODES)
    for name, line in CODES.items():
        assert f"`{name}`" in code["description"]
        assert line.meaning in code["description"]


def test_problems_stand_under_the_status_they_come_with(spec: dict[str, Any]) -> None:
    for method, path, operation in operations(spec):
        listed = set()
        for status, response in operation["responses"].items():
            content = response.get("content", {}).get("application/problem+json")
            if content is not None:
                for code in content["schema"]["allOf"][1]["properties"]["code"]["enum"]:
                    assert str(CODES[code].http_status) == status
                    listed.add(code)
        assert "internal" in listed
        is_public = operation.get("security") == []
        wants_something = path == "/v1/access" and method != "delete"  # a ticket, or the cookie
        assert ("unauthorized" in listed) == (wants_something or not is_public)


def test_the_schemas_are_those_of_the_structs(spec: dict[str, Any]) -> None:
    schemas = spec["components"]["schemas"]
    for struct in (QueueSettings, GroupSettings, Message):
        assert list(schemas[struct.__name__]["properties"]) == list(struct.__struct_fields__)
        assert schemas[struct.__name__]["additionalProperties"] is False
    assert set(schemas["GroupRequest"]["properties"]) == set(GroupSettings.__struct_fields__)
    body = spec["paths"]["/v1/queues/{queue}/messages"]["post"]["requestBody"]
    assert body["content"]["application/json"]["schema"] == {
        "$ref": "#/components/schemas/PublishRequest"
    }
    assert schemas["Message"]["required"] == []
    assert schemas["Message"]["properties"]["body"] == {}


async def test_answers_have_the_fields_the_schemas_require(
    broker: Broker, spec: dict[str, Any]
) -> None:
    """What is described is what comes: each answer has every required property, and what is
    described as closed has no other one."""
    schemas = spec["components"]["schemas"]
    queue, group = "/v1/queues/q", "/v1/queues/q/groups/g"
    async with client_of(Application(broker, Authenticator(None))) as http:
        receipts = {"receipts": ["x"]}
        calls: list[tuple[str, str, object, str]] = [
            ("PUT", queue, {"partitions": 1}, "CreatedQueue"),
            ("PUT", queue, {"partitions": 2}, "Problem"),
            ("PATCH", queue, {"lease_s": 60}, "ChangedQueue"),
            ("GET", queue, None, "QueueDescription"),
            ("GET", "/v1/queues", None, "QueueList"),
            ("POST", f"{queue}/messages", {"messages": [{"body": 1}]}, "PublishAnswer"),
            ("PUT", group, {}, "CreatedGroup"),
            ("PATCH", group, {"lease_s": 60}, "ChangedGroup"),
            ("GET", group, None, "GroupDescription"),
            ("POST", f"{group}/pull", {}, "PullAnswer"),
            ("POST", f"{group}/seek", {"to": "earliest"}, "GroupDescription"),
            ("POST", f"{group}/ack", receipts, "Problem"),
            ("GET", "/healthz", None, "Health"),
            ("GET", "/readyz", None, "Readiness"),
        ]
        for method, path, body, name in calls:
            answer = (await http.request(method, path, json=body)).json()
            assert set(schemas[name]["required"]) <= set(answer), (method, path)
        results = (await http.post(f"{queue}/messages", json={"messages": [{"body": 1}]})).json()
        assert set(results["results"][0]) == {"id", "partition", "offset", "duplicate"}
        pulled = (await http.post(f"{group}/pull", json={})).json()["messages"][0]
        assert set(schemas["PulledMessage"]["required"]) <= set(pulled)
        assert set(pulled) <= set(schemas["PulledMessage"]["properties"])
