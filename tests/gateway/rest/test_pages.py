"""The pages: what is served to anybody, and that nothing else is (P11, P12)."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest

from gateway.auth.auth import Authenticator
from gateway.broker import Broker
from gateway.config import Config
from gateway.rest.app import Application
from gateway.rest.pages import FOLDERS, POLICY, Site, pages
from gateway.server import OnFatal, Server
from push import limits
from tests.gateway.asgi import client_of
from tests.gateway.conftest import never
from tests.gateway.plain_metadata import broker_in_memory
from tests.gateway.rest.test_rest import check_problem

Http = httpx2.AsyncClient
FILES = {
    "clients/browser/demo.html": "<!doctype html><title>demo</title>",
    "clients/browser/console.html": "<!doctype html><title>console</title>",
    "clients/browser/demo/main.js": "export {};",
    "clients/browser/shared/look.css": "body { color: black }",
    "clients/browser/shared/sign.svg": "<svg xmlns='http://www.w3.org/2000/svg'/>",
    "clients/browser/shared/facts.json": "{}",
    "clients/browser/shared/font.woff2": "wOF2",
    "clients/javascript/src/index.js": "export const connect = 1;",
    # What is beside them is nobody's business.
    "clients/browser/vendor/uplot/LICENSE": "MIT",
    "clients/browser/README.md": "# notes",
    "clients/browser/.hidden.js": "secret",
    "clients/browser/.git/config.json": "secret",
    "clients/javascript/package.json": "{}",
    "clients/python/secret.js": "secret",
    "secret.json": "secret",
}


class Clock:
    """Monotonic seconds, moved by the test."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / "checkout" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "checkout"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def http(checkout: Path, clock: Clock) -> AsyncIterator[Http]:
    """A client of a broker with a token, which it does not present."""
    async with visitor(Site(checkout, now=clock)) as client:
        yield client


async def whole(config: Config, on_fatal: OnFatal) -> Broker:
    return await Broker.open(config, on_fatal=on_fatal)


@pytest.fixture
async def port(checkout: Path, tmp_path: Path) -> AsyncIterator[int]:
    """Of a server with a token: what httptools makes of a path counts, and no client tidies it."""
    config = Config(data_dir=tmp_path / "data", port=0, token="s3cret")
    served = pages(Site(checkout))
    server = await Server.open(config, whole, on_fatal=never, pages=served)
    yield int(server.url.rpartition(":")[2])
    await server.stop()


def is_served(name: str) -> bool:
    """Whether this is one of the files before the comment in FILES."""
    return list(FILES).index(name) < 8


async def raw(port: int, path: str) -> bytes:
    """A whole answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    async with asyncio.timeout(10):
        response = await reader.read()
    writer.close()
    return response


def opened(checkout: Path) -> Site:
    site = Site(checkout)
    site.open()
    return site


def visitor(site: Site, token: str | None = "s3cret") -> Http:
    served = pages(site)
    application = Application(
        broker_in_memory(), Authenticator(token), routes=served.routes, public=served.public
    )
    return client_of(application)


@pytest.mark.parametrize(
    ("path", "media_type", "body"),
    [
        ("/demo", "text/html; charset=utf-8", "<!doctype html><title>demo</title>"),
        ("/console", "text/html; charset=utf-8", "<!doctype html><title>console</title>"),
        ("/assets/browser/demo/main.js", "text/javascript; charset=utf-8", "export {};"),
        ("/assets/tocsin/index.js", "text/javascript; charset=utf-8", "export const connect = 1;"),
        ("/assets/browser/shared/look.css", "text/css; charset=utf-8", "body { color: black }"),
        (
            "/assets/browser/shared/sign.svg",
            "image/svg+xml",
            FILES["clients/browser/shared/sign.svg"],
        ),
        ("/assets/browser/shared/facts.json", "application/json", "{}"),
        ("/assets/browser/shared/font.woff2", "font/woff2", "wOF2"),
    ],
)
async def test_pages_and_their_modules_are_served_to_anybody(
    http: Http, path: str, media_type: str, body: str
) -> None:
    response = await http.get(path)
    assert response.status_code == 200
    assert response.headers["content-type"] == media_type
    assert response.text == body
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["referrer-policy"] == "no-referrer"
    assert response.headers["cross-origin-resource-policy"] == "same-origin"


@pytest.mark.parametrize(
    ("path", "page"), [("/", "/demo"), ("/demo/", "/demo"), ("/console/", "/console")]
)
async def test_a_slash_leads_to_its_page_also_without_the_token(
    http: Http, path: str, page: str
) -> None:
    response = await http.get(path, headers={"host": "evil.example"})
    assert response.status_code == 307
    assert response.headers["location"] == page  # no word of the Host header


async def test_a_page_runs_and_loads_nothing_but_ours(http: Http) -> None:
    for path in ("/demo", "/console", "/assets/browser/demo.html"):
        assert (await http.get(path)).headers["content-security-policy"] == POLICY
    assert "unsafe" not in POLICY
    assert "*" not in POLICY
    policy = (await http.get("/assets/browser/shared/sign.svg")).headers["content-security-policy"]
    assert policy == "default-src 'none'; frame-ancestors 'none'"


async def test_what_a_browser_has_is_not_sent_again(http: Http) -> None:
    first = await http.get("/demo")
    etag = first.headers["etag"]
    for known in (etag, f"W/{etag}", f'"other", {etag}', "*"):
        again = await http.get("/demo", headers={"if-none-match": known})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"] == etag
        # These replace what the browser has kept: a laxer or stricter one would then hold.
        assert again.headers["content-security-policy"] == POLICY
        assert again.headers["cache-control"] == "no-cache"
    for other in ('"other"', "", etag.strip('"')):
        again = await http.get("/demo", headers={"if-none-match": other})
        assert (again.status_code, again.text) == (200, first.text)


async def test_what_changes_is_seen_a_second_later(
    http: Http, checkout: Path, clock: Clock
) -> None:
    before = await http.get("/demo")
    (checkout / "clients/browser/demo.html").write_text("<!doctype html>another")
    (checkout / "clients/browser/demo/new.js").write_text("1")
    (checkout / "clients/browser/console.html").unlink()
    clock.now += 0.9
    assert (await http.get("/demo")).text == before.text
    clock.now += 0.2
    after = await http.get("/demo", headers={"if-none-match": before.headers["etag"]})
    assert (after.status_code, after.text) == (200, "<!doctype html>another")
    assert (await http.get("/assets/browser/demo/new.js")).text == "1"
    check_problem(await http.get("/console"), "not_found")


async def test_many_who_ask_at_once_cost_one_look(
    checkout: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []
    real = Site._look

    def counted(site: Site) -> None:
        looks.append(1)
        real(site)

    monkeypatch.setattr(Site, "_look", counted)
    async with visitor(Site(checkout, now=clock)) as http:
        await http.get("/demo")
        clock.now += 5
        answers = await asyncio.gather(*(http.get("/demo") for _ in range(50)))
    assert {answer.status_code for answer in answers} == {200}
    assert len(looks) == 2  # for the first, and then


@pytest.mark.parametrize("path", ["/demo", "/console", "/assets/tocsin/index.js", "/"])
async def test_other_methods_are_refused_and_head_has_no_body(http: Http, path: str) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        response = await http.request(method, path)
        check_problem(response, "method_not_allowed")
        assert set(response.headers["allow"].split(", ")) == {"GET", "HEAD"}
    head, get = await http.head(path), await http.get(path)
    assert head.status_code == get.status_code
    assert head.headers == get.headers


@pytest.mark.parametrize(
    "path",
    [
        "/assets/",
        "/assets/browser",
        "/assets/browser/",
        "/assets/browser/demo",
        "/assets/browser/nothing.js",
        "/assets/browser/vendor/uplot/LICENSE",
        "/assets/browser/README.md",
        "/assets/browser/.hidden.js",
        "/assets/browser/.git/config.json",
        "/assets/browser/../python/secret.js",
        "/assets/browser/%2e%2e/python/secret.js",
        "/assets/browser/..%2fpython%2fsecret.js",
        "/assets/browser/..%2f..%2fsecret.json",
        "/assets/browser/%2e%2e%2f%2e%2e%2fsecret.json",
        "/assets/browser/..%5c..%5csecret.json",
        "/assets/browser/%252e%252e/python/secret.js",
        "/assets/browser//etc/passwd",
        "/assets/browser/%2fetc/passwd",
        "/assets/browser/demo/main.js%00",
        "/assets/browser/demo/main.js%00.css",
        "/assets/browser/demo//main.js",
        "/assets/browser/demo/./main.js",
        "/assets/browser/demo/main.js/",
        "/assets/browser/DEMO/MAIN.JS",
        "/assets/browser/%C3%A9.js",
        "/assets/browser/%FF.js",
        "/assets/tocsin/../package.json",
        "/assets/tocsin/..%2fpackage.json",
        "/assets/python/secret.js",
        "/assets/browser/" + "a/" * 3000 + "x.js",
        "/assets/browser/" + "a" * 5000 + ".js",
        "/demo/x",
        "/demo.html",
        "//demo",
    ],
)
async def test_nothing_but_these_files_is_served(port: int, path: str) -> None:
    response = await raw(port, path)
    assert b"secret" not in response.replace(b"secret.js", b"")
    status = int(response.split(b" ", 2)[1])
    # What is not below /assets/ needs credentials, whether it is there or not.
    assert status == (404 if path.startswith("/assets/") else 401)
    assert b"application/problem+json" in response


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/assets/../v1/queues", 404),
        ("/assets/%2e%2e/v1/queues", 404),
        ("/assets/..%2fv1%2fqueues", 404),
        ("/assets/browser/../../v1/queues", 404),
        ("/v1/queues", 401),
        ("/v1/queues?/assets/", 401),
        ("/openapi.json", 401),
        ("/demo/../v1/queues", 401),
        ("/assets", 401),
        ("/assets/*", 404),
        ("/demo//", 401),
        ("//assets/browser/demo.html", 401),
    ],
)
async def test_a_path_below_the_assets_reaches_no_operation(
    port: int, path: str, status: int
) -> None:
    """P11: it needs no credentials, so it must not come out anywhere else."""
    assert int((await raw(port, path)).split(b" ", 2)[1]) == status


async def test_links_lead_nowhere(checkout: Path, clock: Clock) -> None:
    browser = checkout / "clients/browser"
    (browser / "out.js").symlink_to(checkout / "clients/python/secret.js")
    (browser / "dir").symlink_to(checkout / "clients/python")
    (browser / "loop").symlink_to(browser)
    os.mkfifo(browser / "pipe.js")  # to open it would be to wait for ever
    async with visitor(Site(checkout, now=clock)) as http:
        for name in ("out.js", "dir/secret.js", "loop/demo.html", "pipe.js"):
            check_problem(await http.get(f"/assets/browser/{name}"), "not_found")
        assert (await http.get("/demo")).status_code == 200


async def test_files_are_bounded(checkout: Path, caplog: pytest.LogCaptureFixture) -> None:
    """P9: on both sides of each bound."""
    browser = checkout / "clients/browser"
    (browser / "most.js").write_bytes(b"x" * limits.PAGE_FILE_BYTES_MAX)
    (browser / "more.js").write_bytes(b"x" * (limits.PAGE_FILE_BYTES_MAX + 1))
    async with visitor(Site(checkout)) as http:
        assert len((await http.get("/assets/browser/most.js")).content) == (
            limits.PAGE_FILE_BYTES_MAX
        )
        check_problem(await http.get("/assets/browser/more.js"), "not_found")
    assert "more.js is not served" in caplog.text


async def test_the_number_of_files_and_bytes_is_bounded(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = sum(len(text) for name, text in FILES.items() if is_served(name))
    assert len(opened(checkout)) == 8
    monkeypatch.setattr(limits, "PAGE_FILES_MAX", 8)
    assert len(opened(checkout)) == 8
    monkeypatch.setattr(limits, "PAGE_FILES_MAX", 7)
    assert len(opened(checkout)) == 7
    monkeypatch.setattr(limits, "PAGE_FILES_MAX", 8)
    monkeypatch.setattr(limits, "PAGES_BYTES_MAX", size)
    assert len(opened(checkout)) == 8
    monkeypatch.setattr(limits, "PAGES_BYTES_MAX", size - 1)
    assert len(opened(checkout)) == 7


@pytest.mark.parametrize("gone", list(FOLDERS.values()), ids=str)
async def test_missing_folders_are_reported_with_what_to_do(
    checkout: Path, gone: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.rmtree(checkout / gone)
    async with visitor(opened(checkout), None) as http:
        wanted = "/demo" if gone == FOLDERS["browser"] else "/assets/tocsin/index.js"
        document = check_problem(await http.get(wanted), "not_found")
        assert str(gone) in document["detail"]
        assert "whole checkout" in document["detail"]
        assert str(checkout) not in document["detail"]  # a folder of the machine, to anybody
        assert (await http.get("/v1/queues")).status_code == 200
    assert "whole checkout" in caplog.text


def test_a_whole_checkout_is_logged(checkout: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        opened(checkout)
    assert "pages: /demo and /console" in caplog.text
