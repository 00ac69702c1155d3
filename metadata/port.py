"""The client interface of the metadata: what a gateway asks, in-process today, a service later.

Principal and tenant are on every call. Every method raises `push.errors.Refused` for what it
refuses and returns only what is durable.
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
    """What there is, who may know of it, and who is a member of what.

    Looking up by name is answered from memory (`find_queue`, `find_group`): it is on the path of
    every publish. Everything else may wait for a disk or a network.
    """

    @property
    def data_keys(self) -> DataKeys:
        """What payloads are sealed under, wrapped."""

    def find_queue(self, principal: Principal, name: str) -> Queue:
        """Raises Refused(queue_not_found)."""

    def find_group(self, principal: Principal, queue: Queue, name: str) -> Group:
        """Raises Refused(group_not_found)."""

    async def catch_up(self) -> None:
        """What others had changed before this was called is known here when it returns. Nobody else
        changes it: at once. Raises Refused: nobody answers."""

    def queue_by_id(self, queue_id: str) -> Queue | None:
        """None: deleted, or never there."""

    def list_queues(self, principal: Principal) -> list[Queue]:
        """The tenant's queues by name."""

    def list_all_queues(self) -> list[Queue]:
        """Every tenant's queues, in no order: for the broker's own upkeep, never for a client."""

    def list_groups(self, principal: Principal, queue: Queue) -> list[Group]:
        """The queue's groups by name."""

    async def put_queue(
        self,
        principal: Principal,
        name: str,
        settings: QueueSettings,
        named: frozenset[str] = frozenset(),
    ) -> tuple[Queue, bool]:
        """Create it (True), or find it (False): what is there never changes by this. `named`: the
        settings that whoever asks wants to be so.

        Raises Refused: invalid_name, invalid_request, limit_reached; settings_differ: it is there,
        and one of those `named` has another value.
        """

    async def change_queue(
        self, principal: Principal, name: str, named: Named, *, was: Queue | None = None
    ) -> tuple[QueueSettings, Queue] | None:
        """Change the settings that are named, and no others: the settings before, and the queue as
        it is then. None: it is not the queue `was` any more, or has other settings than that had,
        and nothing changed. Raises Refused: queue_not_found, setting_fixed, invalid_request,
        invalid_name."""

    async def pause_queue(self, principal: Principal, name: str, *, paused: bool) -> Queue:
        """Let nothing be given out to its groups, or let it again; as it is then, durably. It is
        so already: nothing happens. Raises Refused(queue_not_found)."""

    async def delete_queue(self, principal: Principal, name: str) -> Queue:
        """Take it and its groups out of the catalog, durably; its id goes to `dropped()` until
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
        """Create it (True), or find it (False), as `put_queue`. Where it starts only matters at
        creation: `start`, or what the settings say. Raises Refused: invalid_name, invalid_request,
        limit_reached, queue_not_found, settings_differ."""

    async def change_group(
        self,
        principal: Principal,
        queue: Queue,
        name: str,
        named: Named,
        *,
        was: Group | None = None,
    ) -> tuple[GroupSettings, Group] | None:
        """Change the settings that are named, as `change_queue`. Raises Refused: group_not_found,
        invalid_request."""

    async def delete_group(
        self, principal: Principal, queue: Queue, name: str, *, row: Membership | None = None
    ) -> Group:
        """Take it out of the catalog, durably; its id goes to `dropped()` until `forget`. `row`: as
        the group was when that was decided. It is held to the row's id and generation, in one act.

        Raises Refused(group_not_found); Fenced: the row is of another generation, and nothing
        happened: somebody has come or gone (R14).
        """

    def dropped(self) -> list[tuple[str, str | None]]:
        """(queue_id, group_id or None): deleted here, perhaps not yet in the storage. A queue
        stands for its groups too."""

    async def forget(self, queue_id: str, group_id: str | None) -> None:
        """The storage has dropped it too. Not in `dropped()`: nothing happens."""

    async def membership(self, group_id: str) -> Membership:
        """The group's row. When nobody has changed it yet: without members, of a generation above
        every one before, with the assignment and `lingers` that the gateway before has left if
        somebody lingered. Raises Refused(group_not_found)."""

    async def glance(self, group_id: str) -> Membership:
        """The group's row as it stands where it is changed first: whatever a gateway was told that
        it has changed is in it, and perhaps what nobody was told and is taken back again. Good for
        stopping what others may have, never for deciding what is to be. Waits for no copies.
        Raises Refused(group_not_found); deleted elsewhere a moment ago: generation 0."""

    async def change_membership(self, new: Membership, *, expected_generation: int) -> bool:
        """Compare-and-set (R14): False, and nothing changed, when the generation is another one.
        A row with somebody who lingers is durable, or that could not be and was logged.
        Raises Refused: group_not_found; invalid_request: `new.generation` is not above
        `expected_generation`."""

    @property
    def is_shared(self) -> bool:
        """Whether other gateways may work on the same catalog."""

    async def beat(
        self, gateway: str, number: int, forget: Mapping[str, int], says: str = ""
    ) -> dict[str, int]:
        """Say that this gateway is there, with a number that is above all that it has said, and
        hear all gateways' numbers (`metadata.heartbeats`). One that is not above what was heard of
        it came late and changes nothing. Those to `forget` are no longer told, if they still stand
        at this number; "" is no gateway and only forgets. `says`: what `said` tells of it. Raises
        Refused or Unknown: nobody answers."""

    async def said(self) -> dict[str, str]:
        """What each gateway that has a number said with its last beat; "": nothing. Raises Refused
        or Unknown: nobody answers."""

    def on_membership_changed(self, listener: Callable[[str, int], None]) -> None:
        """Register for (group id, generation) of rows that a gateway has changed, this one too;
        called on the event loop. Some may be lost: it is a hint to look. Where one gateway works
        on a catalog, there is nothing to hear."""

    @property
    def tokens(self) -> "Tokens":
        """The API tokens."""

    def secret(self, name: str) -> bytes:
        """32 random bytes of this name, made once and kept with the catalog (receipts)."""

    def mark(self, name: str) -> str | None:
        """What `set_mark` remembered last. None: nothing. For what must be found again beside this
        catalog, as the storage's incarnation: another one is refused, never adopted (R30, P13)."""

    async def set_mark(self, name: str, value: str) -> None:
        """Remember it with the catalog, durably."""

    def on_queue_changed(self, listener: "QueueListener") -> None:
        """Register for created, changed and deleted queues and groups. With a deleted queue its
        groups come first, one by one."""

    @property
    def age_s(self) -> float:
        """What other gateways changed before so many seconds is known here. 0: there are none."""

    async def state(self) -> tuple[bool, str]:
        """(ready, why not)."""

    async def close(self) -> None:
        """Finish and close."""


class Tokens(Protocol):
    """API tokens, and certificates that stand for one. What looks up answers from memory: it is on
    the path of every request."""

    @property
    def is_known(self) -> bool:
        """Whether it was heard lately enough which tokens are revoked (P11): False, where nobody
        could be asked for METADATA_STALE_S; then none of them admits anybody, and whatever they
        have admitted was told to have ended."""

    def find(self, token_id: str) -> TokenRecord | None:
        """None: revoked, or never there."""

    def of_certificate(self, certificate: str) -> list[TokenRecord]:
        """Those that a client certificate of this name stands for."""

    def listed(self) -> list[TokenRecord]:
        """Every tenant's, by tenant and name: for the operator, never for a client."""

    async def create(self, record: TokenRecord) -> None:
        """It admits from now on, durably. Raises Refused: invalid_name, invalid_request,
        limit_reached; too_many: its id is taken, draw another one."""

    async def revoke(self, token_id: str) -> TokenRecord:
        """It admits nobody from now on, durably; what it was. Raises Refused(not_found)."""

    def note_used(self, token_id: str, *, unix_ms: int) -> None:
        """It has admitted somebody. Kept to the hour, some time later; never waits or fails."""

    def on_revoked(self, listener: Callable[[TokenRecord], None]) -> None:
        """Register for revoked ones; called on the event loop after the change is durable."""


def has_queue(metadata: Metadata, principal: Principal, name: str) -> bool:
    """Whether there is a queue of this name, to this principal."""
    try:
        metadata.find_queue(principal, name)
    except Refused:
        return False
    return True


class QueueListener(Protocol):
    """Called on the event loop after the change is durable."""

    def __call__(self, queue: Queue, group: Group | None, *, deleted: bool) -> None: ...
