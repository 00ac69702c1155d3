"""Servers of tests do what tests will take for granted: last, follow, fail over, and end."""

import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis

from tests.layout.tree import ROOT
from tests.servers.binaries import Binary
from tests.servers.layouts import guarded, replicated, single
from tests.servers.network import needs, network
from tests.servers.node import in_sync, until, written

ORPHAN = """
import sys, time
from pathlib import Path
from tests.servers.binaries import Binary
from tests.servers.layouts import single
with single(Binary(sys.argv[1], "", ()), Path(sys.argv[2])) as node:
    print(node.pid, flush=True)
    time.sleep(60)
"""


def test_what_was_answered_outlives_kill_9(redis_binary: Binary, tmp_path: Path) -> None:
    with single(redis_binary, tmp_path) as node:
        assert node.role() == "master"
        assert node.ask("SET", "a", "1") == "OK"
        node.kill()
        assert not node.is_running
        with pytest.raises(redis.ConnectionError):
            node.ask("PING")
        node.start()
        assert node.ask("GET", "a") == "1"


def test_a_server_dies_with_who_started_it(redis_binary: Binary, tmp_path: Path) -> None:
    starter = subprocess.Popen(
        [sys.executable, "-c", ORPHAN, redis_binary.path, tmp_path], cwd=ROOT,
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert starter.stdout is not None
    with starter.stdout:
        process = Path("/proc") / starter.stdout.readline().strip()
    assert process.is_dir()
    starter.send_signal(signal.SIGKILL)
    starter.wait()
    until(lambda: not process.exists() or "Z" in status(process), "the server has gone")


def status(process: Path) -> str:
    """The state of a process; nobody may have asked how it ended."""
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "Z"


def test_replicas_follow_and_who_does_not_is_seen(redis_binary: Binary, tmp_path: Path) -> None:
    with replicated(redis_binary, tmp_path) as shard:
        primary, first, second = shard.nodes
        assert shard.primary is primary
        assert shard.replicas == [first, second]
        written(primary, "a", 2)
        first.freeze()
        assert primary.ask("SET", "b", "1") == "OK"
        offset = int(primary.info("replication")["master_repl_offset"])
        first.thaw()
        shard.wait_in_sync()
        assert int(first.info("replication")["slave_repl_offset"]) >= offset
        assert first.ask("GET", "b") == "1"
        second.kill()
        assert not in_sync(primary, [first, second])
        assert primary.ask("SET", "c", "1") == "OK"
        second.start()
        shard.wait_in_sync()
        assert second.ask("GET", "c") == "1"


def test_sentinels_replace_a_primary_that_is_lost(redis_binary: Binary, tmp_path: Path) -> None:
    """Its host is cut off, and then it is killed: the kernel of a killed process still sends what
    it had. Where links cannot be cut, it is only killed."""
    with ExitStack() as stack:
        net = stack.enter_context(network()) if not needs() else None
        hosts = [net.host(f"host-{number}") for number in range(3)] if net else []
        shard = stack.enter_context(guarded(redis_binary, tmp_path, hosts=hosts))
        lost = shard.primary
        assert shard.named() is lost
        written(lost, "a", 2)
        if net:
            net.cut(hosts[0])
            with pytest.raises(redis.TimeoutError):
                lost.ask("SET", "b", "1")
        lost.kill()
        found = shard.wait_failover(lost, by=shard.sentinels[1:])
        assert found is not lost
        assert found.ask("GET", "a") == "a"
        written(found, "c", 1)
        if net:
            net.heal(hosts[0])
        lost.start()
        shard.wait_in_sync()
        assert shard.primary is found
        assert lost.ask("MGET", "a", "b", "c") == ["a", None, "c"]
