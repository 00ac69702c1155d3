"""The end of a credential ends all sessions that were opened with it.

Half of the sessions are over WebSocket, half by long poll, each waiting. Then their token is
revoked, expires, or its signing key leaves the issuer's set. A witness with another token goes on.
"""

import asyncio
import json
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from loadtests.clients.load import LoadFailed
from loadtests.clients.rest import Rest
from loadtests.clients.wire import Wire, connect
from loadtests.server import Server, raise_file_limit
from loadtests.trials import options
from loadtests.trials.credentials.bad_credentials import AUDIENCE, ISSUER, Issuer
from loadtests.trials.trial import Finding, Progress, admin, broker

SESSIONS: Final = 500
LASTS_S: Final = 15.0
"""The life of a token that expires, in seconds. All sessions must be open before its end; if they
are not, the trial tries again with twice the time."""
LASTS_S_MAX: Final = 120.0
WITHIN_S: Final = 5.0
TOKEN: Final = "operator-of-the-trial-0123456789"
ENDS: Final = {
    "API token revoked": 4501, "API token over": 4401, "JWT key gone": 4501, "JWT over": 4401,
}  # fmt: skip
_OPENED_AT_ONCE: Final = 25
_UNAUTHORIZED: Final = 401
_FRAMES: Final = "/v1/sessions/{}/frames?after=1&wait_s=30"


@dataclass
class _Session:
    """A session that is to end. `code`: its close code, or the status of a refused poll; None while
    the session is open, or if it ended without a code. `ended`: the time of its end, in unix
    seconds."""

    transport: str
    code: int | None = None
    ended: float = 0.0
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def end(self, code: int | None) -> None:
        """Note that the session ended, with this code."""
        if not self.over.is_set():
            self.code, self.ended = code, time.time()
            self.over.set()


async def _by_websocket(url: str, token: str) -> tuple[_Session, Callable[[], None]]:
    session = _Session("websocket")
    welcomed: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    wire: Wire | None = None

    def heard(data: bytes) -> None:
        if not welcomed.done():
            welcomed.set_result(data)

    def closed() -> None:
        session.end(wire.close_code if wire is not None else None)
        heard(b"")

    wire = await connect(url, heard, on_closed=closed, token=token)
    wire.send(b'{"type":"hello"}')
    if b'"welcome"' not in await asyncio.wait_for(welcomed, 30):
        wire.abort()
        raise LoadFailed("a session was not welcomed")
    return session, wire.abort


async def _by_long_poll(url: str, token: str) -> tuple[_Session, Callable[[], None]]:
    session, rest = _Session("long-poll"), Rest(url, token)
    try:
        opened = await rest.call("POST", "/v1/sessions", {"type": "hello"})
    except RuntimeError:
        rest.close()
        raise
    waiting = asyncio.create_task(_wait(session, rest, _FRAMES.format(opened["session"])))

    def leave() -> None:
        waiting.cancel()
        rest.close()

    return session, leave


async def _wait(session: _Session, rest: Rest, path: str) -> None:
    while not session.over.is_set():
        status, answer = await rest.request("GET", path)
        if status != 200:
            session.end(status)
        elif b'"close"' in answer:
            session.end(json.loads(answer)["close"]["code"])


class _Refused(LoadFailed):
    """The error of `_many` if not all sessions could be opened; those that were are closed
    again."""


async def _many(
    url: str, token: str, count: int
) -> tuple[list[_Session], list[Callable[[], None]]]:
    """Open `count` sessions, half over WebSocket and half by long poll. Return them, and for each a
    function that leaves it. Raises _Refused."""
    opened: list[tuple[_Session, Callable[[], None]]] = []
    failures: list[BaseException] = []
    for first in range(0, count, _OPENED_AT_ONCE):
        numbers = range(first, min(first + _OPENED_AT_ONCE, count))
        opening = [(_by_websocket, _by_long_poll)[n % 2](url, token) for n in numbers]
        for one in await asyncio.gather(*opening, return_exceptions=True):
            if isinstance(one, BaseException):
                failures.append(one)
            else:
                opened.append(one)
        if failures:
            for _, leave in opened:
                leave()
            raise _Refused(f"{len(opened)} of {count} sessions, then: {failures[0]!r}")
    return [session for session, _ in opened], [leave for _, leave in opened]


@dataclass
class _Ending:
    """A credential that can be ended: its token, and an action that ends it or waits for its end,
    and returns the time of the end (unix seconds)."""

    token: str
    end: Callable[[], Awaitable[float]]


@dataclass(frozen=True)
class _House:
    """A broker, the issuer of JWTs for it, and the file of the issuer's public keys."""

    server: Server
    issuer: Issuer
    keys: Path


async def _endings(house: _House, kind: str, lasts_s: float) -> _Ending:
    """Make a credential and the way in which it ends, which is `kind`, one of ENDS. It lives for
    `lasts_s` if it ends by its expiry. Raises LoadFailed."""
    server, issuer, keys = house.server, house.issuer, house.keys
    if kind == "API token revoked":
        made = await admin(server, "token", "create", "revoked", "--right", "read:*")

        async def revoke() -> float:
            await admin(server, "token", "revoke", made["token_id"])
            return time.time()  # the command takes its time to start

        return _Ending(made["token"], revoke)
    if kind == "API token over":
        lasts = ("--expires", f"{lasts_s:.0f}s")
        made = await admin(server, "token", "create", "over", "--right", "read:*", *lasts)
        return _Ending(made["token"], lambda: _until(made["expires_unix_ms"] / 1000))
    if kind == "JWT over":
        over = time.time() + lasts_s
        return _Ending(issuer.token(time.time(), exp=over), lambda: _until(over))

    async def take_away() -> float:
        write_keys(keys, issuer.jwks("EdDSA", "RS256"))
        return time.time()

    return _Ending(issuer.token(time.time(), "ES256"), take_away)


async def _open(
    house: _House, kind: str, count: int, lasts_s: float
) -> tuple[_Ending, list[_Session], list[Callable[[], None]]]:
    """Open `count` sessions with a credential that has not ended before all are open; try again
    with twice the life if it expired earlier. Raises LoadFailed."""
    while True:
        ending = await _endings(house, kind, lasts_s)
        try:
            there, leaves = await _many(house.server.url, ending.token, count)
        except _Refused:
            if "over" not in kind or lasts_s > LASTS_S_MAX:
                raise
        else:
            if "over" not in kind or not any(one.over.is_set() for one in there):
                return ending, there, leaves
            for leave in leaves:
                leave()
        lasts_s *= 2


async def _until(unix_s: float) -> float:
    await asyncio.sleep(max(0.0, unix_s - time.time()))
    return unix_s


def write_keys(path: Path, data: bytes) -> None:
    """Write a key set atomically, so that the broker never reads half of it."""
    fresh = path.with_suffix(".new")
    fresh.write_bytes(data)
    fresh.replace(path)


def settings_of(keys: Path) -> dict[str, str]:
    """Return the settings of a broker that accepts every kind of credential."""
    return {
        "TOCSIN_TOKEN": TOKEN,
        "TOCSIN_JWT_KEYS": str(keys),
        "TOCSIN_JWT_AUDIENCE": AUDIENCE,
        "TOCSIN_JWT_ISSUER": ISSUER,
        "TOCSIN_JWT_RIGHTS": "read:feed:{sub}",
    }


@dataclass(frozen=True)
class Plan:
    """Revoke tokens, let them expire, and remove signing keys. Their sessions must end within
    5 s, over WebSocket and by long poll, and no other session may end. Takes about a minute."""

    sessions: int = options.whole(
        SESSIONS, "Number of sessions that end, each of four times.", 2, 10_000
    )
    lasts_s: float = LASTS_S
    """The life of tokens that expire, in seconds."""


async def revoke(plan: Plan, progress: Progress) -> Finding:
    """Run the trial for each way in which a credential ends (ENDS). Raises LoadFailed,
    ServerFailed."""
    with tempfile.TemporaryDirectory(prefix="tocsin-revoke-") as folder:
        return await _revoke(plan, Path(folder), progress)


async def _revoke(plan: Plan, folder: Path, progress: Progress) -> Finding:
    sessions = plan.sessions
    raise_file_limit(2 * sessions + 200)
    finding = Finding("revoke", {"sessions": sessions})
    issuer, keys = Issuer(), folder / "jwks.json"
    write_keys(keys, issuer.jwks("EdDSA", "ES256", "RS256"))
    async with broker("revoke", settings=settings_of(keys)) as server:
        house = _House(server, issuer, keys)
        witnesses, leaves = await _many(server.url, TOKEN, 2)
        for kind in ENDS:
            ending, there, leaving = await _open(house, kind, sessions, plan.lasts_s)
            leaves += leaving
            before = sum(one.over.is_set() for one in there)
            progress(f"{kind}: {len(there)} sessions are there")
            at = await ending.end()
            try:
                async with asyncio.timeout(WITHIN_S + 5):
                    await asyncio.gather(*(one.over.wait() for one in there))
            except TimeoutError:
                pass
            _judge(finding, kind, there, before, at)
        left = [one for one in witnesses if one.over.is_set()]
        finding.check("somebody else's sessions go on", not left, f"{len(left)} ended")
        for leave in leaves:
            leave()
    return finding


def _judge(finding: Finding, kind: str, there: list[_Session], before: int, at: float) -> None:
    code = ENDS[kind]
    left = sum(not one.over.is_set() for one in there)
    codes = {(one.transport, one.code) for one in there if one.over.is_set()}
    last_s = max((one.ended - at for one in there if one.over.is_set()), default=0.0)
    last_s = max(last_s, 0.0)
    finding.figures[f"{kind}: the last one after s"] = round(last_s, 2)
    finding.check(f"{kind}: none ends before", before == 0, before)
    finding.check(f"{kind}: all end", left == 0, f"{left} of {len(there)} are there")
    # A session without a waiting poll when its credential ends learns it at its next request.
    wanted = {("websocket", code), ("long-poll", code)}
    told = {(name, code if told == _UNAUTHORIZED else told) for name, told in codes}
    finding.check(f"{kind}: they are told {code}", told == wanted, codes)
    finding.check(f"{kind}: within {WITHIN_S:g} s", last_s <= WITHIN_S, f"{last_s:.2f} s")
