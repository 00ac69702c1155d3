"""docs/protocol.md against a running broker: what it shows is what a client sends and gets."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Subprotocol

from gateway.broker import Broker
from gateway.config import Config
from gateway.server import Server
from tests.layout.test_docs import examples

Frame = dict[str, Any]


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    """A broker of its own on a free port."""

    async def build(config: Config, on_fatal: Any) -> Broker:
        return await Broker.open(config, on_fatal=on_fatal)

    config = Config(port=0, data_dir=tmp_path, free_bytes_reserve=0)
    server = await Server.open(config, build, on_fatal=pytest.fail)
    yield server
    await server.stop()


@pytest.fixture
async def http(server: Server) -> AsyncIterator[httpx2.AsyncClient]:
    """An HTTP client of the broker."""
    async with httpx2.AsyncClient(base_url=server.url, trust_env=False) as client:
        yield client


class Socket:
    """A WebSocket that keeps frames until they are asked for."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._kept: list[Frame] = []

    async def ask(self, frame: Frame) -> Frame:
        """Send a frame and return its answer."""
        await self._connection.send(json.dumps(frame))
        if frame["type"] == "hello":
            return await self.get("welcome")
        return await self.get("ok", "error", "pong", ref=frame["ref"])

    async def get(self, *kinds: str, **fields: object) -> Frame:
        """Return the next frame of these kinds with these fields."""
        async with asyncio.timeout(5):
            while True:
                for frame in self._kept:
                    if frame["type"] in kinds and fields.items() <= frame.items():
                        self._kept.remove(frame)
                        return frame
                received = json.loads(await self._connection.recv())
                self._kept += received if isinstance(received, list) else [received]


@pytest.fixture
async def socket(server: Server) -> AsyncIterator[Socket]:
    """A WebSocket to the broker, before `hello`."""
    url = server.url.replace("http", "ws", 1) + "/v1/ws"
    async with connect(url, subprotocols=[Subprotocol("tocsin.v1")], proxy=None) as connection:
        yield Socket(connection)


def shown(kind: str, **fields: object) -> list[Frame]:
    """The examples of docs/protocol.md that have these fields, parsed."""
    parsed = [json.loads(example.body) for example in examples(kind)]
    return [frame for frame in parsed if fields.items() <= frame.items()]


async def test_a_session_goes_as_the_protocol_shows(
    http: httpx2.AsyncClient, socket: Socket
) -> None:
    """The client's examples in their order; each answer has the fields of its example."""
    assert (await http.put("/v1/queues/orders", json={"partitions": 1})).status_code == 201

    (hello,) = shown("client", type="hello")
    assert (await socket.ask(hello)).keys() == shown("broker", type="welcome")[0].keys()

    (publish,) = shown("client", type="publish")
    answer = await socket.ask(publish)
    (example,) = shown("broker", type="ok", ref=publish["ref"])
    assert answer.keys() == example.keys()
    assert answer["receipts"] == [[0, 0], [0, 1]]
    assert answer["durability"] == example["durability"]
    again = await socket.ask({**publish, "ref": 101})
    assert again["receipts"] == [[0, 0, True], [0, 1, True]]  # P4

    subscribe = shown("client", type="subscribe", group="billing")[0]
    answer = await socket.ask(subscribe)
    (example,) = shown("broker", type="ok", ref=subscribe["ref"])
    assert {**answer, "queue_id": example["queue_id"]} == example
    push = await socket.get("push", subscription=subscribe["subscription"])
    example = next(frame for frame in shown("broker", type="push") if "epoch" in frame)
    assert push.keys() == example.keys() - {"attempt"}
    assert push["messages"] == publish["messages"]  # P2

    place = [push["partition"], push["epoch"], push["push"]]
    (first, *_) = shown("client", type="ack", ref=6)
    ack = {**first, "deliveries": [[*place, 0, 0]], "started": []}
    answer = await socket.ask(ack)
    assert answer.keys() == shown("broker", type="ok", ref=6)[0].keys()
    assert (answer["settled"], answer["stale"]) == (1, [])
    invented = await socket.ask({**ack, "ref": 102, "deliveries": [[*place[:2], 99, 5, 5]]})
    example = next(frame for frame in shown("broker", type="error") if "deliveries" in frame)
    assert invented.keys() == example.keys() | {"ref"}
    assert invented["code"] == example["code"]

    nack, reject = shown("client", type="nack")
    assert reject["reject"]
    await socket.ask({**nack, "ref": 103, "deliveries": [[*place, 1, 1]], "delay_s": 0})
    push = await socket.get("push", subscription=subscribe["subscription"])
    assert push["attempt"] == 2

    (ping,) = shown("client", type="ping")
    answer, example = await socket.ask(ping), shown("broker", type="pong")[0]
    assert abs(answer["clock_unix_us"] / 1e6 - time.time()) < 10  # this machine's clock
    assert {**answer, "clock_unix_us": example["clock_unix_us"]} == example
    (unsubscribe,) = shown("client", type="unsubscribe")
    assert (await socket.ask(unsubscribe))["type"] == "ok"


async def test_a_reader_receives_the_frames_that_the_protocol_shows(
    http: httpx2.AsyncClient, socket: Socket
) -> None:
    """Positions and verdicts (P10)."""
    await http.put("/v1/queues/orders", json={"partitions": 1, "retention_s": 3600})
    body = {"messages": [{"key": "user-7", "body": n} for n in range(3)]}
    await http.post("/v1/queues/orders/messages", json=body)
    await socket.ask(shown("client", type="hello")[0])

    by_key = next(frame for frame in shown("client", type="subscribe") if "keys" in frame)
    earliest = {**by_key, "start": "earliest"}
    del earliest["position"]
    answer = await socket.ask(earliest)
    (example,) = shown("broker", type="ok", ref=by_key["ref"])
    assert answer.keys() == example.keys()
    push = await socket.get("push", subscription=by_key["subscription"])
    examples_of_readers = shown("broker", type="push", subscription=2)
    assert push.keys() in [frame.keys() for frame in examples_of_readers]
    assert push["offsets"] == [0, 1, 2]

    position = {**by_key["position"], "queue_id": answer["queue_id"], "partitions": {"0": [1, 2]}}
    resumed = {**by_key, "ref": 104, "subscription": 12, "position": position}
    (verdict,) = (await socket.ask(resumed))["positions"]
    assert verdict == {**example["positions"][0], "partition": 0, "from": 2}

    other = {**resumed, "ref": 105, "subscription": 13}
    other["position"] = {**position, "queue_id": "of-another-time"}
    assert (await socket.ask(other))["code"] == "position_unknown"  # R1

    unknown = {**resumed, "ref": 106, "subscription": 14}
    unknown["position"] = {**position, "partitions": {"0": [9, 2]}}
    (verdict,) = (await socket.ask(unknown))["positions"]
    assert verdict.keys() == example["positions"][2].keys()
    assert verdict["verdict"] == "unknown"  # R2


async def test_settings_change_as_the_protocol_shows(http: httpx2.AsyncClient) -> None:
    requests = {one.name: json.loads(one.body) for one in examples("request")}
    answers = [(one.name, json.loads(one.body)) for one in examples("answer")]
    problems = {body["code"]: body for name, body in answers if name == "Problem"}
    (change,) = [body for name, body in answers if name == "SettingChange"]
    queue = "/v1/queues/changing"
    assert (await http.put(queue, json={"retention_s": 604_800})).status_code == 201
    differs = (await http.put(queue, json={"retention_s": 0})).json()
    assert differs.keys() == problems["settings_differ"].keys()
    assert differs["differences"] == problems["settings_differ"]["differences"]
    for number in range(3):
        await http.post(f"{queue}/messages", json={"messages": [{"body": number}]})
    alerts = {"behind": {"when": "lag", "above": 900, "queue": "ops"}}
    changing = {**requests["QueueChange"], "alerts": alerts}
    changed = (await http.patch(queue, json=changing)).json()["changes"]
    assert changed[0] == change
    again = await http.patch(queue, json=requests["QueueChange"])
    assert [one["name"] for one in again.json()["changes"]] == []
    assert (await http.put(f"{queue}/groups/late", json={"start": "latest"})).status_code == 201
    would = (await http.patch(queue, json={"retention_s": 0})).json()
    assert would.keys() == problems["would_delete"].keys()
    confirmed = await http.patch(queue, json={"retention_s": 0}, params={"deletes_max": 3})
    assert confirmed.json()["deleted"] == would["deleted"] == 3


async def test_http_goes_as_the_protocol_shows(http: httpx2.AsyncClient) -> None:
    """Each request example, and the fields of each answer example."""
    requests = {one.name: json.loads(one.body) for one in examples("request")}
    answers = {one.name: json.loads(one.body) for one in examples("answer")}
    queue, group = "/v1/queues/orders", "/v1/queues/orders/groups/billing"

    problem = await http.get(queue)
    assert problem.headers["content-type"] == "application/problem+json"
    problems = [json.loads(one.body) for one in examples("answer") if one.name == "Problem"]
    plain = next(one for one in problems if one["code"] == "queue_not_found")
    assert problem.json().keys() == plain.keys()
    assert (await http.put(queue, json=requests["QueueSettings"])).status_code == 201
    assert (await http.put(group, json=requests["GroupRequest"])).status_code == 201
    done = (await http.post(f"{queue}/messages", json=requests["PublishRequest"])).json()
    assert done.keys() == answers["PublishAnswer"].keys()
    assert done["results"][0].keys() == answers["PublishAnswer"]["results"][0].keys()

    pulled = (await http.post(f"{group}/pull", json=requests["PullRequest"])).json()
    (message, *_) = pulled["messages"]
    example = answers["PullAnswer"]["messages"][0]
    assert message.keys() - {"key"} == example.keys() - {"key"}
    for name in ("ExtendRequest", "AckRequest"):
        verb = name.removesuffix("Request").lower()
        body = {**requests[name], "receipts": [message["receipt"]]}
        settled = (await http.post(f"{group}/{verb}", json=body)).json()
        assert settled == answers["SettleAnswer"], verb
    forged = await http.post(f"{group}/nack", json=requests["NackRequest"])
    assert forged.json()["code"] == "invalid_receipt"
    sought = await http.post(f"{group}/seek", json=requests["SeekRequest"])
    assert sought.status_code == 200
    gone = await http.delete(group)
    assert (gone.status_code, gone.json().keys()) == (200, answers["DeletedGroup"].keys())
