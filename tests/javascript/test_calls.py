"""What the JavaScript client calls over HTTP, from Node, against a broker process."""

from loadtests.node import run_node
from loadtests.server import Server
from tests.javascript.conftest import PACKAGE


def test_the_calls_do_what_they_say(server: Server) -> None:
    files = sorted((PACKAGE / "test/with-broker").glob("*.test.js"))
    assert files
    ran = run_node("--test", *files, cwd=PACKAGE, TOCSIN_URL=server.url)
    assert ran.returncode == 0, ran.stdout[-20_000:] + ran.stderr[-5_000:]
