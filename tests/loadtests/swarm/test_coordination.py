"""How sockets are dealt out among the processes and addresses of a swarm."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.swarm import coordination


@given(st.integers(1, 200_000), st.integers(1, 200))
def test_sockets_are_dealt_out_evenly_over_addresses_that_no_two_processes_share(
    sockets: int, parts: int
) -> None:
    dealt = coordination.shares(sockets, parts)
    assert sum(dealt) == sockets
    assert max(dealt) - min(dealt) <= 1
    places = [coordination.addresses(number, many) for number, many in enumerate(dealt)]
    everywhere = [address for some in places for address in some]
    assert len(everywhere) == len(set(everywhere))
    for some, many in zip(places, dealt, strict=True):
        assert many <= len(some) * coordination.PER_ADDRESS
        assert all(address.startswith("127.0.") for address in some)


def test_a_process_has_no_more_sockets_than_files() -> None:
    for sockets in (2, 15_000, 30_001, 100_000):
        parts = coordination.processes(sockets)
        assert max(coordination.shares(sockets, parts)) <= coordination.PER_PROCESS_MAX
        assert parts >= 2


def test_too_many_sockets_for_the_addresses_are_refused() -> None:
    with pytest.raises(ValueError, match="too many"):
        coordination.addresses(0, coordination.PER_ADDRESS * 255)
    with pytest.raises(ValueError, match="too many"):
        coordination.addresses(254, 1)
