"""An HTTP client that speaks to an application in this process, without a socket."""

from typing import Final

import httpx2

from gateway.rest.app import Application

BASE_URL: Final = "http://127.0.0.1:8080"


def client_of(application: Application, **headers: str) -> httpx2.AsyncClient:
    """To be entered; it keeps cookies, and sends these headers with each request."""
    transport = httpx2.ASGITransport(app=application)
    return httpx2.AsyncClient(transport=transport, base_url=BASE_URL, headers=headers)
