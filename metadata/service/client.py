"""The metadata service as a gateway sees it: a database behind nodes that come and go.

reading    from any node that answers; the request names the place that was seen, so that a node
           that knows less than another one did notices that before it answers
all        shard by shard, from its holders where they are known; then what has changed since the
           oldest of them was read
changing   a change that may have reached the node that failed is sent to another one: its stamp
           shows whether it was made already
watching   a request that a node answers as soon as there is something to read, again and again
lost       what was seen is in no catalog that a node knows: believed when all nodes that answer say
           so, twice; a node that says so alone has a wrong database

Any node can answer any request; they are asked one after another, until one does:

sticky     the node that answered last is asked first; gateways begin at different ones
away       a node that did not answer is asked later, for longer each time
all away   the node whose time is over soonest is asked: one request finds out, not a hundred
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import urlencode

import msgspec

from metadata.backend import (
    NO_CONDITION,
    CatalogPlace,
    CatalogRows,
    Lost,
    MembershipRows,
    Raw,
    RowCondition,
    Write,
    other_generation,
)
from metadata.catalog import Membership
from metadata.service.protocol import (
    BeatRequest,
    Changed,
    ChangeRequest,
    MembershipRequest,
    NoAnswer,
    NodeInfo,
    NodeTransport,
    NotSent,
    ReadAnswer,
    ReadRequest,
    ShardAnswer,
    Taken,
    WatchAnswer,
)
from metadata.service.shards import SHARDS, holders
from push.errors import CODES, Refused, TocsinError, Unknown

AWAY_S: Final = 0.25
"""Seconds for which a node gets no requests after its first failure. They double with each further
failure in a row, up to AWAY_S_MAX, and each time up to as much again is added by chance."""
AWAY_S_MAX: Final = 2.0
_DOUBLINGS_MAX: Final = 8
"""Largest number of doublings of AWAY_S. [The only node is away for half an hour: 2 ** 1024 is no
float, and the gateway no longer follows its catalog.]"""
TRIES_MIN: Final = 3
"""Smallest number of attempts of a request, also with a single address, which may be a
balancer's."""


class NodeChoice:
    """The order in which nodes are asked. `configured`: the URLs that the operator gave; `chance`:
    draws numbers in [0, 1). Times are seconds of one clock."""

    def __init__(self, configured: Sequence[str], chance: Callable[[], float]) -> None:
        self._configured = tuple(dict.fromkeys(configured))
        self._chance = chance
        self._first = int(chance() * len(self._configured)) % len(self._configured)
        self._nodes: tuple[NodeInfo, ...] = ()
        self._away: dict[str, tuple[int, float]] = {}
        """Url → number of failures in a row, time until which it is not asked."""

    @property
    def nodes(self) -> tuple[NodeInfo, ...]:
        """The nodes in the list that a node has sent last; () before the first one."""
        return self._nodes

    def learn(self, nodes: Sequence[NodeInfo]) -> None:
        """Replace the nodes known so far by the list that a node has sent. The configured ones
        remain."""
        self._nodes = tuple(nodes)
        known = {*self._configured, *(one.url for one in nodes)}
        self._away = {url: away for url, away in self._away.items() if url in known}

    def on_failure(self, url: str, *, now: float) -> None:
        """Note that a node did not answer, or could not answer the request."""
        count = self._away.get(url, (0, 0.0))[0] + 1
        away_s = min(AWAY_S_MAX, AWAY_S * 2 ** min(count - 1, _DOUBLINGS_MAX))
        self._away[url] = (count, now + away_s * (1 + self._chance()))
        if url in self._configured and self._configured[self._first] == url:
            self._first = (self._first + 1) % len(self._configured)

    def on_answer(self, url: str) -> None:
        """Note that a node has answered."""
        self._away.pop(url, None)

    def to_ask(self, *, now: float) -> list[str]:
        """Return the URLs to ask, one after another, for what any node can answer. There are at
        least TRIES_MIN, so a URL may come several times."""
        turned = self._configured[self._first :] + self._configured[: self._first]
        learned = [one.url for one in self._nodes if one.layout != "whole"]
        return self._available([*turned, *learned], now)

    def to_ask_for(self, shard: int, *, now: float) -> list[str]:
        """Return the nodes to ask for the rows of a shard: first its holders, if the ring tells
        them. Nodes that have everything, and a balancer before them, are asked in the ordinary
        order."""
        ring = [one.url for one in self._nodes if one.layout == "ring"]
        others = [one.url for one in self._nodes if one.layout == "forward"]
        found = holders(shard, [*ring, *others]) if ring else ()
        return self._available([*found, *self.to_ask(now=now)], now)

    def _available(self, urls: Sequence[str], now: float) -> list[str]:
        everybody = list(dict.fromkeys(urls))
        there = [url for url in everybody if self._away.get(url, (0, now))[1] <= now]
        found = there or [min(everybody, key=lambda url: self._away[url][1])]
        return (found * TRIES_MIN)[: max(TRIES_MIN, len(found))]


LOOK_TRY_S: Final = 0.5
"""Seconds that a node has for the simplest requests. Then it counts as frozen, and another one gets
the request."""
NEWS_TRY_S: Final = 1.0
"""Seconds that a node has for a request for which it reads its database: news, members of a
group."""
CHANGE_TRY_S: Final = 2.0
"""Seconds that a node has for a change, which waits for every copy of the database."""
READ_TRY_S: Final = 3.0
"""Seconds that a node has for an answer with many rows."""
_LOG: Final = logging.getLogger("tocsin.metadata")
_OWN: Final = frozenset(
    {
        "storage_unavailable",
        "metadata_unavailable",
        "draining",
        "unknown",
        "internal",
        "not_found",
        "unauthorized",
        "method_not_allowed",
        "overloaded",
    }
)
"""Codes that concern the node that was asked, and not the request."""
_UNSURE: Final = frozenset({"unknown", "internal"})
"""Codes of those in _OWN after which the request may have changed something."""
FormT = TypeVar("FormT")


class _Problem(msgspec.Struct):
    """The fields of a problem document that matter here."""

    code: str = "internal"
    detail: str = ""


class NoNodeAnswers(Refused):
    """Error: no node could answer. `is_sent`: one of them may have got the request."""

    def __init__(self, detail: str, *, is_sent: bool) -> None:
        super().__init__("metadata_unavailable", detail, 1.0)
        self.is_sent = is_sent


class NodeClient:
    """Asks nodes in the order of `choice` until one answers; logs when none does, and when one does
    again."""

    def __init__(self, asker: NodeTransport, choice: NodeChoice) -> None:
        self.choice = choice
        """The order in which nodes are asked."""
        self._asker = asker
        self._is_well = True

    async def ask(
        self,
        method: str,
        target: str,
        body: object,
        form: type[FormT],
        *,
        try_s: float = LOOK_TRY_S,
        urls: Callable[[], list[str]] | None = None,
    ) -> FormT:
        """Return the answer of the first node that gives one. `urls`: the nodes to ask instead of
        all.

        Raises:
            NoNodeAnswers: none could answer.
            TocsinError: a node has refused the request itself.
        """
        now = asyncio.get_running_loop().time()
        reasons: list[str] = []
        is_sent = False
        for url in (urls or (lambda: self.choice.to_ask(now=now)))():
            try:
                answer = await self.ask_one(url, method, target, body, form, try_s=try_s)
            except NoNodeAnswers as error:
                reasons.append(error.detail)
                is_sent = is_sent or error.is_sent
                continue
            self._log_change(is_well=True)
            return answer
        why = "; ".join(dict.fromkeys(reasons))
        self._log_change(is_well=False, why=why)
        raise NoNodeAnswers(f"no node of the metadata service answers: {why}", is_sent=is_sent)

    async def ask_one(
        self, url: str, method: str, target: str, body: object, form: type[FormT], *, try_s: float
    ) -> FormT:
        """Ask one node, and note whether it answers. Raises NoNodeAnswers, TocsinError."""
        loop = asyncio.get_running_loop()
        sent = None if body is None else msgspec.json.encode(body)
        try:
            answer = await self._asker.ask(url, method, target, sent, timeout_s=try_s)
        except (NotSent, NoAnswer) as error:
            self.choice.on_failure(url, now=loop.time())
            raise NoNodeAnswers(str(error), is_sent=isinstance(error, NoAnswer)) from None
        try:
            if answer.status == 200:
                self.choice.on_answer(url)
                return msgspec.json.decode(answer.body, type=form)
            problem = msgspec.json.decode(answer.body, type=_Problem)
        except msgspec.DecodeError as error:
            self.choice.on_failure(url, now=loop.time())
            raise NoNodeAnswers(f"{url} answers {answer.status}: {error}", is_sent=True) from None
        if problem.code in _OWN or problem.code not in CODES:
            if problem.code != "not_found":
                self.choice.on_failure(url, now=loop.time())
            raise NoNodeAnswers(f"{url}: {problem.detail}", is_sent=problem.code in _UNSURE)
        self.choice.on_answer(url)
        raise _error(problem)

    def _log_change(self, *, is_well: bool, why: str = "") -> None:
        if is_well != self._is_well:
            self._is_well = is_well
            if is_well:
                _LOG.info("the metadata service answers again")
            else:
                _LOG.warning("the metadata service does not answer, what is known goes on: %s", why)

    async def close(self) -> None:
        """Close the connections."""
        await self._asker.close()


def _error(problem: _Problem) -> TocsinError:
    return Refused(problem.code, problem.detail)


def unknown(error: NoNodeAnswers) -> TocsinError:
    """Return the error of a change without an answer: Unknown if a node may have got it."""
    if not error.is_sent:
        return error
    return Unknown(f"it is unknown whether it was changed: {error.detail}")


WATCH_S: Final = 0.5
"""Seconds that a node waits for news before it answers; a frozen node is noticed within a
second."""
SHARDS_AT_ONCE: Final = 4
READ_AGAIN_MAX: Final = 5
LOST_AGAIN_S: Final = 1.0
"""Seconds between the two times that all nodes must say that what was seen is lost."""
BETWEEN_S: Final = 0.1
"""Least seconds between two watch requests, if the gateway has still to read the news, or if there
were none."""
TOLD_MAX: Final = 10_000
"""Largest number of groups whose last announced generation is remembered."""


class RemoteDatabase:
    """`metadata.backend.Database` over nodes. `beats`: the keeper of gateways' heartbeats, if that
    is not the service."""

    poll_s = 5.0
    """Seconds between reads without a notice. The watch requests give notice, and set
    `known_at`."""

    def __init__(self, nodes: NodeClient, *, beats: MembershipRows | None = None) -> None:
        self._nodes = nodes
        self._members = _Memberships(nodes, beats)
        self._version = 0
        """Version of the catalog that was read, or made here, last."""
        self._listener: Callable[[int], None] = lambda version: None
        self._watch_task: asyncio.Task[None] | None = None
        self.known_at = float("-inf")

    def on_changed(self, heard: Callable[[int], None]) -> None:
        self._listener = heard
        if self._watch_task is None:
            loop = asyncio.get_running_loop()
            self._watch_task = loop.create_task(self._watch(), name="metadata watch")

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        cursor = ""
        while True:
            asked_at = loop.time()
            query = urlencode({"version": self._version, "cursor": cursor, "wait_s": WATCH_S})
            try:
                answer = await self._nodes.ask(
                    "GET", f"/v1/watch?{query}", None, WatchAnswer, try_s=WATCH_S + LOOK_TRY_S
                )
            except TocsinError:
                await asyncio.sleep(max(BETWEEN_S, asked_at + WATCH_S / 2 - loop.time()))
                continue
            except Exception:
                _LOG.exception("watching the metadata service failed: unexpected")
                await asyncio.sleep(WATCH_S)
                continue
            if answer.version <= self._version:
                self.known_at = asked_at
            cursor = answer.cursor
            self._nodes.choice.learn(answer.nodes)
            is_news = [self._members.tell(*one) for one in answer.members]
            if answer.version > self._version:
                self._listener(answer.version)
                await asyncio.sleep(BETWEEN_S)  # meanwhile it is read
            elif not any(is_news) and loop.time() - asked_at < BETWEEN_S:
                await asyncio.sleep(BETWEEN_S)  # bounds the rate if a node errs about what is new

    # --- Reading ---------------------------------------------------------------------------------

    async def read(self, seen: CatalogPlace) -> CatalogRows | None:
        try:
            reading = await self._read(seen)
        except Refused as error:
            if error.code.name != "position_unknown":
                raise
            reading = await self._doubt(seen, error)
        self._version = (reading.place if reading is not None else seen).version
        return reading

    async def _read(self, seen: CatalogPlace) -> CatalogRows | None:
        answer = await self._ask_read(seen)
        if answer.kind == "same":
            return None
        if answer.kind == "rows":
            return CatalogRows(answer.place, answer.rows, False, answer.secret)
        return await self._read_all()

    async def _ask_read(self, seen: CatalogPlace, urls: list[str] | None = None) -> ReadAnswer:
        return await self._nodes.ask(
            "POST",
            "/v1/read",
            ReadRequest(seen),
            ReadAnswer,
            try_s=NEWS_TRY_S,
            urls=None if urls is None else lambda: urls,
        )

    async def _doubt(self, seen: CatalogPlace, error: Refused) -> CatalogRows | None:
        """Ask all nodes after one has said that what was seen is lost. Raises Lost if all say so,
        twice; Refused if none answers."""
        for is_again in (False, True):
            if is_again:
                await asyncio.sleep(LOST_AGAIN_S)
            liars: list[str] = []
            for url in self._nodes.choice.to_ask(now=float("inf")):
                try:
                    answer = await self._ask_read(seen, [url])
                except Refused as other:
                    if other.code.name == "position_unknown":
                        liars.append(url)
                    continue
                for liar in liars:
                    self._nodes.choice.on_failure(liar, now=asyncio.get_running_loop().time())
                _LOG.error("a node of the metadata service has another catalog: %s", error.detail)
                if answer.kind == "same":
                    return None
                if answer.kind == "rows":
                    return CatalogRows(answer.place, answer.rows, False, answer.secret)
            if not liars:
                raise Refused("storage_unavailable", error.detail, 1.0)
        raise Lost(error.detail)

    async def _read_all(self) -> CatalogRows:
        """Read every shard, then what has changed since the oldest of them was read."""
        for _ in range(READ_AGAIN_MAX):
            places = asyncio.Semaphore(SHARDS_AT_ONCE)
            shards = await asyncio.gather(
                *(self._shard(number, places) for number in range(SHARDS))
            )
            if len({one.place.incarnation for one in shards}) != 1:
                raise Refused("storage_unavailable", "nodes of the service have several catalogs")
            oldest = min((one.place for one in shards), key=lambda place: place.version)
            raw: Raw = {}
            for one in shards:
                for kind, rows in one.rows.items():
                    raw.setdefault(kind, {}).update(rows)
            answer = await self._ask_read(oldest)
            if answer.kind == "same":
                return CatalogRows(oldest, raw, True, shards[0].secret)
            if answer.kind == "rows":
                for kind, changed in answer.rows.items():
                    raw[kind] = raw.get(kind, {}) | changed
                return CatalogRows(answer.place, raw, True, answer.secret)
        raise Refused("storage_unavailable", "the catalog changes faster than it can be read", 1.0)

    async def _shard(self, number: int, places: asyncio.Semaphore) -> ShardAnswer:
        loop, choice = asyncio.get_running_loop(), self._nodes.choice
        target = f"/v1/shards/{number}"
        async with places:
            try:
                return await self._nodes.ask(
                    "GET",
                    target,
                    None,
                    ShardAnswer,
                    try_s=READ_TRY_S,
                    urls=lambda: choice.to_ask_for(number, now=loop.time()),
                )
            except NoNodeAnswers:  # its holders are gone, or other nodes hold it by now
                return await self._nodes.ask(
                    "GET", f"{target}?how=through", None, ShardAnswer, try_s=2 * READ_TRY_S
                )

    # --- Changing --------------------------------------------------------------------------------

    async def change(
        self,
        seen: CatalogPlace,
        stamp: str,
        writes: Sequence[Write],
        row: RowCondition = NO_CONDITION,
    ) -> bool:
        request = ChangeRequest(seen, stamp, tuple(writes), row)
        is_sent = False
        for url in self._nodes.choice.to_ask(now=asyncio.get_running_loop().time()):
            try:
                answer = await self._nodes.ask_one(
                    url, "POST", "/v1/change", request, Changed, try_s=CHANGE_TRY_S
                )
            except NoNodeAnswers as error:
                is_sent, last = is_sent or error.is_sent, error
                continue
            if answer.fenced:  # the catalog is as it was seen, so no earlier node made it either
                raise other_generation(row.group_id)
            is_changed = answer.changed
            if not is_changed and is_sent:
                is_changed = await self._is_made(
                    CatalogPlace(seen.incarnation, seen.version + 1, stamp)
                )
            if is_changed:
                self._version = max(self._version, seen.version + 1)
            return is_changed
        raise unknown(NoNodeAnswers(last.detail, is_sent=is_sent))

    async def _is_made(self, place: CatalogPlace) -> bool:
        """Whether a change that may have been requested twice was made. Raises Unknown when no node
        can say, or when too many changes have followed."""
        try:
            answer = await self._ask_read(place)
        except NoNodeAnswers as error:
            raise unknown(NoNodeAnswers(error.detail, is_sent=True)) from None
        except Refused as error:
            if error.code.name == "position_unknown":
                return False
            raise
        if answer.kind == "all":
            raise unknown(NoNodeAnswers("too much was changed since", is_sent=True))
        return True

    async def is_taken(self, any_id: str) -> bool:
        return (await self._nodes.ask("GET", f"/v1/ids/{any_id}", None, Taken)).taken

    def memberships(self) -> MembershipRows:
        return self._members

    async def copy_to(self, path: Path) -> None:
        """Raise Refused(storage_unavailable) always, because the service's database is to be
        copied."""
        raise Refused(
            "storage_unavailable", "this catalog is the metadata service's: copy its database"
        )

    async def close(self) -> None:
        if self._watch_task is not None:
            self._watch_task.cancel()
            with suppress(asyncio.CancelledError):
                await self._watch_task
        await self._nodes.close()


class _Memberships:
    """`metadata.backend.MembershipRows` over nodes."""

    def __init__(self, nodes: NodeClient, beats: MembershipRows | None) -> None:
        self._nodes = nodes
        self._beats = beats
        self._listeners: list[Callable[[str, int], None]] = []
        self._generations: dict[str, int] = {}
        """Group → the last generation that was announced."""

    async def get(self, group_id: str) -> Membership:
        return await self._nodes.ask(
            "GET", f"/v1/memberships/{group_id}", None, Membership, try_s=NEWS_TRY_S
        )

    async def glance(self, group_id: str) -> Membership:
        return await self._nodes.ask("GET", f"/v1/memberships/{group_id}/glance", None, Membership)

    async def change(self, new: Membership, *, expected_generation: int) -> bool:
        """Change the row. Raises Unknown when it may have happened."""
        request = MembershipRequest(new, expected_generation)
        is_sent = False
        for url in self._nodes.choice.to_ask(now=asyncio.get_running_loop().time()):
            try:
                answer = await self._nodes.ask_one(
                    url, "POST", "/v1/memberships", request, Changed, try_s=CHANGE_TRY_S
                )
            except NoNodeAnswers as error:
                is_sent, last = is_sent or error.is_sent, error
                continue
            if answer.changed or not is_sent:
                return answer.changed
            return await self.get(new.group_id) == new  # the first one may have changed it
        raise unknown(NoNodeAnswers(last.detail, is_sent=is_sent))

    async def beat(
        self, gateway: str, number: int, forget: Mapping[str, int], says: str = ""
    ) -> dict[str, int]:
        if self._beats is not None:
            return await self._beats.beat(gateway, number, forget, says)
        request = BeatRequest(gateway, number, dict(forget), says)
        return await self._nodes.ask("POST", "/v1/beats", request, dict[str, int])

    async def said(self) -> dict[str, str]:
        if self._beats is not None:
            return await self._beats.said()
        return await self._nodes.ask("GET", "/v1/beats", None, dict[str, str])

    def on_changed(self, listener: Callable[[str, int], None]) -> None:
        self._listeners.append(listener)

    def tell(self, group_id: str, generation: int) -> bool:
        """Call the listeners with a changed row. False, and no call, if this generation or a later
        one was announced before, for example by another node."""
        if generation <= self._generations.get(group_id, 0):
            return False
        while len(self._generations) >= TOLD_MAX:
            del self._generations[next(iter(self._generations))]
        self._generations[group_id] = generation
        for listener in self._listeners:
            listener(group_id, generation)
        return True

    def dropped(self, group_id: str) -> None:
        """Do nothing, because the row was deleted with the group."""
