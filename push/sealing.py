"""What the storages ask of encryption: a record's payload is sealed where it is written, and
opened where it is read. The header stays plain (R9), and is bound to its payload."""

from typing import Final, Protocol

from push.places import Partition

SEALED: Final = 1
"""The first byte of a sealed payload. A plain one is JSON and begins with "{"."""


def is_sealed(payload: bytes) -> bool:
    """Whether what is stored is sealed, or plain."""
    return payload[:1] == b"\x01"


class Sealer(Protocol):
    """Seals and opens payloads, in the storage's threads: it never waits for the event loop. One
    thread at a time seals; several open."""

    def seal(self, partition: Partition, header: bytes, payload: bytes, count: int) -> bytes:
        """The payload of a record of `count` messages, as it is stored. It is only opened again
        with the same queue id, partition number and header.

        Raises:
            Refused: storage_unavailable: nothing can be sealed at the moment, with why.
        """

    def unseal(self, partition: Partition, header: bytes, sealed: bytes) -> bytes:
        """The payload that `seal` was given; one that was stored plain, as it is.

        Raises:
            RecordDamaged: it was changed or belongs elsewhere, its key is not known, or its form
                is of another version. Its text holds nothing of the payload.
            Refused: storage_unavailable: its key cannot be had at the moment.
        """


class _Plain:
    """Stores payloads as they are."""

    def seal(self, partition: Partition, header: bytes, payload: bytes, count: int) -> bytes:
        """As Sealer.seal: the payload."""
        return payload

    def unseal(self, partition: Partition, header: bytes, sealed: bytes) -> bytes:
        """As Sealer.unseal: what is stored."""
        return sealed


PLAIN: Final[Sealer] = _Plain()
