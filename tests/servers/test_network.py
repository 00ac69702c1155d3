"""Hosts of tests: cut off means that nothing passes, and at the end nothing is left."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import redis

from tests.layout.tree import ROOT
from tests.servers.binaries import Binary
from tests.servers.layouts import replicated
from tests.servers.network import needs, network
from tests.servers.node import until

pytestmark = pytest.mark.skipif(bool(needs()), reason=needs())
ORPHAN = """
import time
from tests.servers.network import network
with network() as net:
    print(net.interface, net.host("one").pid, flush=True)
    time.sleep(60)
"""


def test_nothing_passes_while_a_link_is_cut(redis_binary: Binary, tmp_path: Path) -> None:
    with network() as net:
        hosts = [net.host("one"), net.host("two")]
        with replicated(redis_binary, tmp_path, replicas=1, hosts=hosts) as shard:
            primary, replica = shard.nodes
            net.cut(hosts[1])
            with pytest.raises(redis.TimeoutError):
                replica.ask("PING")
            assert primary.ask("SET", "a", "1") == "OK"
            said = subprocess.run(
                [*hosts[1].inside, sys.executable, "-c", GET_A, replica.address], cwd=ROOT,
                capture_output=True, text=True, check=True,
            )  # fmt: skip
            assert said.stdout.strip() == "$-1"
            net.heal(hosts[1])
            shard.wait_in_sync()
            assert replica.ask("GET", "a") == "1"


def test_a_link_can_be_cut_one_way(redis_binary: Binary, tmp_path: Path) -> None:
    """What one sends does not arrive at the other; what that one sends does."""
    with network() as net:
        hosts = [net.host("one"), net.host("two")]
        with replicated(redis_binary, tmp_path, replicas=1, hosts=hosts) as shard:
            primary, replica = shard.nodes
            net.block([(hosts[0], hosts[1])])
            assert primary.ask("SET", "a", "1") == "OK"
            heard = subprocess.Popen(
                [*hosts[0].inside, sys.executable, "-c", HEAR, hosts[0].address],
                stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            assert heard.stdout is not None
            with heard, heard.stdout:
                assert heard.stdout.readline() == "listens\n"
                subprocess.run(
                    [*hosts[1].inside, sys.executable, "-c", SAY, hosts[0].address], check=True
                )
                assert heard.stdout.readline() == "hello\n"
            assert replica.ask("GET", "a") is None
            net.unblock([(hosts[0], hosts[1])])
            shard.wait_in_sync()
            assert replica.ask("GET", "a") == "1"


HEAR = """
import socket, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ours:
    ours.bind((sys.argv[1], 5555))
    ours.settimeout(30)
    print("listens", flush=True)
    print(ours.recv(10).decode(), flush=True)
"""
"""A datagram, which needs no answer."""
SAY = """
import socket, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as talk:
    talk.sendto(b"hello", (sys.argv[1], 5555))
"""
GET_A = """
import socket, sys
with socket.create_connection((sys.argv[1], 6379)) as talk:
    talk.sendall(b"GET a\\r\\n")
    print(talk.recv(100).decode())
"""
"""Asked on its own host, what the replica has."""


def test_networks_of_two_tests_do_not_meet() -> None:
    with network() as one, network() as two:
        assert one.interface != two.interface
        nets = {net.host("host").address.rpartition(".")[0] for net in (one, two)}
        assert len(nets) == 2


def test_nothing_is_left_of_a_test_that_was_killed() -> None:
    starter = subprocess.Popen(
        [sys.executable, "-c", ORPHAN], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert starter.stdout is not None
    with starter.stdout:
        interface, keeper = starter.stdout.readline().split()
    link = Path("/sys/class/net") / interface
    assert link.exists()
    starter.send_signal(signal.SIGKILL)
    starter.wait()
    until(lambda: not link.exists(), "the network has gone")
    until(lambda: gone(keeper), "the host has gone")


def gone(pid: str) -> bool:
    """Whether a process has ended; nobody may have asked how."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True
