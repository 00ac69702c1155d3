"""The client interface of the metadata, which gateways call: in-process, or a service's client.

Principal and tenant are on every call. Every method raises `push.errors.Refused` when it refuses,
and returns only what is durable.
"""

from collections.abc import Callable, Mapping
from typing import Final, Protocol

from metadata.catalog import (
    Group,
    GroupSettings,
    GroupStart,
    Membership,
    Principal,
    Queue,
    QueueSettings,
)
from metadata.data_keys import DataKeys
from metadata.settings import Named
from metadata.tokens import TokenRecord
from push.errors import Refused

STORAGE_INCARNATION: Final = "storage incarnation"
"""The mark of the storage that belongs to a catalog."""


class Metadata(Protocol):
    """The names, rights and memberships that a gateway asks for.

    Look-ups by name (`find_queue`, `find_group`) are answered from memory, because every publish
    makes one. Everything else may wait for a disk or a network.
    """

    @property
    def data_keys(self) -> DataKeys:
        """The wrapped keys that payloads are sealed under."""

    def find_queue(self, principal: Principal, name: str) -> Queue:
        """Return the queue of this name. Raises Refused(queue_not_found)."""

    def find_group(self, principal: Principal, queue: Queue, name: str) -> Group:
        """Return the queue's group of this name. Raises Refused(group_not_found)."""

    async def catch_up(self) -> None:
        """Learn every change that others had made before this call. Returns at once if nobody else
        changes the catalog. Raises Refused when nobody answers."""

    def queue_by_id(self, queue_id: str) -> Queue | None:
        """Return the queue of this id; None when it was deleted or never existed."""

    def list_queues(self, principal: Principal) -> list[Queue]:
        """Return the tenant's queues by name."""

    def list_all_queues(self) -> list[Queue]:
        """Return every tenant's queues in no order, for the broker's own upkeep, never for a
        client."""

    def list_groups(self, principal: Principal, queue: Queue) -> list[Group]:
        """Return the queue's groups by name."""

    async def put_queue(
        self,
        principal: Principal,
        name: str,
        settings: QueueSettings,
        named: frozenset[str] = frozenset(),
    ) -> tuple[Queue, bool]:
        """Create a queue (True), or find it (False). An existing queue is never changed by this.
        `named`: the settings whose values the request demands.

        Raises Refused: invalid_name, invalid_request, limit_reached; settings_differ when it exists
        and one of those `named` has another value.
        """

    async def change_queue(
        self, principal: Principal, name: str, named: Named, *, was: Queue | None = None
    ) -> tuple[QueueSettings, Queue] | None:
        """Change the named settings and no others; return the settings before, and the new queue.
        None, and nothing changed, when it is not the queue `was` any more, or has other settings
        than that had. Raises Refused: queue_not_found, setting_fixed, invalid_request,
        invalid_name."""

    async def pause_queue(self, principal: Principal, name: str, *, paused: bool) -> Queue:
        """Stop or resume giving out messages to the queue's groups; return the queue, durably
        changed. Nothing happens when it is so already. Raises Refused(queue_not_found)."""

    async def delete_queue(self, principal: Principal, name: str) -> Queue:
        """Remove a queue and its groups from the catalog, durably; its id goes to `dropped()` until
        `forget`. Raises Refused(queue_not_found)."""

    async def put_group(
        self,
        principal: Principal,
        queue: Queue,
        name: str,
        settings: GroupSettings,
        start: GroupStart | None = None,
        *,
        named: frozenset[str] = frozenset(),
    ) -> tuple[Group, bool]:
        """Create a group (True), or find it (False), like `put_queue`. Its start matters only at
        creation: `start`, or else what the settings say. Raises Refused: invalid_name,
        invalid_request, limit_reached, queue_not_found, settings_differ."""

    async def change_group(
        self,
        principal: Principal,
        queue: Queue,
        name: str,
        named: Named,
        *,
        was: Group | None = None,
    ) -> tuple[GroupSettings, Group] | None:
        """Change the named settings and no others, like `change_queue`. Raises Refused:
        group_not_found, invalid_request."""

    async def delete_group(
        self, principal: Principal, queue: Queue, name: str, *, row: Membership | None = None
    ) -> Group:
        """Remove a group from the catalog, durably; its id goes to `dropped()` until `forget`.
        `row`: the group's row when the removal was decided. Its id and generation must still be the
        same, which is checked in the same act.

        Raises Refused(group_not_found); Fenced when the row is of another generation, because a
        member has joined or left, and nothing happened (R14).
        """

    def dropped(self) -> list[tuple[str, str | None]]:
        """Return (queue_id, group_id or None) of what was deleted here, perhaps not yet in the
        storage. A queue stands for its groups too."""

    async def forget(self, queue_id: str, group_id: str | None) -> None:
        """Note that the storage has dropped it too. Does nothing if it is not in `dropped()`."""

    async def membership(self, group_id: str) -> Membership:
        """Return the group's row. Until somebody changes it, it has no members and a generation
        above all before. If somebody lingered, it also has the assignment and `lingers` that the
        previous gateway left. Raises Refused(group_not_found)."""

    async def glance(self, group_id: str) -> Membership:
        """Return the group's row as it is where it is changed first. It contains every change that
        was confirmed to a gateway, and perhaps one that was not and that is taken back again. Use
        it to stop deliveries, never to decide the next row. Waits for no copies. Raises
        Refused(group_not_found); generation 0 when it was deleted elsewhere a moment ago."""

    async def change_membership(self, new: Membership, *, expected_generation: int) -> bool:
        """Compare and set a row (R14); False, and nothing changed, when its generation is another
        one. A row with a lingering member is durable; if it could not be written, that was logged.
        Raises Refused: group_not_found; invalid_request when `new.generation` is not above
        `expected_generation`."""

    @property
    def is_shared(self) -> bool:
        """Whether other gateways may work on the same catalog."""

    async def beat(
        self, gateway: str, number: int, forget: Mapping[str, int], says: str = ""
    ) -> dict[str, int]:
        """Announce that this gateway is alive and return all gateways' numbers
        (`metadata.heartbeats`). `number` must be above all that it has sent; one that is not came
        late and changes nothing. Numbers to `forget` are no longer returned if they still have this
        value. The gateway "" only forgets. `says`: text that `said` returns for it. Raises Refused
        or Unknown when nobody answers."""

    async def said(self) -> dict[str, str]:
        """Return the text that each gateway with a number sent with its last beat; "" when it sent
        none. Raises Refused or Unknown when nobody answers."""

    def on_membership_changed(self, listener: Callable[[str, int], None]) -> None:
        """Register for (group id, generation) of rows that a gateway has changed, this one too;
        called on the event loop. Some may be lost, so a call is a hint to look. Nothing is called
        where one gateway works on a catalog."""

    @property
    def tokens(self) -> "Tokens":
        """The API tokens."""

    def secret(self, name: str) -> bytes:
        """Return 32 random bytes of this name, made once and kept with the catalog (receipts)."""

    def mark(self, name: str) -> str | None:
        """Return the last value of `set_mark`; None if there was none. A mark names what must be
        found again with this catalog. With another storage's incarnation the gateway refuses to
        start, and never adopts it (R30, P13)."""

    async def set_mark(self, name: str, value: str) -> None:
        """Store a mark with the catalog, durably."""

    def on_queue_changed(self, listener: "QueueListener") -> None:
        """Register for created, changed and deleted queues and groups. The groups of a deleted
        queue come before it, one by one."""

    @property
    def age_s(self) -> float:
        """Age in seconds of this view: older changes of other gateways are known here. 0 when there
        are none."""

    async def state(self) -> tuple[bool, str]:
        """Return (ready, why not)."""

    async def close(self) -> None:
        """Finish the changes that have begun, and close."""


class Tokens(Protocol):
    """API tokens, and certificates that stand for one. Look-ups are answered from memory, because
    every request makes one."""

    @property
    def is_known(self) -> bool:
        """Whether revocations are known up to lately enough (P11). False when nobody could be asked
        for METADATA_STALE_S. Then no token admits anybody, and listeners were notified that all
        access that tokens gave has ended."""

    def find(self, token_id: str) -> TokenRecord | None:
        """Return the token's record; None when it was revoked or never existed."""

    def of_certificate(self, certificate: str) -> list[TokenRecord]:
        """Return the tokens that a client certificate of this name stands for."""

    def listed(self) -> list[TokenRecord]:
        """Return every tenant's tokens by tenant and name: for the operator, never for a client."""

    async def create(self, record: TokenRecord) -> None:
        """Store a token, which admits from now on, durably. Raises Refused: invalid_name,
        invalid_request, limit_reached; too_many when its id is taken and the caller draws
        another."""

    async def revoke(self, token_id: str) -> TokenRecord:
        """Revoke a token durably and return its record. It admits nobody from now on. Raises
        Refused(not_found)."""

    def note_used(self, token_id: str, *, unix_ms: int) -> None:
        """Note that a token has admitted somebody. The time is stored to the hour, a while later;
        this never waits or fails."""

    def on_revoked(self, listener: Callable[[TokenRecord], None]) -> None:
        """Register for revoked tokens; called on the event loop after the change is durable."""


def has_queue(metadata: Metadata, principal: Principal, name: str) -> bool:
    """Whether a queue of this name exists for this principal."""
    try:
        metadata.find_queue(principal, name)
    except Refused:
        return False
    return True


class QueueListener(Protocol):
    """Listener that is called on the event loop after the change is durable."""

    def __call__(self, queue: Queue, group: Group | None, *, deleted: bool) -> None: ...
