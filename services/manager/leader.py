"""The leadership of this manager among the others (rule: `services.manager.rules.leader`).

`RedisLeaderRow` is the row that managers share, in the catalog's Redis, with the last report of
each cluster. Its acts have the level `local`, because a dead replica must not keep a manager from
dealing with it. A failover may take the last writes back; the rule allows for that.
"""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Collection, Mapping
from typing import Final

from metadata.redis.database import TAG, Arg, CatalogShard
from push.errors import TocsinError
from services.manager.rules.leader import BEAT_S, LeaderRow, Leading

_LOG: Final = logging.getLogger("tocsin.manager")
_LAST_WORDS_S: Final = 1.0


class Leader:
    """This manager's part in the election of a leader; from `start` to `stop` it beats. `began`: an
    event that is set while this manager leads, as of its last beat."""

    def __init__(self, row: "RedisLeaderRow", name: str | None = None) -> None:
        self.began = asyncio.Event()
        self._row = row
        self._leading = Leading(name or secrets.token_hex(8))
        self._task: asyncio.Task[None] | None = None
        self._told = ""

    @property
    def name(self) -> str:
        """Name of this process; another one after each start."""
        return self._leading.name

    @property
    def leads(self) -> bool:
        """Whether this manager may act at this moment; to be read before every act."""
        return self._leading.leads(now=asyncio.get_running_loop().time())

    @property
    def term(self) -> int:
        """Term of the row as seen last, which fences this manager's acts while it leads."""
        return self._leading.term

    @property
    def stood_still_s(self) -> float:
        return self._leading.stood_still_s

    def on_superseded(self, term: int) -> None:
        _LOG.warning(
            "another manager has acted under the term %d, so this one takes a higher term", term
        )
        self._leading.on_superseded(term)

    def give_way(self) -> None:
        _LOG.warning(
            "this manager cannot reach all servers, and lets another one lead that may reach more"
        )
        self._leading.give_way(now=asyncio.get_running_loop().time())

    def start(self) -> None:
        """Begin to beat, and so to take part in the election."""
        self._task = asyncio.get_running_loop().create_task(self._beat(), name="manager beats")

    async def stop(self) -> None:
        """Stop beating, and release the lead, so that another manager leads at once. If the
        database does not answer, the others wait for the end of the lease."""
        self.began.clear()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        try:
            async with asyncio.timeout(_LAST_WORDS_S):
                await self._let_go()
        except (TimeoutError, TocsinError):
            _LOG.info("the other managers will notice by themselves that this one has gone")

    async def _let_go(self) -> None:
        """Release the row. The beat that was under way when the task ended may be written, or not,
        so the row is read and released again until it is not this manager's."""
        loop = asyncio.get_running_loop()
        change = self._leading.release()
        while True:
            asked_at = loop.time()
            row = await self._row.ask(change)
            self._leading.saw(row, now=loop.time(), asked_at=asked_at)
            change = self._leading.release()
            if change is None:
                return

    async def report(self, said: Mapping[str, bytes]) -> None:
        """Store these reports, cluster → JSON; an empty one deletes the stored one. Nothing happens
        if this manager does not lead. Raises Refused, Unknown."""
        if self.leads:
            await self._row.report(LeaderRow(self.name, self.term, 0), said)

    async def last_report(self, cluster: str) -> bytes | None:
        """Return the last report of a cluster, perhaps by the previous leader; None if there is
        none. Raises Refused."""
        return (await self._row.reports()).get(cluster)

    async def forget_all_but(self, clusters: Collection[str]) -> None:
        """Delete the stored reports of clusters that are not among these, which a previous leader
        may have left. Raises Refused, Unknown."""
        gone = set(await self._row.reports()) - {"", *clusters}
        if gone:
            await self.report(dict.fromkeys(gone, b""))

    async def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            asked_at = loop.time()
            change = self._leading.proposal(now=asked_at)
            try:
                row = await self._row.ask(change)
            except TocsinError as error:
                self._say_once(f"it is unknown which manager leads: {error.detail}")
            except Exception:
                _LOG.exception("a beat failed: unexpected")  # the next one still comes
            else:
                wrote = change[1] if change is not None else None
                self._leading.saw(row, now=loop.time(), asked_at=asked_at, wrote=wrote)
                mine = row.holder == self.name
                who = "this manager leads" if mine else f"the manager {row.holder or '-'} leads"
                self._say_once(f"{who}, under the term {row.term}")
            if self.leads:
                self.began.set()
            else:
                self.began.clear()
            # A manager that has just read the row for the first time need not wait to take it.
            soon = change is None and self._leading.proposal(now=loop.time()) is not None
            if not soon:
                await asyncio.sleep(max(0.05, asked_at + BEAT_S - loop.time()))

    def _say_once(self, what: str) -> None:
        if what != self._told:
            _LOG.info("%s", what)
            self._told = what


LEADER: Final = f"{TAG}:leader"
"""Key of the hash with the row that managers share: holder, term, beat."""
SAID: Final = f"{TAG}:clusters"
"""Key of the hash cluster → the last report of a leader on it, JSON."""


class RedisLeaderRow:
    """The row that managers share, on the catalog's shard."""

    def __init__(self, shard: CatalogShard) -> None:
        self._shard = shard

    async def ask(self, change: tuple[LeaderRow, LeaderRow] | None) -> LeaderRow:
        """Return the present row. With `change`, first write its second row if the present one is
        its first. Raises Refused; Unknown when it may have been written."""
        args: list[Arg] = [word for row in change or () for word in row]
        holder, term, beat = await self._shard.act("lead", [LEADER], args, level="local")
        return LeaderRow(bytes(holder or b"").decode(), int(term or 0), int(beat or 0))

    async def report(self, lead: LeaderRow, said: Mapping[str, bytes]) -> bool:
        """Store these reports, cluster → JSON, if the row still has holder and term of `lead`; an
        empty one deletes the stored one. Returns whether it had. Raises Refused, Unknown."""
        args: list[Arg] = [lead.holder, lead.term]
        for cluster, text in said.items():
            args += [cluster, text]
        return bool(await self._shard.act("lead_say", [LEADER, SAID], args, level="local"))

    async def reports(self) -> dict[str, bytes]:
        """Return the last report of each cluster, and `""` → the leader's name. Raises Refused."""
        holder, flat = await self._shard.look("lead_told", [LEADER, SAID], [])
        said = {flat[at].decode(): bytes(flat[at + 1]) for at in range(0, len(flat), 2)}
        return said | {"": bytes(holder or b"")}
