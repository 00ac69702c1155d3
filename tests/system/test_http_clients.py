"""Clients of others, unchanged: their HTTP requests are carried out, and nothing else.

curl with `--http2` and Java's HttpClient offer HTTP/2 with each request (`Upgrade: h2c`), directly
and through a proxy that passes the offer on. Missing programs fail the test, and say what to do.
"""

import asyncio
import json
import os
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, Literal

import httpx2
import pytest

from gateway.admin import client as admin
from loadtests.node import node
from loadtests.server import Server, free_port
from spark.session import JAVA_FIRST, java_version
from tests.servers.programs import Program, needed
from tests.system.talk import running

HERE = Path(__file__).parent / "http_clients"
WAIT_S = 60.0
Framing = Literal["length", "chunked"]
CLIENTS = ("curl", "java", "node", "python")
each_client = pytest.mark.parametrize("client", CLIENTS)
each_framing = pytest.mark.parametrize("framing", ["length", "chunked"])


def java() -> str:
    """Return the path of a Java with a compiler, which starts a program from its source."""
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home) / "bin/java") if home else needed("java")
    what = f"Java {JAVA_FIRST} or newer with its compiler is needed here"
    assert (java_version() or 0) >= JAVA_FIRST, f"{what} (Debian, Ubuntu: default-jdk-headless)"
    modules = subprocess.run([program, "--list-modules"], capture_output=True, check=True).stdout
    assert b"jdk.compiler@" in modules, f"{what} (Debian, Ubuntu: apt install default-jdk-headless)"
    return program


class Asking:
    """A client that keeps its connections."""

    def __init__(self, client: str, base: str, folder: Path) -> None:
        self.client = client
        self.base = base
        self._folder = folder
        self._process: asyncio.subprocess.Process | None = None

    async def __call__(
        self, method: str, path: str, body: object = None, framing: Framing = "length"
    ) -> tuple[int, Any]:
        """Send a request; return the answer's status and JSON."""
        text = "" if body is None else json.dumps(body)
        said = await (self._curl if self.client == "curl" else self._lines)(
            method, self.base + path, framing, text
        )
        status, _, rest = said.partition("\t")
        return int(status), json.loads(rest) if rest.strip() else None

    async def _curl(self, method: str, url: str, framing: Framing, text: str) -> str:
        options = [
            "--http2",
            "--silent",
            "--show-error",
            "-X",
            method,
            "-w",
            "%{stderr}%{http_code}",
        ]
        if text and framing == "chunked":
            options += ["-T", "-"]
        elif text:
            options += ["--data-binary", "@-"]
        ran = await asyncio.create_subprocess_exec(
            needed("curl"), *options, url, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )  # fmt: skip
        body, status = await ran.communicate(text.encode())
        assert ran.returncode == 0, status
        return f"{status.decode()}\t{body.decode()}"

    async def _lines(self, *parts: str) -> str:
        if self._process is None:
            commands = {
                "java": lambda: [java(), "-Xshare:auto", str(HERE / "Asking.java")],
                "node": lambda: [node(), str(HERE / "asking.mjs")],
                "python": lambda: [shutil.which("python3") or "python3", str(HERE / "asking.py")],
            }
            self._process = await asyncio.create_subprocess_exec(
                *commands[self.client](), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                limit=2**22,
            )  # fmt: skip
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(("\t".join(parts) + "\n").encode())
        async with asyncio.timeout(WAIT_S):
            line = await self._process.stdout.readline()
        assert line, f"{self.client} has ended"
        return line.decode()

    def close(self) -> None:
        """End the client's process."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()


@asynccontextmanager
async def passing_on(folder: Path, port: int) -> AsyncIterator[str]:
    """Run an nginx that passes offers of other protocols on to the broker at `port`, as every nginx
    that passes WebSockets does. It alone states a client's name. Yield its URL."""
    own = free_port()
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = "\n".join(f"{kind}_temp_path {folder / kind};" for kind in kinds)
    conf = folder / "nginx.conf"
    conf.write_text(f"""
{"" if os.getuid() else "user root;"}
worker_processes 1;
pid {folder / "nginx.pid"};
error_log {folder / "error.log"};
events {{ worker_connections 100; }}
http {{
    access_log off;
    {temporary}
    map $http_upgrade $connection_upgrade {{ default upgrade; '' ''; }}
    upstream broker {{ server 127.0.0.1:{port}; keepalive 4; }}
    server {{
        listen 127.0.0.1:{own};
        location / {{
            proxy_pass http://broker;
            proxy_http_version 1.1;
            proxy_request_buffering off;
            proxy_set_header Host $host;
            proxy_set_header Upgrade $http_upgrade;
            proxy_set_header Connection $connection_upgrade;
            proxy_set_header X-Forwarded-For $remote_addr;
            proxy_set_header X-Client-Name "";
        }}
    }}
}}
""")
    command = [needed("nginx"), "-p", str(folder), "-c", str(conf)]
    command += ["-e", str(folder / "error.log"), "-g", "daemon off;"]
    program = Program(command, folder / "nginx.log")
    program.spawn()
    try:
        async with asyncio.timeout(WAIT_S), httpx2.AsyncClient(trust_env=False) as http:
            while True:
                assert program.is_running, program.log_end()
                try:
                    answer = await http.get(f"http://127.0.0.1:{own}/healthz")
                    assert answer.status_code == 200
                    break
                except httpx2.TransportError:
                    await asyncio.sleep(0.02)
        yield f"http://127.0.0.1:{own}"
    finally:
        program.kill()


@pytest.mark.parametrize("way", ["straight", "proxy"])
@each_client
async def test_whoever_comes_by_http_publishes_and_pulls(
    tmp_path: Path, client: str, way: str
) -> None:
    """Each answer is that of its request, and each request has its own body: settings are the given
    ones, a pull of one takes one, a redrive of one key sends that one."""
    with running(tmp_path) as server:
        if way == "straight":
            await publish_and_pull(Asking(client, server.url, tmp_path))
        else:
            async with passing_on(tmp_path, server.port) as url:
                await publish_and_pull(Asking(client, url, tmp_path))


async def publish_and_pull(ask: Asking) -> None:
    try:
        framings: tuple[Framing, ...] = ("length", "chunked")
        for framing in framings:
            queue = f"/v1/queues/{ask.client}-{framing}"
            settings = {"partitions": 1, "retention_s": 86400, "attempts_max": 1}
            status, made = await ask("PUT", queue, settings, framing)
            assert (status, made["settings"]["retention_s"]) == (201, 86400)
            assert made["settings"]["attempts_max"] == 1
            messages = [{"key": key, "body": f"{key}: ä"} for key in "abc"]
            status, stored = await ask("POST", f"{queue}/messages", {"messages": messages}, framing)
            assert (status, [one["offset"] for one in stored["results"]]) == (200, [0, 1, 2])
            wanted = {"messages_max": 1, "wait_s": 20}
            for key in "ab":
                status, pulled = await ask("POST", f"{queue}/groups/g/pull", wanted, framing)
                assert (status, [one["body"] for one in pulled["messages"]]) == (200, [f"{key}: ä"])
                receipts = {"receipts": [one["receipt"] for one in pulled["messages"]]}
                if key == "a":
                    status, said = await ask("POST", f"{queue}/groups/g/ack", receipts, framing)
                    assert (status, said["settled"]) == (200, 1)
                else:
                    await ask("POST", f"{queue}/groups/g/nack", receipts, framing)
            async with asyncio.timeout(WAIT_S):
                while not (await ask("GET", f"{queue}/dead-letters"))[1]["messages"]:
                    pass
            for key, count in (("a", 0), ("b", 1)):
                redrive = f"{queue}/dead-letters/redrive"
                status, said = await ask("POST", redrive, {"key": key}, framing)
                assert (status, said["messages"]) == (200, count)
            status, described = await ask("GET", queue)
            assert (status, described["settings"]["retention_s"]) == (200, 86400)
            status, said = await ask("DELETE", f"{queue}/groups/g")
            assert (status, said) == (200, {"deleted": 0})
    finally:
        ask.close()


SMUGGLED = b"PUT /v1/queues/stolen HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Client-Name: boss\r\n"
"""A client in front of the proxy must not be able to state this name."""


@pytest.mark.parametrize("token", ["h2c", "websocket", "x"])
@each_framing
async def test_nobody_speaks_for_another_one_past_a_proxy(
    tmp_path: Path, token: str, framing: Framing
) -> None:
    """P11: a request inside another one's body, with the header in which the proxy alone states a
    certificate's name, reaches the broker as a body."""
    settings = {
        "TOCSIN_AUTH": "required",
        "TOCSIN_TRUSTED_PROXIES": "127.0.0.1/32",
        "TOCSIN_CLIENT_CERTIFICATE_HEADER": "X-Client-Name",
    }
    server = Server(tmp_path / "data", settings=settings)
    try:
        server.spawn()
        server.wait_ready()
        wanted: dict[str, object] = {
            "name": "boss", "rights": ["manage:*", "read:*"], "certificate": "boss"
        }  # fmt: skip
        await asyncio.to_thread(admin.create_token, server.data_dir, wanted)
        assert await queues_of_boss(server) == []
        async with passing_on(tmp_path, server.port) as url:
            port = int(url.rpartition(":")[2])
            said = await asyncio.to_thread(smuggle, port, token, framing)
        assert said.count(b"HTTP/1.1 ") == 2, said  # for that request, and for the one after it
        assert await queues_of_boss(server) == []
    finally:
        server.discard()


async def queues_of_boss(server: Server) -> list[str]:
    """Return the names of the queues, with the trusted proxy's header."""
    headers = {"X-Client-Name": "boss", "Host": "127.0.0.1"}
    async with httpx2.AsyncClient(trust_env=False, base_url=server.url) as http:
        answer = await http.get("/v1/queues", headers=headers)
    assert answer.status_code == 200, answer.text
    return [one["name"] for one in answer.json()["queues"]]


def smuggle(port: int, token: str, framing: Framing) -> bytes:
    """Return all answers of the proxy to a request whose body is another one, and to one after
    it."""
    body = SMUGGLED + b"Content-Length: 0\r\n\r\n"
    head = f"POST /healthz HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: {token}\r\n"
    frame: Callable[[], bytes] = {
        "length": lambda: b"Content-Length: %d\r\n\r\n%b" % (len(body), body),
        "chunked": lambda: (
            b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        ),
    }[framing]
    last = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    with closing(socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)) as wire:
        wire.sendall(head.encode() + frame() + last)
        return b"".join(iter(lambda: wire.recv(65536), b""))
