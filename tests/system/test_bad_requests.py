"""Bad input over HTTP: every field of every request (P12).

Each gets a problem document with its documented code and changes nothing; never a 5xx. The broker's
log stays clean.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest

from loadtests.server import Server
from push import limits
from push.errors import CODES
from tests.system.talk import http_to, running
from tests.system.test_bad_frames import DEEP, MAX, MESSAGES, NO_LIST, NO_NUMBER, NO_TEXT

NO_INT = ['"1"', "1.5", "-1", "true", "[]", "{}", "9" * 400, "1e400", "NaN", "01", ""]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Broker for all of these."""
    with running(tmp_path_factory.mktemp("requests")) as server:
        yield server


@dataclass
class Scene:
    """A queue of its own with a group that holds two of its four messages."""

    http: httpx2.AsyncClient
    queue: str
    group: str
    receipts: list[str]

    async def state(self) -> object:
        """Return the state that must not change."""
        queue = (await self.http.get(self.queue)).json()
        group = (await self.http.get(self.group)).json()
        queues = (await self.http.get("/v1/queues")).json()["queues"]
        return (
            queue["settings"], queue["partitions"], queue["groups"], group["settings"],
            [(one["in_flight"], one["epoch"]) for one in group["partitions"]],
            [one["name"] for one in queues],
        )  # fmt: skip

    async def refused(
        self, method: str, path: str, body: str | bytes, what: object, *expected: str
    ) -> None:
        """Send a request. A problem document must answer, with one of these codes."""
        answer = await self.http.request(
            method, path, content=body.encode() if isinstance(body, str) else body
        )
        problem = is_problem(answer, what)
        codes = expected or ("invalid_request", "invalid_json", "invalid_name")
        assert problem["code"] in codes, (what, problem)


def is_problem(answer: httpx2.Response, what: object) -> dict[str, Any]:
    """Return the problem document, checked against the table of codes."""
    assert 400 <= answer.status_code < 500, (what, answer.status_code, answer.text[:300])
    assert answer.headers["content-type"] == "application/problem+json", what
    problem: dict[str, Any] = answer.json()
    assert CODES[problem["code"]].http_status == problem["status"] == answer.status_code, what
    assert problem["detail"], what
    return problem


@asynccontextmanager
async def scene(server: Server) -> AsyncIterator[Scene]:
    """Yield a new scene."""
    async with http_to(server) as http:
        queue = f"/v1/queues/q{time.monotonic_ns()}"
        group = f"{queue}/groups/billing"
        assert (await http.put(queue, json={"partitions": 1})).status_code == 201
        messages = [{"key": f"k{n}", "body": n} for n in range(4)]
        stored = (await http.post(f"{queue}/messages", json={"messages": messages})).json()
        assert [one.get("offset") for one in stored["results"]] == [0, 1, 2, 3], stored
        pulled = (await http.post(f"{group}/pull", json={"messages_max": 2, "wait_s": 20})).json()
        receipts = [one["receipt"] for one in pulled["messages"]]
        assert len(receipts) == 2, pulled
        yield Scene(http, queue, group, receipts)


QUEUE_FIELDS = {
    "partitions": [*NO_INT, "null", "0", "1025"],
    "message_bytes_max": [*NO_INT, "null", "0", "1048577"],
    "messages_max": [*NO_INT, "null", str(MAX + 1)],
    "bytes_max": [*NO_INT, "null", str(MAX + 1)],
    "overflow": [*NO_TEXT, "null", '"drop"'],
    "retention_s": [*NO_NUMBER, "null", "315360001"],
    "message_ttl_s": [*NO_NUMBER, "0", "315360001"],
    "lease_s": [*NO_NUMBER, "null", "0", "0.9", "43201", "4000"],
    "lease_total_s": [*NO_NUMBER, "null", "0", "604801", "2"],
    "attempts_max": [*NO_INT, "null", "1000001"],
    "backoff_s": [*NO_NUMBER, "null", "3601"],
    "backoff_max_s": [*NO_NUMBER, "null", "3601"],
    "on_exhausted": [*NO_TEXT, "null", '"forget"'],
    "dead_letter_queue": [*NO_TEXT, '""', '".x"', '"a/b"', json.dumps("q" * 129)],
    "dedup_window_s": [*NO_NUMBER, "null", "315360001"],
    "durability": [*NO_TEXT, "null", '"memory"'],
    "color": ["1"],
}
GROUP_FIELDS = {
    "start": [*NO_NUMBER, '"middle"', '{"unix_ms":-1}', '{"unix_ms":1,"x":1}', "[]", "5"],
    "semantics": [*NO_TEXT, "null", '"exactly_once"'],
    "lease_s": [*NO_NUMBER, "0", "0.9", "43201"],
    "lease_total_s": [*NO_NUMBER, "0", "604801"],
    "attempts_max": [*NO_INT, "1000001"],
    "backoff_s": [*NO_NUMBER, "3601"],
    "backoff_max_s": [*NO_NUMBER, "3601"],
    "on_exhausted": [*NO_TEXT, '"forget"'],
    "expires_s": [*NO_NUMBER, "0", "315360001"],
    "partitions": ["1"],
    "color": ["1"],
}
RECEIPTS = [
    *NO_LIST, "[]", json.dumps(["r" * 257]), json.dumps(["r"] * 1001), "[true]",
]  # fmt: skip
CALLS: dict[tuple[str, str], dict[str, list[str]]] = {
    ("PUT", ""): QUEUE_FIELDS,
    ("PATCH", ""): QUEUE_FIELDS,
    ("PATCH", "/groups/billing"): {**GROUP_FIELDS, "start": ['"latest"', *NO_NUMBER]},
    ("PUT", "/groups/billing"): GROUP_FIELDS,
    ("PUT", "/groups/other"): GROUP_FIELDS,
    ("POST", "/messages"): {
        "messages": [
            *NO_LIST, "[]", "[" + ",".join(['{"body":1}'] * 1001) + "]", *DEEP,
            *(f"[{bad}]" for bad, code in MESSAGES if not code),
        ],
        "color": ["1"],
    },
    ("POST", "/groups/billing/pull"): {
        "messages_max": [*NO_INT, "null", "0", "1001"],
        "wait_s": [*NO_NUMBER, "null", "30.1"],
        "color": ["1"],
    },
    ("POST", "/groups/billing/ack"): {"receipts": RECEIPTS, "color": ["1"]},
    ("POST", "/groups/billing/nack"): {
        "receipts": RECEIPTS, "delay_s": [*NO_NUMBER, "86400.1"], "color": ["1"],
    },
    ("POST", "/groups/billing/extend"): {
        "receipts": RECEIPTS, "lease_s": [*NO_NUMBER, "0", "43200.1"], "color": ["1"],
    },
    ("POST", "/groups/billing/seek"): {
        "to": [
            *NO_NUMBER, '"middle"', "{}", '{"unix_ms":1,"offset":1}', '{"unix_ms":-1}',
            '{"offset":-1}', f'{{"offset":{1 << 40}}}', f'{{"unix_ms":{MAX + 1}}}', "null",
            '{"offset":null}', '{"offset":1.5}', '{"offset":1,"x":1}', "1",
        ],
        "color": ["1"],
    },
}  # fmt: skip
GOOD = {
    "/messages": {"messages": '[{"body":1}]'},
    "/groups/billing/ack": {"receipts": "[]"},
    "/groups/billing/nack": {"receipts": "[]"},
    "/groups/billing/extend": {"receipts": "[]"},
    "/groups/billing/seek": {"to": '"earliest"'},
}


@pytest.mark.parametrize(("method", "path"), sorted(CALLS))
async def test_a_bad_field_is_refused_and_changes_nothing(
    server: Server, method: str, path: str
) -> None:
    """Each field with every forbidden value, missing if it is required, and unknown fields. Of a
    repeated field the last one counts."""
    async with scene(server) as at:
        before = await at.state()
        good = dict(GOOD.get(path, {}))
        if "receipts" in good:
            good["receipts"] = json.dumps(at.receipts)
        for field, values in CALLS[method, path].items():
            for bad in values:
                fields = {**good, field: bad}
                body = "{" + ",".join(f'"{name}":{text}' for name, text in fields.items()) + "}"
                await at.refused(method, at.queue + path, body, (field, bad[:60]))
                twice = "{" + ",".join(f'"{n}":{t}' for n, t in good.items())
                twice += ("," if good else "") + f'"{field}":{bad},"{field}":{bad}}}'
                await at.refused(method, at.queue + path, twice, ("twice", field, bad[:60]))
        for field in good:
            lacks = {name: json.loads(text) for name, text in good.items() if name != field}
            await at.refused(method, at.queue + path, json.dumps(lacks), ("lacks", field))
        assert await at.state() == before


@pytest.mark.parametrize(("method", "path"), sorted(CALLS))
async def test_a_body_that_is_no_object_is_refused(server: Server, method: str, path: str) -> None:
    """Not JSON, not UTF-8, another type, too deep, too long."""
    async with scene(server) as at:
        before = await at.state()
        texts = ["x", "1", "null", "[]", '"x"', "{", '{"a":1,}', "{}{}", "\ufeff{}", *DEEP]
        not_utf8 = [b"\xff", b'{"\xff":1}', b'{"color":"\xed\xa0\x80"}', b'{"\\ud800":1}']
        for body in [*(text.encode() for text in texts), *not_utf8]:
            await at.refused(method, at.queue + path, body, body[:30])
        long = b"{" + b" " * limits.FRAME_BYTES_MAX
        await at.refused(method, at.queue + path, long, "a byte too long", "request_too_large")

        async def chunks() -> AsyncIterator[bytes]:
            for _ in range(33):
                yield b" " * 65_536

        answer = await at.http.request(method, at.queue + path, content=chunks())
        assert is_problem(answer, "chunks")["code"] == "request_too_large"
        assert await at.state() == before


async def test_each_message_of_a_batch_has_its_own_answer(server: Server) -> None:
    """R5: the same as over WebSocket."""
    async with scene(server) as at:
        stored = 4
        for bad, code in [case for case in MESSAGES if case[1]]:
            body = f'{{"messages":[{{"body":1}},{bad},{{"body":2}}]}}'
            answer = await at.http.post(f"{at.queue}/messages", content=body.encode())
            assert answer.status_code == 200, (bad[:60], answer.text[:200])
            first, failed, last = answer.json()["results"]
            assert failed["error"]["code"] == code, bad[:60]
            assert (first["offset"], last["offset"]) == (stored, stored + 1)
            stored += 2


NAMES = [
    "", " ", ".hidden", "-x", "_x", "a b", "%00", "%2F", "a%2Fb", "é", "%C3%A9", "%FF", "a" * 129,
    "a" * 9000, "%F0%9F%98%80", "a%0Ab", "a;b", "a%3Fb", "..%2f..", "%25",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
async def test_a_bad_name_is_refused_everywhere(server: Server, name: str) -> None:
    """Names of a queue and of a group, in every call: 4xx, and nothing is created."""
    async with scene(server) as at:
        before = await at.state()
        for method, path in (
            ("PUT", f"/v1/queues/{name}"),
            ("PATCH", f"/v1/queues/{name}"),
            ("GET", f"/v1/queues/{name}"),
            ("POST", f"/v1/queues/{name}/messages"),
            ("PUT", f"{at.queue}/groups/{name}"),
            ("PATCH", f"{at.queue}/groups/{name}"),
            ("GET", f"{at.queue}/groups/{name}"),
            ("DELETE", f"{at.queue}/groups/{name}"),
            *(("POST", f"{at.queue}/groups/{name}/{verb}")
              for verb in ("pull", "ack", "nack", "extend", "seek")),
        ):  # fmt: skip
            if not name and method == "GET" and path == "/v1/queues/":
                continue  # the list
            answer = await at.http.request(method, path, content=b"{}")
            assert answer.status_code in (400, 404, 405, 307, 431), (method, path, answer.text)
            if answer.status_code != 307:
                is_problem(answer, (method, path))
        assert await at.state() == before


async def test_what_is_not_there_is_said_to_be_not_there(server: Server) -> None:
    """Queues, groups, paths, methods."""
    async with scene(server) as at:
        before = await at.state()
        message = '{"messages":[{"body":1}]}'
        for method, path, body, code in (
            ("GET", "/v1/queues/nowhere", "", "queue_not_found"),
            ("POST", "/v1/queues/nowhere/messages", message, "queue_not_found"),
            ("PUT", "/v1/queues/nowhere/groups/g", "", "queue_not_found"),
            ("POST", "/v1/queues/nowhere/groups/g/pull", "", "queue_not_found"),
            ("GET", f"{at.queue}/groups/nobody", "", "group_not_found"),
            ("DELETE", f"{at.queue}/groups/nobody", "", "group_not_found"),
            ("POST", f"{at.queue}/groups/nobody/ack", '{"receipts":["x"]}', "group_not_found"),
            ("POST", f"{at.queue}/groups/nobody/seek", '{"to":"latest"}', "group_not_found"),
            ("GET", "/v1", "", "not_found"),
            ("GET", f"{at.queue}/messages/1", "", "not_found"),
            ("DELETE", at.queue, "", "method_not_allowed"),
            ("PATCH", "/v1/queues/nowhere", "", "queue_not_found"),
            ("PATCH", "/v1/queues/nowhere/groups/g", "", "queue_not_found"),
            ("PATCH", f"{at.queue}/groups/nobody", "", "group_not_found"),
            ("PATCH", f"{at.queue}/messages", "", "method_not_allowed"),
            ("PUT", f"{at.queue}/messages", "", "method_not_allowed"),
            ("GET", f"{at.queue}/purge", "", "method_not_allowed"),
            ("GET", f"{at.queue}/messages?group=nobody", "", "group_not_found"),
        ):
            await at.refused(method, path, body, (method, path), code)
        assert await at.state() == before


@pytest.mark.parametrize("verb", ["ack", "nack", "extend"])
async def test_receipts_forged_stale_or_of_another_queue(server: Server, verb: str) -> None:
    """R1, R21: alone they are a problem; beside a good one the answer names them."""
    async with scene(server) as at, scene(server) as other:
        mine, second = at.receipts
        middle = "B" if mine[30] != "B" else "C"
        forged = [mine[:30] + middle + mine[31:], mine[:-1], mine + "=", "", "x", other.receipts[0],
                  mine.swapcase(), "\u00e9" * 66, mine[:-1] + "\n"]  # fmt: skip
        for bad in forged:
            body = json.dumps({"receipts": [bad]})
            await at.refused("POST", f"{at.group}/{verb}", body, bad, "invalid_receipt")
        answer = await at.http.post(f"{at.group}/{verb}", json={"receipts": [mine, *forged]})
        assert answer.json() == {"settled": 1, "stale": [], "invalid": forged}
        if verb == "nack":
            again = await at.http.post(f"{at.group}/nack", json={"receipts": [mine]})
            assert again.json() == {"settled": 0, "stale": [mine]}
        done = await at.http.post(f"{at.group}/ack", json={"receipts": [second, second]})
        assert done.json()["stale"] == []
        assert (await other.http.get(other.group)).json()["lag"] == 4


async def test_settings_that_contradict_each_other_are_refused(server: Server) -> None:
    """A fixed setting does not change."""
    async with scene(server) as at:
        before = await at.state()
        name = at.queue.rpartition("/")[2]
        fixed: dict[str, object] = {"partitions": 2}
        await at.refused("PUT", at.queue, json.dumps(fixed), fixed, "settings_differ")
        await at.refused("PATCH", at.queue, json.dumps(fixed), fixed, "setting_fixed")
        wrong = {"lease_s": 50, "lease_total_s": 49}
        itself = {"dead_letter_queue": name}
        for method in ("PUT", "PATCH"):
            for settings in (wrong, itself):
                body = json.dumps(settings)
                await at.refused(method, at.queue, body, settings, "invalid_request")
            await at.refused(method, at.group, json.dumps(wrong), wrong, "invalid_request")
        assert await at.state() == before


PAGES = [
    "limit=0", "limit=-1", "limit=x", "limit=1001", "limit=", "limit=1.5", "limit=" + "9" * 5000,
    "after=.x", "after=a/b", "after=%FF",
]  # fmt: skip


@pytest.mark.parametrize("page", PAGES)
async def test_a_bad_page_is_refused(server: Server, page: str) -> None:
    """A page of the list of queues."""
    async with http_to(server) as http:
        problem = is_problem(await http.get(f"/v1/queues?{page}"), page)
        assert problem["code"] in ("invalid_request", "invalid_name")


RAW = {
    "no request": b"\x00\x01\x02\r\n\r\n",
    "not HTTP": b"HELLO\r\n\r\n",
    "another version": b"GET / HTTP/9.9\r\nHost: 127.0.0.1\r\n\r\n",
    "no host": b"GET /v1/queues HTTP/1.1\r\n\r\n",
    "another host": b"GET /v1/queues HTTP/1.1\r\nHost: example.org\r\n\r\n",
    "two hosts": b"GET /v1/queues HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.org\r\n\r\n",
    "a space in the target": b"GET /v1/ queues HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "a header without a colon": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nx\r\n\r\n",
    "a length that is no number": (
        b"POST /v1/queues/q/messages HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: x\r\n\r\n"
    ),
    "a negative length": (
        b"POST /v1/queues/q/messages HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -1\r\n\r\n"
    ),
    "a huge length": (
        b"POST /v1/queues/q/messages HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: "
        + b"9" * 30 + b"\r\n\r\n"
    ),
    "a length and chunks": (
        b"POST /v1/queues/q/messages HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    ),
    "chunks that are none": (
        b"POST /v1/queues/q/messages HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        b"Transfer-Encoding: chunked\r\n\r\nzz\r\n\r\n"
    ),
    "too long a header": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"x" * 20_000 + b"\r\n\r\n",
    "too many headers": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n" + b"X: y\r\n" * 5000 + b"\r\n",
    "too long a target": b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "a foreign origin": (
        b"GET /v1/queues HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: http://evil.org\r\n\r\n"
    ),
    "an upgrade to something else": (
        b"GET /v1/ws HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
    ),
    "a WebSocket without its key": (
        b"GET /v1/ws HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: tocsin.v1\r\n\r\n"
    ),
    "a WebSocket elsewhere": (
        b"GET /v1/queues HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\n"
        b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", RAW)
async def test_what_is_hardly_http_gets_a_4xx_or_no_answer(server: Server, what: str) -> None:
    """Never a 5xx, never silence on an open socket."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(RAW[what])
    async with asyncio.timeout(5):
        status = await reader.readline()
        assert not status or status.split()[1][:1] == b"4", status
    writer.close()
    async with http_to(server) as http:
        assert (await http.get("/readyz")).status_code == 200
