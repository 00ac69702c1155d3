"""The hook, a program or an address, that is called when there are too few or too many storage
clusters.

It gets one JSON object, a program on its standard input, an address as the body of a POST. A call
succeeds if the program ends with 0, or the address answers with 2xx. Both have HOOK_S. After that
the call is killed, with everything that it has started, and repeated under the same `number`, by
which the hook recognizes it. Processes that a program leaves behind when it ends go on.
"""

import asyncio
import http.client
import logging
import os
import signal
import socket
import ssl
import threading
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import BinaryIO, Final
from urllib.parse import urlsplit

HOOK_S: Final = 30.0
SAID_BYTES_MAX: Final = 2000
"""Most bytes of a failing program's standard error, from the beginning, that are logged."""
_LOG: Final = logging.getLogger("tocsin.manager")


class HookFailed(Exception):
    """Error: a call of the hook failed. The text is a sentence for the log."""


class ScaleHook:
    """The hook: `what` is an http or https address, or the path of a program."""

    def __init__(self, what: str, *, within_s: float = HOOK_S) -> None:
        self._what = what
        self._within_s = within_s

    async def tell(self, body: bytes) -> None:
        """Call the hook once with this JSON object, and wait until the program has ended or the
        address has answered. Raises HookFailed."""
        if self._what.startswith(("http://", "https://")):
            await self._post(body)
        else:
            await self._run(body)

    async def _run(self, body: bytes) -> None:
        """Run the program with files for its standard input and error. A pipe would end only when
        all processes that the program has started have closed it, so a long-lived process would
        keep the program's success from being noticed."""
        with TemporaryFile() as told, TemporaryFile() as said:
            told.write(body)
            told.seek(0)
            code = await self._ended(told, said)
            begin = max(0, os.fstat(said.fileno()).st_size - SAID_BYTES_MAX)
            last = os.pread(said.fileno(), SAID_BYTES_MAX, begin)
            words = last.decode("utf-8", "replace").strip()
        if code:
            raise HookFailed(f"{self._what} ended with {code}: {words}")

    async def _ended(self, told: BinaryIO, said: BinaryIO) -> int:
        try:
            process = await asyncio.create_subprocess_exec(
                self._what,
                stdin=told,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=said,
                start_new_session=True,
            )
        except OSError as error:
            raise HookFailed(f"{self._what} cannot be started: {error}") from None
        try:
            async with asyncio.timeout(self._within_s):
                return await process.wait()
        except TimeoutError:
            raise HookFailed(f"{self._what} did not end within {self._within_s:g} s") from None
        finally:
            if process.returncode is None:  # with all that it has started
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()

    async def _post(self, body: bytes) -> None:
        try:
            async with asyncio.timeout(self._within_s):
                status = await _Post(self._what, self._within_s).answered(body)
        except (OSError, http.client.HTTPException) as error:
            raise HookFailed(f"{_shown(self._what)}: {str(error) or 'no answer in time'}") from None
        if not 200 <= status < 300:
            raise HookFailed(f"{_shown(self._what)} answers {status}")


def check_hook(text: str) -> str:
    """Return an address, or the absolute path of a program that can be run. Raises ValueError."""
    if text.startswith(("http://", "https://")):
        parts = urlsplit(text)
        _ = parts.port  # a number from 0 to 65,535, or ValueError
        if not parts.hostname or parts.fragment or parts.username is not None:
            raise ValueError(text)
        return text
    path = Path(text).expanduser().absolute()
    if not path.is_file() or not os.access(path, os.X_OK):
        raise ValueError(text)
    return str(path)


def _shown(url: str) -> str:
    """Return the address without its query, which may be a secret."""
    return url.partition("?")[0]


class _Post:
    """A POST in a thread of its own. When `answered` is cancelled because its time is over, an
    established connection is shut down, even if it hangs, or sends a byte now and then.
    Redirections are not followed, certificates are checked."""

    def __init__(self, url: str, within_s: float) -> None:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
        self._path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._connection = (
            http.client.HTTPSConnection(
                host, port, timeout=within_s, context=ssl.create_default_context()
            )
            if parts.scheme == "https"
            else http.client.HTTPConnection(host, port, timeout=within_s)
        )

    async def answered(self, body: bytes) -> int:
        """Send the request, and return the status of the answer. Raises OSError or HTTPException. A
        cancellation shuts an established connection down, so that the thread ends, too."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[int] = loop.create_future()

        def work() -> None:
            found: int | Exception
            try:
                found = self._request(body)
            except Exception as error:
                found = error
            with suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(_settle, answer, found)

        threading.Thread(target=work, daemon=True, name="scale hook").start()
        try:
            return await answer
        finally:
            line = self._connection.sock
            if line is not None:
                with suppress(OSError):  # the thread has closed it
                    line.shutdown(socket.SHUT_RDWR)

    def _request(self, body: bytes) -> int:
        try:
            headers = {"Content-Type": "application/json"}
            self._connection.request("POST", self._path, body, headers)
            return self._connection.getresponse().status
        finally:
            self._connection.close()


def _settle(answer: "asyncio.Future[int]", found: int | Exception) -> None:
    if answer.done():
        return
    if isinstance(found, Exception):
        answer.set_exception(found)
    else:
        answer.set_result(found)
