"""A session's frames in requests: long poll (docs/protocol.md).

One task posts the frames of the session, another polls for the broker's frames. Posts are numbered,
and polls name the batch that arrived last. So either request is repeated when its answer is lost,
and no frame is lost or doubled. If a request that got no answer also fails when it is repeated, the
carrier ends after PATIENCE_S. The session then continues over another one.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Coroutine, Sequence
from ssl import SSLContext
from typing import Any, Final, Literal
from urllib.parse import quote

import httpx2
import msgspec

from tocsin.errors import BrokerError, CannotConnect, NotABroker, NotFound, Unauthorized
from tocsin.io.carrier import ABNORMAL, SLOWEST_BYTES_PER_S, WRITE_BUFFER_BYTES, Listener, Trace
from tocsin.io.requests import bearer, open_http, refusal_of
from tocsin.proto import close_codes, wire
from tocsin.proto.connect_policy import Transport
from tocsin.proto.wire import join_frames, without_tokens

logger = logging.getLogger("tocsin")

WAIT_S: Final = 20.0
"""The time for which a poll waits for frames, in seconds."""
REQUEST_TIMEOUT_S: Final = 8.0
"""The longest time until an answer begins, and between its parts, in seconds. A poll has WAIT_S
more to begin. A post has more by its size, at SLOWEST_BYTES_PER_S."""
BODY_TIMEOUT_S: Final = 30.0
"""The time limit of the body of an answer, in seconds. It grows with the bytes that have arrived,
at SLOWEST_BYTES_PER_S. So an answer that trickles forever fails."""
PATIENCE_S: Final = 10.0
"""The time after the time limit of a first request without an answer for which that request is
repeated, in seconds. Then the carrier ends."""
PAUSE_S: Final = 0.2
"""The pause before a request is repeated, in seconds, if the broker names no other."""
REQUEST_BYTES_AIM: Final = 512 * 1024
"""The number of bytes up to which frames are posted together, because each post is a round trip.
One frame may be larger."""
ANSWER_BYTES_MAX: Final = 16 * 1_048_576
CLOSE_TIMEOUT_S: Final = 2.0
_SESSIONS: Final = "/v1/sessions"
_LAST_WORDS: Final = (1000, 1001)


class _Close(msgspec.Struct):
    code: int
    reason: str = ""


class _Batch(msgspec.Struct):
    session: str
    batch: int
    frames: msgspec.Raw = msgspec.Raw(b"[]")
    close: _Close | None = None


_BATCH: Final = msgspec.json.Decoder(_Batch)


class LongPoll:
    """A Carrier over requests. Nothing is sent before the first `send`, which begins with the
    hello."""

    transport: Transport = "long-poll"

    def __init__(
        self, url: str, token: str | None, trace: Trace | None = None, tls: SSLContext | None = None
    ) -> None:
        self.writable = True
        self.refusal: Exception | None = None
        self._loop = asyncio.get_running_loop()
        self.received_at = self._loop.time()
        self.is_receiving = False
        self.patient_until = 0.0
        self._http = open_http(url, tls, timeout_s=REQUEST_TIMEOUT_S)
        self._headers = {**bearer(token), "Content-Type": "application/json"}
        self._trace = trace
        self._listener: Listener | None = None
        self._bytes_max = ANSWER_BYTES_MAX
        self._unsent: deque[bytes] = deque()
        self._unsent_bytes = 0
        self._has_work = asyncio.Event()
        self._path = ""
        self._closing_with: tuple[int, str] | None = None
        self._is_ended = False
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._tasks = {self._loop.create_task(self._work(self._post_all()), name="tocsin-post")}

    # --- Carrier --------------------------------------------------------------------------------

    def listen(self, listener: Listener | None) -> None:
        self._listener = listener

    def limit(self, message_bytes_max: int) -> None:
        """End the carrier when an answer has more than twice `message_bytes_max` bytes, or than
        ANSWER_BYTES_MAX if that is more. A batch may hold the bytes of a frame, and one frame
        more."""
        self._bytes_max = max(2 * message_bytes_max, ANSWER_BYTES_MAX)

    def present(self, token: str) -> None:
        self._headers.update(bearer(token))

    def send(self, frames: Sequence[bytes]) -> None:
        if self._is_ended:
            return
        self._unsent.extend(frames)
        self._unsent_bytes += sum(map(len, frames))
        self.writable = self._unsent_bytes < WRITE_BUFFER_BYTES
        self._has_work.set()

    def close(self, code: int = 1000, reason: str = "") -> None:
        """Post the queued frames, then delete the session. The carrier ends after CLOSE_TIMEOUT_S
        at the latest.

        A code that does not end the session ends the carrier at once, because the session continues
        over another carrier.
        """
        if code not in _LAST_WORDS:
            self._end(code, reason)  # a deleted session could not continue elsewhere
        elif self._closing_with is None:
            self._closing_with = (code, reason)
            self._has_work.set()
            self._loop.call_later(CLOSE_TIMEOUT_S, self._end, code, reason)

    async def wait_closed(self) -> None:
        await asyncio.wait((self._closed,))

    def abort(self) -> None:
        self._end(ABNORMAL, "")

    # --- the two tasks --------------------------------------------------------------------------

    async def _work(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task of the carrier. Its failure ends the carrier."""
        try:
            await work
        except NotFound:
            self._end(ABNORMAL, "the broker does not know the session any more")
        except Unauthorized as error:
            self.refusal = error
            self._end(close_codes.UNAUTHORIZED, error.detail)
        except (BrokerError, CannotConnect) as error:
            self.refusal = error
            self._end(ABNORMAL, str(error))
        except Exception as error:  # with one of two tasks the carrier would be silent forever
            logger.exception("an unexpected error: the long poll ends")
            self._end(ABNORMAL, repr(error))

    async def _post_all(self) -> None:
        await self._has_work.wait()
        hello = self._unsent.popleft()
        self._unsent_bytes -= len(hello)
        self._trace_message("sent", hello)
        batch = await self._request_batch("POST", _SESSIONS, hello)
        self._path = f"{_SESSIONS}/{quote(batch.session, safe='')}/frames"
        self._deliver(batch)
        if self._is_ended:
            return
        poll = self._loop.create_task(self._work(self._poll_all(batch)), name="tocsin-poll")
        self._tasks.add(poll)
        number = 0
        while not self._is_ended:
            while self._unsent:
                message, count = self._next_message()
                number += 1
                self._trace_message("sent", message)
                await self._request_repeatedly("POST", f"{self._path}?number={number}", message)
                for _ in range(count):
                    self._unsent_bytes -= len(self._unsent.popleft())
                self._resume_writing()
            if self._closing_with is not None:
                with contextlib.suppress(BrokerError, CannotConnect):
                    await self._request("DELETE", self._path.removesuffix("/frames"), None)
                self._end(*self._closing_with)
                return
            self._has_work.clear()
            await self._has_work.wait()

    def _next_message(self) -> tuple[bytes, int]:
        """Return the next message of the queued frames, and the number of its frames."""
        frames: list[bytes] = []
        size = 0
        for frame in self._unsent:
            if frames and (
                size + len(frame) > REQUEST_BYTES_AIM or len(frames) >= wire.FRAMES_PER_MESSAGE_MAX
            ):
                break
            frames.append(frame)
            size += len(frame) + 1
        return join_frames(frames, REQUEST_BYTES_AIM)[0], len(frames)

    def _resume_writing(self) -> None:
        if not self.writable and self._unsent_bytes < WRITE_BUFFER_BYTES:
            self.writable = True
            if self._listener is not None:
                self._listener.on_writable()

    async def _poll_all(self, first: _Batch) -> None:
        after = first.batch
        while not self._is_ended:
            asked_at = self._loop.time()
            batch = await self._request_batch(
                "GET", f"{self._path}?after={after}&wait_s={WAIT_S:g}", None
            )
            if batch.session != first.session or batch.batch not in (after, after + 1):
                raise NotABroker(
                    f"batch {batch.batch} of {batch.session!r} answers a poll of "
                    f"{first.session!r} after {after}; a proxy on the way mixes answers up"
                )
            if batch.batch != after:
                after = batch.batch
                self._deliver(batch)
            elif batch.close is None and self._loop.time() < asked_at + PAUSE_S:
                await asyncio.sleep(PAUSE_S)  # the server answers without waiting
            if batch.close is not None:
                self._end(batch.close.code, batch.close.reason)

    def _deliver(self, batch: _Batch) -> None:
        data = bytes(batch.frames)
        self._trace_message("received", data)
        if self._listener is not None and data != b"[]":
            self._listener.on_message(data)

    # --- requests -------------------------------------------------------------------------------

    async def _request_batch(self, method: str, path: str, content: bytes | None) -> _Batch:
        opening = path == _SESSIONS  # once only: a repeated hello would open another session
        data = await (self._request if opening else self._request_repeatedly)(method, path, content)
        try:
            return _BATCH.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise NotABroker(f"the server is not a Tocsin broker: {error}") from None

    async def _request_repeatedly(self, method: str, path: str, content: bytes | None) -> bytes:
        """Request until an answer comes. If none comes, raises CannotConnect PATIENCE_S after the
        time limit of the first request. After a refusal that allows another attempt, requests
        again, without a limit.

        A request so large that it alone took longer than that is not sent again here.
        """
        give_up_at: float | None = None
        while True:
            began_at = self._loop.time()
            pause_s = PAUSE_S
            try:
                return await self._request(method, path, content)
            except BrokerError as error:
                if not error.retry:
                    raise
                pause_s = error.retry_after_s or PAUSE_S
                give_up_at = None  # the broker can be reached
            except NotABroker:
                raise
            except CannotConnect:
                now = self._loop.time()
                give_up_at = give_up_at or began_at + _timeout_s(method) + PATIENCE_S
                if now >= give_up_at:
                    raise
            await asyncio.sleep(pause_s)

    async def _request(self, method: str, path: str, content: bytes | None) -> bytes:
        up_s = len(content or b"") / SLOWEST_BYTES_PER_S  # the kernel may still be sending some
        timeout_s = _timeout_s(method) + up_s
        is_post = method == "POST"
        if is_post:
            self.patient_until = self._loop.time() + up_s
        try:
            async with (
                asyncio.timeout(timeout_s) as patience,
                self._http.stream(
                    method,
                    path,
                    content=content,
                    headers=self._headers,
                    timeout=httpx2.Timeout(timeout_s, connect=REQUEST_TIMEOUT_S),
                ) as answer,
            ):
                data = await self._read_body(answer, patience)
        except (httpx2.RequestError, TimeoutError) as error:
            raise CannotConnect(f"a request failed: {error or type(error).__name__}") from error
        finally:
            if is_post:
                self.patient_until = 0.0
            else:
                self.is_receiving = False
        self.received_at = self._loop.time()
        if answer.is_success:
            return data
        raise refusal_of(answer.status_code, data)

    async def _read_body(self, answer: httpx2.Response, patience: asyncio.Timeout) -> bytes:
        """Read the body of an answer, and prolong `patience` while bytes arrive."""
        began_at = self.received_at = self._loop.time()
        parts: list[bytes] = []
        size = 0
        patience.reschedule(began_at + REQUEST_TIMEOUT_S)
        async for part in answer.aiter_bytes():
            parts.append(part)
            size += len(part)
            if size > self._bytes_max:
                raise NotABroker(f"an answer of more than {self._bytes_max} bytes")
            self.received_at = self._loop.time()
            self.is_receiving = self.is_receiving or answer.request.method == "GET"
            over_at = began_at + BODY_TIMEOUT_S + size / SLOWEST_BYTES_PER_S
            patience.reschedule(min(self.received_at + REQUEST_TIMEOUT_S, over_at))
        return b"".join(parts)

    def _trace_message(self, direction: Literal["sent", "received"], data: bytes) -> None:
        if self._trace is not None and data != b"[]":
            self._trace(direction, self.transport, without_tokens(data))

    def _end(self, code: int, reason: str) -> None:
        if self._is_ended:
            return
        self._is_ended = True
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()
        self._closing = self._loop.create_task(self._http.aclose(), name="tocsin-close")
        self._closing.add_done_callback(lambda _: self._closed.set_result(None))
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.on_closed(code, reason)


def _timeout_s(method: str) -> float:
    return REQUEST_TIMEOUT_S + (WAIT_S if method == "GET" else 0.0)
