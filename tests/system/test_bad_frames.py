"""Bad input over WebSocket: every field of every frame (P12).

Each gets its documented error and changes nothing. The session goes on, unless the protocol demands
a close code of the table. The broker's log stays clean.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from loadtests.server import Server
from push import limits
from tests.system.talk import Frame, Talk, http_to, running, silent, talking

MAX = (1 << 53) - 1
DEPTH = limits.BODY_DEPTH_MAX
QUEUE = "/v1/queues/orders"
GROUP = f"{QUEUE}/groups/billing"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Broker for all of these."""
    with running(tmp_path_factory.mktemp("frames")) as server:
        yield server


@dataclass
class Scene:
    """A session that holds three deliveries of a queue of its own."""

    talk: Talk
    queue: str
    state: Any
    """() → the state that must not change."""
    place: list[int]
    """[partition, epoch, push] of the three; offsets 0 to 2."""


@asynccontextmanager
async def scene(server: Server) -> AsyncIterator[Scene]:
    """Yield a new scene."""
    queue = f"q{time.monotonic_ns()}"
    async with http_to(server) as http, talking(server, producer="p") as talk:
        path = f"/v1/queues/{queue}"
        assert (await http.put(path, json={"partitions": 1})).status_code == 201
        publish = {"queue": queue, "messages": [{"key": "k", "body": n} for n in range(3)]}
        await talk.ask(type="publish", ref=1, sequence=0, **publish)
        await talk.ask(
            type="subscribe", ref=2, subscription=1, queue=queue, group="billing", credit=5
        )
        await talk.ask(type="subscribe", ref=3, subscription=2, queue=queue, credit=5)
        push = await talk.get("push", subscription=1)

        async def state() -> object:
            described = (await http.get(path)).json()
            group = (await http.get(f"{path}/groups/billing")).json()
            return (
                described["partitions"],
                described["groups"],
                [(one["in_flight"], one["epoch"]) for one in group["partitions"]],
            )

        yield Scene(talk, queue, state, [push["partition"], push["epoch"], push["push"]])


def frames_of(scene: Scene) -> dict[str, dict[str, str]]:
    """Return one good frame of each kind, its fields as JSON texts."""
    held = json.dumps([[*scene.place, 0, 0]])
    queue = json.dumps(scene.queue)
    return {
        "publish": {
            "ref": "7", "queue": queue, "sequence": "3", "resolved": "3",
            "messages": '[{"key":"k","body":1}]',
        },
        "subscribe": {
            "ref": "7", "subscription": "9", "queue": queue, "credit": "1", "group": '"new"',
            "start": '"earliest"',
        },
        "read": {
            "ref": "7", "subscription": "9", "queue": queue, "credit": "1", "keys": '["k"]',
            "position": '{"queue_id":"x","partitions":{"0":[1,0]},"ring_epoch":1}',
        },
        "unsubscribe": {"ref": "7", "subscription": "1"},
        "credit": {"subscription": "1", "granted": "6"},
        "ack": {"ref": "7", "subscription": "1", "deliveries": held, "started": "[]"},
        "nack": {
            "ref": "7", "subscription": "1", "deliveries": held, "delay_s": "1.5",
            "reason": '"why"',
        },
        "extend": {
            "ref": "7", "subscription": "1", "deliveries": held, "started": "[]", "lease_s": "9",
        },
        "ping": {"ref": "7"},
    }  # fmt: skip


NO_INT = ['"1"', "1.5", "-1", "true", "[]", "{}", str(MAX + 1), "9" * 400, "1e400", "1e3", "NaN",
          "-Infinity", "0x1", "01", ""]  # fmt: skip
NO_NUMBER = ['"1"', "-1", "true", "[]", "{}", "1e400", "NaN", "Infinity", "9" * 400]
NO_TEXT = ["1", "true", "[]", "{}", '"\\ud800"', '"\\ud800aaaaaaaaaaaaaaa"', '"\\udc00\\ud800"',
           "x", "'k'", '"\n"', '"\\x"']  # fmt: skip
NO_LIST = ["1", "null", "true", '"x"', "{}", "[", "[1]", "[[]]", "[null]", '["\\ud800"]', "[[[]]]"]
DEEP = ["[" * 200_000, "[" * 900 + "]" * 900, '{"a":' * 20_000, '{"a":' * 700 + "1" + "}" * 700]
NO_DELIVERIES = [
    *NO_LIST, "[[0,1,1,0]]", "[[0,1,1,0,0,1]]", "[[0,1,1,-1,0]]", "[[0,1,1,0.5,1]]",
    "[[0,1,1,1,0]]", '[["0",1,1,0,0]]', "[[0,1,1,null,0]]", f"[[0,1,1,0,{MAX + 1}]]",
    "[" + ",".join(["[0,1,1,0,0]"] * 4097) + "]", "[[0,1,1" + ",0,0" * 4097 + "]]",
    "[" + ",".join(["[0,1,1" + ",0,0" * 64 + "]"] * 65) + "]",
]  # fmt: skip
NO_QUEUE = [*NO_TEXT, "null", '""', json.dumps("q" * 129), json.dumps("é" * 2000)]

FIELDS: dict[tuple[str, str], list[str]] = {
    ("publish", "ref"): [*NO_INT, "null"],
    ("publish", "queue"): NO_QUEUE,
    ("publish", "sequence"): NO_INT,
    ("publish", "resolved"): [*NO_INT, "null"],
    ("publish", "messages"): [
        *NO_LIST, "[]", "[" + ",".join(['{"body":1}'] * 1001) + "]", *DEEP,
    ],
    ("subscribe", "ref"): [*NO_INT, "null"],
    ("subscribe", "subscription"): [*NO_INT, "null", str(1 << 31), "1", "2"],
    ("subscribe", "queue"): NO_QUEUE,
    ("subscribe", "credit"): [*NO_INT, "null", "10001"],
    ("subscribe", "group"): [*NO_TEXT, '""', json.dumps("g" * 129), '".hidden"', '"a/b"', '"é"'],
    ("subscribe", "start"): [
        *NO_NUMBER, '"middle"', '{"unix_ms":-1}', '{"unix_ms":1.5}', '{"unix_ms":null}',
        f'{{"unix_ms":{MAX + 1}}}', '{"unix_ms":1,"x":1}', "5",
    ],
    ("read", "keys"): [
        *(bad for bad in NO_LIST if bad != "null"), "[]", '[""]', "[1]",
        json.dumps(["k" * 1025]), json.dumps(["k"] * 1001),
    ],
    ("read", "position"): [
        "1", "[]", '""', "{}", '{"queue_id":"x"}', '{"queue_id":1,"partitions":{}}',
        '{"queue_id":"x","partitions":{"0":[1]}}', '{"queue_id":"x","partitions":{"0":[1,2,3]}}',
        '{"queue_id":"x","partitions":{"0":[1,-1]}}', '{"queue_id":"x","partitions":{"0":"1"}}',
        '{"queue_id":"x","partitions":[]}', '{"queue_id":"x","partitions":{},"ring_epoch":-1}',
        '{"queue_id":"x","partitions":{},"more":1}', json.dumps({"queue_id": "x" * 65}),
        json.dumps({"queue_id": "x", "partitions": {str(n): [1, 1] for n in range(1025)}}),
        '{"queue_id":"x","partitions":{}}',
    ],
    ("unsubscribe", "ref"): [*NO_INT, "null"],
    ("unsubscribe", "subscription"): [*NO_INT, "null", "3", str(1 << 31)],
    ("credit", "subscription"): [*NO_INT, "null", "3"],
    ("credit", "granted"): [*NO_INT, "null", "10006"],
    ("ack", "ref"): NO_INT,
    ("ack", "subscription"): [*NO_INT, "null", "2", "3"],
    ("ack", "deliveries"): NO_DELIVERIES,
    ("ack", "started"): NO_DELIVERIES,
    ("nack", "ref"): NO_INT,
    ("nack", "subscription"): [*NO_INT, "null", "2", "3"],
    ("nack", "deliveries"): NO_DELIVERIES,
    ("nack", "delay_s"): [*NO_NUMBER, "86400.1"],
    ("nack", "reason"): [*NO_TEXT, json.dumps("r" * 1025)],
    ("extend", "ref"): NO_INT,
    ("extend", "subscription"): [*NO_INT, "null", "2", "3"],
    ("extend", "deliveries"): NO_DELIVERIES,
    ("extend", "started"): NO_DELIVERIES,
    ("extend", "lease_s"): [*NO_NUMBER, "0", "43200.1"],
    ("ping", "ref"): NO_INT,
}  # fmt: skip
CODES = {
    "invalid_json", "invalid_request", "invalid_name", "invalid_message", "queue_not_found",
    "already_subscribed", "not_subscribed", "position_unknown", "limit_reached",
}  # fmt: skip


def text(kind: str, fields: dict[str, str]) -> str:
    """Return a frame as JSON."""
    kind = "subscribe" if kind == "read" else kind
    return "{" + ",".join([f'"type":"{kind}"', *(f'"{k}":{v}' for k, v in fields.items())]) + "}"


async def refused(scene: Scene, bad: str | bytes, what: object) -> list[Frame]:
    """Send a bad message; return the one error that answers it."""
    await scene.talk.say(bad)
    answers = await scene.talk.answers()
    if not answers:  # a frame that reads the storage first is answered after the pong
        answers = [await scene.talk.get("ok", "error")]
    assert [one["type"] for one in answers] == ["error"], (what, answers)
    assert answers[0]["code"] in CODES, (what, answers)
    assert answers[0]["detail"], what
    return answers


@pytest.mark.parametrize("kind", sorted({kind for kind, _ in FIELDS}))
async def test_a_bad_field_is_refused_and_changes_nothing(server: Server, kind: str) -> None:
    """Each field in turn with every forbidden value; at most 16 undecodable messages in one
    session, because the next one would end it."""
    cases = [(field, bad) for (of, field), values in FIELDS.items() if of == kind for bad in values]
    while cases:
        now, cases = cases[:15], cases[15:]
        async with scene(server) as at:
            good = frames_of(at)[kind]
            before = await at.state()
            for field, bad in now:
                (answer,) = await refused(at, text(kind, {**good, field: bad}), (field, bad[:60]))
                is_json = answer["code"] != "invalid_json" and bad not in DEEP
                if is_json and field != "ref" and "ref" in good:
                    assert answer["ref"] == 7, (field, bad[:60], answer)
            assert await at.state() == before


@pytest.mark.parametrize("kind", sorted({kind for kind, _ in FIELDS}))
async def test_missing_unknown_and_doubled_fields(server: Server, kind: str) -> None:
    """A missing required field and an unknown field are refused. Of a repeated field the last one
    counts, so a bad one there is refused as well."""
    optional = {
        "sequence", "resolved", "start", "group", "keys", "position", "started", "delay_s",
        "reason", "lease_s",
    }  # fmt: skip
    async with scene(server) as at:
        good = frames_of(at)[kind]
        before = await at.state()
        for field in good:
            may_lack = field in optional or (field == "ref" and kind in ("ack", "nack", "extend"))
            may_lack |= (kind, field) in {("ping", "ref"), ("extend", "deliveries")}
            if not may_lack:
                await refused(at, text(kind, {k: v for k, v in good.items() if k != field}), field)
        await refused(at, text(kind, {**good, "color": "1"}), "an unknown field")
        doubled = text(kind, good)[:-1] + ',"ref":"x"}'
        await refused(at, doubled, "a doubled field")
        assert await at.state() == before


MESSAGES: list[tuple[str, str]] = [
    *((f'{{"key":{bad},"body":1}}', "") for bad in NO_TEXT),
    ('{"key":"","body":1}', "invalid_message"),
    (json.dumps({"key": "k" * 10_000, "body": 1}), "invalid_message"),
    (json.dumps({"key": "k" * 1025, "body": 1}), "invalid_message"),
    (json.dumps({"key": "é" * 513, "body": 1}), "invalid_message"),
    ('{"key":"k"}', "invalid_message"),
    ('{"key":"k","body":1,"body_base64":"AA=="}', "invalid_message"),
    *((f'{{"body_base64":{json.dumps(bad)}}}', "invalid_message")
      for bad in ("A", "AAA", "AA=", "A===", "AA==A", "A A=", "AA-_", "é===", "=", "AA==\n")),
    *((f'{{"body":1,"id":{bad}}}', "") for bad in NO_TEXT),
    ('{"body":1,"id":""}', "invalid_message"),
    (json.dumps({"body": 1, "id": "i" * 257}), "invalid_message"),
    ('{"body":1,"content_type":""}', "invalid_message"),
    (json.dumps({"body": 1, "content_type": "t" * 257}), "invalid_message"),
    *((f'{{"body":1,"ttl_s":{bad}}}', "") for bad in ('"1"', "NaN", "1e400", "true", "[]")),
    *((f'{{"body":1,"ttl_s":{bad}}}', "invalid_message") for bad in ("0", "-1", "1e308", "-0.0")),
    *((f'{{"body":1,"sent_unix_ms":{bad}}}', "") for bad in ('"1"', "1.5", "NaN", "1e9")),
    *((f'{{"body":1,"sent_unix_ms":{bad}}}', "invalid_message")
      for bad in ("-1", str(1 << 53), str(1 << 63), "9" * 400)),
    *((f'{{"body":1,"headers":{bad}}}', "") for bad in ("1", "[]", '{"a":1}', '{"a":null}', '"x"')),
    (json.dumps({"body": 1, "headers": {str(n): "" for n in range(65)}}), "invalid_message"),
    (json.dumps({"body": 1, "headers": {"n": "x" * 8192}}), "invalid_message"),
    *((f'{{"body":{bad}}}', "") for bad in (
        "", "NaN", "Infinity", "01", "1.", ".5", "+1", "'x'", '"\x01"', '"\\q"', "[1,]", '{"a"}',
        "{a:1}", "[1", "undefined", '"\\u12"', "tru",
    )),
    ('{"body":"\\ud800"}', ""),
    ('{"body":"\\ud800 and much more text behind it"}', ""),
    ('{"body":["\\udc00 and much more text behind it"]}', ""),
    ('{"body":' + "[" * (DEPTH + 1) + "]" * (DEPTH + 1) + "}", "invalid_message"),
    ('{"body":' + '{"a":' * (DEPTH + 1) + "1" + "}" * (DEPTH + 1) + "}", "invalid_message"),
    ('{"body":' + "[" * 500_000 + "]" * 500_000 + "}", ""),
    (json.dumps({"body": "x" * (262_144 - 1)}), "message_too_large"),
    (json.dumps({"body_base64": "A" * 349_528}), "message_too_large"),
    ('{"body":1,"color":1}', ""),
    ('{"body":1,"Key":"k"}', ""),
]  # fmt: skip
"""(a message, the code of its own error; empty if the whole frame is refused)."""


async def test_a_bad_message_is_refused_and_its_neighbours_are_not(server: Server) -> None:
    """R5: if a message only breaks a rule about one message, its neighbours are stored."""
    async with scene(server) as at:
        stored = 3
        for bad, code in [case for case in MESSAGES if case[1]]:
            around = f'[{{"key":"a","body":1}},{bad},{{"key":"b","body":2}}]'
            frame = f'{{"type":"publish","ref":8,"queue":"{at.queue}","messages":{around}}}'
            await at.talk.say(frame)
            answer = await at.talk.get("ok", "error", ref=8)
            assert answer["type"] == "ok", (bad[:60], answer)
            first, failed, last = answer["receipts"]
            assert not isinstance(failed, list), bad[:60]
            assert failed["code"] == code, (bad[:60], failed)
            assert (first, last) == ([0, stored], [0, stored + 1])
            stored += 2


async def test_a_frame_with_a_malformed_message_is_refused_whole(server: Server) -> None:
    """A value that is no message at all: the publish is refused, and nothing of it is stored."""
    cases = [bad for bad, code in MESSAGES if not code]
    while cases:
        now, cases = cases[:15], cases[15:]
        async with scene(server) as at:
            before = await at.state()
            for bad in now:
                around = f'[{{"key":"a","body":1}},{bad}]'
                frame = f'{{"type":"publish","ref":8,"queue":"{at.queue}","messages":{around}}}'
                await refused(at, frame, bad[:60])
            assert await at.state() == before


async def test_exactly_at_each_limit_is_fine(server: Server) -> None:
    """Bodies are delivered byte for byte (P2)."""
    at_limit: list[str] = [
        json.dumps({"key": "k" * 1024, "body": 1}),
        json.dumps({"key": "é" * 512, "body": 1}, ensure_ascii=False),
        json.dumps({"key": "k", "body": 1, "id": "i" * 256}),
        json.dumps({"key": "k", "body": 1, "content_type": "t" * 256}),
        json.dumps({"key": "k", "body": 1, "headers": {f"{n:02}": "" for n in range(64)}}),
        json.dumps({"key": "k", "body": 1, "headers": {"n": "x" * 8191}}),
        '{"key":"k","body":' + "[" * DEPTH + "]" * DEPTH + "}",
        json.dumps({"key": "k", "body": "x" * (262_144 - 2)}),
        json.dumps({"key": "k", "body_base64": "A" * 349_524 + "AA=="}),
        '{"key":"k","body":1,"ttl_s":315360000}',
        f'{{"key":"k","body":1,"sent_unix_ms":{MAX}}}',
        '{"key":"k","body":"\\ud83d\\ude00 \\u0000 \\\\ud800"}',
        '{"key":"k","body":1e999}',
        '{"key":"k","body":  {"b" : 1,  "b":2}  }',
    ]
    async with scene(server) as at:
        await at.talk.tell(type="credit", subscription=1, granted=100)
        for number, good in enumerate(at_limit):
            await at.talk.say(
                f'{{"type":"publish","ref":8,"queue":"{at.queue}","messages":[{good}]}}'
            )
            answer = await at.talk.get("ok", "error", ref=8)
            assert answer["receipts"] == [[0, 3 + number]], (good[:60], answer)
        got = 0
        while got < len(at_limit):
            push = await at.talk.get("push", subscription=1)
            assert push["messages"] == [json.loads(at_limit[got])]
            got += len(push["messages"])


async def test_a_message_and_a_frame_have_their_limits(server: Server) -> None:
    """A queue may allow a MiB. A message one byte larger is refused, and a frame one byte over its
    own limit."""
    async with http_to(server) as http, talking(server) as talk:
        await http.put("/v1/queues/large", json={"message_bytes_max": 1_048_576, "partitions": 1})
        for size, code in ((1_048_576, None), (1_048_577, "message_too_large")):
            message = {"body": "x" * (size - 2)}
            answer = await talk.ask(type="publish", ref=1, queue="large", messages=[message])
            (receipt,) = answer["receipts"]
            assert receipt == [0, 0] if code is None else receipt["code"] == code
        frame = '{"type":"ping","ref":1}'
        await talk.say(frame + " " * (limits.FRAME_BYTES_MAX - len(frame)))
        await talk.get("pong", ref=1)
        await talk.say(frame + " " * (limits.FRAME_BYTES_MAX - len(frame) + 1))
        code_given, said = await talk.ended()
        assert code_given == 4509
        assert said[-1]["code"] == "request_too_large"


async def test_two_hundred_and_fifty_six_frames_travel_in_one_message(server: Server) -> None:
    """257 do not: none of them happens, and each ref gets an error."""
    async with scene(server) as at:
        pings = [{"type": "ping", "ref": 100 + n} for n in range(257)]
        await at.talk.say(json.dumps(pings[:256]))
        assert [(await at.talk.get("pong"))["ref"] for _ in range(256)] == list(range(100, 356))
        await at.talk.say(json.dumps(pings))
        answers = await at.talk.answers()
        assert {one["code"] for one in answers} == {"invalid_request"}
        assert {one["ref"] for one in answers} >= set(range(100, 356))
        nested = [[{"type": "ping", "ref": 1}]]
        await refused(at, json.dumps(nested), "nested arrays")
        await at.talk.say(f" \n[{json.dumps(pings[0])} , {json.dumps(pings[1])}]\n")
        assert [(await at.talk.get("pong"))["ref"] for _ in range(2)] == [100, 101]
        mixed = [{"type": "ping", "ref": 5}, {"type": "ping", "ref": "x"}]
        await refused(at, json.dumps(mixed), "one bad frame of two")
        await at.talk.say("[]")
        assert await at.talk.answers() == []


async def test_what_is_no_frame_at_all_ends_the_session_at_the_seventeenth(server: Server) -> None:
    """Each is answered; P9: a client may not send such messages for ever."""
    async with talking(server) as talk:
        for bad in ("", "x", "1", "null", '"hello"', "{", "{}", '{"type":1}', '{"type":"x"}',
                    '{"type":"welcome"}', '{"type":null,"ref":3}', "[1]", "\ufeff{}", "{'a':1}",
                    "//", '{"type":"Ping"}'):  # fmt: skip
            await talk.say(bad)
            (answer,) = await talk.answers()
            assert answer["code"] in ("invalid_json", "invalid_request"), bad
        await talk.say("the seventeenth")
        code, said = await talk.ended()
        assert (code, said[-1]["code"]) == (4500, "invalid_json")


async def test_text_that_is_not_utf8_ends_the_session(server: Server) -> None:
    """The WebSocket protocol demands 1007, wherever in a frame the text is."""
    for bad in (b'{"type":"ping","ref":"\xff"}', b"\xff", b'{"type":"publish","ref":1,"queue":"q",'
                b'"messages":[{"body":"\xc3\x28"}]}', b'{"type":"ping\xed\xa0\x80"}'):  # fmt: skip
        async with talking(server) as talk:
            await talk.say(bad)
            assert (await talk.ended())[0] == 1007


async def test_hello_comes_first_and_once(server: Server) -> None:
    """Any other frame before it, or another one after it: 4502; a malformed one: 4500."""
    for first in (
        '{"type":"ping"}',
        '{"type":"publish","ref":1,"queue":"q","messages":[{"body":1}]}',
        '[{"type":"ping"},{"type":"hello"}]',
    ):
        async with silent(server) as talk:
            await talk.say(first)
            assert (await talk.ended())[0] == 4502
    async with talking(server) as talk:
        await talk.say('{"type":"hello"}')
        assert (await talk.ended())[0] == 4502
    for bad in (
        *(f'{{"type":"hello","token":{bad}}}' for bad in NO_TEXT),
        *(f'{{"type":"hello","producer":{bad}}}' for bad in
          [*NO_TEXT, '""', json.dumps("p" * 129), '".p"', '"a b"', '"é"']),
        *(f'{{"type":"hello","client":{bad}}}' for bad in [*NO_TEXT, json.dumps("c" * 129)]),
        *(f'{{"type":"hello","session":{bad}}}' for bad in [*NO_TEXT, json.dumps("s" * 65)]),
        '{"type":"hello","color":1}', "", "{}", "[", "null",
    ):  # fmt: skip
        async with silent(server) as talk:
            await talk.say(bad)
            code, said = await talk.ended()
            assert code == 4500, bad
            assert said[-1]["code"] in ("invalid_json", "invalid_request", "invalid_name"), bad


async def test_binary_messages_end_the_session(server: Server) -> None:
    """This subprotocol has no binary messages."""
    async with talking(server) as talk:
        await talk.connection.send(b'{"type":"ping","ref":1}')
        code, said = await talk.ended()
        assert (code, said[-1]["code"]) == (4500, "invalid_request")


async def test_deliveries_that_were_never_given_are_not_settled(server: Server) -> None:
    """R10, R21: of pushes never sent, beyond the certified end, under other epochs, of other
    partitions, of the whole number line. The answer names exactly the untouched ones."""
    async with scene(server) as at:
        partition, epoch, push = at.place
        before = await at.state()
        for invented in (
            [partition, epoch, push + 1, 0, 0],
            [partition, epoch, push, 3, MAX],
            [partition, epoch, 0, 0, MAX],
            [partition, epoch + 1, push, 0, 2],
            [partition + 1, epoch, push, 0, 2],
            [MAX, MAX, MAX, MAX, MAX],
        ):
            for kind in ("ack", "nack", "extend"):
                answer = await at.talk.ask(type=kind, ref=9, subscription=1, deliveries=[invented])
                assert answer["code"] == "not_delivered", (kind, invented, answer)
                assert answer["deliveries"] == [invented]
                assert (answer["settled"], answer["stale"]) == (0, [])
                await at.talk.tell(type=kind, subscription=1, deliveries=[invented])
                (said,) = await at.talk.answers()
                assert said["code"] == "not_delivered"
        old = [partition, epoch - 1, push, 0, 2]
        answer = await at.talk.ask(type="ack", ref=9, subscription=1, deliveries=[old])
        assert (answer["type"], answer["settled"], answer["stale"]) == ("ok", 0, [old])
        assert await at.state() == before


async def test_ranges_as_wide_as_numbers_are_hold_nobody_up(server: Server) -> None:
    """P9: a frame has the whole number line four thousand times, repeatedly; every other session is
    answered meanwhile."""
    async with scene(server) as at, talking(server) as other:
        partition, epoch, push = at.place
        wide = [partition, epoch, push, *([0, MAX] * 4096)]
        frames = [
            {"type": kind, "ref": ref, "subscription": 1, "deliveries": [wide]}
            for ref, kind in enumerate(["extend", "ack", "nack", "ack"] * 2)
        ]
        frames.append(
            {"type": "extend", "ref": 99, "subscription": 1, "deliveries": [], "started": [wide]}
        )
        began = time.monotonic()
        for frame in frames:
            await at.talk.tell(**frame)
            await other.ask(type="ping", ref=1)
        await at.talk.get("ok", "error", ref=99)
        assert time.monotonic() - began < 10


async def test_odd_ranges_settle_what_they_name_once(server: Server) -> None:
    """R21: overlapping, adjacent, repeated, backwards in order: each offset counts once."""
    async with scene(server) as at:
        deliveries = [[*at.place, 2, 2, 0, 1, 1, 2], [*at.place, 0, 2]]
        answer = await at.talk.ask(type="ack", ref=9, subscription=1, deliveries=deliveries)
        assert answer["type"] == "ok"
        assert answer["stale"] == []
        _, (group,), in_flight = await at.state()
        assert group["lag"] == 0
        assert in_flight == [(0, at.place[1])]


async def test_subscribing_twice_is_refused_and_the_first_goes_on(server: Server) -> None:
    """Also at once, in one message, and beyond the number of subscriptions of a session."""
    async with scene(server) as at:
        again = {"type": "subscribe", "queue": at.queue, "credit": 1, "group": "other"}
        await at.talk.say(
            json.dumps(
                [{**again, "ref": 10, "subscription": 5}, {**again, "ref": 11, "subscription": 5}]
            )
        )
        assert (await at.talk.get("ok", "error", ref=11))["code"] == "already_subscribed"
        assert (await at.talk.get("ok", "error", ref=10))["type"] == "ok"
        readers = [
            {"type": "subscribe", "ref": 1000 + n, "subscription": 1000 + n, "queue": at.queue,
             "credit": 1}
            for n in range(254)
        ]  # fmt: skip
        await at.talk.say(json.dumps(readers[:128]), json.dumps(readers[128:]))
        answers = [await at.talk.get("ok", "error", ref=1000 + n) for n in range(254)]
        assert [one["type"] for one in answers] == ["ok"] * 253 + ["error"]
        assert answers[-1]["code"] == "limit_reached"
        answer = await at.talk.ask(type="unsubscribe", ref=12, subscription=1000)
        assert answer["type"] == "ok"
        answer = await at.talk.ask(type="unsubscribe", ref=13, subscription=1000)
        assert answer["code"] == "not_subscribed"


async def test_frames_of_a_subscription_that_is_being_opened_are_refused(server: Server) -> None:
    """Before its `ok` it may not be named; the subscribe itself succeeds."""
    async with scene(server) as at:
        early = [
            {"type": "subscribe", "ref": 20, "subscription": 6, "queue": at.queue, "credit": 1,
             "group": "another"},
            {"type": "ack", "ref": 21, "subscription": 6, "deliveries": [[0, 1, 1, 0, 0]]},
            {"type": "credit", "subscription": 6, "granted": 9},
            {"type": "unsubscribe", "ref": 22, "subscription": 6},
        ]  # fmt: skip
        await at.talk.say(json.dumps(early))
        assert (await at.talk.get("ok", "error", ref=21))["code"] == "not_subscribed"
        assert (await at.talk.get("ok", "error", ref=22))["code"] == "not_subscribed"
        assert (await at.talk.get("ok", "error", ref=20))["type"] == "ok"


async def test_a_credit_that_is_refused_leaves_the_subscription_alive(server: Server) -> None:
    """R25: too much at once is refused, and the next grant within the bound counts."""
    async with scene(server) as at:
        await at.talk.tell(type="credit", subscription=1, granted=10_004)
        (answer,) = await at.talk.answers()
        assert answer["code"] == "limit_reached"
        for number in range(4):
            message = {"key": f"k{number}", "body": number}
            await at.talk.ask(type="publish", ref=1, queue=at.queue, messages=[message])
        pushed = 0
        while pushed < 2:  # the five that were granted first, of which three exist
            pushed += len((await at.talk.get("push", subscription=1))["messages"])
        await at.talk.tell(type="credit", subscription=1, granted=7)
        while pushed < 4:
            pushed += len((await at.talk.get("push", subscription=1))["messages"])
        assert await at.talk.answers() == []


async def test_unknown_queues_are_named_as_such(server: Server) -> None:
    """Publishing to one creates none."""
    async with talking(server) as talk, http_to(server) as http:
        message = [{"body": 1}]
        for queue in ("nowhere", "..", "a/b", "%00", "\u2028", "a" * 128):
            answer = await talk.ask(type="publish", ref=1, queue=queue, messages=message)
            assert answer["code"] == "queue_not_found"
            for more in ({"group": "g"}, {}):
                answer = await talk.ask(
                    type="subscribe", ref=2, subscription=1, queue=queue, credit=1, **more
                )
                assert answer["code"] == "queue_not_found"
        assert (await http.get("/v1/queues/nowhere")).status_code == 404


async def test_sequences_need_a_producer_and_sense(server: Server) -> None:
    """R6: without a producer, below resolved, too far ahead: refused, each with its code."""
    async with scene(server) as at, talking(server) as nobody:
        publish = {"type": "publish", "ref": 1, "queue": at.queue, "messages": [{"body": 1}]}
        assert (await nobody.ask(**publish, sequence=1))["code"] == "invalid_request"
        for numbers, code in (
            ({"sequence": 5, "resolved": 6}, "sequence_too_old"),
            ({"sequence": 1, "resolved": 2}, "sequence_too_old"),
            ({"sequence": 10_002, "resolved": 2}, "too_many_in_flight"),
            ({"sequence": MAX, "resolved": 0}, "too_many_in_flight"),
        ):
            (receipt,) = (await at.talk.ask(**publish, **numbers))["receipts"]
            assert receipt["code"] == code, numbers
        (receipt,) = (await at.talk.ask(**publish, sequence=MAX, resolved=MAX))["receipts"]
        assert receipt == [0, 3]


async def test_a_session_that_floods_frames_is_served_and_others_too(server: Server) -> None:
    """P9: thousands of frames without reading one answer; then all answers have come, in order."""
    async with talking(server) as talk, talking(server) as other:
        count = 100
        for first in range(count):
            pings = [{"type": "ping", "ref": first * 256 + n} for n in range(256)]
            await talk.say(json.dumps(pings))
        async with asyncio.timeout(5):
            await other.ask(type="ping", ref=1)
        refs = [(await talk.get("pong"))["ref"] for _ in range(256)]
        assert refs == list(range(256))
