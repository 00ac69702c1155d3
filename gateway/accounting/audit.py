"""The audit trail: administrative acts, their actors, and clients that were let in or refused.

    audit.note("token.create", actor, subject=token_id)         the act is done; written soon
    async with audit.act("queue.purge", actor, queue=name) as act:
        await act.begin()                                       only if something is destroyed
        ...                                                     a refusal raised here is its outcome

After the `async with` the line is in the file, so it is written before the answer is given. An act
that destroys something first writes a line `begun`, and both lines are fsynced. So whatever a crash
takes, an act that had an effect has left at least one of the two. The effect of any other act shows
in what it made.

A trail that cannot be written (a full disk) stops no act. Entries that wait are written later. If
some had to be dropped, the trail and the log say so. The trail holds no body, token, header or
message key. Instead of a key it holds the hash that `tocsin admin park list` shows.

On disk the trail is numbered lines, each with the SHA-256 of the line before it (`AuditTrail`). A
line that was changed or removed breaks the chain at the next line, and `verify` finds it. A chain
cannot show by itself that lines are missing at its end, or that the whole trail was written anew.
Therefore `verify` returns the last line's number and hash, for comparison with a copy that is kept
elsewhere. When the trail has reached its bound, the oldest lines are removed, and the numbers begin
higher.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import msgspec

from gateway.accounting.journal import Journal, files_of, lines_of
from gateway.models import Admission, NotLetIn
from metadata.catalog import Principal
from push import limits
from push.errors import TocsinError
from runtime.addresses import name_of

logger = logging.getLogger("tocsin.audit")
access_logger = logging.getLogger("tocsin.auth")
OK: Final = "ok"
ACCESS: Final = "access"
BEGUN: Final = "begun"
NOT_LET_IN: Final = frozenset({"unauthorized", "origin_refused"})
"""Error codes of requests that were refused because of a credential, or because they had none."""
WAIT_S: Final = 5.0
"""Seconds that an act waits until its line is written. Then the act goes on, and the log says
so."""
FOLDER: Final = "audit"
NAME: Final = "audit"
SCHEMA: Final = 1
BEGINNING: Final = "0" * 64
"""The hash that the very first line of a trail names as that of the line before it."""


# --- Entries and actors --------------------------------------------------------------------------


class AuditEntry(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A line of the trail: an act, its actor and its outcome, or a count of such acts. Fields that
    are None are left out."""

    unix_ms: int
    action: str
    """The act, for example `queue.delete`."""
    outcome: str
    """`ok`; the code of the error; `begun` if a later line will say how the act ended; `refused` in
    a line that counts further refused acts."""
    tenant: str | None = None
    principal: str | None = None
    credential: str | None = None
    """Name of the credential that admitted the actor, never a secret."""
    address: str | None = None
    queue: str | None = None
    group: str | None = None
    subject: str | None = None
    """Object of the act, if it is no queue or group: the id of a token, the path of a backup."""
    count: int | None = None
    """Number of such acts in the minute before `unix_ms`, or of lines lost (`audit.lost`); None:
    one act."""
    details: dict[str, Any] | None = None


class Actor(msgspec.Struct, frozen=True):
    """The client or part of the broker that does an act, as far as it is known."""

    principal: Principal | None = None
    credential: str | None = None
    """Name of the credential, never a secret."""
    address: str | None = None

    @classmethod
    def of(cls, admission: Admission | None, address: str | None = None) -> "Actor":
        """Return the actor of an admission. Without an admission it is an unknown client at this
        address."""
        if admission is None:
            return cls(address=address)
        return cls(admission.principal, admission.credential, address)

    def fields(self) -> dict[str, Any]:
        """Return the fields of an `AuditEntry` that describe the actor."""
        name = self.principal.name if self.principal is not None else None
        tenant = self.principal.tenant if self.principal is not None else None
        return {
            "tenant": tenant,
            "principal": name,
            "credential": self.credential,
            "address": self.address,
        }


BROKER: Final = Actor(Principal("broker"), "broker")
"""The broker itself, as an actor."""
LOCAL: Final = Actor(Principal("administrator"), "admin socket")
"""Actor of commands over the admin socket, which a user that may write the data folder can use."""


def why_of(error: Exception) -> tuple[str | None, str | None]:
    """Return the word for the reason why a credential was refused, and the credential's name if
    that is certain. Both are None for an error of another kind."""
    if isinstance(error, NotLetIn):
        return error.why, error.credential
    return None, None


# --- The chain on disk ---------------------------------------------------------------------------


class AuditTrail:
    """The trail that a broker writes. It may be used by one thread only."""

    def __init__(self, journal: Journal) -> None:
        """Read the last lines of the journal. Raises OSError if it cannot be read."""
        self._journal = journal
        last = next(journal.backwards(), None)
        self.hash = BEGINNING if last is None else _hash(last)
        """Hash of the last line, even if it is torn, because the chain goes through it."""
        whole = filter(None, map(_decode, journal.backwards()))
        self.number: int = next((fields["number"] for fields in whole), 0)

    @classmethod
    def open(cls, data_dir: Path, bytes_max: int) -> "AuditTrail":
        """Open the trail of a data folder."""
        return cls(Journal(data_dir / FOLDER, NAME, bytes_max=bytes_max))

    def append(self, entries: Sequence[AuditEntry], *, wall: float) -> None:
        """Write all of these entries or none. Raises OSError if none was written."""
        lines, number, before = [], self.number, self.hash
        for entry in entries:
            number += 1
            line = _encode(entry, number, before)
            before = _hash(line)
            lines.append(line + b"\n")
        self._journal.append(b"".join(lines), wall=wall)
        self.number, self.hash = number, before

    def sync(self) -> None:
        """Wait until what was written is on the disk."""
        self._journal.sync()

    def close(self) -> None:
        """Close the file."""
        self._journal.close()


class TrailReport(msgspec.Struct):
    """Result of `verify`."""

    lines: int
    first: int | None
    """The number of the oldest line that is left; None if there is none."""
    last: int | None
    hash: str
    """Hash of the last line, which the line after it will name."""
    torn: int
    """Number of lines that cannot be read, as a crash leaves them."""
    findings: list[str]
    """A sentence for each place where the chain is broken; empty if it is whole."""


def verify(data_dir: Path) -> TrailReport:
    """Follow the chain through the trail of a data folder. Raises OSError if it cannot be read."""
    found = TrailReport(0, None, None, BEGINNING, 0, [])
    for path in files_of(data_dir / FOLDER, NAME):
        for place, line in enumerate(lines_of(path), 1):
            _follow(found, line, f"{path.name}, line {place}")
    return found


def _follow(found: TrailReport, line: bytes, where: str) -> None:
    fields = _decode(line)
    if fields is None:
        found.torn += 1
    else:
        number, before = fields["number"], fields["previous"]
        is_first = found.lines == 0
        if is_first and (number == 1) != (before == BEGINNING):
            found.findings.append(f"{where}: the trail does not begin with this line")
        elif not is_first and before != found.hash:
            found.findings.append(
                f"{where}: the line before it is not the original one; it was changed or removed"
            )
        elif found.last is not None and number != found.last + 1:
            found.findings.append(f"{where}: number {number} follows {found.last}")
        found.first = number if found.first is None else found.first
        found.last = number
    found.lines += 1
    found.hash = _hash(line)


def read(data_dir: Path, since_unix_ms: int = 0) -> list[dict[str, Any]]:
    """Return the fields of all lines from a time on, in order, without torn ones. Raises OSError if
    they cannot be read."""
    found = []
    for path in files_of(data_dir / FOLDER, NAME):
        for line in lines_of(path):
            fields = _decode(line)
            if fields is not None and fields["unix_ms"] >= since_unix_ms:
                found.append(fields)
    return found


def _encode(entry: AuditEntry, number: int, before: str) -> bytes:
    head = {"schema": SCHEMA, "number": number}
    fields: dict[str, Any] = msgspec.to_builtins(entry)
    return msgspec.json.encode({**head, **fields, "previous": before})


def _decode(line: bytes) -> dict[str, Any] | None:
    try:
        fields = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    wanted = {"number": int, "unix_ms": int, "previous": str}
    if not isinstance(fields, dict):
        return None
    if any(not isinstance(fields.get(name), kind) for name, kind in wanted.items()):
        return None
    return fields


def _hash(line: bytes) -> str:
    return sha256(line).hexdigest()


# --- The trail of a gateway ----------------------------------------------------------------------


class AccessCounts:
    """Counts, since the last `take`, of clients that were let in, were refused, or made a ticket
    for a browser. Pure.

    [A line for each ticket: a client with a token can make hundreds a second, and these lines would
    push the acts of others out of the trail.]
    """

    def __init__(self, keys_max: int = limits.ACCESS_KEYS_MAX) -> None:
        self._keys_max = keys_max
        self._granted: dict[tuple[Actor, str], int] = {}
        self._refused: dict[tuple[Actor, str, str | None], int] = {}
        """Counts by actor, code and the word for the reason."""
        self._more: dict[str, int] = {}
        """Outcome → count, for further actors when `keys_max` are counted already."""

    def grant(self, actor: Actor, action: str = ACCESS) -> None:
        """Count a good credential of this actor. `action`: the act that it admitted."""
        key = (actor, action)
        if key in self._granted or len(self._granted) < self._keys_max:
            self._granted[key] = self._granted.get(key, 0) + 1
        else:
            self._more[OK] = self._more.get(OK, 0) + 1

    def refuse(
        self, actor: Actor, code: str, why: str | None = None, credential: str | None = None
    ) -> bool:
        """Count a bad or missing credential. Return whether it is the first since the last `take`
        of this actor, code and reason. Unknown actors are counted by the name of their address
        (`runtime.addresses.name_of`), which may cover a whole site."""
        if actor.principal is None:
            address = actor.address and (name_of(actor.address) or actor.address)
            actor = Actor(credential=credential, address=address)
        key = (actor, code, why)
        if key in self._refused or len(self._refused) < self._keys_max:
            self._refused[key] = self._refused.get(key, 0) + 1
            return self._refused[key] == 1
        self._more[code] = self._more.get(code, 0) + 1
        return False

    def take(self, unix_ms: int) -> list[AuditEntry]:
        """Return an entry for each count, with this time, and begin to count anew."""
        counted: list[tuple[Actor, str, str, int, str | None]] = [
            (actor, act, OK, count, None) for (actor, act), count in self._granted.items()
        ]
        counted += [
            (actor, ACCESS, code, count, why) for (actor, code, why), count in self._refused.items()
        ]
        more = [
            AuditEntry(
                unix_ms=unix_ms,
                action=ACCESS,
                outcome=code,
                count=count,
                details={"overflow": True},
            )
            for code, count in self._more.items()
        ]
        self._granted, self._refused, self._more = {}, {}, {}
        return [
            *(
                AuditEntry(
                    unix_ms=unix_ms,
                    action=action,
                    outcome=outcome,
                    count=count,
                    details=None if why is None else {"why": why},
                    **actor.fields(),
                )
                for actor, action, outcome, count, why in counted
            ),
            *more,
        ]


class AuditedAct:
    """An act under way, whose line in the trail is written when it ends."""

    def __init__(self, audit: "Audit", entry: AuditEntry) -> None:
        self._audit = audit
        self.entry = entry
        self.is_begun = False

    def about(self, **details: Any) -> None:
        """Add details to the line of the act: names and settings, nothing that a client may hold
        secret."""
        self.entry.details = {**(self.entry.details or {}), **details}

    async def begin(self) -> None:
        """Write to the disk that the act has begun, before it destroys something."""
        self.is_begun = True
        begun = msgspec.structs.replace(self.entry, outcome=BEGUN)
        await self._audit.write(begun, is_synced=True)


class Audit:
    """The audit trail of a gateway. `executor` has one thread, which writes the lines. Without a
    `trail` no lines are written."""

    def __init__(
        self, trail: AuditTrail | None, executor: Executor | None, *, wall: Callable[[], float]
    ) -> None:
        self._trail = trail
        self._executor = executor
        self._wall = wall
        self._lock = threading.Lock()
        self._waiting: deque[AuditEntry] = deque()
        self._dropped = 0
        self._wants_sync = False
        self._is_failing = False
        self._refused: dict[str, int] = {}
        """Action → number of such acts that were refused in this minute."""
        self._access = AccessCounts()

    # --- Noting ---------------------------------------------------------------------------------

    def note(
        self,
        action: str,
        actor: Actor,
        outcome: str = OK,
        *,
        queue: str | None = None,
        group: str | None = None,
        subject: str | None = None,
        details: dict[str, Any] | None = None,
    ) -> None:
        """Have a line written soon, without waiting for it."""
        self._put(
            AuditEntry(
                unix_ms=self._unix_ms(),
                action=action,
                outcome=outcome,
                queue=queue,
                group=group,
                subject=subject,
                details=details,
                **actor.fields(),
            )
        )

    def count_access(self, actor: Actor, action: str = ACCESS) -> None:
        """Count a credential that was good, for the trail. `action`: the act that it admitted."""
        self._access.grant(actor, action)

    def note_rejection(
        self, actor: Actor, code: str, why: str | None = None, credential: str | None = None
    ) -> None:
        """Count an actor that has presented no good credential, for the trail. The log gets at most
        one line a minute for each address and cause."""
        if self._access.refuse(actor, code, why, credential):
            access_logger.info(
                "not let in: %s (%s), from %s%s",
                why or "origin",
                code,
                actor.address or "an unknown address",
                f", with {credential}" if credential else "",
            )

    @asynccontextmanager
    async def act(
        self,
        action: str,
        actor: Actor,
        *,
        queue: str | None = None,
        group: str | None = None,
        subject: str | None = None,
    ) -> AsyncIterator[AuditedAct]:
        """Run an act. Its line is written when the act ends, in whichever way. Of each action, a
        minute has AUDIT_REFUSED_PER_MINUTE_MAX lines for refused acts; further ones are counted in
        one line. Acts that have begun to destroy something always have a line."""
        entry = AuditEntry(
            unix_ms=self._unix_ms(),
            action=action,
            outcome=OK,
            queue=queue,
            group=group,
            subject=subject,
            **actor.fields(),
        )
        act = AuditedAct(self, entry)
        outcome = "unknown"
        try:
            yield act
            outcome = OK
        except TocsinError as error:
            outcome = error.code.name
            raise
        except Exception:
            outcome = "internal"
            raise
        finally:
            done = msgspec.structs.replace(act.entry, unix_ms=self._unix_ms(), outcome=outcome)
            if outcome in (OK, "unknown") or act.is_begun:
                await self.write(done, is_synced=act.is_begun)
            else:
                self._count_refused_act(done)

    def _count_refused_act(self, entry: AuditEntry) -> None:
        count = self._refused[entry.action] = self._refused.get(entry.action, 0) + 1
        if count <= limits.AUDIT_REFUSED_PER_MINUTE_MAX:
            self._put(entry)

    def end_minute(self) -> None:
        """Write the lines of what was counted in the minute that is over."""
        now = self._unix_ms()
        refused, self._refused = self._refused, {}
        for action, count in refused.items():
            left = count - limits.AUDIT_REFUSED_PER_MINUTE_MAX
            if left > 0:
                self._put(
                    AuditEntry(
                        unix_ms=now,
                        action=action,
                        outcome="refused",
                        count=left,
                        details={"overflow": True},
                    )
                )
        for entry in self._access.take(now):
            self._put(entry)

    def _unix_ms(self) -> int:
        return int(self._wall() * 1000)

    # --- Writing --------------------------------------------------------------------------------

    def _put(self, entry: AuditEntry, *, is_synced: bool = False) -> "asyncio.Future[None] | None":
        if self._trail is None or self._executor is None:
            return None
        with self._lock:
            self._waiting.append(entry)
            self._wants_sync = self._wants_sync or is_synced
        return asyncio.wrap_future(self._executor.submit(self._write_all, self._trail))

    async def write(self, entry: AuditEntry, *, is_synced: bool = False) -> None:
        """Write an entry, and wait for at most WAIT_S. When this returns, the entry is in the file,
        and on the disk if `is_synced`; or else the log says that it is not."""
        writing = self._put(entry, is_synced=is_synced)
        if writing is not None:
            done, _ = await asyncio.wait((writing,), timeout=WAIT_S)
            if not done:
                logger.error("the audit trail was not written within %g s: %s", WAIT_S, entry)

    def _write_all(self, trail: AuditTrail) -> None:
        """Write all entries that wait, in order, in the writer's thread."""
        with self._lock:
            entries, self._waiting = self._waiting, deque()
            wants_sync, self._wants_sync = self._wants_sync, False
        if not entries:
            return
        try:
            if self._dropped:
                lost = AuditEntry(
                    unix_ms=entries[0].unix_ms,
                    action="audit.lost",
                    outcome=OK,
                    count=self._dropped,
                    principal=BROKER.fields()["principal"],
                )
                trail.append([lost], wall=self._wall())
                self._dropped = 0
            trail.append(entries, wall=self._wall())
            if wants_sync:
                trail.sync()
        except OSError as error:
            self._keep(entries, error)
        else:
            if self._is_failing:
                self._is_failing = False
                logger.warning("the audit trail is written again")

    def _keep(self, entries: deque[AuditEntry], error: OSError) -> None:
        if not self._is_failing:
            self._is_failing = True
            logger.error("the audit trail cannot be written: %s; the broker will try again", error)
        with self._lock:
            entries.extend(self._waiting)
            while len(entries) > limits.AUDIT_ENTRIES_KEPT_MAX:
                entries.popleft()
                self._dropped += 1
            self._waiting = entries

    def close(self) -> None:
        """Write the entries that wait and close the file, in the writer's thread."""
        if self._trail is not None:
            self._write_all(self._trail)
            self._trail.sync()
            self._trail.close()
            if self._waiting:
                logger.error("%d lines of the audit trail are lost", len(self._waiting))
