"""Encryption at rest on bad days. The master key is rotated under load, also while the broker is
killed. Bits of a store at rest are flipped. A text that every message holds is searched for in all
that the broker has written.

The store at rest is examined from outside, as a thief of its disk would do it: its records, their
nonces, and any text in its files.
"""

import asyncio
import contextlib
import json
import shutil
import sqlite3
import tempfile
import time
import zlib
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

from loadtests.clients.load import Client
from loadtests.clients.rest import Rest
from loadtests.server import SERVE, Server
from loadtests.trials import options
from loadtests.trials.trial import Finding, Progress, admin, administer

STORE: Final = "store.sqlite"
CATALOG: Final = "catalog.sqlite"
_OFFSET_BITS: Final = 40
_NONCE: Final = slice(1, 21)
"""The data key's id (8 bytes) and the nonce (12 bytes) of a sealed payload, which follow its
version. Together they must be unique."""
Place = tuple[int, int]
"""(partition, offset)"""


@dataclass(frozen=True)
class Row:
    """A record of a store: its row, the number of its partition, its first offset, and its number
    of messages."""

    row_id: int
    partition: int
    first: int
    count: int

    def places(self) -> list[Place]:
        """Return the places of the record's messages."""
        return [(self.partition, offset) for offset in range(self.first, self.first + self.count)]


def rows_of(folder: Path, queue: str) -> list[Row]:
    """Return the records of a queue, in a store that no process has open."""
    with closing(sqlite3.connect(folder / CATALOG)) as catalog:
        found = catalog.execute("SELECT queue_id FROM queues WHERE name = ?", (queue,)).fetchone()
    with closing(sqlite3.connect(folder / STORE)) as store:
        rows = store.execute(
            "SELECT record.id, number, count FROM record JOIN partition "
            f"ON partition.id = record.id >> {_OFFSET_BITS} WHERE queue_id = ? ORDER BY record.id",
            found,
        ).fetchall()
    mask = (1 << _OFFSET_BITS) - 1
    return [Row(row_id, number, row_id & mask, count) for row_id, number, count in rows]


def nonces_of(folder: Path) -> tuple[int, int]:
    """Return (number of sealed records, number of different pairs of data key and nonce), with
    those in the quarantine. Raises AssertionError if a record is plain."""
    with closing(sqlite3.connect(folder / STORE)) as store:
        payloads = store.execute(
            "SELECT payload FROM record UNION ALL SELECT payload FROM quarantine"
        ).fetchall()
    assert all(payload[:1] == b"\x01" for (payload,) in payloads), "a payload is plain"
    return len(payloads), len({payload[_NONCE] for (payload,) in payloads})


def quarantined_in(folder: Path) -> int:
    """Return the number of records in the quarantine."""
    with closing(sqlite3.connect(folder / STORE)) as store:
        (count,) = store.execute("SELECT count(*) FROM quarantine").fetchone()
    return int(count)


def flip(folder: Path, rows: Iterable[Row], random: Random) -> None:
    """Flip one random bit of the header or the payload of each record. Every other one gets a
    matching checksum, as an attacker who writes to the disk would do; then only the authentication
    tag reveals the flipped bit."""
    with closing(sqlite3.connect(folder / STORE)) as store:
        for number, row in enumerate(rows):
            found = store.execute(
                "SELECT count, published_unix_ms, bytes, skips, header, payload FROM record "
                "WHERE id = ?",
                (row.row_id,),
            ).fetchone()
            *fields, skips, header, payload = found
            blobs = {"header": bytearray(header), "payload": bytearray(payload)}
            column = random.choice(("header", "payload", "payload"))
            bit = random.randrange(8 * len(blobs[column]))
            blobs[column][bit // 8] ^= 1 << bit % 8
            store.execute(
                f"UPDATE record SET {column} = ? WHERE id = ?", (bytes(blobs[column]), row.row_id)
            )
            if number % 2:
                checksum = _checksum(row.row_id, fields, (skips or b"", *blobs.values()))
                store.execute("UPDATE record SET checksum = ? WHERE id = ?", (checksum, row.row_id))
        store.commit()


def _checksum(row_id: int, fields: Sequence[int], blobs: Iterable[bytes | bytearray]) -> int:
    crc = zlib.crc32(repr((row_id, tuple(fields))).encode())
    for blob in blobs:
        crc = zlib.crc32(blob, crc)
    return crc


def files_with(text: str, *folders: Path) -> tuple[int, list[str]]:
    """Return (number of files searched, those that contain the text), in these folders and below. A
    path may also be a file."""
    files = [path for folder in folders for path in (folder, *folder.rglob("*")) if path.is_file()]
    raw = text.encode()
    return len(files), [str(path) for path in files if raw in path.read_bytes()]


ROTATIONS: Final = 10
FLIPS: Final = 10_000
FLIPS_AT_ONCE: Final = 200
"""Number of flipped bits in one copy of the store, each in another record."""
CANARY: Final = "canary-7d1f0c9b"
PRODUCERS: Final = 4
MESSAGES: Final = 4
"""Number of messages of one publish."""
PAUSE_S: Final = 0.01
"""Pause of a producer between two publishes."""
BETWEEN_PUBLISHES: Final = 30
"""The least number of acknowledged publishes between two rotations."""
TIMEOUT_S: Final = 60.0
QUIET_S: Final = 0.5
EMPTY_MAX: Final = 5
"""The most consecutive empty pulls, of QUIET_S each, while the group has a lag. After one more,
nothing is expected any more."""
_QUEUE: Final = "/v1/queues/orders"
_SIDE: Final = "/v1/queues/sick"


@dataclass(frozen=True)
class Plan:
    """Rotate master keys under load and kills, flip bits, and search for a canary.

    All messages must decrypt, and no nonce may come twice. A flipped bit may cost only its record,
    and must be reported. Content of messages must be in no file, log or error. Takes about three
    minutes.
    """

    rotations: int = options.whole(
        ROTATIONS, "Number of rotations of the master key, under load.", 1, 1000
    )
    flips: int = options.whole(
        FLIPS, "Number of bits that are flipped in copies of the store.", 1, 1_000_000
    )
    seed: int = options.seed()
    command: Sequence[str] = field(default=SERVE)
    """The program that runs as the broker; another one is a negative control."""


@dataclass
class _Load:
    """Producers that go on while the broker is killed, and the bodies of the messages that were
    acknowledged to them."""

    url: str
    acknowledged: set[str] = field(default_factory=set)
    publishes: int = 0
    stopping: bool = False

    async def produce(self, name: int) -> None:
        """Publish until `stopping`. An unanswered publish is not repeated; a refused one raises
        RuntimeError or AssertionError."""
        rest, number = Rest(self.url), 0
        while not self.stopping:
            number += 1
            bodies = [f"{CANARY} {name} {number} {place}" for place in range(MESSAGES)]
            messages = [_message(body, f"{name}.{number}.{i}") for i, body in enumerate(bodies)]
            with contextlib.suppress(OSError, EOFError, TimeoutError):
                answer = await rest.call("POST", f"{_QUEUE}/messages", {"messages": messages})
                assert not any("error" in result for result in answer["results"]), answer
                self.acknowledged.update(bodies)
                self.publishes += 1
            await asyncio.sleep(PAUSE_S)
        rest.close()

    async def flow(self) -> None:
        """Wait until BETWEEN_PUBLISHES more publishes are acknowledged. Raises TimeoutError after
        TIMEOUT_S."""
        wanted = self.publishes + BETWEEN_PUBLISHES
        async with asyncio.timeout(TIMEOUT_S):
            while self.publishes < wanted:  # noqa: ASYNC110 - several tasks change it
                await asyncio.sleep(PAUSE_S)


def _message(body: str, name: str) -> dict[str, object]:
    """Return a message with the canary wherever a client may put text."""
    return {
        "key": f"{CANARY}-key-{name[-1]}",
        "id": f"{CANARY}-{name}",
        "headers": {f"{CANARY}-header": f"{CANARY} {name}"},
        "body": body,
    }


async def seal(plan: Plan, progress: Progress) -> Finding:
    """Run the trial of encryption at rest: rotate keys under load and kills, flip bits of copies of
    the store, search for the canary. Raises ServerFailed, LoadFailed or RuntimeError if it cannot
    end normally."""
    finding, random = Finding("seal"), Random(plan.seed)
    folder = Path(tempfile.mkdtemp(prefix="tocsin-seal-"))
    server = Server(folder / "data", command=plan.command, level="debug")
    try:
        await _start(server)
        with contextlib.closing(Rest(server.url)) as rest:
            await rest.call("PUT", _QUEUE, {"partitions": 4, "retention_s": 86_400})
        load = _Load(server.url)
        async with _producing(load):
            await _rotate(plan, server, load, random, progress)
            refusals = await _sicken(server)
            await admin(server, "backup", folder / "backup")
        await asyncio.to_thread(server.stop)
        await _look_at_rest(finding, server, plan)
        await _start(server)
        there = await _read(server)
        await asyncio.to_thread(server.stop)
        lost = load.acknowledged - set(there.values())
        invented = [body for body in there.values() if not body.startswith(CANARY)]
        finding.check(
            "everything that was acknowledged is decrypted after the rotations",
            not lost and not invented, f"{len(there):,} messages, {len(lost)} lost",
        )  # fmt: skip
        reported = await _flip(finding, plan, server, there, random=random, progress=progress)
        looked, found = files_with(CANARY, folder)
        finding.check(
            "the canary is in no file, log or answer", not found and not refusals,
            f"{looked} files, {found + refusals}",
        )  # fmt: skip
        finding.figures |= {"messages": len(there), "damage_reports": reported}
        finding.conditions = {"seed": plan.seed, "flips_at_once": FLIPS_AT_ONCE}
        return finding
    finally:
        server.kill()
        shutil.rmtree(folder, ignore_errors=True)


async def _call(what: Any, *arguments: object) -> Any:
    return await asyncio.to_thread(what, *arguments)


async def _start(server: Server) -> None:
    server.spawn()
    await asyncio.to_thread(server.wait_ready)


@contextlib.asynccontextmanager
async def _producing(load: _Load) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        for name in range(PRODUCERS):
            group.create_task(load.produce(name))
        try:
            yield
        finally:
            load.stopping = True


# --- Rotations -----------------------------------------------------------------------------------


async def _rotate(
    plan: Plan, server: Server, load: _Load, random: Random, progress: Progress
) -> None:
    """Rotate the master key `plan.rotations` times. After every second rotation, kill the broker
    during another one."""
    for number in range(1, plan.rotations + 1):
        await load.flow()
        await admin(server, "master-key", "rotate")
        if number % 2 == 0:
            await load.flow()
            await _rotate_and_kill(server, random)
        progress(f"seal: {number} of {plan.rotations} rotations, {load.publishes:,} publishes")
    await load.flow()


async def _rotate_and_kill(server: Server, random: Random) -> None:
    """Begin to rotate the master key, and kill the broker within some 20 ms after its key file has
    changed, in the middle of the rotation or after it. Start the broker again."""
    rotating = asyncio.create_task(admin(server, "master-key", "rotate"))
    keys = server.key_path.stat().st_mtime_ns
    deadline = time.monotonic() + TIMEOUT_S
    while server.key_path.stat().st_mtime_ns == keys and not rotating.done():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.0005)
    await asyncio.sleep(random.uniform(0, 0.02))
    server.kill()
    await asyncio.wait((rotating,))
    if rotating.exception() is not None and not isinstance(rotating.exception(), RuntimeError):
        rotating.result()
    await _start(server)


async def _look_at_rest(finding: Finding, server: Server, plan: Plan) -> None:
    key = ("--master-key-file", server.key_path)
    verified = await administer("verify", server.data_dir, *key)
    finding.check(
        "each record at rest is sealed and opens under the newest master key",
        verified["ok"] and verified["opened"] and verified["sealed"] == verified["rows"]["record"],
        f"{verified['sealed']:,} records, {verified['rows']['data_keys'] // 2} data keys",
    )
    sealed, pairs = nonces_of(server.data_dir)
    finding.check("no data key and nonce occur twice", sealed == pairs, f"{sealed:,} records")
    finding.figures |= {"rotations": plan.rotations, "kills": plan.rotations // 2}


# --- Messages that fail --------------------------------------------------------------------------


class _Nacking(Client):
    """A consumer that nacks everything, with a reason that holds the canary."""

    def _push(self, data: bytes) -> None:
        push = json.loads(data)
        place = [push["partition"], push["epoch"], push["push"]]
        last = push["offset"] + len(push["messages"]) - 1
        nack = {
            "type": "nack", "subscription": push["subscription"], "reason": f"{CANARY} reason",
            "deliveries": [[*place, push["offset"], last]],
        }  # fmt: skip
        self.wire.send(json.dumps(nack).encode())


async def _sicken(server: Server) -> list[str]:
    """Park keys, dead-letter messages and get refusals. Return the answers that hold the canary
    although they should not."""
    rest = Rest(server.url)
    await rest.call("PUT", _SIDE, {"partitions": 1, "attempts_max": 1, "retention_s": 86_400})
    for group, fate in (("parks", "park"), ("buries", "dead_letter")):
        await rest.call("PUT", f"{_SIDE}/groups/{group}", {"on_exhausted": fate})
    messages = [_message(f"{CANARY} {n}", f"sick.{n}") for n in range(5)]
    await rest.call("POST", f"{_SIDE}/messages", {"messages": messages})
    client = _Nacking("nacking")
    await client.open(server.url, None)
    for number, group in enumerate(("parks", "buries"), 1):
        await client.ask(
            type="subscribe", subscription=number, queue="sick", group=group, credit=10
        )
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            parked = await rest.call("GET", f"{_SIDE}/groups/parks/parked")
            buried = await rest.call("GET", f"{_SIDE}/dead-letters")
            if parked["keys_parked"] == 5 and len(buried["messages"]) == 5:
                break
            await asyncio.sleep(PAUSE_S)
    client.close()
    refused = await _refused(rest)
    rest.close()
    return refused


async def _refused(rest: Rest) -> list[str]:
    """Send wrong publishes, whose answers must not quote their content. Return the texts of the
    answers that do; an empty list means that nothing leaked."""
    leaking = []
    wrong = [
        {"messages": [{"body": CANARY, "key": CANARY * 100}]},
        {"messages": [{"body": CANARY, "id": CANARY * 100}]},
        {"messages": [{"body": CANARY, "headers": {CANARY: 7}}]},
        {"messages": [{"body": CANARY, "headers": {CANARY: CANARY * 1000}}]},
        {"messages": [{"body": CANARY, "body_base64": CANARY}]},
        {"messages": [{"body_base64": CANARY}]},
        {"messages": [{"body": CANARY, "ttl_s": CANARY}]},
        {"messages": CANARY},
    ]
    for body in wrong:
        data = json.dumps(body).encode()
        for raw in (data, data[:-3]):
            _, answer = await rest.request("POST", f"{_SIDE}/messages", raw)
            if CANARY.encode() in answer:
                leaking.append(answer.decode(errors="replace"))
    return leaking


# --- Flipped bits --------------------------------------------------------------------------------


async def _read(server: Server) -> dict[Place, str]:
    """Read and ack every message of the queue that the broker gives to a new group; return the
    bodies by place."""
    rest, there, empty = Rest(server.url), dict[Place, str](), 0
    group = f"{_QUEUE}/groups/check-{time.time_ns()}"
    while True:
        wanted = {"messages_max": 1000, "wait_s": QUIET_S}
        answer = await rest.call("POST", f"{group}/pull", wanted)
        if not answer["messages"]:
            # On a busy machine nothing may come for a while although there is more.
            empty += 1
            if empty > EMPTY_MAX or (await rest.call("GET", group))["lag"] == 0:
                break
            continue
        empty = 0
        receipts = [message["receipt"] for message in answer["messages"]]
        await rest.call("POST", f"{group}/ack", {"receipts": receipts})
        for message in answer["messages"]:
            there[(message["partition"], message["offset"])] = message["body"]
    rest.close()
    return there


async def _flip(
    finding: Finding,
    plan: Plan,
    server: Server,
    there: dict[Place, str],
    *,
    random: Random,
    progress: Progress,
) -> int:
    """Flip bits in copies of the store, and check what each costs. Return how many the broker
    reported and quarantined."""
    rows = await _call(rows_of, server.data_dir, "orders")
    flipped = reported = wrong = lost_beside = 0
    copy = Server(server.data_dir.with_name("copy"), command=plan.command, level="debug")
    shutil.copyfile(server.key_path, copy.key_path)
    while flipped < plan.flips:
        some = random.sample(rows, min(FLIPS_AT_ONCE, len(rows), plan.flips - flipped))
        shutil.rmtree(copy.data_dir, ignore_errors=True)
        await _call(shutil.copytree, server.data_dir, copy.data_dir)
        await _call(flip, copy.data_dir, some, random)
        await _start(copy)
        read = await _read(copy)
        status = await admin(copy, "status")
        await asyncio.to_thread(copy.stop)
        hit = {place for row in some for place in row.places()}
        lost_beside += len(there.keys() - read.keys() - hit)
        wrong += sum(there.get(place) != body for place, body in read.items())
        wrong += len(hit & read.keys())
        quarantined = await _call(quarantined_in, copy.data_dir)
        reported += min(status["damage_reports"], quarantined)
        flipped += len(some)
        progress(f"seal: {flipped:,} of {plan.flips:,} bits flipped, {reported:,} reported")
    copy.kill()
    finding.check(
        "a flipped bit costs at most its record", not lost_beside and not wrong,
        f"{flipped:,} bits, {lost_beside} other messages lost, {wrong} wrong ones given out",
    )  # fmt: skip
    finding.check("each of them is reported", reported == flipped, f"{reported:,} of {flipped:,}")
    finding.figures |= {"flips": flipped, "records": len(rows)}
    return reported
