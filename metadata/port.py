"""The client interface of the metadata, which gateways call: in-process, or a service's client.

A call for a client names its principal, and so its tenant. A method that refuses raises
`push.errors.Refused`. A change of a queue, group, token or mark is durable when its method returns.
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
"""Name of the mark with the incarnation of the storage that belongs to a catalog: with several
storage clusters, that of the first one."""


class Metadata(Protocol):
    """The queues, groups, memberships, tokens and marks that a gateway needs.

    Methods that are no coroutines, such as `find_queue`, are answered from memory, because every
    publish makes a look-up. Coroutines may wait for a disk or a network.
    """

    @property
    def data_keys(self) -> DataKeys:
        """The wrapped keys that payloads are sealed under."""

    def find_queue(self, principal: Principal, name: str) -> Queue:
        """Return the queue of this name in the principal's tenant. Raises
        Refused(queue_not_found)."""

    def find_group(self, principal: Principal, queue: Queue, name: str) -> Group:
        """Return the queue's group of this name. Raises Refused(group_not_found)."""

    async def catch_up(self) -> None:
        """Learn every change that other gateways had made before this call. Returns at once if no
        other gateway changes the catalog. Raises Refused when the catalog does not answer."""

    def queue_by_id(self, queue_id: str) -> Queue | None:
        """Return the queue of this id; None when it was deleted or never existed."""

    def list_queues(self, principal: Principal) -> list[Queue]:
        """Return the queues of the principal's tenant, sorted by name."""

    def list_all_queues(self) -> list[Queue]:
        """Return every tenant's queues in no order, for the broker's own upkeep, never for a
        client."""

    def list_groups(self, principal: Principal, queue: Queue) -> list[Group]:
        """Return the queue's groups, sorted by name; [] if it is another tenant's queue."""

    async def put_queue(
        self,
        principal: Principal,
        name: str,
        settings: QueueSettings,
        named: frozenset[str] = frozenset(),
    ) -> tuple[Queue, bool]:
        """Create a queue, and return it and True; or return an existing queue of this name and
        False, without changing it. `named`: the settings whose values the request demands.

        Raises Refused: invalid_name, invalid_request, limit_reached; settings_differ when it exists
        and one of those `named` has another value.
        """

    async def change_queue(
        self, principal: Principal, name: str, named: Named, *, was: Queue | None = None
    ) -> tuple[QueueSettings, Queue] | None:
        """Change the named settings and no others; return the settings before, and the new queue.
        With `was`: returns None and changes nothing if the queue of this name is another one than
        `was` by now, or has other settings than `was`. Raises Refused: queue_not_found,
        setting_fixed, invalid_request, invalid_name."""

    async def pause_queue(self, principal: Principal, name: str, *, paused: bool) -> Queue:
        """Stop (`paused`) or resume giving out messages to the queue's groups; return the queue,
        durably changed. A queue that is paused, or not paused, already is returned unchanged.
        Raises Refused(queue_not_found)."""

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
        """Create a group (True), or find it (False), like `put_queue`. `start`: where a new group
        starts; None: where its settings say. An existing group keeps its start. Raises Refused:
        invalid_name, invalid_request, limit_reached, queue_not_found, settings_differ."""

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
        queue_not_found, group_not_found, invalid_request."""

    async def delete_group(
        self, principal: Principal, queue: Queue, name: str, *, row: Membership | None = None
    ) -> Group:
        """Remove a group from the catalog, durably; its id goes to `dropped()` until `forget`.
        `row`: the group's row when the removal was decided. The group's id and generation must
        still be those of the row, which is checked in the same act. None: no such check.

        Raises Refused(group_not_found); Fenced if the row was changed meanwhile, for example
        because a member joined. Then nothing happened (R14).
        """

    def dropped(self) -> list[tuple[str, str | None]]:
        """Return (queue id, group id) of each group that was deleted through any gateway and is not
        forgotten yet, because the storage may still have it; (queue id, None) for a deleted queue
        with all its groups."""

    async def forget(self, queue_id: str, group_id: str | None) -> None:
        """Note that the storage, too, has dropped this group, or with None this queue. Does nothing
        if it is not in `dropped()`."""

    async def membership(self, group_id: str) -> Membership:
        """Return the group's row. A row that nobody has changed yet has no members. Where one
        gateway works on a catalog, rows begin anew at each start, with a generation above all
        before; if a member lingered, with the assignment and `lingers` that the previous process
        left. Raises Refused(group_not_found)."""

    async def glance(self, group_id: str) -> Membership:
        """Return the group's row from one copy of the catalog, without waiting for the others. The
        row contains every change that was confirmed to a gateway, and perhaps a last one that was
        not, and that a failover takes back. Use it to stop deliveries, never to decide the next
        row. Raises Refused(group_not_found). A row of generation 0 is returned if another gateway
        deleted the group a moment ago."""

    async def change_membership(self, new: Membership, *, expected_generation: int) -> bool:
        """Replace a group's row (R14), and return True; return False, and change nothing, if its
        generation is not `expected_generation`. With one gateway on a catalog, only a row with a
        lingering member is written to the disk, and a failure is only logged. Raises Refused:
        group_not_found; invalid_request when `new.generation` is not above `expected_generation`.
        With several gateways also raises Unknown."""

    @property
    def is_shared(self) -> bool:
        """Whether other gateways may work on the same catalog."""

    async def beat(
        self, gateway: str, number: int, forget: Mapping[str, int], says: str = ""
    ) -> dict[str, int]:
        """Announce that this gateway is alive and return all gateways' numbers
        (`metadata.heartbeats`). `number` must be above all that this gateway has sent; one that is
        not came late and changes nothing. `forget`: a gateway is forgotten if its number is still
        the one given here. With "" as `gateway` the call only forgets. `says`: text that `said`
        returns for this gateway. Raises Refused or Unknown when the catalog does not answer."""

    async def said(self) -> dict[str, str]:
        """Return gateway → the text that it sent with its last beat ("" for none), for each gateway
        that has a number. Raises Refused or Unknown when the catalog does not answer."""

    def on_membership_changed(self, listener: Callable[[str, int], None]) -> None:
        """Have `listener` called on the event loop with (group id, generation) of each row that a
        gateway has changed, this one too. Some calls may be lost, so a call is a hint to look.
        Where one gateway works on a catalog, it is never called."""

    @property
    def tokens(self) -> "Tokens":
        """The API tokens."""

    def secret(self, name: str) -> bytes:
        """Return 32 secret bytes for this name, with which receipts or cookies are signed: always
        the same ones, because they are derived from a secret that was made with the catalog."""

    def mark(self, name: str) -> str | None:
        """Return the text that was last stored under this name with `set_mark`; None if none was.
        The metadata does not interpret marks. They hold, for example, incarnations of storage
        clusters, deleted queues, and states of alerts."""

    async def set_mark(self, name: str, value: str) -> None:
        """Store a text under this name in the catalog, durably, in place of the last one."""

    def on_queue_changed(self, listener: "QueueListener") -> None:
        """Have `listener` called for each queue and group that any gateway has created, changed or
        deleted. If a queue is deleted, it is called for each of its groups before."""

    @property
    def age_s(self) -> float:
        """Age of this view of the catalog in seconds: all changes that other gateways made longer
        ago are known here. 0 where one gateway works on a catalog."""

    async def state(self) -> tuple[bool, str]:
        """Return (True, "") if the metadata works, else (False, the reason)."""

    async def close(self) -> None:
        """Finish the changes that have begun, and close."""


class Tokens(Protocol):
    """API tokens, and certificates that stand for one. Look-ups are answered from memory, because
    every request makes one."""

    @property
    def is_known(self) -> bool:
        """Whether this gateway knows which tokens were revoked (P11). False if it could not read
        the catalog for METADATA_STALE_S. Then no token admits anybody, and the listeners of
        `on_revoked` are called for every token."""

    def find(self, token_id: str) -> TokenRecord | None:
        """Return the token's record; None when it was revoked or never existed."""

    def of_certificate(self, certificate: str) -> list[TokenRecord]:
        """Return the records of the kind `certificate` for client certificates of this name."""

    def listed(self) -> list[TokenRecord]:
        """Return every tenant's tokens by tenant and name: for the operator, never for a client."""

    async def create(self, record: TokenRecord) -> None:
        """Store a token durably; it admits its holder from now on. Raises Refused: invalid_name,
        invalid_request, limit_reached; too_many when its id is taken, so that the caller may draw
        another one."""

    async def revoke(self, token_id: str) -> TokenRecord:
        """Revoke a token durably and return its record. It admits nobody from now on. Raises
        Refused(not_found)."""

    def note_used(self, token_id: str, *, unix_ms: int) -> None:
        """Note that a token has admitted somebody. The time is stored later, and at most once an
        hour; this never waits or fails."""

    def on_revoked(self, listener: Callable[[TokenRecord], None]) -> None:
        """Have `listener` called on the event loop with each token that was durably revoked, and
        with every token when `is_known` becomes False."""


def has_queue(metadata: Metadata, principal: Principal, name: str) -> bool:
    """Whether a queue of this name exists in the principal's tenant. False also if the metadata
    does not answer."""
    try:
        metadata.find_queue(principal, name)
    except Refused:
        return False
    return True


class QueueListener(Protocol):
    """Listener to changes of queues and groups, called on the event loop after a change is durable.
    `group`: the group that was changed; None: the queue itself was."""

    def __call__(self, queue: Queue, group: Group | None, *, deleted: bool) -> None: ...
