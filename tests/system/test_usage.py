"""Usage and audit of a running broker, against the acts of its clients and its own counters."""

import asyncio
import json
import re
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx2
from click.testing import CliRunner

from gateway.accounting import audit as audit_trail
from gateway.accounting.journal import files_of, lines_of
from gateway.cli.journal import read_usage, sum_by
from gateway.cli.serve import admin
from loadtests.server import Server
from tests.histories.house import offsets_of
from tests.system.talk import running, silent, talking

TOKEN = "canary-token-3b1f"
HEADERS = {"Authorization": f"Bearer {TOKEN}"}
CANARY = re.compile(rb"canary", re.IGNORECASE)
PATH = "/v1/queues/orders"


def usage_of(server: Server, by: str = "principal") -> dict[str | None, dict[str, Any]]:
    """Return usage by queue, of the operator; acts of unknown clients are under "nobody"."""
    rows = sum_by(read_usage(server.data_dir, 0), by)
    return {row["queue"] if row["principal"] else "nobody": row for row in rows}


def acts_of(server: Server) -> list[dict[str, Any]]:
    return audit_trail.read(server.data_dir)


async def over_http(http: httpx2.AsyncClient) -> int:
    """Make 10 requests of this queue, 3 of none; return the bytes of two pulled messages."""
    assert (await http.put(PATH, json={"partitions": 1, "lease_s": 5})).status_code == 201
    assert (await http.patch(PATH, json={"lease_s": 9})).status_code == 200
    assert (await http.put(PATH, json={"partitions": 2})).status_code == 409
    for name in ("pulled", "pushed"):
        assert (await http.put(f"{PATH}/groups/{name}", json={})).status_code == 201
    await http.post(f"{PATH}/messages", json={"messages": [canary(0), canary(1)]})
    bad = canary(2) | {"key": "canary" * 300}
    answer = await http.post(f"{PATH}/messages", json={"messages": [bad, canary(0), canary(3)]})
    assert [("error" in one, one.get("duplicate")) for one in answer.json()["results"]] == [
        (True, None), (False, True), (False, False),
    ]  # fmt: skip
    assert (await http.post(f"{PATH}/messages", content=b'{"canary')).status_code == 400
    pull = {"messages_max": 2, "wait_s": 5}
    pulled = await http.post(f"{PATH}/groups/pulled/pull", json=pull)
    receipts = [message["receipt"] for message in pulled.json()["messages"]]
    assert len(receipts) == 2
    await http.post(f"{PATH}/groups/pulled/ack", json={"receipts": receipts})
    assert (await http.get("/v1/queues/canary-of-nobody")).status_code == 404
    assert (await http.get("/v1/queues")).status_code == 200
    assert (await http.get("/canary")).status_code == 404
    return len(pulled.content) - len(b'{"messages":[]}') - 1


def canary(n: int) -> dict[str, Any]:
    """Return a message of which no line may hold anything."""
    return {
        "key": f"canary-key-{n}", "id": f"canary-id-{n}", "body": f"canary-body-{n}",
        "headers": {"canary-header": "canary-value"}, "content_type": "text/canary",
    }  # fmt: skip


async def over_websocket(server: Server) -> None:
    """Send 2 frames of this queue, 4 of none, and a hello; four messages come, one of them
    twice."""
    async with talking(server, token=TOKEN, client="canary-client") as talk:  # hello
        await talk.ask(type="publish", ref=1, queue="orders", messages=[canary(4)])
        await talk.ask(type="publish", ref=2, queue="canary-missing", messages=[canary(5)])
        more = {"queue": "orders", "group": "pushed", "credit": 0}
        await talk.ask(type="subscribe", ref=3, subscription=1, **more)
        await talk.tell(type="credit", subscription=1, granted=10)
        pushes = [await talk.get("push")]
        while sum(len(push["messages"]) for push in pushes) < 4:
            pushes.append(await talk.get("push"))
        places = [
            [push["partition"], push["epoch"], push["push"], offset, offset]
            for push in pushes
            for offset in offsets_of(push)
        ]
        back, done = places[:1], places[1:]
        await talk.tell(type="ack", subscription=1, deliveries=done)
        why = "canary-reason"
        await talk.ask(type="nack", ref=4, subscription=1, deliveries=back, delay_s=0, reason=why)
        assert (await talk.get("push", attempt=2))["offset"] == back[0][3]


async def over_long_poll(http: httpx2.AsyncClient) -> None:
    """Make 4 requests of no queue, with 1 frame of it and 2 of none; a reader receives four
    messages."""
    hello = {"type": "hello", "client": "canary-poll"}
    more = {"queue": "orders", "start": "earliest", "credit": 10}
    subscribe = {"type": "subscribe", "ref": 1, "subscription": 1, **more}
    opened = (await http.post("/v1/sessions", json=[hello, subscribe])).json()
    frames = list(opened["frames"])
    path, batch, requests = f"/v1/sessions/{opened['session']}", opened["batch"], 1
    refused = {"type": "ack", "subscription": 7, "deliveries": []}
    await http.post(f"{path}/frames", params={"number": 1}, json=refused)
    requests += 1
    while sum(len(frame.get("messages", ())) for frame in frames) < 4 or not any(
        frame["type"] == "error" for frame in frames
    ):
        answer = await http.get(f"{path}/frames", params={"after": batch, "wait_s": 5})
        frames += answer.json()["frames"]
        batch, requests = answer.json()["batch"], requests + 1
    await http.delete(path)
    http.requests = requests + 1  # type: ignore[attr-defined]


async def strangers(server: Server) -> None:
    """Make two requests and one session with bad tokens."""
    async with httpx2.AsyncClient(base_url=server.url, trust_env=False) as http:
        for _ in range(2):
            bad = {"Authorization": "Bearer canary-wrong-token"}
            assert (await http.get("/v1/queues", headers=bad)).status_code == 401
    async with silent(server) as talk:
        await talk.tell(type="hello", token="canary-other-token")
        assert (await talk.ended())[0] == 4401


async def test_sums_are_what_was_done_and_nothing_that_is_secret_is_written(
    tmp_path: Path,
) -> None:
    begun = time.time()
    with running(tmp_path, "--token", TOKEN) as server:
        async with httpx2.AsyncClient(
            base_url=server.url, trust_env=False, timeout=30, headers=HEADERS
        ) as http:
            pulled_bytes = await over_http(http)
            await over_websocket(server)
            await over_long_poll(http)
            polls: int = http.requests  # type: ignore[attr-defined]
            await strangers(server)
            counted = (await http.get(PATH)).json()["counters"]
            assert (await http.post(f"{PATH}/purge", json={"all": True})).status_code == 200
            assert (await http.delete(f"{PATH}/groups/pulled")).status_code == 200
            assert (await http.delete(f"{PATH}/groups/pulled")).status_code == 404
        caches = json.loads(run("status", server, "--json"))["caches"]
        made = json.loads(
            run("token", server, "create", "alice", "--right", "read:orders", "--json")
        )
        run("token", server, "revoke", made["token_id"])
        run("master-key", server, "rotate", "--json")
        deleted = CliRunner().invoke(admin, ["delete-queue", "orders", "--yes", *where(server)])
        assert deleted.exit_code == 0
    check_usage(server, counted, pulled_bytes, polls, time.time() - begun)
    check_acts(server)
    written = [
        *files_of(server.data_dir / "usage", "usage"), *files_of(server.data_dir / "audit", "audit")
    ]  # fmt: skip
    assert len(written) >= 2
    for path in (*written, server.log_path):
        assert not CANARY.search(path.read_bytes()), path
        assert made["token"].encode() not in path.read_bytes()
    assert caches["places_of_keys"] == {"hits": 1, "misses": 4, "rate": 0.2}
    assert caches["framed_messages"]["misses"] > 0
    sys.stdout.write(f"\nhit rates: {caches}\n")


def check_usage(
    server: Server, counted: dict[str, int], pulled_bytes: int, polls: int, lasted_s: float
) -> None:
    """Check each line against literal numbers, and the broker's own."""
    rows = usage_of(server)
    orders, none, nobody = rows["orders"], rows[None], rows["nobody"]
    assert set(rows) == {"orders", None, "nobody"}
    assert (orders["tenant"], orders["principal"]) == ("default", "operator")
    assert orders["messages_in"] == counted["published"] == 4
    assert orders["bytes_in"] == counted["published_bytes"]
    assert orders["duplicates"] == counted["duplicates"] == 1
    assert counted["refused"] == 1
    assert orders["refusals_by_code"] == {
        "invalid_message": 1, "settings_differ": 1, "invalid_json": 1, "group_not_found": 1,
    }  # fmt: skip
    assert orders["refusals"] == 4
    # Two pulled; four pushed and one of these again; four read.
    assert (orders["messages_out"], orders["redeliveries"]) == (2 + 5 + 4, 1)
    again = orders["bytes_in"] // 4  # all are of one length
    assert orders["bytes_out"] == pulled_bytes + 2 * orders["bytes_in"] + again
    assert orders["requests"] == 10 + 4 + (2 + 1)  # HTTP, then after it, then frames
    assert none["requests"] == 3 + polls + (4 + 2)  # the hello came before its client was known
    assert none["refusals_by_code"] == {"queue_not_found": 2, "not_found": 1, "not_subscribed": 1}
    assert nobody["refusals_by_code"] == {"unauthorized": 3}
    assert 0 < none["websocket_s"] < lasted_s
    assert 0 < none["long_poll_s"] < lasted_s
    assert orders["websocket_s"] == orders["long_poll_s"] == 0


def check_acts(server: Server) -> None:
    """Check that each act has its line, refused ones too, in order."""
    acts = acts_of(server)
    told = [(one["action"], one["outcome"]) for one in acts if one["action"] != "access"]
    assert told == [
        ("broker.start", "ok"), ("queue.put", "ok"), ("queue.change", "ok"),
        ("queue.put", "settings_differ"), ("group.put", "ok"), ("group.put", "ok"),
        ("queue.purge", "begun"), ("queue.purge", "ok"), ("group.delete", "begun"),
        ("group.delete", "ok"), ("group.delete", "group_not_found"), ("token.create", "ok"),
        ("token.revoke", "ok"), ("master_key.rotate", "ok"), ("queue.delete", "begun"),
        ("queue.delete", "ok"), ("broker.stop", "ok"),
    ]  # fmt: skip
    of_queue = [one["details"] for one in acts if one["action"] in ("queue.put", "queue.change")]
    assert of_queue == [
        {"created": True, "changed": {"partitions": [16, 1], "lease_s": [30.0, 5.0]}},
        {"changed": {"lease_s": [5.0, 9.0]}}, {"asked": {"partitions": 2}},
    ]  # fmt: skip
    by = {one["action"]: one for one in acts}
    assert (by["group.put"]["principal"], by["group.put"]["address"]) == ("operator", "127.0.0.1")
    assert (by["queue.delete"]["principal"], by["queue.delete"]["credential"]) == (
        "administrator", "admin socket",
    )  # fmt: skip
    access: Counter[str] = Counter()
    for one in acts:
        if one["action"] == "access":
            access[one["outcome"]] += one["count"]
    assert access["unauthorized"] == 3
    assert audit_trail.verify(server.data_dir).findings == []


def where(server: Server) -> list[str]:
    return ["--data-dir", str(server.data_dir)]


def run(command: str, server: Server, *more: str) -> str:
    """Return the output of `tocsin admin`."""
    done = CliRunner().invoke(admin, [command, *more, *where(server)])
    assert done.exit_code == 0, done.output
    return done.stdout


TORN = b'{"schema":1,"minute_un'


def tear(server: Server) -> None:
    """Write a line as a kill in the middle of it would leave it."""
    folder = server.data_dir / "usage"
    folder.mkdir(exist_ok=True)
    hour = time.strftime("%Y%m%dT%H", time.gmtime())
    (folder / f"usage-{hour}-000001.jsonl").write_bytes(TORN)


async def test_a_kill_costs_the_minute_and_a_stop_nothing(tmp_path: Path) -> None:
    """The chain continues through a kill -9, and usage over a restart and a line cut short."""
    server = Server(tmp_path / "data")
    try:
        for end in (server.kill, server.stop):
            server.spawn()
            server.wait_ready()
            async with httpx2.AsyncClient(base_url=server.url, trust_env=False) as http:
                await http.put(PATH, json={"partitions": 1})
                await http.post(f"{PATH}/messages", json={"messages": [{"body": 1}] * 3})
            end()
            if end == server.kill:
                await asyncio.to_thread(tear, server)
    finally:
        server.kill()
    rows = usage_of(server)
    assert (rows["orders"]["messages_in"], rows["orders"]["requests"]) == (3, 2)
    torn = [
        line for path in files_of(server.data_dir / "usage", "usage") for line in lines_of(path)
    ]
    assert torn.count(TORN) == 1
    told = [one["action"] for one in acts_of(server) if one["action"] != "access"]
    assert told == ["broker.start", "queue.put", "broker.start", "queue.put", "broker.stop"]
    assert audit_trail.verify(server.data_dir).findings == []
    text = run("usage", server)
    assert re.search(r"default +anybody +orders +2 +3 +\d+ B +0 +0 B +0 +0:00:00  █+", text)
    for by in ("queue", "tenant", "minute"):
        shown = [json.loads(line) for line in run("usage", server, "--by", by, "--json").split()]
        assert sum(row["messages_in"] for row in shown) == 3
    assert "There is no usage" in run("usage", server, "--since", "2999-01-01")
