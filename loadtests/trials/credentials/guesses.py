"""Wrong credentials get the same answer, as quickly, whatever is wrong with them (P11).

Every kind of wrong credential is tried over every way in, in a new random order for each turn, so
that other work on the machine affects all of them alike. If a kind took longer, an attacker could
learn how far a guess was right. So for each way in, the median times of all kinds are compared.
"""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from loadtests.clients.load import LoadFailed
from loadtests.clients.rest import Rest
from loadtests.server import Server
from loadtests.trials import options
from loadtests.trials.credentials.bad_credentials import Bad, Issuer, bad_credentials
from loadtests.trials.credentials.revoke import TOKEN, settings_of, write_keys
from loadtests.trials.credentials.ways_in import Ways
from loadtests.trials.trial import Finding, Progress, admin, broker

TRIES: Final = 1000
MEDIANS_WITHIN_MS: Final = 1.0
ALGORITHMS: Final = ("EdDSA", "ES256", "RS256")
_OVER_S: Final = 1.0
"""The life of the credentials that must have expired before the first try, in seconds."""
_TICKETS: Final = 5


@dataclass(frozen=True)
class Plan:
    """Try wrong credentials of every kind over every way in. For each way all answers must be the
    same, and the median times until the answer within 1 ms of one another. Takes about four
    minutes."""

    tries: int = options.whole(TRIES, "Number of tries of each kind, over each way in.", 1, 100_000)
    seed: int = options.seed()


async def guesses(plan: Plan, progress: Progress) -> Finding:
    """Try each kind of wrong credential over each way into the broker, `plan.tries` times. Raises
    LoadFailed, ServerFailed."""
    with tempfile.TemporaryDirectory(prefix="tocsin-guesses-") as folder:
        return await _guesses(plan, Path(folder), progress)


async def _guesses(plan: Plan, folder: Path, progress: Progress) -> Finding:
    tries, seed = plan.tries, plan.seed
    finding = Finding("guesses", {"tries of each kind": tries})
    issuer, keys = Issuer(), folder / "jwks.json"
    write_keys(keys, issuer.jwks(*ALGORITHMS))
    async with broker("guesses", settings=settings_of(keys)) as server:
        bad = await _made(server, issuer, seed)
        ways = Ways(server.url, await _cookie_name(server))
        said = f"{tries} of each of {len(bad)} kinds, {len(ways.all)} ways"
        progress(said)
        took, told = await asyncio.to_thread(_ask_all, ways, bad, tries, Random(seed))
        ways.close()
        for way in ways.all:
            _judge(finding, way, took, told[way])
    return finding


def _judge(
    finding: Finding, way: str, took: dict[tuple[str, str], list[float]], told: set[bytes]
) -> None:
    medians = {
        kind: 1000 * statistics.median(times) for (one, kind), times in took.items() if one == way
    }
    for kind, median in sorted(medians.items(), key=lambda one: one[1]):
        finding.figures[f"{way}: {kind}, median ms"] = round(median, 3)
    spread = max(medians.values()) - min(medians.values())
    finding.check(f"{way}: all are told the same", len(told) == 1, len(told))
    within = spread <= MEDIANS_WITHIN_MS
    promise = f"{way}: medians of {len(medians)} kinds within {MEDIANS_WITHIN_MS:g} ms"
    finding.check(promise, within, f"{spread:.3f} ms", timed=True)


def _ask_all(
    ways: Ways, kinds: dict[str, list[str]], tries: int, rng: Random
) -> tuple[dict[tuple[str, str], list[float]], dict[str, set[bytes]]]:
    """Try each kind over each way `tries` times. Return the seconds of each try by (way, kind), and
    the different answers by way."""
    took: dict[tuple[str, str], list[float]] = {}
    told: dict[str, set[bytes]] = {way: set() for way in ways.all}
    order = [(way, kind) for way in ways.all for kind in kinds]
    for turn in range(tries):
        rng.shuffle(order)
        for way, kind in order:
            answer = ways.all[way](kinds[kind][turn % len(kinds[kind])])
            if answer is not None:
                took.setdefault((way, kind), []).append(answer[0])
                told[way].add(answer[1])
    return took, told


# --- Wrong credentials --------------------------------------------------------------------------


async def _made(server: Server, issuer: Issuer, seed: int) -> dict[str, list[str]]:
    """Return the wrong credentials by kind, with those that the broker itself issued: revoked and
    expired tokens, cookies, and used tickets."""
    wall = time.time()
    over_cookie = await _cookie(server, issuer.token(wall, exp=time.time() + _OVER_S))
    lasts = ("--expires", f"{_OVER_S:.0f}s")
    good, revoked, over = await asyncio.gather(
        admin(server, "token", "create", "good", "--right", "read:*"),
        admin(server, "token", "create", "revoked", "--right", "read:*"),
        admin(server, "token", "create", "over", "--right", "read:*", *lasts),
    )
    cookies = [
        Bad("cookie that is over", over_cookie),
        Bad("cookie of a revoked token", await _cookie(server, revoked["token"])),
        *_damaged("cookie, wrong signature", await _cookie(server, TOKEN)),
        *_damaged("cookie of a JWT, wrong signature", await _cookie(server, issuer.token(wall))),
    ]
    tickets = [await _used_ticket(server) for _ in range(_TICKETS)]
    await admin(server, "token", "revoke", revoked["token_id"])
    await asyncio.sleep(max(0.0, over["expires_unix_ms"] / 1000 - time.time()))
    kinds: dict[str, list[str]] = {}
    bad = bad_credentials(
        issuer, wall, token=TOKEN, api_token=good["token"], tickets=tickets, seed=seed
    )
    mine = [Bad("token revoked", revoked["token"]), Bad("token over", over["token"])]
    for one in (*bad, *mine, *cookies, *_by_algorithm(issuer, wall)):
        kinds.setdefault(one.kind, []).append(one.text)
    return kinds


def _by_algorithm(issuer: Issuer, wall: float) -> Iterable[Bad]:
    """Yield JWTs with a wrong signature, audience, end or key id for each algorithm, because
    algorithms differ in the cost of a check."""
    for algorithm in ALGORITHMS:
        head, body, signature = issuer.token(wall, algorithm).split(".")
        letter = "A" if signature[0] != "A" else "B"
        yield Bad(f"{algorithm}: bad signature", f"{head}.{body}.{letter}{signature[1:]}")
        yield Bad(f"{algorithm}: wrong audience", issuer.token(wall, algorithm, aud="other"))
        yield Bad(f"{algorithm}: over", issuer.token(wall, algorithm, exp=int(wall) - 1))
        stranger = issuer.token(wall, algorithm, {"kid": "nobody"})
        yield Bad(f"{algorithm}: unknown key", stranger)
    # Nearly as large as a handshake's header may be.
    large = issuer.token(wall, "ES256", aud="other", more="x" * 5600)
    yield Bad("ES256: wrong audience, large", large)


def _damaged(kind: str, cookie: str) -> Iterable[Bad]:
    for place in range(1, 40):
        letter = "A" if cookie[-place] != "A" else "B"
        yield Bad(kind, cookie[:-place] + letter + cookie[len(cookie) - place + 1 :])


async def _cookie_name(server: Server) -> str:
    return (await _set_cookie(server, TOKEN)).partition("=")[0]


async def _cookie(server: Server, token: str) -> str:
    return (await _set_cookie(server, token)).partition("=")[2]


async def _set_cookie(server: Server, token: str) -> str:
    """Exchange a good token for a cookie, and return it as `name=value`. Raises LoadFailed."""
    ways = Ways(server.url, "")
    header = f"Authorization: Bearer {token}"
    _, answer = await asyncio.to_thread(ways.ask, "POST", "/v1/access", header)
    ways.close()
    for line in answer.head.decode().split("\r\n"):
        name, _, value = line.partition(": ")
        if name.lower() == "set-cookie":
            return value.partition(";")[0]
    raise LoadFailed(f"no cookie for a good token: {answer.status.decode()}")


async def _used_ticket(server: Server) -> str:
    rest = Rest(server.url, TOKEN)
    ticket: str = (await rest.call("POST", "/v1/tickets"))["ticket"]
    rest.token = None
    await rest.call("POST", "/v1/access", {"ticket": ticket})
    rest.close()
    return ticket
