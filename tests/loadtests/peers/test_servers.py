"""Servers are set up as the table says, and gone when their block ends."""

import base64
import hashlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from loadtests.peers import nats, servers, stomp
from loadtests.peers.programs import Rabbit
from loadtests.peers.servers import definitions, nats_config, spawned
from loadtests.server import ServerFailed
from tests.waiting import becomes


def test_nats_syncs_each_message_only_if_it_is_to(tmp_path: Path) -> None:
    plain = nats_config(tmp_path, 1234, 5678, sync_always=False)
    assert "sync_interval" not in plain
    assert "sync_interval: always" in nats_config(tmp_path, 1234, 5678, sync_always=True)
    assert 'listen: "127.0.0.1:5678", no_tls: true' in plain
    assert f'store_dir: "{tmp_path}/jetstream"' in plain


def test_nats_maps_the_keys_of_every_shared_queue_to_its_partitions(tmp_path: Path) -> None:
    config = nats_config(tmp_path, 1, 2, sync_always=False)
    for queue in nats.SHARED:
        line = f'"to.{queue}.*": "{queue}.{{{{partition(16,1)}}}}.{{{{wildcard(1)}}}}"'
        assert line in config
    for queue in nats.FEEDS:
        assert f"to.{queue}" not in config


def test_rabbit_has_a_quorum_queue_for_each_partition_behind_the_exchange() -> None:
    have: dict[str, Any] = definitions("bench", "secret")
    names = {queue["name"] for queue in have["queues"]}
    assert len(names) == stomp.PARTITIONS
    assert {queue["arguments"]["x-queue-type"] for queue in have["queues"]} == {"quorum"}
    assert all(queue["durable"] and not queue["auto_delete"] for queue in have["queues"])
    assert {b["destination"] for b in have["bindings"] if b["source"] == stomp.EXCHANGE} == names
    kinds = {exchange["name"]: exchange["type"] for exchange in have["exchanges"]}
    assert kinds == {stomp.EXCHANGE: "x-consistent-hash", stomp.FEED: "fanout"}
    assert json.loads(json.dumps(have)) == have


def test_a_password_is_hashed_as_rabbit_does() -> None:
    have: dict[str, Any] = definitions("bench", "secret")
    (user,) = have["users"]
    raw = base64.b64decode(user["password_hash"])
    assert raw[4:] == hashlib.sha256(raw[:4] + b"secret").digest()
    assert "secret" not in json.dumps(have)


def test_rabbit_listens_on_loopback_alone_and_runs_the_erlang_that_was_found(
    tmp_path: Path,
) -> None:
    binaries = tmp_path / "erlang/erts-13/bin"
    binaries.mkdir(parents=True)
    found = Rabbit(tmp_path / "script", tmp_path / "erlang", tmp_path / "root", (3, 10, 8))
    folder = tmp_path / "run"
    folder.mkdir()
    servers._write_rabbit(folder, found, 5678, definitions("bench", "secret"))
    advanced = (folder / "advanced.config").read_text()
    assert '{ip, "127.0.0.1"}, {port, 5678}' in advanced
    assert advanced.count("[") == advanced.count("]")
    assert advanced.count("{") == advanced.count("}")
    assert advanced.rstrip().endswith("].")
    assert "listeners.tcp = none" in (folder / "rabbitmq.conf").read_text()
    erl = folder / "bin/erl"
    assert os.access(erl, os.X_OK)
    assert f'"{binaries}/erlexec" "$@"' in erl.read_text()
    settings = servers._rabbit_settings(folder, found, 4321)
    assert settings["PATH"].split(":")[0] == str(folder / "bin")
    for name, value in settings.items():
        if name.endswith(("_FILE", "_DIR", "_BASE", "_LOGS", "HOME")):
            assert value.startswith(str(folder)), name


def is_gone(stat: Path) -> bool:
    try:
        return stat.read_text().rpartition(")")[2].split()[0] == "Z"  # nobody waits for it
    except OSError:
        return True


async def test_what_was_spawned_is_gone_with_its_children_when_the_block_ends(
    tmp_path: Path,
) -> None:
    told, log = tmp_path / "child", tmp_path / "log"
    code = (
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(told)!r} + '.part', 'w').write(str(child.pid))\n"
        f"os.rename({str(told)!r} + '.part', {str(told)!r})\n"
        "time.sleep(600)\n"
    )
    with spawned([sys.executable, "-S", "-c", code], log) as process:
        await becomes(lambda: told.exists() or process.poll() is not None)
        child = Path("/proc", told.read_text(), "stat")
        assert not is_gone(child)
    assert process.returncode == -signal.SIGKILL
    await becomes(lambda: is_gone(child))


def test_a_server_that_ends_at_once_is_reported_with_its_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with (
        spawned([sys.executable, "-S", "-c", "print('no such luck')"], log) as process,
        pytest.raises(ServerFailed, match="no such luck"),
    ):
        servers._until_listening(process, 9, log)
