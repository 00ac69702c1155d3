"""Problem documents: every error is one, and only bugs are logged."""

import logging
from typing import Any

import httpx2
import msgspec
import pytest
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from push.errors import CODES, Refused, TocsinError, Unknown
from runtime.problems import MEDIA_TYPE, Problems


def failing(error: BaseException, *, after_start: bool = False) -> ASGIApp:
    """An application that raises."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if after_start:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        raise error

    return app


async def answer_of(error: BaseException) -> httpx2.Response:
    transport = httpx2.ASGITransport(app=Problems(failing(error)))
    async with httpx2.AsyncClient(transport=transport, base_url="http://t") as client:
        return await client.get("/")


@pytest.mark.parametrize("code", CODES)
async def test_every_code_has_its_document(code: str) -> None:
    response = await answer_of(TocsinError(code, "what happened", retry_after_s=1.2))
    assert response.headers["content-type"] == MEDIA_TYPE
    assert response.json() == {
        "type": f"urn:tocsin:problem:{code}",
        "title": CODES[code].meaning,
        "status": CODES[code].http_status,
        "detail": "what happened",
        "code": code,
        "retry": CODES[code].retry,
        "retry_after_s": 1.2,
    }
    assert response.status_code == CODES[code].http_status
    assert response.headers["retry-after"] == "2"  # whole seconds, and not too early


async def test_a_retry_header_is_there_only_when_the_time_is_known() -> None:
    response = await answer_of(Unknown())
    assert response.status_code == 503
    assert "retry-after" not in response.headers
    assert "retry_after_s" not in response.json()


async def test_an_unauthorized_answer_says_how_to_authenticate() -> None:
    response = await answer_of(Refused("unauthorized"))
    assert response.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (HTTPException(404), "not_found"),
        (HTTPException(405, headers={"Allow": "GET"}), "method_not_allowed"),
        (HTTPException(413), "request_too_large"),
        (HTTPException(400), "invalid_request"),
        (msgspec.ValidationError("Expected `int`"), "invalid_request"),
        (msgspec.DecodeError("trailing"), "invalid_json"),
    ],
)
async def test_what_libraries_raise_has_a_code(error: Exception, code: str) -> None:
    response = await answer_of(error)
    assert response.json()["code"] == code
    assert response.status_code == CODES[code].http_status
    if code == "method_not_allowed":
        assert response.headers["allow"] == "GET"


async def test_an_unexpected_error_is_logged_once_and_tells_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.DEBUG):
        response = await answer_of(ZeroDivisionError("secret detail"))
    assert response.status_code == 500
    assert response.json()["code"] == "internal"
    assert "secret" not in response.text
    (record,) = [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], ZeroDivisionError)


async def test_refusals_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="tocsin"):
        await answer_of(Refused("queue_not_found"))
    assert not caplog.records


async def call(app: ASGIApp) -> list[Any]:
    """Return what the application sends."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    await Problems(app)({"type": "http", "headers": []}, receive, send)
    return sent


async def test_nobody_gets_an_answer_when_nobody_is_there() -> None:
    assert await call(failing(ClientDisconnect())) == []


async def test_an_answer_that_has_begun_is_not_answered_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sent = await call(failing(ZeroDivisionError(), after_start=True))
    assert [message["type"] for message in sent] == ["http.response.start"]
    assert len(caplog.records) == 1
