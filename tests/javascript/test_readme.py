"""The examples of the JavaScript client's README run as they stand."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from loadtests.node import run_node
from loadtests.server import Server
from tests.javascript.conftest import PACKAGE

BLOCKS: Final = re.findall(r"^```js\n(.*?)^```", (PACKAGE / "README.md").read_text(), re.M | re.S)
URL: Final = "http://127.0.0.1:8080"
BEFORE: Final = """import { connect } from "tocsin";
const client = await connect("http://127.0.0.1:8080");
await client.createQueue("orders");
const charged = Promise.withResolvers();
const shown = Promise.withResolvers();
const show = shown.resolve;
const { fetch: fetchThere } = globalThis;
globalThis.fetch = (url, options) => {
  if (url !== "/charge") return fetchThere(url, options);
  charged.resolve(JSON.parse(options.body));
  return new Response();
};
await client.publish("orders", { total: 12 }, { key: "user-7" });
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = Server(tmp_path_factory.mktemp("broker") / "data", level="warning")
    server.start()
    yield server.url
    server.kill()


def ran(program: str, folder: Path, url: str) -> str:
    """Return what a program that imports the package writes."""
    (folder / "node_modules").mkdir()
    (folder / "node_modules/tocsin").symlink_to(PACKAGE)
    path = folder / "program.mjs"
    path.write_text(program.replace(URL, url))
    done = run_node("--preserve-symlinks", path, cwd=folder)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def test_the_first_example_runs(tmp_path: Path, url: str) -> None:
    assert ran(BLOCKS[0], tmp_path, url) == "user-7 { total: 12 }\n"


def test_the_example_of_a_handler_runs(tmp_path: Path, url: str) -> None:
    (block,) = [block for block in BLOCKS if "const worker" in block]
    first, last = block.rstrip().rsplit("\n", 1)
    during = "charged.promise.then(({ total }) => { console.log(total); worker.close(); });"
    program = f"{BEFORE}{first}\n{during}\n{last}\nconsole.log(error); await client.close();"
    assert ran(program, tmp_path, url) == "12\nnull\n"


def test_the_example_of_a_reader_runs(tmp_path: Path, url: str) -> None:
    (block,) = [block for block in BLOCKS if "const reader" in block]
    after = "console.log(await shown.promise); await reader.close(); await client.close();"
    assert ran(f"{BEFORE}{block}{after}", tmp_path, url) == "{ total: 12 }\n"


def test_the_example_of_a_listener_runs(tmp_path: Path, url: str) -> None:
    (block,) = [block for block in BLOCKS if block.startswith("client.addEventListener")]
    said = ran(f"{BEFORE}{block}await client.close();", tmp_path, url)
    assert said == "false null the client has been closed\n"


def test_the_example_of_a_scheduled_message_runs(tmp_path: Path, url: str) -> None:
    (block,) = [block for block in BLOCKS if "cancelScheduled" in block]
    after = "console.log(messages.map(({ id }) => id), due > new Date()); await client.close();"
    assert ran(f"{BEFORE}{block}{after}", tmp_path, url) == "[ '31' ] true\n"


def test_the_other_example_is_for_a_page() -> None:
    run = re.compile("const (worker|reader)|client.add|cancelScheduled")
    others = [block for block in BLOCKS[1:] if not run.search(block)]
    assert others == ['const client = await connect(undefined, { resume: "worker" });\n']
