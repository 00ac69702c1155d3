"""The JavaScript client in Node, against a broker that lets few in at a time."""

from pathlib import Path

from loadtests.node import run_node
from loadtests.server import Server
from tests.javascript.conftest import PACKAGE


def test_clients_wait_until_they_are_let_in(tmp_path: Path) -> None:
    settings = {"TOCSIN_LIMIT_PRINCIPAL": "connections=5/s+1,requests=20/s+10"}
    files = sorted((PACKAGE / "test/with-limits").glob("*.test.js"))
    assert files
    with Server(tmp_path / "data", level="warning", settings=settings) as server:
        ran = run_node("--test", *files, cwd=PACKAGE, TOCSIN_URL=server.url)
    assert ran.returncode == 0, ran.stdout[-20_000:] + ran.stderr[-5_000:]
