"""Whether what stands in a store's place is the store (R30): not emptied, no other, no older copy.
Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from push.errors import Refused

MARKED: Final = ("incarnation", "replicas", "touches", "out")
"""Fields of a shard's own hash."""


@dataclass(frozen=True, slots=True)
class Marks:
    """What must be found in the shard (R30): kept outside of it, in the metadata."""

    incarnation: str
    touches: int = 0
    """A number of touches that every copy had once. Fewer: an older copy has come back."""


class NotOurs(Refused):
    """A server answers, and what it holds is not the store: its text says what it is."""

    def __init__(self, detail: str) -> None:
        super().__init__("storage_unavailable", detail)


def check_held(
    held: Sequence[bytes | None], marks: Marks, where: str
) -> tuple[int, frozenset[str]]:
    """How many replicas could be elected, and which are not counted among them, by the values of
    MARKED that a server at `where` has.

    A store without its mark is not ours to fill: whoever took it for a new one would delete what
    other copies still have.

    Raises:
        NotOurs: it was emptied, belongs to another history, or is an older copy.
    """
    incarnation, replicas, touches, out = held
    if incarnation is None or replicas is None:
        raise NotOurs(f"{where} has no incarnation: it was emptied, or it was never provisioned")
    if incarnation.decode() != marks.incarnation:
        raise NotOurs(
            f"{where} is of the incarnation {incarnation.decode()}, "
            f"and {marks.incarnation} is expected"
        )
    if int(touches or 0) < marks.touches:
        raise NotOurs(
            f"{where} holds an older copy: {int(touches or 0)} touches, "
            f"and there were {marks.touches}"
        )
    return int(replicas), out_of(out)


def out_of(text: bytes | None) -> frozenset[str]:
    """The places of the replicas that are not counted, as the shard's hash has them."""
    return frozenset((text or b"").decode().split())
