"""Payloads at rest: what is sealed opens where it belongs and nowhere else (R9, P13)."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from gateway.encryption import sealer as encryption
from gateway.encryption.sealer import NONCES_AT_ONCE, NackReasons, RecordSealer
from push import limits
from push.errors import Refused
from push.places import Partition
from push.record import RecordDamaged
from tests.contract.stores import P0, P1, append

PAYLOAD = b'{"body":"a secret"}'
HEADER = append(messages=1).header
KEYS = {b"key-one-": b"1" * 32, b"key-two-": b"2" * 32}


class Now:
    """The monotonic clock, moved by hand."""

    s = 1000.0

    def __call__(self) -> float:
        return self.s


def open_key(key_id: bytes) -> bytes:
    """As the keyring's."""
    if key_id not in KEYS:
        raise RecordDamaged("its data key is not known")
    return KEYS[key_id]


def sealer(now: Callable[[], float] | None = None, **named: Callable[[], None]) -> RecordSealer:
    """One that seals under key one."""
    made = RecordSealer(open_key, now=now or Now(), **named)
    made.begin(b"key-one-", KEYS[b"key-one-"])
    return made


def test_what_is_sealed_opens_again_also_in_another_process() -> None:
    sealed = sealer().seal(P0, HEADER, PAYLOAD, 1)
    assert b"secret" not in sealed
    assert len(sealed) == len(PAYLOAD) + 37
    assert (sealed[:1], sealed[1:9]) == (b"\x01", b"key-one-")
    assert RecordSealer(open_key).unseal(P0, HEADER, sealed) == PAYLOAD


def test_a_plain_payload_stays_readable_and_none_is_written_unless_encryption_is_off() -> None:
    """A store whose encryption was switched on later, or off, has both."""
    assert sealer().unseal(P0, HEADER, PAYLOAD) == PAYLOAD
    off = RecordSealer(open_key)
    assert off.seal(P0, HEADER, PAYLOAD, 1) == PAYLOAD
    assert sealer().seal(P0, HEADER, PAYLOAD, 1) != PAYLOAD


@pytest.mark.parametrize(
    ("place", "header"),
    [
        (P1, HEADER),
        (Partition("q-2", 0), HEADER),
        (Partition("q-1", 1 << 16), HEADER),
        (P0, append(messages=1, ids=["another"]).header),
        (P0, HEADER[:2] + b"\1" + HEADER[3:]),  # another tenant
        (P0, HEADER[:6] + b"R" * 16 + HEADER[22:]),  # another record's id
    ],
)
def test_a_payload_that_was_moved_does_not_open(place: Partition, header: bytes) -> None:
    """R9: queue id, partition, record id and tenant are bound to it."""
    ring = sealer()
    sealed = ring.seal(P0, HEADER, PAYLOAD, 1)
    with pytest.raises(RecordDamaged, match="changed or belongs elsewhere"):
        ring.unseal(place, header, sealed)


def test_no_bit_of_it_can_be_flipped() -> None:
    """P13."""
    ring = sealer()
    sealed = ring.seal(P0, HEADER, PAYLOAD, 1)
    for bit in range(8 * len(sealed)):
        flipped = bytearray(sealed)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(RecordDamaged) as told:
            ring.unseal(P0, HEADER, bytes(flipped))
        assert "secret" not in str(told.value)


@pytest.mark.parametrize("sealed", [b"", b"\x01", b"\x01" * 36, b"\x02" * 60, b" {}"])
def test_a_form_that_is_none_is_damage(sealed: bytes) -> None:
    with pytest.raises(RecordDamaged):
        sealer().unseal(P0, HEADER, sealed)


def test_an_unknown_key_is_damage_and_one_that_cannot_be_asked_is_not() -> None:
    sealed = sealer().seal(P0, HEADER, PAYLOAD, 1)
    with pytest.raises(RecordDamaged, match="not known"):
        RecordSealer(open_key).unseal(P0, HEADER, b"\x01another." + sealed[9:])

    def gone(_key_id: bytes) -> bytes:
        raise Refused("storage_unavailable", "the service does not answer")

    with pytest.raises(Refused):
        RecordSealer(gone).unseal(P0, HEADER, sealed)


def test_each_record_gets_a_nonce_of_its_own_from_the_operating_system(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """NIST SP 800-38D, 8.2.2."""
    drawn = bytearray()

    def draw(size: int) -> bytes:
        drawn.extend(fresh := urandom(size))
        return fresh

    urandom = os.urandom
    monkeypatch.setattr(os, "urandom", draw)
    ring = sealer()
    nonces = [ring.seal(P0, HEADER, PAYLOAD, 1)[9:21] for _ in range(3 * NONCES_AT_ONCE + 1)]
    assert len(set(nonces)) == len(nonces)
    assert set(nonces) <= {bytes(drawn[at : at + 12]) for at in range(0, len(drawn), 12)}
    assert len(drawn) == 4 * NONCES_AT_ONCE * 12


def test_two_threads_that_seal_at_once_never_get_the_same_nonce() -> None:
    """Each storage cluster has a thread of its own."""
    ring = sealer()
    start = Barrier(4)

    def seal() -> list[bytes]:
        start.wait()
        return [ring.seal(P0, HEADER, b"{}", 1)[9:21] for _ in range(2000)]

    with ThreadPoolExecutor(4) as threads:
        parts = [part.result() for part in [threads.submit(seal) for _ in range(4)]]
    assert len({nonce for part in parts for nonce in part}) == 8000


@pytest.mark.parametrize(
    ("field", "most"),
    [("messages", limits.DATA_KEY_MESSAGES_MAX), ("bytes", limits.DATA_KEY_BYTES_MAX)],
)
def test_a_data_key_is_retired_at_its_bounds(field: str, most: int) -> None:
    """NIST SP 800-38D, 8.3: exactly so much, and then nothing without a successor."""
    ring = sealer()
    assert ring.current is not None
    setattr(ring.current, field, most - 10)
    size, count = (10, 1) if field == "bytes" else (1, 10)
    assert ring.seal(P0, HEADER, b"{" * size, count)[1:9] == b"key-one-"
    with pytest.raises(Refused, match="has reached its bound"):
        ring.seal(P0, HEADER, b"{", 1)
    ring.put_successor(b"key-two-", KEYS[b"key-two-"])
    sealed = ring.seal(P0, HEADER, PAYLOAD, 1)
    assert sealed[1:9] == b"key-two-"
    assert ring.unseal(P0, HEADER, sealed) == PAYLOAD


def test_a_data_key_seals_for_a_day() -> None:
    now = Now()
    ring = sealer(now)
    ring.put_successor(b"key-two-", KEYS[b"key-two-"])
    now.s += limits.DATA_KEY_S_MAX - 0.001
    assert ring.seal(P0, HEADER, PAYLOAD, 1)[1:9] == b"key-one-"
    now.s += 0.001
    assert ring.seal(P0, HEADER, PAYLOAD, 1)[1:9] == b"key-two-"
    now.s += limits.DATA_KEY_S_MAX
    with pytest.raises(Refused):
        ring.seal(P0, HEADER, PAYLOAD, 1)


@pytest.mark.parametrize(
    ("field", "most"),
    [("messages", limits.DATA_KEY_MESSAGES_MAX), ("bytes", limits.DATA_KEY_BYTES_MAX)],
)
def test_the_successor_is_asked_for_once_and_ahead_of_time(field: str, most: int) -> None:
    told: list[str] = []
    ring = sealer(
        on_running_low=lambda: told.append("low"), on_succession=lambda: told.append("next")
    )
    assert ring.current is not None
    setattr(ring.current, field, int(most * encryption.AHEAD) - 2)
    ring.seal(P0, HEADER, b"{", 1)
    assert told == []
    ring.seal(P0, HEADER, b"{", 1)
    ring.seal(P0, HEADER, b"{", 1)
    assert told == ["low"]
    ring.put_successor(b"key-two-", KEYS[b"key-two-"])
    setattr(ring.current, field, most)
    ring.seal(P0, HEADER, b"{", 1)
    assert told == ["low", "next"]


# --- Reasons of nacks ---------------------------------------------------------------------------


async def test_the_reason_of_a_nack_is_sealed_as_what_it_may_quote_is() -> None:
    """P13: it opens for its partition and nowhere else; damaged, it is not shown."""
    reasons = NackReasons(sealer())
    stored = reasons.seal(P0, "no account 4711 \u00e9")
    assert stored is not None
    assert b"4711" not in stored
    assert await reasons.open(P0, stored) == "no account 4711 \u00e9"
    assert await NackReasons(RecordSealer(open_key)).open(P0, stored) == "no account 4711 \u00e9"
    assert await reasons.open(P1, stored) is None
    assert await reasons.open(P0, stored[:-1]) is None
    assert await reasons.open(P0, None) is None


async def test_a_reason_that_was_stored_plain_stays_readable() -> None:
    """Encryption was switched on later."""
    stored = NackReasons().seal(P0, "card declined")
    assert stored is not None
    assert await NackReasons(sealer()).open(P0, stored) == "card declined"
    assert await NackReasons().open(P0, b"card declined") is None


async def test_a_reason_that_cannot_be_sealed_is_not_kept() -> None:
    """The nack counts all the same; nothing is written in the clear."""
    tired = sealer()
    assert tired.current is not None
    tired.current.until = 0.0
    assert NackReasons(tired).seal(P0, "card declined") is None
