"""Paths and answers of the broker's HTTP interface."""

from typing import Any, Final
from urllib.parse import quote

import msgspec

from tocsin.errors import CannotConnect, broker_error

TIMEOUT_S: Final = 30.0
"""For an answer; a pull's `wait_s` comes on top."""


def path_to(*parts: str) -> str:
    """The path of these names below /v1. Raises InvalidRequest: one of them is no name."""
    for part in parts:
        if part in ("", ".", ".."):  # which quoting cannot keep from meaning another path
            raise broker_error("invalid_name", f"{part!r} is not a name")
    return "/v1/" + "/".join(quote(checked_text(part), safe="") for part in parts)


def checked_text(text: str) -> str:
    """The text. Raises InvalidRequest: it has half of a character (a lone surrogate), and so no
    bytes that could be sent."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise broker_error("invalid_request", f"{text!r} is not Unicode text") from None
    return text


def object_of(data: bytes) -> Any:
    """The JSON object of an answer: a dict, of which the caller knows the fields. Raises
    CannotConnect: it is none."""
    try:
        return msgspec.json.decode(data, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise CannotConnect(f"what answers is not a Tocsin broker: {error}") from None
