"""The record of the messages whose effects a database holds, in that database. Opens nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from tocsin.proto.message import Content

COMPACT_EVERY: Final = 256
"""The number of claims of a log, made through this object, after which the rows of that log have to
be joined."""
_HIGHEST: Final = (1 << 63) - 1


class Cursor(Protocol):
    """The part of a DB-API cursor (PEP 249) that is needed."""

    @property
    def rowcount(self) -> int:
        """The number of rows that the last statement wrote."""

    def execute(self, sql: str, parameters: Sequence[Any], /) -> object:
        """Run a statement."""

    def fetchall(self) -> list[Any]:
        """Return the rows that the last statement found."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """The syntax in which databases differ.

    `parameter` is the mark of a parameter. `share_lock` follows a SELECT, and keeps others from
    changing the row before this transaction ends.
    """

    parameter: str
    share_lock: str


SQLITE: Final = Dialect("?", "")
"""The dialect of SQLite. It needs no lock, because a transaction that was begun with BEGIN
IMMEDIATE is the only one that writes."""
POSTGRES: Final = Dialect("%s", " FOR SHARE")

_SCHEMA: Final = (
    """CREATE TABLE IF NOT EXISTS tocsin_logs (
         consumer TEXT NOT NULL, log TEXT NOT NULL, compacted BIGINT NOT NULL DEFAULT 0,
         PRIMARY KEY (consumer, log))""",
    """CREATE TABLE IF NOT EXISTS tocsin_applied (
         consumer TEXT NOT NULL, log TEXT NOT NULL,
         first_offset BIGINT NOT NULL, last_offset BIGINT NOT NULL,
         PRIMARY KEY (consumer, log, first_offset))""",
)
_SHARE: Final = "SELECT compacted FROM tocsin_logs WHERE consumer = ? AND log = ?"
_NEW_LOG: Final = "INSERT INTO tocsin_logs (consumer, log) VALUES (?, ?) ON CONFLICT DO NOTHING"
_CLAIM: Final = """
    INSERT INTO tocsin_applied (consumer, log, first_offset, last_offset)
    SELECT CAST(? AS TEXT), CAST(? AS TEXT), CAST(? AS BIGINT), CAST(? AS BIGINT)
    WHERE COALESCE((SELECT last_offset FROM tocsin_applied
                    WHERE consumer = ? AND log = ? AND first_offset <= ?
                    ORDER BY first_offset DESC LIMIT 1), -1) < ?
    ON CONFLICT DO NOTHING"""
_ALONE: Final = "UPDATE tocsin_logs SET compacted = compacted + 1 WHERE consumer = ? AND log = ?"
_RANGES: Final = """
    SELECT first_offset, last_offset FROM tocsin_applied
    WHERE consumer = ? AND log = ? AND first_offset >=
      COALESCE((SELECT MAX(first_offset) FROM tocsin_applied
                WHERE consumer = ? AND log = ? AND first_offset < ?), 0)
    ORDER BY first_offset"""
_GROW: Final = """UPDATE tocsin_applied SET last_offset = ?
    WHERE consumer = ? AND log = ? AND first_offset = ?"""
_SWALLOW: Final = """DELETE FROM tocsin_applied
    WHERE consumer = ? AND log = ? AND first_offset > ? AND first_offset <= ?"""
_LOGS: Final = "SELECT log FROM tocsin_logs WHERE consumer = ? ORDER BY log"
_CUT: Final = """UPDATE tocsin_applied SET last_offset = ?
    WHERE consumer = ? AND log = ? AND first_offset < ? AND last_offset >= ?"""
_DROP: Final = "DELETE FROM tocsin_applied WHERE consumer = ? AND log = ? AND first_offset >= ?"


class Applied:
    """The messages whose effects a group has applied, as ranges of offsets beside the effects.

    Each method runs in a transaction of the caller, and raises the cursor's errors.

    **What is guaranteed.** If `claim` returned True to a transaction and that was committed, it is
    the only one for its message. If the message is delivered again, to this process or another one,
    under whatever lease, epoch or attempt, at the same time or years later, `claim` returns False.
    A transaction that was rolled back has claimed nothing. So ack a message when its transaction is
    committed, or when it was claimed before.

    **What identifies a message.** Its offset in its log (`message.log`: the queue's id, the log's
    generation, the partition), and the group. Its `id` does not, because publishers may use it
    twice. So:

    * A queue that is deleted and created again under its name begins with nothing applied.
    * After a restore of the broker's data the generation is another one. Messages that the restored
      state does not know to be settled are applied again, because everything since the backup is
      another history. If that must not happen, make the effect recognize itself.
    * A group that is moved back (`seek`) receives its messages again, and they are recognized.
      Their effects are not applied again unless `forget` is called first. The same holds for a
      group that is deleted and created again under its name.
    * A dead letter that is sent back into its queue (`redrive`) is a new message. Its effect is
      applied, even in a group that had applied it the first time, and even if its handler had
      committed before the letter died. If that must not happen, make the effect recognize itself.

    **How much is kept.** Nothing is forgotten by age, because a paused process may come back with
    its message at any time. Adjacent applied offsets are one row (`compact`). So the table keeps a
    row for each hole, and a row or two for each former generation of a log. Holes are messages that
    are in flight, wait for a retry, are parked, or were settled without an effect (dead letters,
    and messages that a handler acked without a claim).

    **Isolation.** READ COMMITTED or stricter; in SQLite begin with BEGIN IMMEDIATE. In a stricter
    level PostgreSQL may refuse a transaction as not serializable; then begin it again. Of two
    claims of one message, the second waits until the first transaction has ended.
    """

    def __init__(self, group: str, dialect: Dialect) -> None:
        self.group = group
        self._dialect = dialect
        self._claims: dict[str, int] = {}
        self._lowest: dict[str, int] = {}
        """The lowest offset, by log, that was claimed through this object since it compacted the
        log; 0 before the first compaction."""

    def create(self, cursor: Cursor) -> None:
        """Create the tables `tocsin_logs` and `tocsin_applied`, unless they exist."""
        for statement in _SCHEMA:
            cursor.execute(statement, ())

    def claim(self, cursor: Cursor, message: Content) -> bool:
        """Return whether this transaction has to apply the effect of this message; False if it has
        been applied.

        Waits for a transaction that has claimed the message and has not ended.

        Raises:
            ValueError: the message does not state its log, because it was pulled.
        """
        log, offset = message.log, message.offset
        if not log:
            raise ValueError(
                "a pulled message does not name its log; subscribe to its group instead"
            )
        place = (self.group, log)
        if not self._find(cursor, _SHARE, place, self._dialect.share_lock):
            self._run(cursor, _NEW_LOG, place)
            self._find(cursor, _SHARE, place, self._dialect.share_lock)
        self._run(cursor, _CLAIM, (*place, offset, offset, *place, offset, offset))
        claimed = cursor.rowcount == 1
        self._claims[log] = self._claims.get(log, 0) + 1
        self._lowest[log] = min(self._lowest.get(log, 0), offset)
        return claimed

    def due(self) -> list[str]:
        """Return the logs that have to be compacted, because of the number of claims made here."""
        return [log for log, claims in self._claims.items() if claims >= COMPACT_EVERY]

    def compact(self, cursor: Cursor, log: str) -> None:
        """Join the rows of a log whose offsets are adjacent.

        Run it in a transaction without a claim. It waits until the transactions with a claim have
        ended.
        """
        place = (self.group, log)
        self._run(cursor, _ALONE, place)
        lowest = self._lowest.get(log, 0)
        first, last, joined = 0, -2, 0
        for begin, end in [*self._find(cursor, _RANGES, (*place, *place, lowest)), (-9, -9)]:
            if begin == last + 1:
                last, joined = end, joined + 1
                continue
            if joined:
                self._run(cursor, _SWALLOW, (*place, first, last))
                self._run(cursor, _GROW, (last, *place, first))
            first, last, joined = begin, end, 0
        self._claims[log] = 0
        self._lowest[log] = _HIGHEST

    def forget(
        self, cursor: Cursor, queue_id: str, *, partition: int | None = None, from_offset: int = 0
    ) -> None:
        """Let the effects of a queue's messages be applied again, from an offset on.

        `partition` restricts this to one partition; None means all. Call this after a group was
        moved back, if its effects have to be applied again. Stop the group's consumers first: a
        message that one of them holds might be applied before and after.

        `queue_id` is a field of `await client.queue(name)`. Without a record of the queue, does
        nothing.
        """
        for (log,) in self._find(cursor, _LOGS, (self.group,)):
            owner, _, number = log.rsplit("-", 2)
            if owner != queue_id or partition not in (None, int(number)):
                continue
            place = (self.group, log)
            self._run(cursor, _ALONE, place)
            self._run(cursor, _DROP, (*place, from_offset))
            self._run(cursor, _CUT, (from_offset - 1, *place, from_offset, from_offset))

    def _run(self, cursor: Cursor, sql: str, parameters: tuple[Any, ...]) -> None:
        cursor.execute(sql.replace("?", self._dialect.parameter), parameters)

    def _find(
        self, cursor: Cursor, sql: str, parameters: tuple[Any, ...], lock: str = ""
    ) -> list[Any]:
        self._run(cursor, sql + lock, parameters)
        return cursor.fetchall()
