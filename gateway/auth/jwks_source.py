"""Where the keys for JWTs come from: a file, or an https address, read again and again beside the
requests, which never wait for it.

A file is looked at every FILE_EVERY_S, an address read every `refresh_s`; and sooner when a token
names a key that is not known, but not more often than every UNKNOWN_EVERY_S: whoever makes kids up
cannot make us ask. What cannot be read leaves the keys as they are, for STALE_S at most.
"""

import asyncio
import codecs
import http.client
import logging
import os
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from gateway.auth.jwt_keys import KEYS_BYTES_MAX, NO_KEYS, Keys, KeysError, parse_keys

FILE_EVERY_S: Final = 1.0
UNKNOWN_EVERY_S: Final = 10.0
FETCH_S: Final = 5.0
"""For one reading, all in all; and for each wait within it."""
STALE_S: Final = 86_400.0
"""So long keys count that cannot be read any more: whoever keeps us from the address must not keep
alive a key that its owner has taken back."""
HTTPS: Final = "https://"
logger = logging.getLogger("tocsin.auth")


class JwksSource:
    """Reads `location`, a path or an https address. `changed` gets what was read, when it is
    another set than before."""

    def __init__(
        self,
        location: str,
        algorithms: tuple[str, ...],
        changed: Callable[[Keys], None],
        *,
        refresh_s: float,
    ) -> None:
        self._location = location
        self._algorithms = algorithms
        self._changed = changed
        self._is_remote = location.startswith(HTTPS)
        self._every_s = refresh_s if self._is_remote else FILE_EVERY_S
        self._last: bytes | None = None
        self._read_at = self._tried_at = float("-inf")
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read for the first time, then go on beside. An address that does not answer is no reason
        not to start: it is asked again.

        Raises:
            KeysError: a file that cannot be read, or that has no key that counts.
        """
        try:
            keys = await self._read()
        except (OSError, KeysError, http.client.HTTPException) as error:
            if not self._is_remote:
                raise KeysError(f"{self._location}: {error}") from None
            logger.warning("no keys for JWTs yet: %s: %s", self._location, error)
        else:
            if keys is not None and not keys.by_kid and not self._is_remote:
                raise KeysError(f"{self._location} has no key that counts: {keys.skipped}")
            self._tell(keys)
        self._task = asyncio.get_running_loop().create_task(self._go_on(), name="tocsin-jwks")

    def want(self) -> None:
        """A token named a key that is not known: read soon. Never waits."""
        self._wanted.set()

    async def stop(self) -> None:
        """Read no more. Not started: nothing happens."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    async def _go_on(self) -> None:
        while True:
            await self._pause()
            try:
                self._tell(await self._read())
            except Exception as error:  # whatever stands there: without this, no key ever leaves
                logger.warning("the keys for JWTs stay: %s: %s", self._location, error)
                if time.monotonic() - self._read_at > STALE_S and self._last is not None:
                    logger.error("they have stayed for a day: no JWT counts until they can be read")
                    self._last = None
                    self._changed(NO_KEYS)

    async def _pause(self) -> None:
        """Until it is time to read again."""
        if not self._is_remote:
            await asyncio.sleep(FILE_EVERY_S)
            return
        every_s = self._every_s if self._last is not None else min(UNKNOWN_EVERY_S, self._every_s)
        await asyncio.sleep(max(0.0, min(UNKNOWN_EVERY_S, every_s)))
        left_s = self._tried_at + every_s - time.monotonic()
        if left_s > 0:
            try:
                async with asyncio.timeout(left_s):
                    await self._wanted.wait()
            except TimeoutError:
                pass

    async def _read(self) -> Keys | None:
        """The keys; None: they are as they were."""
        self._wanted.clear()
        self._tried_at = time.monotonic()
        if self._is_remote:
            async with asyncio.timeout(2 * FETCH_S):
                data = await asyncio.to_thread(fetch, self._location)
        else:
            data = await asyncio.to_thread(_read_file, Path(self._location))
        keys = parse_keys(data, self._algorithms) if data != self._last else None
        self._read_at = time.monotonic()
        self._last = data
        return keys

    def _tell(self, keys: Keys | None) -> None:
        if keys is None:
            return
        logger.info("%d keys for JWTs from %s", len(keys.by_kid), self._location)
        for sentence in keys.skipped:
            logger.warning("%s: %s", self._location, sentence)
        self._changed(keys)


def _read_file(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(KEYS_BYTES_MAX + 1).removeprefix(codecs.BOM_UTF8)


def fetch(url: str) -> bytes:
    """What stands at an https address, at most KEYS_BYTES_MAX + 1 bytes of it, within about
    FETCH_S. Certificates are checked; a redirection is not followed: keys come from where the
    operator has said, and from nowhere else.

    Raises:
        OSError, http.client.HTTPException: it does not answer, or not with 200.
    """
    deadline = time.monotonic() + FETCH_S
    parts = urlsplit(url)
    path = parts.path or "/"
    connection = http.client.HTTPSConnection(
        parts.hostname or "", parts.port, timeout=FETCH_S, context=ssl.create_default_context()
    )
    try:
        query = f"?{parts.query}" if parts.query else ""
        connection.request("GET", path + query, headers={"Accept": "application/json"})
        response = connection.getresponse()
        if response.status != http.HTTPStatus.OK:
            raise OSError(f"it answers {response.status}")
        data = b""
        while len(data) <= KEYS_BYTES_MAX:
            if time.monotonic() > deadline:
                raise TimeoutError(os.strerror(110))
            part = response.read1(65_536)
            if not part:
                break
            data += part
        return data
    finally:
        connection.close()
