"""The pages: a demo and a console for the browser, and the modules that they load, as files.

    /                          -> /demo
    /demo, /console            clients/browser/demo.html, console.html; with a slash -> without
    /assets/browser/<path>     clients/browser/<path>
    /assets/tocsin/<path>      clients/javascript/src/<path>, the client that the pages use

They hold no data and need no credentials, because they request what they show under /v1. A request
never names a file. All files that may be served are known beforehand, and the path is looked up
among them. So no dots, quoted slashes, NUL or links lead anywhere else. A change in the folders is
seen a second later.
"""

import asyncio
import hashlib
import logging
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from time import monotonic
from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from push import limits
from push.errors import Refused

logger = logging.getLogger("tocsin.pages")

CHECKOUT: Final = Path(__file__).resolve().parents[2]
FOLDERS: Final = {"browser": Path("clients/browser"), "tocsin": Path("clients/javascript/src")}
"""Name in /assets/<name>/… -> folder in the checkout."""
PAGES: Final = {"/demo": "demo.html", "/console": "console.html"}
"""Path -> file of the folder `browser`."""
MEDIA_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}
"""Suffixes of the files that are served, and their media types. Files that begin with a dot are not
served either."""
POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",  # its WebSocket too: same host and port
        "font-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
"""Content-Security-Policy of the HTML pages. Whatever a message's body holds, nothing in it runs or
loads."""
LOOK_AGAIN_S: Final = 1.0
"""Seconds after a look at the folders from which a request has them looked at again."""


@dataclass(frozen=True, slots=True)
class Pages:
    """Routes in addition to the API, such as a console. `public` names the paths among them that
    need no credentials; `/…/*` stands for everything below it."""

    routes: Sequence[BaseRoute] = ()
    public: Sequence[str] = ()


NO_PAGES: Final = Pages()
"""No pages, only the API."""


@dataclass(frozen=True, slots=True)
class File:
    """A file that is served at a path."""

    body: bytes
    etag: str
    media_type: str
    stamp: tuple[int, int, int]
    """State of the file when it was read. Another state means that it has changed."""


class Site:
    """The files of a checkout. `now` returns monotonic seconds."""

    def __init__(self, checkout: Path = CHECKOUT, *, now: Callable[[], float] = monotonic) -> None:
        """Read nothing yet. `open` or the first request reads the files."""
        self._checkout = checkout
        self._now = now
        self._files: dict[str, File] = {}
        self._refreshing: asyncio.Future[None] | None = None
        self._looked_at = -inf

    def __len__(self) -> int:
        """Return the number of files that are served."""
        return len(self._files)

    def open(self) -> None:
        """Read all files and log what there is; blocking. Without their folders there are none, and
        each answer says so."""
        self._look()
        self._looked_at = self._now()
        if missing := self.missing():
            logger.warning("%s (looked in %s)", missing, self._checkout)
        else:
            logger.info("pages: /demo and /console, from %s", self._checkout / "clients")

    def missing(self) -> str | None:
        """Return a sentence about missing folders; None if none is missing."""
        folders = [str(one) for one in FOLDERS.values() if not (self._checkout / one).is_dir()]
        if not folders:
            return None
        return (
            f"the pages need the folders {' and '.join(folders)}: run the broker from a whole "
            "checkout of Tocsin; everything under /v1 works without them"
        )

    def find(self, path: str) -> File:
        """Return the file of a path such as `browser/demo.html`.

        Raises:
            Refused: not_found; if folders are missing, with what to do.
        """
        file = self._files.get(path)
        if file is None:
            raise Refused("not_found", self.missing() or "")
        return file

    async def refresh(self) -> None:
        """Look for changes, in a thread, at most once a second."""
        if self._refreshing is None and self._now() - self._looked_at >= LOOK_AGAIN_S:
            looking = asyncio.get_running_loop().run_in_executor(None, self._look)
            looking.add_done_callback(self._on_refreshed)
            self._refreshing = looking
        if self._refreshing is not None:
            await asyncio.shield(self._refreshing)

    def _on_refreshed(self, looking: "asyncio.Future[None]") -> None:
        self._refreshing = None
        self._looked_at = self._now()

    def _look(self) -> None:
        """Read changed files; blocking. A file that cannot be read, or is too much, is left out,
        and a warning is logged."""
        found: dict[str, File] = {}
        room = limits.PAGES_BYTES_MAX
        for path, place in self._places():
            try:
                file = _read(place, self._files.get(path))
            except OSError as error:
                logger.warning("%s is not served: %s", place, error.strerror or error)
                continue
            if file is None or len(file.body) > room or len(found) == limits.PAGE_FILES_MAX:
                if path not in self._files:
                    logger.warning("%s is not served: too large, or one too many", place)
                continue
            room -= len(file.body)
            found[path] = file
        self._files = found

    def _places(self) -> Iterator[tuple[str, Path]]:
        for name, folder in FOLDERS.items():
            root = self._checkout / folder
            for place, inner, files in os.walk(root):  # which follows no links
                inner[:] = sorted(one for one in inner if not one.startswith("."))
                for one in sorted(files):
                    path = Path(place, one)
                    if path.suffix in MEDIA_TYPES and not one.startswith("."):
                        yield f"{name}/{path.relative_to(root).as_posix()}", path


def _read(place: Path, known: File | None) -> File | None:
    """Return the file, read anew if it has changed; None if it is too large, or no file."""
    status = place.lstat()
    if not stat.S_ISREG(status.st_mode) or status.st_size > limits.PAGE_FILE_BYTES_MAX:
        return None
    stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
    if known is not None and known.stamp == stamp:
        return known
    with place.open("rb") as opened:
        body = opened.read(limits.PAGE_FILE_BYTES_MAX)
    etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    return File(body, etag, MEDIA_TYPES[place.suffix], stamp)


def pages(site: Site) -> Pages:
    """Make the routes of the pages."""

    async def page(request: Request) -> Response:
        await site.refresh()
        return _answer(request, site.find(f"browser/{PAGES[request.scope['path']]}"))

    async def asset(request: Request) -> Response:
        await site.refresh()
        return _answer(request, site.find(request.scope["path"].removeprefix("/assets/")))

    async def lead(request: Request) -> Response:
        return RedirectResponse(request.scope["path"].rstrip("/") or "/demo", 307)

    return Pages(
        routes=[
            Route("/", lead),
            *(Route(path, page) for path in PAGES),
            *(Route(f"{path}/", lead) for path in PAGES),
            *(Route(f"/assets/{name}/{{path:path}}", asset) for name in FOLDERS),
        ],
        public=("/", *PAGES, *(f"{path}/" for path in PAGES), "/assets/*"),
    )


def _answer(request: Request, file: File) -> Response:
    headers = {
        "ETag": file.etag,
        "Cache-Control": "no-cache",  # kept, and asked for each time whether it is still right
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
    }
    if file.media_type.startswith("text/html"):
        headers["Content-Security-Policy"] = POLICY  # on a 304 too, where it replaces the kept one
    if _is_known(",".join(request.headers.getlist("if-none-match")), file.etag):
        return Response(status_code=304, headers=headers)
    return Response(file.body, headers={**headers, "Content-Type": file.media_type})


def _is_known(tags: str, etag: str) -> bool:
    """Whether the tags of `If-None-Match` show that the client has this file already (RFC 9110,
    13.1.2)."""
    return any(tag.strip().removeprefix("W/") in {etag, "*"} for tag in tags.split(","))
