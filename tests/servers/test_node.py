"""What the helpers for servers say when something is not as it should be."""

from pathlib import Path

import pytest
import redis

from tests.servers.binaries import Binary
from tests.servers.node import Node, NodeFailed, in_sync, until
from tests.servers.ports import ClaimedPort

PRIMARY = {
    "role": "master", "connected_slaves": "1", "master_repl_offset": "10",
    "slave0": "ip=127.0.0.1,port=2,state=online,offset=10,lag=0",
}  # fmt: skip
REPLICA = {
    "role": "slave", "master_link_status": "up", "master_host": "127.0.0.1", "master_port": "1",
    "slave_repl_offset": "10", "loading": "0", "aof_enabled": "1", "aof_rewrite_in_progress": "0",
    "aof_rewrite_scheduled": "0", "aof_last_bgrewrite_status": "ok", "aof_last_write_status": "ok",
}  # fmt: skip


class Said(Node):
    """A server of which only this is known."""

    def __init__(self, port: int, says: dict[str, str]) -> None:
        super().__init__(Binary("", "", ()), Path("said"), "127.0.0.1", port)
        self.says = says

    def info(self, section: str) -> dict[str, str]:
        return self.says


def test_who_has_all_on_disk_is_in_sync() -> None:
    assert in_sync(Said(1, PRIMARY), [Said(2, REPLICA)])


def test_who_lags_is_not_in_sync() -> None:
    assert not in_sync(Said(1, PRIMARY), [Said(2, REPLICA | {"slave_repl_offset": "9"})])


@pytest.mark.parametrize(
    "wrong",
    [
        {"role": "master"}, {"master_link_status": "down"}, {"master_port": "3"}, {"loading": "1"},
        {"aof_enabled": "0"}, {"aof_rewrite_in_progress": "1"}, {"aof_rewrite_scheduled": "1"},
        {"aof_last_bgrewrite_status": "err"}, {"aof_last_write_status": "err"},
    ],
    ids=str,
)  # fmt: skip
def test_who_would_lose_it_is_not_in_sync(wrong: dict[str, str]) -> None:
    """R28: a replica whose file is still being rewritten after a sync, among others."""
    assert not in_sync(Said(1, PRIMARY), [Said(2, REPLICA | wrong)])


@pytest.mark.parametrize(
    "wrong",
    [{"role": "slave"}, {"connected_slaves": "2"}, {"slave0": "state=wait_bgsave"}],
    ids=str,
)
def test_a_primary_with_others_than_these_is_not_in_sync(wrong: dict[str, str]) -> None:
    assert not in_sync(Said(1, PRIMARY | wrong), [Said(2, REPLICA)])


def test_who_waits_in_vain_is_told_for_what() -> None:
    def never() -> bool:
        raise redis.ConnectionError("nobody there")

    with pytest.raises(TimeoutError, match=r"the end: not within 0 s \(nobody there\)"):
        until(never, "the end", within_s=0)


def test_a_server_that_ends_says_why(redis_binary: Binary, tmp_path: Path) -> None:
    (tmp_path / "node.conf").write_text("no-such-setting yes\n")
    node = Node(redis_binary, tmp_path, "127.0.0.1", 1)
    node.spawn()
    with pytest.raises(NodeFailed, match="no-such-setting"):
        node.wait_ready()


def test_no_port_is_claimed_twice() -> None:
    with ClaimedPort() as first:
        others = [ClaimedPort() for _ in range(50)]
        numbers = {first.number, *(other.number for other in others)}
        for other in others:
            other.__exit__()
    assert len(numbers) == 51
    ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert max(numbers) < ephemeral
