"""REST as its callers see it. `broker` is whatever tests/gateway/conftest.py gives."""

import asyncio
import base64
import json
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import httpx2
import pytest

from gateway.auth.auth import Authenticator
from gateway.broker import Broker
from gateway.rest.app import OPERATIONS, Application
from metadata.catalog import ANYBODY
from push import limits
from push.errors import CODES
from runtime.problems import SECURITY_HEADERS
from tests.gateway.asgi import client_of

Http = httpx2.AsyncClient
QUEUE = "/v1/queues/orders"
GROUP = f"{QUEUE}/groups/billing"
ONE_PARTITION = {"partitions": 1}


def check_problem(response: httpx2.Response, code: str) -> dict[str, Any]:
    """P12: a problem document with this code, and its status from the public table."""
    assert response.headers["content-type"] == "application/problem+json", response.text
    document: dict[str, Any] = response.json()
    assert document["code"] == code, document
    assert response.status_code == document["status"] == CODES[code].http_status
    assert document["type"] == f"urn:tocsin:problem:{code}"
    assert document["title"] == CODES[code].meaning
    assert document["retry"] is CODES[code].retry
    assert document["detail"]
    return document


async def make_queue(http: Http, **settings: object) -> None:
    assert (await http.put(QUEUE, json={**ONE_PARTITION, **settings})).status_code == 201


async def publish(http: Http, *messages: Mapping[str, object]) -> list[dict[str, Any]]:
    response = await http.post(f"{QUEUE}/messages", json={"messages": messages})
    assert response.status_code == 200, response.text
    answer = response.json()
    assert answer["durability"] == {"level": "all", "copies": 1}
    results: list[dict[str, Any]] = answer["results"]
    return results


async def pull(http: Http, *, wait_s: float = 10, **others: object) -> list[dict[str, Any]]:
    """Answered at once where there is something; `wait_s` 0 where nothing is expected."""
    wanted = {**others, "wait_s": wait_s}
    response = await http.post(f"{GROUP}/pull", json=wanted)
    assert response.status_code == 200, response.text
    messages: list[dict[str, Any]] = response.json()["messages"]
    return messages


async def until_a_pull_waits(http: Http) -> None:
    """Until the group has a consumer for its pulls (R24)."""
    async with asyncio.timeout(10):
        while True:
            if (await http.get(GROUP)).json().get("members") == ["pulls"]:
                return
            await asyncio.sleep(0)  # in one process nothing of a request need wait for anything


# --- Queues ------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [QUEUE, GROUP])
async def test_what_is_there_is_never_changed_by_making_it_again(http: Http, path: str) -> None:
    """With defaults, with what it has, and with other settings, which are told (RFC 9457)."""
    if path == GROUP:
        await make_queue(http)
    created = await http.put(path, json={"attempts_max": 9, "lease_s": 77})
    assert (created.status_code, created.json()["created"]) == (201, True)
    assert created.json()["settings"]["attempts_max"] == 9
    same: list[dict[str, object]] = [{}, {"attempts_max": 9}, {"attempts_max": 9, "lease_s": 77.0}]
    for body in same:
        again = await http.put(path, json=body)
        assert (again.status_code, again.json()["created"]) == (200, False)
        assert again.json()["settings"] == created.json()["settings"]
    other = {"attempts_max": 9, "lease_s": 60, "backoff_s": 2, "backoff_max_s": 60}
    differing = await http.put(path, json=other)
    check_problem(differing, "settings_differ")
    told = {one["name"]: one for one in differing.json()["differences"]}
    assert told["lease_s"] == {"name": "lease_s", "current": 77.0, "requested": 60.0}
    assert set(told) == {"lease_s", "backoff_s"}, "60 s are in effect, the default of every queue"
    assert "lease_s is 77 s, not 60 s" in differing.json()["detail"]
    assert (await http.get(path)).json()["settings"] == created.json()["settings"]


@pytest.mark.parametrize("path", [QUEUE, GROUP])
async def test_a_change_names_only_what_changes(http: Http, path: str) -> None:
    """The answer has what was and what is; null is a value, too."""
    if path == GROUP:
        await make_queue(http)
    check_problem(
        await http.patch(path, json={}), f"{'queue' if path == QUEUE else 'group'}_not_found"
    )
    nullable = "message_ttl_s" if path == QUEUE else "expires_s"
    before = (await http.put(path, json={"attempts_max": 9, nullable: 70})).json()["settings"]
    nothing = await http.patch(path, json={"attempts_max": 9})
    assert (nothing.status_code, nothing.json()["changes"]) == (200, [])
    changed = await http.patch(path, json={"lease_s": 60, nullable: None})
    assert changed.status_code == 200
    told = {one["name"]: (one["before"], one["after"]) for one in changed.json()["changes"]}
    assert told == {"lease_s": (before["lease_s"], 60.0), nullable: (70.0, None)}
    assert (changed.json()["deleted"], changed.json()["dead_lettered"]) == (0, 0)
    assert changed.json()["settings"] == {**before, "lease_s": 60.0, nullable: None}
    assert (await http.get(path)).json()["settings"] == changed.json()["settings"]
    contradiction = {"lease_s": 3600, "lease_total_s": 60}
    wrong: list[object] = [{"lease_s": 0}, {"colour": "red"}, [], contradiction]
    for body in wrong:
        check_problem(await http.patch(path, json=body), "invalid_request")
    query = {"deletes_max": "many"}
    check_problem(await http.patch(path, json={}, params=query), "invalid_request")


async def test_an_alert_is_changed_by_its_name_and_the_others_stay(http: Http) -> None:
    late = {"name": "late", "when": "oldest_age_s", "above": 60, "queue": "ops"}
    deep = {"name": "deep", "when": "depth", "above": 9, "lasts_s": 5, "webhook": "pager"}
    await http.put(QUEUE, json={"alerts": [late, deep]})

    async def change(alerts: object) -> dict[str, Any]:
        answer = await http.patch(QUEUE, json={"alerts": alerts})
        assert answer.status_code == 200, answer.text
        return {one["name"]: one for one in answer.json()["settings"]["alerts"]}

    changed = await change({"deep": {"above": 100}})
    assert (changed["deep"]["above"], changed["deep"]["lasts_s"]) == (100, 5)
    assert (changed["late"]["above"], changed["late"]["queue"]) == (60, "ops")
    more = await change({"more": {"when": "lag", "above": 1, "queue": "ops"}, "late": None})
    assert list(more) == ["deep", "more"]
    assert list(await change([late])) == ["late"]
    for wrong in ({"new": {"above": 3}}, {"late": {"queue": None}}, {"late": {"name": "x"}}):
        check_problem(await http.patch(QUEUE, json={"alerts": wrong}), "invalid_request")
    check_problem(
        await http.patch(QUEUE, json={"alerts": {"-a": {"when": "lag", "above": 1}}}),
        "invalid_name",
    )


async def test_the_value_in_effect_is_no_difference_of_a_group(http: Http) -> None:
    """An app names at each start what it needs, and the group has that from its queue."""
    await http.put(QUEUE, json={"lease_s": 77})
    assert (await http.put(GROUP, json={})).status_code == 201
    for body in ({"lease_s": 77, "attempts_max": 5}, {"lease_s": None}):
        again = await http.put(GROUP, json=body)
        assert (again.status_code, again.json()["settings"]["lease_s"]) == (200, None)
    differing = await http.put(GROUP, json={"lease_s": 60})
    check_problem(differing, "settings_differ")
    assert differing.json()["differences"] == [
        {"name": "lease_s", "current": 77.0, "requested": 60.0, "inherited": True}
    ]
    assert "lease_s is the queue's, 77 s, not 60 s" in differing.json()["detail"]


async def test_a_queue_without_a_body_has_all_defaults(http: Http) -> None:
    response = await http.put(QUEUE)
    assert response.status_code == 201
    assert response.json()["settings"]["partitions"] == 16


async def test_a_fixed_setting_does_not_change(http: Http) -> None:
    await http.put(QUEUE, json={"partitions": 4})
    check_problem(await http.patch(QUEUE, json={"partitions": 5}), "setting_fixed")
    differing = await http.put(QUEUE, json={"partitions": 5})
    check_problem(differing, "settings_differ")
    assert differing.json()["differences"] == [
        {"name": "partitions", "current": 4, "requested": 5, "fixed": True}
    ]
    assert (await http.get(QUEUE)).json()["settings"]["partitions"] == 4


async def test_a_described_queue_tells_holder_and_depth_and_groups(http: Http) -> None:
    await make_queue(http)
    await http.put(GROUP)
    await publish(http, {"body": 1}, {"body": 2})
    described = (await http.get(QUEUE)).json()
    assert described["name"] == "orders"
    assert described["holder"] == "anybody"
    assert described["created_unix_ms"] > 0
    assert "partitions" in described
    assert "depth" in described
    (group,) = described["groups"]
    assert (group["name"], group["lag"]) == ("billing", 2)


async def test_queues_are_listed_by_name_and_in_pages(http: Http) -> None:
    for name in ("c", "a", "b"):
        await http.put(f"/v1/queues/{name}", json=ONE_PARTITION)
    whole = (await http.get("/v1/queues")).json()
    assert [queue["name"] for queue in whole["queues"]] == ["a", "b", "c"]
    assert "next" not in whole
    page = (await http.get("/v1/queues", params={"limit": 2})).json()
    assert [queue["name"] for queue in page["queues"]] == ["a", "b"]
    rest = (await http.get("/v1/queues", params={"after": page["next"]})).json()
    assert [queue["name"] for queue in rest["queues"]] == ["c"]


async def test_a_brief_list_leaves_out_three_fields_and_no_other(http: Http) -> None:
    for name in ("a", "b"):
        await http.put(f"/v1/queues/{name}")
        await http.put(f"/v1/queues/{name}/groups/g")
    whole = (await http.get("/v1/queues", params={"brief": "false"})).json()["queues"]
    left_out = {"settings", "partitions", "dead_letters"}
    assert left_out <= set(whole[0])
    answer = await http.get("/v1/queues", params={"brief": "true", "limit": 1})
    assert answer.json()["next"] == "a"
    (brief,) = answer.json()["queues"]
    expected = {n: of for n, of in whole[0].items() if n not in left_out}
    assert brief == expected


@pytest.mark.parametrize("brief", ["", "1", "True", "yes"])
async def test_a_wrong_flag_is_refused(http: Http, brief: str) -> None:
    check_problem(await http.get("/v1/queues", params={"brief": brief}), "invalid_request")


@pytest.mark.parametrize("limit", ["0", "1001", "-1", "x", "1e3", "٣", "9" * 5000, ""])
async def test_a_wrong_page_size_is_refused(http: Http, limit: str) -> None:
    check_problem(await http.get("/v1/queues", params={"limit": limit}), "invalid_request")


async def test_deleting_a_queue_does_not_exist_over_http(http: Http) -> None:
    await make_queue(http)
    response = await http.delete(QUEUE)
    check_problem(response, "method_not_allowed")
    assert {"GET", "PUT"} <= set(response.headers["allow"].split(", "))
    assert (await http.get(QUEUE)).status_code == 200


@pytest.mark.parametrize(
    "name",
    [".hidden", "a%20b", "a" * 129, "%C3%A9", "a%00", "-x", "a%0A", "a%2Fb", "a%2fgroups%2fb"],
)
async def test_a_wrong_name_is_refused_everywhere(http: Http, name: str) -> None:
    await make_queue(http)
    check_problem(await http.put(f"/v1/queues/{name}"), "invalid_name")
    check_problem(await http.get(f"/v1/queues/{name}"), "invalid_name")
    messages = {"messages": [{"body": 1}]}
    check_problem(await http.post(f"/v1/queues/{name}/messages", json=messages), "invalid_name")
    for call in (http.put, http.get, http.delete):
        check_problem(await call(f"{QUEUE}/groups/{name}"), "invalid_name")
    for verb, body in (("pull", {}), ("ack", {"receipts": ["x"]}), ("seek", {"to": "latest"})):
        url = f"{QUEUE}/groups/{name}/{verb}"
        check_problem(await http.post(url, json=body), "invalid_name")


async def test_an_unknown_queue_is_not_found_everywhere(http: Http) -> None:
    check_problem(await http.get(QUEUE), "queue_not_found")
    check_problem(
        await http.post(f"{QUEUE}/messages", json={"messages": [{"body": 1}]}), "queue_not_found"
    )
    for call in (http.put, http.get, http.delete):
        check_problem(await call(GROUP), "queue_not_found")
    check_problem(await http.post(f"{GROUP}/pull"), "queue_not_found")
    check_problem(await http.post(f"{GROUP}/ack", json={"receipts": ["x"]}), "queue_not_found")
    check_problem(await http.post(f"{GROUP}/seek", json={"to": "latest"}), "queue_not_found")


async def test_an_unknown_path_is_not_found(http: Http) -> None:
    for path in ("/", "/v1", "/v1/queues/", "/v2/queues", f"{QUEUE}/", "/v1/queues/a/b/c"):
        check_problem(await http.get(path), "not_found")


# --- Publishing --------------------------------------------------------------------------------


async def test_published_messages_have_places_in_order(http: Http) -> None:
    await make_queue(http)
    results = await publish(http, {"key": "k", "body": {"n": 1}}, {"body": [2], "id": "mine"})
    assert [r["offset"] for r in results] == [0, 1]
    assert [r["duplicate"] for r in results] == [False, False]
    assert results[1]["id"] == "mine"
    assert results[0]["id"]


async def test_a_bad_message_does_not_hold_up_its_neighbours(http: Http) -> None:
    """R5: one answer per message, in order."""
    await make_queue(http, message_bytes_max=100)
    good, huge, empty, alas, late = await publish(
        http,
        {"body": 1},
        {"body": "x" * 200},
        {"key": "k"},
        {"body": 2, "key": "k" * 10_000},
        {"body": 3, "sent_unix_ms": 10**400},
    )
    assert good["offset"] == 0
    assert huge["error"]["code"] == "message_too_large"
    assert empty["error"]["code"] == "invalid_message"
    assert alas["error"]["code"] == "invalid_message"
    assert late["error"]["code"] == "invalid_message"
    assert set(huge["error"]) == {"code", "detail", "retry"}
    assert (await publish(http, {"body": 3}))[0]["offset"] == 1


async def test_the_same_id_is_stored_once(http: Http) -> None:
    """P4: the answer to a duplicate is that of the original."""
    await make_queue(http)
    (first,) = await publish(http, {"id": "a", "key": "k", "body": 1})
    (again,) = await publish(http, {"id": "a", "key": "k", "body": 1})
    assert again == {**first, "duplicate": True}


async def test_a_full_batch_is_taken_and_one_more_is_refused(http: Http) -> None:
    await make_queue(http)
    messages: list[dict[str, object]] = [{"body": 1}] * limits.MESSAGES_PER_PUBLISH_MAX
    assert len(await publish(http, *messages)) == limits.MESSAGES_PER_PUBLISH_MAX
    response = await http.post(f"{QUEUE}/messages", json={"messages": [*messages, {"body": 1}]})
    check_problem(response, "invalid_request")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "invalid_request"),
        (b"{}", "invalid_request"),
        (b"[]", "invalid_request"),
        (b"null", "invalid_request"),
        (b"nonsense", "invalid_json"),
        (b'{"messages":[{"body":1}]', "invalid_json"),
        (b'{"messages":[{"body":1}]}x', "invalid_json"),
        (b'{"messages":[]}', "invalid_request"),
        (b'{"messages":{}}', "invalid_request"),
        (b'{"messages":[1]}', "invalid_request"),
        (b'{"messages":[{"body":1,"colour":"red"}]}', "invalid_request"),
        (b'{"messages":[{"body":1}],"colour":"red"}', "invalid_request"),
        (b'{"messages":[{"body":1,"key":7}]}', "invalid_request"),
        (b'{"messages":[{"body":1,"headers":{"a":1}}]}', "invalid_request"),
        (b'{"messages":[{"body":1,"ttl_s":"1"}]}', "invalid_request"),
        (b'{"messages":[{"body":1,"ttl_s":NaN}]}', "invalid_json"),
        (b'{"messages":[{"body":NaN}]}', "invalid_json"),
        (b'{"messages":[{"body":1,"sent_unix_ms":1e400}]}', "invalid_request"),
        (b'{"messages":[{"body":"\xff"}]}', "invalid_json"),
        (b'{"messages":[{"body":"\xed\xa0\x80"}]}', "invalid_json"),
        (b'{"messages":[{"body":1,"key":"\\ud800"}]}', "invalid_json"),
        (b"\xef\xbb\xbf{}", "invalid_json"),
        (b"[" * 100_000, "invalid_request"),
        (b'{"messages":' + b"[" * 100_000, "invalid_request"),
        (b'{"messages":[{"body":' + b"[" * 90_000 + b"]" * 90_000 + b"}]}", "invalid_json"),
    ],
)
async def test_a_malformed_publish_is_refused(http: Http, body: bytes, code: str) -> None:
    """P12: clear error, nothing changed, whatever the content type says."""
    await make_queue(http)
    response = await http.post(f"{QUEUE}/messages", content=body)
    check_problem(response, code)
    assert (await publish(http, {"body": 1}))[0]["offset"] == 0


async def test_an_error_names_the_field(http: Http) -> None:
    await make_queue(http)
    response = await http.post(
        f"{QUEUE}/messages", json={"messages": [{"body": 1}, {"body": 1, "key": 7}]}
    )
    assert "$.messages[1].key" in check_problem(response, "invalid_request")["detail"]


async def test_a_body_over_its_bound_is_refused_by_its_length(http: Http) -> None:
    await make_queue(http)
    body = b'{"messages":[{"body":"' + b"x" * limits.FRAME_BYTES_MAX + b'"}]}'
    check_problem(await http.post(f"{QUEUE}/messages", content=body), "request_too_large")


async def test_a_body_without_a_length_is_read_only_to_the_bound(application: Application) -> None:
    """P9: an endless body costs one bound, not memory without end."""
    read = 0

    async def receive() -> dict[str, object]:
        nonlocal read
        read += 65_536
        return {"type": "http.request", "body": b" " * 65_536, "more_body": True}

    status, answer = await call_raw(application, "PUT", QUEUE, receive)
    assert (status, answer["code"]) == (413, "request_too_large")
    assert read <= limits.FRAME_BYTES_MAX + 65_536


@pytest.mark.parametrize(
    "header",
    [
        {"Transfer-Encoding": "chunked"},
        {"Content-Type": "application/json"},
        {"Content-Length": "9"},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", QUEUE), ("PUT", GROUP), ("POST", f"{GROUP}/pull"), ("POST", f"{QUEUE}/purge"),
        ("POST", f"{QUEUE}/dead-letters/redrive"), ("POST", f"{QUEUE}/messages"),
        ("POST", f"{GROUP}/parked"), ("POST", "/v1/sessions"),
    ],
)  # fmt: skip
async def test_an_empty_body_where_one_is_announced_means_no_defaults(
    application: Application, method: str, path: str, header: dict[str, str]
) -> None:
    """P12: `generate | curl -T -`, where the first command has failed, changes nothing."""
    async with client_of(application) as http:
        await make_queue(http, attempts_max=7)
        await http.put(GROUP, json={"attempts_max": 3})
        before = (await http.get(QUEUE)).json(), (await http.get(GROUP)).json()
    scope = {
        "type": "http", "method": method, "path": path, "raw_path": path.encode(),
        "query_string": b"", "client": ("127.0.0.1", 1), "scheme": "http",
        "headers": [
            (b"host", b"127.0.0.1"), *((k.lower().encode(), v.encode()) for k, v in header.items())
        ],
    }  # fmt: skip
    said: list[Any] = []

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        said.append(message)

    await application(scope, receive, send)
    assert said[0]["status"] == 400, said
    assert json.loads(said[1]["body"])["code"] == "invalid_json"
    async with client_of(application) as http:
        assert ((await http.get(QUEUE)).json(), (await http.get(GROUP)).json()) == before


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "identity, gzip", "GZIP", "x"])
async def test_a_compressed_body_is_refused_with_what_is_read(http: Http, coding: str) -> None:
    """RFC 9110, section 15.5.16: `Accept-Encoding` says what would have been."""
    await make_queue(http)
    body = json.dumps({"messages": [{"body": 1}]}).encode()
    for content in (body, zlib.compress(body)):
        answer = await http.post(
            f"{QUEUE}/messages", content=content, headers={"Content-Encoding": coding}
        )
        check_problem(answer, "unsupported_encoding")
        assert answer.headers["accept-encoding"] == "identity"
    identity = {"Content-Encoding": "identity"}
    stored = await http.post(f"{QUEUE}/messages", content=body, headers=identity)
    assert stored.status_code == 200


async def test_a_publish_whose_client_leaves_is_stored_and_no_error(
    application: Application, http: Http, caplog: pytest.LogCaptureFixture
) -> None:
    """A client that goes away while its body is read gets no answer, and nobody a traceback."""
    await make_queue(http)

    async def receive() -> dict[str, object]:
        return {"type": "http.disconnect"}

    status, _ = await call_raw(application, "POST", f"{QUEUE}/messages", receive)
    assert status is None
    assert not caplog.records


# --- Groups and pulls --------------------------------------------------------------------------


async def test_a_group_is_made_listed_and_deleted(http: Http) -> None:
    await make_queue(http)
    created = await http.put(GROUP, json={"lease_s": 10})
    assert created.status_code == 201
    assert created.json()["settings"]["lease_s"] == 10
    assert (await http.patch(GROUP, json={"lease_s": 20})).status_code == 200
    assert (await http.get(GROUP)).json()["settings"]["lease_s"] == 20
    gone = await http.delete(GROUP)
    assert (gone.status_code, gone.json()) == (200, {"deleted": 0})
    check_problem(await http.get(GROUP), "group_not_found")
    check_problem(await http.delete(GROUP), "group_not_found")


async def test_a_group_starts_where_it_says(http: Http) -> None:
    await make_queue(http)
    await publish(http, {"body": 1})
    await http.put(f"{QUEUE}/groups/early", json={"start": "earliest"})
    await http.put(f"{QUEUE}/groups/late", json={"start": "latest"})
    await http.put(f"{QUEUE}/groups/timed", json={"start": {"unix_ms": 1000}})
    lags = {g["name"]: g["lag"] for g in (await http.get(QUEUE)).json()["groups"]}
    assert lags == {"late": 0, "early": 1, "timed": 1}


@pytest.mark.parametrize(
    "body",
    [
        {"start": "middle"},
        {"start": {"unix_ms": -1}},
        {"start": 5},
        {"lease_s": 0},
        {"lease_s": "30"},
        {"semantics": "exactly_once"},
        {"colour": "red"},
        {"attempts_max": -1},
        [],
    ],
)
async def test_wrong_group_settings_are_refused(http: Http, body: object) -> None:
    await make_queue(http)
    check_problem(await http.put(GROUP, json=body), "invalid_request")
    check_problem(await http.get(GROUP), "group_not_found")


async def test_a_pull_makes_its_group_and_takes_messages(http: Http) -> None:
    """R11: a group exists from its first pull."""
    await make_queue(http)
    await publish(http, {"key": "k", "body": {"n": 1}, "headers": {"a": "b"}}, {"body": 2})
    first, second = await pull(http)
    assert first["key"] == "k"
    assert first["headers"] == {"a": "b"}
    assert (first["partition"], first["offset"], first["attempt"]) == (0, 0, 1)
    assert first["receipt"]
    assert first["id"]
    assert first["lease_until_unix_ms"] > first["published_unix_ms"] > 0
    assert "key" not in second
    assert (await http.get(GROUP)).status_code == 200


async def test_bodies_come_byte_for_byte(http: Http) -> None:
    """P2: what a parser might write otherwise stays as it was published."""
    await make_queue(http)
    bodies = [b'{"b": 1,  "a":1.0}', b"1e2", b"12345678901234567890123", b'"\\u00e9 \xc3\xa9"']
    wanted = b'{"messages":[' + b",".join(b'{"body":' + body + b"}" for body in bodies) + b"]}"
    assert (await http.post(f"{QUEUE}/messages", content=wanted)).status_code == 200
    answer = (await http.post(f"{GROUP}/pull")).content
    for body in bodies:
        assert b'"body":' + body in answer


async def test_a_binary_body_comes_as_base64_with_its_content_type(http: Http) -> None:
    await make_queue(http)
    body = base64.b64encode(bytes(range(256))).decode()
    await publish(http, {"body_base64": body, "content_type": "image/png"})
    (message,) = await pull(http)
    assert message["body_base64"] == body
    assert message["content_type"] == "image/png"
    assert "body" not in message


async def test_a_null_body_is_a_body(http: Http) -> None:
    await make_queue(http)
    await publish(http, {"body": None})
    (message,) = await pull(http, wait_s=5)
    assert message["body"] is None


async def test_a_pull_takes_as_many_as_it_asks_for(http: Http) -> None:
    await make_queue(http)
    await publish(http, *({"body": n} for n in range(25)))
    assert len(await pull(http, messages_max=3)) == 3
    assert len(await pull(http)) == 10
    assert len(await pull(http, messages_max=limits.PULL_MESSAGES_MAX)) == 12
    assert await pull(http, messages_max=1, wait_s=0) == []


@pytest.mark.parametrize(
    "body",
    [
        {"messages_max": 0},
        {"messages_max": limits.PULL_MESSAGES_MAX + 1},
        {"messages_max": 1.5},
        {"messages_max": True},
        {"wait_s": -1},
        {"wait_s": limits.PULL_WAIT_S_MAX + 1},
        {"wait_s": "1"},
        {"limit": 1},
    ],
)
async def test_a_wrong_pull_is_refused_and_makes_no_group(http: Http, body: object) -> None:
    await make_queue(http)
    check_problem(await http.post(f"{GROUP}/pull", json=body), "invalid_request")
    check_problem(await http.get(GROUP), "group_not_found")


async def test_a_waiting_pull_gets_what_is_published_meanwhile(http: Http) -> None:
    await make_queue(http)
    waiting = asyncio.create_task(pull(http, wait_s=20))
    await until_a_pull_waits(http)
    await publish(http, {"body": "now"})
    (message,) = await waiting
    assert message["body"] == "now"


async def test_a_waiting_pull_is_answered_when_the_gateway_drains(
    http: Http, broker: Broker
) -> None:
    """P14: an answer, not a cut connection."""
    await make_queue(http)
    waiting = asyncio.create_task(http.post(f"{GROUP}/pull", json={"wait_s": 20}))
    await until_a_pull_waits(http)
    await broker.drain()
    response = await waiting
    assert response.json() == {"messages": []}
    assert response.headers["connection"] == "close"


async def test_a_client_that_leaves_takes_nothing_with_it(
    application: Application, http: Http
) -> None:
    """P6 and R19: what its cancelled wait would have taken comes to the next pull at once, as a
    first attempt."""
    await make_queue(http)
    gone = asyncio.Event()
    body = iter([{"type": "http.request", "body": b'{"wait_s":20}', "more_body": False}])

    async def receive() -> dict[str, object]:
        for part in body:
            return part
        await gone.wait()
        return {"type": "http.disconnect"}

    leaving = asyncio.create_task(call_raw(application, "POST", f"{GROUP}/pull", receive))
    await until_a_pull_waits(http)
    gone.set()
    await leaving
    await publish(http, {"body": 1})
    (message,) = await pull(http)
    assert message["attempt"] == 1


async def test_what_was_given_to_a_client_that_left_returns(
    application: Application, http: Http
) -> None:
    """The messages were taken in the very moment the client left."""
    await make_queue(http)
    await publish(http, {"body": 1})
    body = iter([{"type": "http.request", "body": b"{}", "more_body": False}])

    async def receive() -> dict[str, object]:
        return next(body, {"type": "http.disconnect"})

    await call_raw(application, "POST", f"{GROUP}/pull", receive)
    (message,) = await pull(http)
    assert message["attempt"] == 1


async def test_an_ack_settles_once(http: Http) -> None:
    await make_queue(http)
    await publish(http, {"body": 1}, {"body": 2})
    receipts = [message["receipt"] for message in await pull(http)]
    answer = await http.post(f"{GROUP}/ack", json={"receipts": receipts})
    assert answer.json() == {"settled": 2, "stale": []}
    assert (await http.get(GROUP)).json()["lag"] == 0
    assert await pull(http, wait_s=0) == []


async def test_a_nacked_message_comes_again_and_its_old_receipt_is_stale(http: Http) -> None:
    await make_queue(http)
    await publish(http, {"body": 1})
    (message,) = await pull(http)
    old = {"receipts": [message["receipt"]]}
    answer = await http.post(f"{GROUP}/nack", json={**old, "delay_s": 0})
    assert answer.json() == {"settled": 1, "stale": []}
    (again,) = await pull(http, wait_s=5)
    assert (again["offset"], again["attempt"]) == (message["offset"], 2)
    stale = await http.post(f"{GROUP}/ack", json=old)
    assert stale.json() == {"settled": 0, "stale": old["receipts"]}
    assert (await http.get(GROUP)).json()["lag"] == 1


async def test_an_extended_lease_still_settles(http: Http) -> None:
    await make_queue(http)
    await publish(http, {"body": 1})
    (message,) = await pull(http)
    receipts = {"receipts": [message["receipt"]]}
    extended = await http.post(f"{GROUP}/extend", json={**receipts, "lease_s": 60})
    assert extended.json() == {"settled": 1, "stale": []}
    assert (await http.post(f"{GROUP}/ack", json=receipts)).json()["settled"] == 1


@pytest.mark.parametrize("verb", ["ack", "nack", "extend"])
async def test_a_forged_receipt_settles_nothing(http: Http, verb: str) -> None:
    await make_queue(http)
    await publish(http, {"body": 1})
    (message,) = await pull(http)
    receipt = message["receipt"]
    for forged in ("", "x", receipt[:-1], receipt + "A", flip(receipt), "é" * 66, "\u0000"):
        response = await http.post(f"{GROUP}/{verb}", json={"receipts": [forged]})
        check_problem(response, "invalid_receipt")
    assert (await http.get(GROUP)).json()["lag"] == 1


async def test_a_receipt_of_another_group_settles_nothing(http: Http) -> None:
    await make_queue(http)
    await publish(http, {"body": 1})
    (message,) = await pull(http)
    other = f"{QUEUE}/groups/other"
    await http.post(f"{other}/pull")
    response = await http.post(f"{other}/ack", json={"receipts": [message["receipt"]]})
    check_problem(response, "invalid_receipt")


async def test_good_receipts_beside_a_forged_one_count(http: Http) -> None:
    await make_queue(http)
    await publish(http, {"body": 1})
    (message,) = await pull(http)
    response = await http.post(f"{GROUP}/ack", json={"receipts": ["x", message["receipt"]]})
    assert response.json() == {"settled": 1, "stale": [], "invalid": ["x"]}


async def test_a_receipt_does_not_outlive_its_queue(http: Http, broker: Broker) -> None:
    """R1: deleted and made anew under its name, it is another queue."""
    await make_queue(http)
    await publish(http, {"body": 1})
    (message,) = await pull(http)
    await broker.delete_queue(ANYBODY, "orders")
    await make_queue(http)
    await publish(http, {"body": "new"})
    await pull(http)
    response = await http.post(f"{GROUP}/ack", json={"receipts": [message["receipt"]]})
    check_problem(response, "invalid_receipt")
    assert (await http.get(GROUP)).json()["lag"] == 1


@pytest.mark.parametrize(
    ("verb", "body"),
    [
        ("ack", {}),
        ("ack", {"receipts": []}),
        ("ack", {"receipts": "x"}),
        ("ack", {"receipts": [1]}),
        ("ack", {"receipts": ["x"] * (limits.PULL_MESSAGES_MAX + 1)}),
        ("ack", {"receipts": ["x" * 1000]}),
        ("ack", {"receipts": ["x"], "delay_s": 1}),
        ("nack", {"receipts": ["x"], "delay_s": -1}),
        ("nack", {"receipts": ["x"], "delay_s": 1e300}),
        ("nack", {"receipts": ["x"], "lease_s": 1}),
        ("extend", {"receipts": ["x"], "lease_s": 0}),
        ("extend", {"receipts": ["x"], "delay_s": 0}),
    ],
)
async def test_a_wrong_settling_is_refused(http: Http, verb: str, body: object) -> None:
    await make_queue(http)
    await http.put(GROUP)
    check_problem(await http.post(f"{GROUP}/{verb}", json=body), "invalid_request")


async def test_settling_in_an_unknown_group_is_refused_and_makes_none(http: Http) -> None:
    await make_queue(http)
    for verb in ("ack", "nack", "extend"):
        response = await http.post(f"{GROUP}/{verb}", json={"receipts": ["x"]})
        check_problem(response, "group_not_found")


async def test_a_group_is_sought_to_its_start_and_end(http: Http) -> None:
    await make_queue(http, retention_s=60)  # else what is settled may go meanwhile
    await publish(http, *({"body": n} for n in range(5)))
    receipts = [message["receipt"] for message in await pull(http)]
    await http.post(f"{GROUP}/ack", json={"receipts": receipts})
    places: list[tuple[object, int]] = [
        ("earliest", 5),
        ("latest", 0),
        ({"offset": 3}, 2),
        ({"unix_ms": 0}, 5),
    ]
    for to, lag in places:
        response = await http.post(f"{GROUP}/seek", json={"to": to})
        assert response.status_code == 200, response.text
        assert response.json()["lag"] == lag, to


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"to": "end"},
        {"to": None},
        {"to": 5},
        {"to": {}},
        {"to": {"offset": 1, "unix_ms": 1}},
        {"to": {"offset": -1}},
        {"to": {"offset": limits.OFFSET_MAX + 1}},
        {"to": {"offset": 1, "x": 1}},
    ],
)
async def test_a_wrong_seek_is_refused(http: Http, body: object) -> None:
    await make_queue(http)
    await http.put(GROUP)
    check_problem(await http.post(f"{GROUP}/seek", json=body), "invalid_request")


# --- Who asks, and what every answer has -------------------------------------------------------


@pytest.fixture
async def guarded(broker: Broker) -> Application:
    """An application with a token and an allowed page."""
    origins = ("https://app.example",)
    return Application(broker, Authenticator("a-secret-token", origins), origins=origins)


async def test_every_operation_but_the_probes_wants_the_token(guarded: Application) -> None:
    """P11."""
    async with client_of(guarded) as http:
        for operation in OPERATIONS:
            path = operation.path.format(queue="orders", group="billing", session="s", id="i")
            response = await http.request(operation.method, path)
            if operation.path in {"/healthz", "/readyz"}:
                assert response.status_code == 200, path
            elif operation.name == "leave":  # what nobody has can be thrown away
                assert response.status_code == 204
            else:
                check_problem(response, "unauthorized")
                assert response.headers["www-authenticate"].startswith("Bearer")
        check_problem(await http.get("/nowhere"), "unauthorized")
    assert {o.path for o in OPERATIONS if o.public} == {"/healthz", "/readyz", "/v1/access"}


@pytest.mark.parametrize("header", ["Bearer wrong", "Basic YTpi", "Bearer", "a-secret-token"])
async def test_a_wrong_token_is_refused(guarded: Application, header: str) -> None:
    async with client_of(guarded, authorization=header) as http:
        check_problem(await http.get("/v1/queues"), "unauthorized")


async def test_the_token_opens(guarded: Application) -> None:
    async with client_of(guarded, authorization="Bearer a-secret-token") as http:
        assert (await http.get("/v1/queues")).status_code == 200


async def test_without_a_token_a_foreign_page_is_refused(application: Application) -> None:
    """Any web page can reach a local socket: its Origin, or with DNS rebinding its Host, shows."""
    async with client_of(application, origin="https://evil.example") as http:
        check_problem(await http.get("/v1/queues"), "origin_refused")
    async with client_of(application, host="evil.example") as http:
        check_problem(await http.get("/v1/queues"), "origin_refused")


async def test_a_header_that_occurs_twice_is_refused(application: Application) -> None:
    for name in ("host", "origin", "authorization", "cookie"):
        headers = [(name, "127.0.0.1"), (name, "evil.example")]
        async with client_of(application) as http:
            response = await http.get("/v1/queues", headers=headers)
        is_credential = name in ("authorization", "cookie")
        check_problem(response, "unauthorized" if is_credential else "invalid_request")


async def test_an_allowed_page_gets_its_preflight_answered(guarded: Application) -> None:
    asking = {"access-control-request-method": "PUT", "origin": "https://app.example"}
    async with client_of(guarded, **asking) as http:
        response = await http.options(QUEUE)
        assert response.status_code == 200
        assert response.headers["access-control-allow-origin"] == "https://app.example"
    async with client_of(guarded, **{**asking, "origin": "https://evil.example"}) as http:
        response = await http.options(QUEUE)
        assert "access-control-allow-origin" not in response.headers


async def test_a_problem_reaches_an_allowed_page(guarded: Application) -> None:
    async with client_of(guarded, origin="https://app.example") as http:
        response = await http.get("/v1/queues")
    check_problem(response, "unauthorized")
    assert response.headers["access-control-allow-origin"] == "https://app.example"


async def test_every_answer_has_the_security_headers(http: Http) -> None:
    for path in ("/healthz", "/v1/queues", "/nowhere", "/v1/queues/.x"):
        response = await http.get(path)
        for name, text in SECURITY_HEADERS:
            assert response.headers[name] == text
        assert "server" not in response.headers


async def test_healthz_answers_while_readyz_says_what_is_missing(broker: Broker) -> None:
    class Unready:
        """This broker, not ready."""

        draining = False

        async def ready(self) -> list[str]:
            return ["the disk is full"]

        def notes(self) -> list[str]:
            return []

    application = Application(Unready(), Authenticator(None))  # type: ignore[arg-type]
    async with client_of(application) as http:
        assert (await http.get("/healthz")).status_code == 200
        response = await http.get("/readyz")
        assert response.status_code == 503
        assert response.json() == {"ready": False, "not_ready": ["the disk is full"]}


async def test_readyz_is_ready_until_the_gateway_drains(http: Http, broker: Broker) -> None:
    assert (await http.get("/readyz")).json() == {"ready": True, "not_ready": []}
    await broker.drain()
    response = await http.get("/readyz")
    assert response.status_code == 503
    assert response.json()["not_ready"]
    assert (await http.get("/healthz")).status_code == 200


async def test_a_plain_request_to_the_websocket_path_is_refused_with_a_reason(http: Http) -> None:
    assert "tocsin.v1" in check_problem(await http.get("/v1/ws"), "invalid_request")["detail"]


async def test_head_is_answered_like_get(http: Http) -> None:
    assert (await http.head("/v1/queues")).status_code == 200


# --- Driving the application by hand -----------------------------------------------------------


async def call_raw(
    application: Application, method: str, path: str, receive: Callable[[], Any]
) -> tuple[int | None, dict[str, Any]]:
    """(status, JSON answer) of a request whose body and end `receive` decides; status None: no
    answer was sent."""
    status: int | None = None
    answer = b""

    async def send(message: Any) -> None:
        nonlocal status, answer
        if message["type"] == "http.response.start":
            status = message["status"]
        else:
            answer += message.get("body", b"")

    scope: dict[str, Any] = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(b"host", b"127.0.0.1:8080")],
        "http_version": "1.1",
        "scheme": "http",
        "root_path": "",
    }
    await application(scope, receive, send)
    return status, json.loads(answer or b"{}")


def flip(text: str) -> str:
    """The text with its middle character changed."""
    middle = len(text) // 2
    return text[:middle] + ("A" if text[middle] != "A" else "B") + text[middle + 1 :]


def test_no_two_operations_share_a_place() -> None:
    places: Iterable[tuple[str, str]] = [(o.method, o.path) for o in OPERATIONS]
    assert len(set(places)) == len(OPERATIONS)
