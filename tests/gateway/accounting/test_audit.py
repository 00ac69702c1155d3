"""The audit trail: what has a line and when, what breaks the chain, floods and full disks."""

import asyncio
import json
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gateway.accounting import audit as audit_trail
from gateway.accounting.audit import AccessCounts, Actor, AuditEntry, AuditTrail, verify
from gateway.accounting.journal import Journal, files_of
from gateway.accounting.writer import AccountingWriter
from gateway.auth.auth import Authenticator
from gateway.cli.serve import admin
from gateway.models import Admission
from gateway.rest.app import OPERATIONS, Application
from gateway.wire.frames import Subscribe
from metadata.catalog import ANYBODY, Principal
from push import limits
from push.errors import Refused
from push.ring import key_hash
from tests.gateway.asgi import client_of
from tests.histories.house import House, Session, subscriptions_of

NOON = 1_763_726_400.0
ALICE = Actor.of(Admission(Principal("alice", "acme"), credential="token 7"), "192.0.2.7")


def entry(n: int = 0) -> AuditEntry:
    return AuditEntry(unix_ms=int(NOON * 1000) + n, action="queue.put", outcome="ok", queue=f"q{n}")


def trail_of(data_dir: Path, file_bytes_max: int = 1 << 20) -> AuditTrail:
    return AuditTrail(
        Journal(data_dir / "audit", "audit", bytes_max=1 << 24, file_bytes_max=file_bytes_max)
    )


def write(data_dir: Path, count: int, file_bytes_max: int = 1 << 20) -> None:
    trail = trail_of(data_dir, file_bytes_max)
    for n in range(count):
        trail.append([entry(n)], wall=NOON)


def only(data_dir: Path) -> Path:
    (path,) = files_of(data_dir / "audit", "audit")
    return path


def lines(data_dir: Path) -> list[dict[str, Any]]:
    return audit_trail.read(data_dir)


# --- The chain ----------------------------------------------------------------------------------


def test_lines_are_numbered_and_name_the_one_before(tmp_path: Path) -> None:
    write(tmp_path, 2)
    write(tmp_path, 2)  # a restart
    found = verify(tmp_path)
    assert (found.lines, found.first, found.last, found.findings) == (4, 1, 4, [])
    first, second, *_ = lines(tmp_path)
    assert first == {
        "schema": 1, "number": 1, "unix_ms": int(NOON * 1000), "action": "queue.put",
        "outcome": "ok", "queue": "q0", "previous": "0" * 64,
    }  # fmt: skip
    assert second["previous"] != first["previous"]


def changed(text: list[bytes]) -> None:
    text[1] = text[1].replace(b"q1", b"q9")


def removed(text: list[bytes]) -> None:
    del text[2]


def swapped(text: list[bytes]) -> None:
    text[1], text[2] = text[2], text[1]


def doubled(text: list[bytes]) -> None:
    text.insert(2, text[1])


def blotted(text: list[bytes]) -> None:
    """As if a crash had torn it."""
    text[1] = text[1][:10] + b"\n"


def beheaded(text: list[bytes]) -> None:
    del text[0]
    text[0] = text[0].replace(b'"number":2', b'"number":1')


@pytest.mark.parametrize("tamper", [changed, removed, swapped, doubled, blotted, beheaded])
def test_what_was_changed_or_taken_out_is_found(
    tmp_path: Path, tamper: Callable[[list[bytes]], None]
) -> None:
    write(tmp_path, 5)
    path = only(tmp_path)
    text = path.read_bytes().splitlines(keepends=True)
    tamper(text)
    path.write_bytes(b"".join(text))
    found = verify(tmp_path)
    assert found.findings
    assert path.name in found.findings[0]
    assert CliRunner().invoke(admin, ["audit", "verify", "--data-dir", str(tmp_path)]).exit_code


def test_a_missing_file_is_found_and_a_trail_that_was_trimmed_is_whole(tmp_path: Path) -> None:
    write(tmp_path, 6, file_bytes_max=1)
    oldest, _, third, *_ = files_of(tmp_path / "audit", "audit")
    oldest.unlink()  # as the bound does it
    found = verify(tmp_path)
    assert (found.findings, found.first, found.last) == ([], 2, 6)
    third.unlink()
    assert len(verify(tmp_path).findings) == 1


def test_what_no_chain_can_show_the_last_hash_does(tmp_path: Path) -> None:
    write(tmp_path, 3)
    before = verify(tmp_path)
    path = only(tmp_path)
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:2]))
    after = verify(tmp_path)
    assert (after.findings, after.last) == ([], 2)
    assert after.hash != before.hash


@pytest.mark.parametrize("left", [4, 60, 160])
def test_a_torn_line_is_gone_through(tmp_path: Path, left: int) -> None:
    """It is said to be torn, and nothing behind it is broken."""
    write(tmp_path, 3)
    path = only(tmp_path)
    text = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(text[:2]) + text[2][:left])
    assert verify(tmp_path).torn == 1
    write(tmp_path, 2)
    found = verify(tmp_path)
    assert (found.findings, found.torn, found.lines) == ([], 1, 5)
    assert [line["number"] for line in lines(tmp_path)] == [1, 2, 3, 4]


# --- Acts ---------------------------------------------------------------------------------------


def accounting_of(data_dir: Path, wall: list[float] | None = None) -> AccountingWriter:
    clock = wall or [NOON]
    return AccountingWriter.open(data_dir, now=lambda: clock[0], wall=lambda: clock[0])


async def test_the_line_of_an_act_is_there_before_its_answer(tmp_path: Path) -> None:
    accounting = accounting_of(tmp_path)
    async with accounting.audit.act("queue.put", ALICE, queue="orders") as act:
        act.about(changed={"lease_s": [30, 60]})
        assert lines(tmp_path) == []
    (line,) = lines(tmp_path)
    assert {name: line[name] for name in line if name not in ("previous", "schema")} == {
        "number": 1, "unix_ms": int(NOON * 1000), "action": "queue.put", "outcome": "ok",
        "tenant": "acme", "principal": "alice", "credential": "token 7", "address": "192.0.2.7",
        "queue": "orders", "details": {"changed": {"lease_s": [30, 60]}},
    }  # fmt: skip
    await accounting.stop()


async def test_what_destroys_something_is_begun_on_the_disk_before_it_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both lines are fsynced; whatever a crash takes, one of them is left."""
    synced: list[int] = []
    monkeypatch.setattr(
        Journal, "sync", lambda _: synced.append(only(tmp_path).read_bytes().count(b"\n"))
    )
    accounting = accounting_of(tmp_path)
    async with accounting.audit.act("queue.purge", ALICE, queue="orders") as act:
        await act.begin()
        assert [line["outcome"] for line in lines(tmp_path)] == ["begun"]
        assert synced == [1]
    assert [line["outcome"] for line in lines(tmp_path)] == ["begun", "ok"]
    assert synced == [1, 2]
    await accounting.stop()


@pytest.mark.parametrize(
    ("raised", "outcome"),
    [(Refused("forbidden"), "forbidden"), (ValueError(), "internal"),
     (asyncio.CancelledError(), "unknown")],
)  # fmt: skip
@pytest.mark.parametrize("begun", [False, True])
async def test_a_refused_act_has_its_line_too(
    tmp_path: Path, raised: BaseException, outcome: str, begun: bool
) -> None:
    accounting = accounting_of(tmp_path)

    async def delete() -> None:
        async with accounting.audit.act("group.delete", ALICE, queue="orders", group="g") as act:
            if begun:
                await act.begin()
            raise raised

    with pytest.raises(type(raised)):
        await delete()
    await accounting.stop()
    expected = [*(["begun"] if begun else []), outcome]
    assert [line["outcome"] for line in lines(tmp_path)] == expected


@pytest.mark.parametrize("more", [0, 3])
async def test_a_flood_of_refused_acts_does_not_fill_the_trail(tmp_path: Path, more: int) -> None:
    """On both sides of the bound: behind it they are counted."""
    accounting = accounting_of(tmp_path)

    async def put() -> None:
        async with accounting.audit.act("queue.put", ALICE, queue="orders"):
            raise Refused("forbidden")

    for _ in range(limits.AUDIT_REFUSED_PER_MINUTE_MAX + more):
        with pytest.raises(Refused):
            await put()
    accounting.audit.end_minute()
    await accounting.stop()
    counted = [line["count"] for line in lines(tmp_path) if "count" in line]
    assert counted == ([more] if more else [])
    assert len(lines(tmp_path)) - len(counted) == limits.AUDIT_REFUSED_PER_MINUTE_MAX


def test_access_is_counted_not_listed() -> None:
    """P9: by who and outcome; of strangers beyond the bound only how many they are, and they leave
    the room of those who were let in alone."""
    counts = AccessCounts(keys_max=2)
    for n in range(5):
        counts.refuse(Actor(address=f"192.0.2.{n}"), "unauthorized")
        counts.refuse(Actor(address="192.0.2.0"), "unauthorized")
        counts.grant(ALICE)
    counts.grant(ALICE, "ticket.create")
    taken = [
        (one.address, one.outcome, one.count, one.details)
        for one in counts.take(int(NOON * 1000))
        if one.action == "access"
    ]
    assert taken == [
        ("192.0.2.7", "ok", 5, None),
        ("192.0.2.0", "unauthorized", 6, None),
        ("192.0.2.1", "unauthorized", 1, None),
        (None, "unauthorized", 3, {"overflow": True}),
    ]
    assert counts.take(0) == []


def test_a_stranger_with_a_whole_site_of_addresses_is_one_line() -> None:
    """P9; this machine's own addresses are named as they are."""
    counts = AccessCounts()
    for n in range(1, 6):
        counts.refuse(Actor(address=f"2001:db8:7:7::{n}"), "unauthorized")
    counts.refuse(Actor(address="::1"), "unauthorized")
    taken = [(one.address, one.count) for one in counts.take(0)]
    assert taken == [("2001:db8:7:7::/64", 5), ("::1", 1)]


# --- Where acts come from ------------------------------------------------------------------------

WORK = {
    "publish", "pull", "ack", "nack", "extend", "open_session", "post_frames", "end_session",
    "enter", "leave", "create_ticket",
}  # fmt: skip
"""What clients do all day, and getting in and out, which is counted."""


def test_every_operation_that_changes_something_is_an_act() -> None:
    changing = {one.name for one in OPERATIONS if one.method != "GET" and one.act is None}
    assert changing == WORK
    acts = [one.act for one in OPERATIONS if one.act is not None]
    assert len(set(acts)) == len(acts)
    assert all(one.method != "GET" for one in OPERATIONS if one.act is not None)


async def test_acts_over_http_by_use_and_by_the_broker_have_their_lines(house: House) -> None:
    """What is made by its first use says who used it; a key is told by its hash."""
    accounting = accounting_of(house.folder)
    house.broker.audit = accounting.audit
    queue = await house.queue()
    application = Application(house.broker, Authenticator("a-secret-token"), accounting=accounting)
    async with client_of(application, Authorization="Bearer a-secret-token") as http:
        for _ in range(3):
            assert (await http.post("/v1/tickets")).status_code == 200
        await http.post("/v1/queues/orders/groups/pulled/pull", json={})
        body = {"decision": "retry", "key": "canary"}
        path = "/v1/queues/orders/groups/pulled/parked"
        assert (await http.post(path, json=body)).json()["code"] == "not_parked"
        redrive = {"key": "canary", "reason": "expired"}
        await http.post("/v1/queues/orders/dead-letters/redrive", json=redrive)
        await http.post("/v1/queues/%00/pause")
    session = Session("s")
    session.account = accounting.session(lambda who, name: True)
    session.account.admit(Admission(ANYBODY))
    subscriptions = subscriptions_of(house, session)
    asked = Subscribe(ref=1, subscription=1, queue="orders", group="g", credit=0)
    await subscriptions.open(session, asked)
    await house.broker._dead_letter_queue(queue)
    await accounting.stop()
    told = [
        (one["action"], one["outcome"], one["principal"], one.get("group"))
        for one in lines(house.folder)
        if "count" not in one
    ]
    assert told == [
        ("group.create", "ok", "operator", "pulled"),
        ("parked.decide", "not_parked", "operator", "pulled"),
        ("dead_letters.redrive", "ok", "operator", None),
        ("queue.pause", "invalid_name", "operator", None),
        ("group.create", "ok", "anybody", "g"), ("queue.create", "ok", "broker", None),
    ]  # fmt: skip
    tickets = [one["count"] for one in lines(house.folder) if one["action"] == "ticket.create"]
    assert tickets == [3], "who asks for many makes no more lines"
    hashed = f"{key_hash('canary', queue.hash_key):016x}"
    details = [one["details"] for one in lines(house.folder) if one.get("details")]
    assert [one["key_hash"] for one in details] == [hashed, hashed]
    assert b"canary" not in only(house.folder).read_bytes()


# --- A full disk --------------------------------------------------------------------------------


async def test_a_full_disk_stops_nobody_and_loses_nothing_that_it_can_keep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The chain goes on when there is room again, and says how much was dropped."""
    monkeypatch.setattr(limits, "AUDIT_ENTRIES_KEPT_MAX", 2)
    accounting = accounting_of(tmp_path)
    async with accounting.audit.act("queue.put", ALICE, queue="q0"):
        pass
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (only(tmp_path).stat().st_size + 10, hard))
    try:
        for n in range(1, 5):
            async with accounting.audit.act("queue.put", ALICE, queue=f"q{n}"):
                pass
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    async with accounting.audit.act("queue.put", ALICE, queue="q5"):
        pass
    await accounting.stop()
    assert [line.get("queue") for line in lines(tmp_path)] == ["q0", None, "q3", "q4", "q5"]
    lost = lines(tmp_path)[1]
    assert (lost["action"], lost["count"]) == ("audit.lost", 2)
    assert verify(tmp_path).findings == []
    assert caplog.text.count("cannot be written") == 1


@pytest.mark.parametrize("is_on", [True, False])
async def test_usage_can_be_off(tmp_path: Path, is_on: bool) -> None:
    accounting = AccountingWriter.open(tmp_path, is_usage_on=is_on, wall=lambda: NOON)
    accounting.usage.counter("t", "p", "q").requests += 1
    accounting.audit.note("broker.start", ALICE)
    await accounting.stop()
    assert len(files_of(tmp_path / "usage", "usage")) == is_on
    assert len(lines(tmp_path)) == 1


async def test_usage_waits_for_a_full_disk(tmp_path: Path) -> None:
    wall = [NOON]
    accounting = accounting_of(tmp_path, wall)
    accounting.audit.note("broker.start", ALICE)
    for n in range(3):
        accounting.usage.counter("t", "p", f"q{n}").requests += 1
        accounting._end_minute()
        wall[0] += 60
        if n == 0:
            soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
        accounting._end_minute()
        assert accounting._executor is not None
        await asyncio.wrap_future(
            accounting._executor.submit(int)
        )  # what was to be written was tried
        if n == 1:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    await accounting.stop()
    (path,) = files_of(tmp_path / "usage", "usage")
    minutes = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["queue"] for line in minutes] == ["q0", "q1", "q2"]
    assert {line["minute_unix_ms"] for line in minutes} == {
        int((NOON + 60 * n) * 1000) for n in range(3)
    }


# --- The command --------------------------------------------------------------------------------


async def test_the_command_tells_people_and_machines(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Times are local, with their offset, and read in the same way."""
    monkeypatch.setenv("TZ", "Europe/Vienna")
    request.addfinalizer(time.tzset)  # when the variable is as it was
    time.tzset()
    accounting = accounting_of(tmp_path)
    accounting.audit.note("token.create", ALICE, subject="tk-1", details={"rights": ["read:*"]})
    accounting.audit.note_rejection(Actor(address="198.51.100.9"), "unauthorized")
    accounting.audit.end_minute()
    await accounting.stop()
    run = CliRunner().invoke
    plain = run(admin, ["audit", "--data-dir", str(tmp_path)]).stdout.splitlines()
    assert plain == [
        "2025-11-21 13:00:00+01:00  alice of acme (192.0.2.7): token.create tk-1: ok "
        '{"rights":["read:*"]}',
        "2025-11-21 13:00:00+01:00  somebody (198.51.100.9): access: unauthorized × 1",
    ]
    machine = run(admin, ["audit", "--json", "--data-dir", str(tmp_path)]).stdout.splitlines()
    assert [json.loads(line)["number"] for line in machine] == [1, 2]
    later = run(admin, ["audit", "--since", "2025-11-21T13:00:01", "--data-dir", str(tmp_path)])
    assert later.stdout == ""
    assert run(admin, ["audit", "--since", "soon", "--data-dir", str(tmp_path)]).exit_code == 2
    whole = run(admin, ["audit", "verify", "--data-dir", str(tmp_path)])
    assert (whole.exit_code, "whole: 2 lines, numbers 1 to 2" in whole.stdout) == (0, True)
    nothing = run(admin, ["audit", "verify", "--data-dir", str(tmp_path / "none")])
    assert (nothing.exit_code, nothing.stdout) == (0, "There is no trail.\n")
