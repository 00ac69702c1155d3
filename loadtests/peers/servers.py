"""The servers of the benchmark: each on free ports of loopback, with an empty folder, ended with
its block.

They also end with this process, if its main thread has started them: Tocsin always, the others
where setpriv (util-linux) exists.
"""

import base64
import contextlib
import hashlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from loadtests.peers import nats, stomp
from loadtests.peers.programs import Program, Rabbit
from loadtests.server import Server, ServerFailed, free_port

READY_TIMEOUT_S: Final = 60.0
_KILLED_WITH_US: Final = "import ctypes; ctypes.CDLL(None).prctl(1, 9); "
"""Code with which a server has the kernel kill it when its parent ends: PR_SET_PDEATHSIG with
SIGKILL."""
SERVE: Final = ("-c", _KILLED_WITH_US + "from gateway.cli.serve import serve; serve()")
PROVISION: Final = ("-c", "from gateway.cli.serve import admin; admin()", "provision")
IDLE_MS: Final = 600_000
"""RabbitMQ closes WebSockets that send nothing for this time, in milliseconds, so it exceeds a
consumer's silence."""
STARTED: Final = "Server startup complete"


@contextlib.contextmanager
def tocsin(folder: Path, storage: str = "") -> Iterator[Server]:
    """Start the shipped broker in its default configuration, with encryption on. `storage`: the URL
    of a Redis store; without it, SQLite."""
    settings = {"TOCSIN_STORAGE": storage} if storage else {}
    server = Server(folder / "data", command=SERVE, level="warning", settings=settings)
    try:
        server.start()
        yield server
    finally:
        server.discard()


@contextlib.contextmanager
def redis(folder: Path, program: Program) -> Iterator[tuple[int, int]]:
    """Start a Redis that syncs each write before it answers. Yield (port, pid)."""
    port = free_port()
    command = [
        str(program.path), "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder),
        "--appendonly", "yes", "--appendfsync", "always", "--save", "", "--maxmemory", "2gb",
        "--maxmemory-policy", "noeviction", "--repl-diskless-load", "disabled",
    ]  # fmt: skip
    with spawned(command, folder / "redis.log") as process:
        _until_listening(process, port, folder / "redis.log")
        yield port, process.pid


def provision(url: str) -> None:
    """Make an empty Redis a store of Tocsin. Raises ServerFailed."""
    command = [sys.executable, *PROVISION, "--replicas", "0", "--storage", url]
    ran = subprocess.run(
        command, capture_output=True, text=True, timeout=READY_TIMEOUT_S, check=False,
        stdin=subprocess.DEVNULL, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    if ran.returncode:
        raise ServerFailed(f"provisioning {url} failed:\n{ran.stderr[-2000:]}")


def nats_config(folder: Path, port: int, websocket: int, *, sync_always: bool) -> str:
    """Return the configuration of a NATS server with JetStream, for the queues of the scenarios."""
    lines = [
        'server_name: "bench"',
        f'listen: "127.0.0.1:{port}"',
        f'websocket {{ listen: "127.0.0.1:{websocket}", no_tls: true }}',
        "jetstream {",
        f"  store_dir: {json.dumps(str(folder / 'jetstream'))}",
        *(["  sync_interval: always"] if sync_always else []),
        "}",
        "mappings = {",
        *(f"  {nats.mapping(queue, nats.PARTITIONS)}" for queue in nats.SHARED),
        "}",
    ]
    return "\n".join(lines) + "\n"


@contextlib.contextmanager
def nats_server(folder: Path, program: Program, *, sync_always: bool) -> Iterator[tuple[str, int]]:
    """Start a NATS server. Yield (URL of its WebSocket, pid)."""
    websocket = free_port()
    config = folder / "nats.conf"
    # -1: any port that is free when it is taken. No client uses it.
    config.write_text(nats_config(folder, -1, websocket, sync_always=sync_always))
    with spawned([str(program.path), "-c", str(config)], folder / "nats.log") as process:
        _until_listening(process, websocket, folder / "nats.log")
        yield f"http://127.0.0.1:{websocket}", process.pid


def definitions(user: str, password: str) -> dict[str, object]:
    """Return the initial definitions of a RabbitMQ: the user, the consistent-hash exchange with its
    quorum queues, and the fanout exchange. A password is salted and hashed as RabbitMQ documents
    it: https://www.rabbitmq.com/docs/passwords#computing-password-hash"""
    salt = secrets.token_bytes(4)
    hashed = base64.b64encode(salt + hashlib.sha256(salt + password.encode()).digest()).decode()
    here = {"vhost": "/", "durable": True, "auto_delete": False}
    names = [f"{stomp.EXCHANGE}.{partition}" for partition in range(stomp.PARTITIONS)]
    exchanges = {stomp.EXCHANGE: "x-consistent-hash", stomp.FEED: "fanout"}
    return {
        "users": [
            {
                "name": user,
                "password_hash": hashed,
                "hashing_algorithm": "rabbit_password_hashing_sha256",
                "tags": "",
            }
        ],
        "vhosts": [{"name": "/"}],
        "permissions": [
            {"user": user, "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}
        ],
        "queues": [{"name": n, **here, "arguments": {"x-queue-type": "quorum"}} for n in names],
        "exchanges": [
            {"name": name, "type": kind, **here, "internal": False, "arguments": {}}
            for name, kind in exchanges.items()
        ],
        "bindings": [
            {
                "source": stomp.EXCHANGE, "vhost": "/", "destination": name,
                "destination_type": "queue", "routing_key": "10", "arguments": {},
            }
            for name in names
        ],
    }  # fmt: skip


@contextlib.contextmanager
def rabbit(folder: Path, found: Rabbit, user: str, password: str) -> Iterator[tuple[str, int, int]]:
    """Start a RabbitMQ. Yield (URL of its WebSocket, pid, pid of its epmd)."""
    websocket, epmd_port = free_port(), free_port()
    _write_rabbit(folder, found, websocket, definitions(user, password))
    settings = _rabbit_settings(folder, found, epmd_port)
    epmd = [str(found.binaries / "epmd"), "-port", str(epmd_port), "-address", "127.0.0.1"]
    log = folder / "rabbit.log"
    with (
        # An epmd of our own; otherwise the node starts one that stays.
        spawned(epmd, folder / "epmd.log", settings) as names,
        spawned([str(found.script)], folder / "start.log", settings) as process,
    ):
        began = time.monotonic()
        while not (log.exists() and STARTED in log.read_text(errors="replace")):
            if process.poll() is not None or time.monotonic() - began > READY_TIMEOUT_S:
                said = log if log.exists() else folder / "start.log"
                raise ServerFailed(f"RabbitMQ has not started:\n{_tail(said)}")
            time.sleep(0.1)
        yield f"http://127.0.0.1:{websocket}", process.pid, names.pid


def _write_rabbit(folder: Path, found: Rabbit, websocket: int, have: Mapping[str, object]) -> None:
    """Write the configuration of RabbitMQ, and a script `erl` that starts Erlang, because Erlang
    may not be where its own script expects it."""
    (folder / "definitions.json").write_text(json.dumps(have))
    (folder / "rabbitmq.conf").write_text(
        f"listeners.tcp = none\nload_definitions = {folder}/definitions.json\n"
        "disk_free_limit.absolute = 50MB\nlog.file.level = info\n"
    )
    (folder / "advanced.config").write_text(
        "[{rabbitmq_stomp, [{tcp_listeners, []}]},\n"
        f' {{rabbitmq_web_stomp, [{{tcp_config, [{{ip, "127.0.0.1"}}, {{port, {websocket}}}]}},\n'
        f"  {{cowboy_opts, [{{idle_timeout, {IDLE_MS}}}]}},\n"
        f"  {{cowboy_ws_opts, [{{idle_timeout, {IDLE_MS}}}]}}]}}].\n"
    )
    (folder / "enabled_plugins").write_text(
        "[rabbitmq_consistent_hash_exchange,rabbitmq_web_stomp].\n"
    )
    (folder / "bin").mkdir()
    erl = folder / "bin/erl"
    binaries = found.binaries
    erl.write_text(
        f'#!/bin/sh\nexport ROOTDIR="{found.erlang}" BINDIR="{binaries}" EMU=beam PROGNAME=erl\n'
        f'exec {" ".join(_dying())} "{binaries}/erlexec" "$@"\n'
    )
    erl.chmod(0o755)


def _rabbit_settings(folder: Path, found: Rabbit, epmd_port: int) -> dict[str, str]:
    libraries = [*found.root.glob("usr/lib/*-linux-*"), *found.root.glob("lib/*-linux-*")]
    settings = {
        "HOME": str(folder),
        "PATH": f"{folder}/bin:{os.environ.get('PATH', '')}",
        "LANG": "C.UTF-8",
        "ERL_EPMD_PORT": str(epmd_port),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODENAME": "bench@localhost",
        "RABBITMQ_DIST_PORT": str(free_port()),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        "RABBITMQ_CONF_ENV_FILE": str(folder / "rabbitmq-env.conf"),
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
        "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "advanced.config"),
        "RABBITMQ_GENERATED_CONFIG_DIR": str(folder / "generated"),
        "RABBITMQ_SCHEMA_DIR": str(folder / "schema"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
        "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_LOGS": str(folder / "rabbit.log"),
        "RABBITMQ_PID_FILE": str(folder / "rabbit.pid"),
    }
    if found.root != Path("/"):
        settings["LD_LIBRARY_PATH"] = ":".join(map(str, libraries))
    return settings


def _dying() -> list[str]:
    """Return the prefix of a command that has the kernel kill it when its parent ends; empty
    without setpriv."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL"] if setpriv else []


@contextlib.contextmanager
def spawned(
    command: Sequence[str], log: Path, settings: Mapping[str, str] | None = None
) -> Iterator["subprocess.Popen[bytes]"]:
    """Yield a process in a session of its own. The end of the block kills its process group with
    `kill -9`. `settings`, if given, are its whole environment."""
    with log.open("ab") as said:
        process = subprocess.Popen(
            [*_dying(), *command], cwd=log.parent, env=None if settings is None else dict(settings),
            stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True,
        )  # fmt: skip
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _until_listening(process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    began = time.monotonic()
    while time.monotonic() - began < READY_TIMEOUT_S:
        if process.poll() is not None:
            raise ServerFailed(f"the server ended with {process.returncode}:\n{_tail(log)}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.02)
    raise ServerFailed(f"the server does not listen after {READY_TIMEOUT_S} s:\n{_tail(log)}")


def _tail(log: Path, lines: int = 25) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
