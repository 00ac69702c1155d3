"""REST: sessions by long poll. Requests and answers carry the same frames as a WebSocket."""

from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from gateway.broker import Broker
from gateway.models import SessionList
from gateway.net.longpoll import LongPoll, LongPolls
from gateway.rest.operation import (
    Answer,
    Operation,
    Parameter,
    admission,
    limit_parameter,
    principal,
    query_limit,
    query_number,
    read_body,
    rights,
)
from gateway.session.directory import is_session_id
from gateway.wire.protocol import REF_MAX
from push import limits
from push.errors import Refused
from runtime.addresses import client_address
from runtime.operation import JSON, reply

SESSIONS_DEFAULT: Final = 100
_ENCODE: Final = msgspec.json.encode


class CloseDescription(msgspec.Struct):
    """Reason why the session is over, as in the close frame of a WebSocket."""

    code: int
    reason: str


class Batch(msgspec.Struct, omit_defaults=True):
    """The next `frames` for the client. `session` is the part of the path that names this session
    in further requests. `batch` is the value for `after` of the next poll."""

    session: str
    batch: int
    frames: list[dict[str, Any]]
    close: CloseDescription | None = None


class Posted(msgspec.Struct):
    """The number of a message that was taken."""

    number: int


async def list_sessions(broker: Broker, request: Request) -> Response:
    """List the sessions of this gateway, by id, over either transport or waiting for their client.
    They are the client's own; with `manage` on every queue, those of its whole tenant."""
    limit = query_limit(request, limits.SESSIONS_PER_PAGE_MAX, SESSIONS_DEFAULT)
    after = request.query_params.get("after", "")
    if after and not is_session_id(after):
        raise Refused("invalid_request", "after: not the id of a session; send what `next` names")
    whole = rights(request).is_everywhere("manage")
    sessions = _polls(request).sessions
    listed = sessions.page(principal(request), limit, after, whole_tenant=whole)
    here = msgspec.structs.replace(listed, gateway=broker.gateway, gateways=broker.gateways)
    return reply(here)


async def open_session(broker: Broker, request: Request) -> Response:
    """Open a session. The body is the client's first message, an array with a `hello` and the
    frames that may follow it."""
    body = await read_body(request)
    poll = _polls(request).open(admission(request), body, client_address(request.scope))
    answer = _batch(poll, *await poll.poll(0, 0.0), status=201)
    # A load balancer learns from this header which gateway has the session.
    answer.headers["Location"] = f"/v1/sessions/{poll.poll_id}"
    return answer


async def post_frames(broker: Broker, request: Request) -> Response:
    """Send one frame, or an array of frames."""
    number = _number(request, "number", 1)
    data = await read_body(request)
    await _poll(request).post(number, data)
    return reply(Posted(number), 202)


async def poll_frames(broker: Broker, request: Request) -> Response:
    """Wait for frames. The answer comes as soon as there are some, or after `wait_s`. When the
    session is over, the answer with its last frames has `close`."""
    after = _number(request, "after", 0)
    poll = _poll(request)
    return _batch(poll, *await poll.poll(after, _wait_s(request)))


async def end_session(broker: Broker, request: Request) -> Response:
    """End a session. The messages that it held return to their groups at once."""
    _poll(request).finish()
    return Response(status_code=204)


def _polls(request: Request) -> LongPolls:
    polls: LongPolls | None = request.app.polls
    if polls is None:
        raise Refused("not_found", "this gateway has no sessions by long poll")
    return polls


def _poll(request: Request) -> LongPoll:
    return _polls(request).find(request.path_params["session"], principal(request))


def _batch(poll: LongPoll, number: int, frames: list[bytes], status: int = 200) -> Response:
    close = b""
    if poll.end_reason is not None and not poll.has_more:
        close = b',"close":' + _ENCODE(
            CloseDescription(poll.end_reason.code, poll.end_reason.reason)
        )
    body = b'{"session":%s,"batch":%d,"frames":[%s]%s}' % (
        _ENCODE(poll.poll_id),
        number,
        b",".join(frames),
        close,
    )
    return Response(body, status, media_type=JSON)


def _number(request: Request, name: str, low: int) -> int:
    number = query_number(request, name, low=low, high=REF_MAX)
    if number is None:
        raise Refused("invalid_request", f"{name} is a number from {low} on, in the query")
    return number


def _wait_s(request: Request) -> float:
    text = request.query_params.get("wait_s", "25")
    try:
        wait_s = float(text)
    except ValueError:
        wait_s = -1.0
    if not 0 <= wait_s <= limits.PULL_WAIT_S_MAX:  # not a number is refused, too
        raise Refused("invalid_request", f"wait_s is between 0 and {limits.PULL_WAIT_S_MAX:g}")
    return wait_s


_PATH: Final = "/v1/sessions/{session}/frames"
_NUMBER: Final = {"type": "integer", "minimum": 0}
_BODY: Final = ("invalid_json", "invalid_request", "request_too_large")

OPERATIONS: Final = (
    Operation(
        "GET",
        "/v1/sessions",
        "List sessions.",
        list_sessions,
        {200: Answer("The sessions, by id.", SessionList)},
        needs="own",
        query=(
            limit_parameter(limits.SESSIONS_PER_PAGE_MAX),
            Parameter("after", "Only ids that sort after this one.", {"type": "string"}),
        ),
        errors=("invalid_request",),
    ),
    Operation(
        "POST",
        "/v1/sessions",
        "Open a session by long poll, or resume one.",
        open_session,
        {201: Answer("The session, with its `welcome`.", Batch)},
        needs="own",
        request=dict[str, Any],
        errors=(*_BODY, "overloaded", "draining", "rate_limited", "too_many"),
    ),
    Operation(
        "POST",
        _PATH,
        "Send frames.",
        post_frames,
        {202: Answer("The frames were taken; their answers come by poll.", Posted)},
        needs="own",
        request=dict[str, Any],
        query=(
            Parameter(
                "number",
                "The number of this message: 1, 2, 3 … The last number again does nothing. "
                "Any other than the next one is refused.",
                _NUMBER,
            ),
        ),
        errors=(*_BODY, "session_not_found", "too_many", "overloaded"),
    ),
    Operation(
        "GET",
        _PATH,
        "Wait for frames.",
        poll_frames,
        {200: Answer("The frames; none if `wait_s` is over.", Batch)},
        needs="own",
        query=(
            Parameter("after", "The last batch that arrived; 0 if none has yet.", _NUMBER),
            Parameter(
                "wait_s",
                "How many seconds to wait.",
                {"type": "number", "minimum": 0, "maximum": limits.PULL_WAIT_S_MAX, "default": 25},
            ),
        ),
        errors=("invalid_request", "session_not_found"),
    ),
    Operation(
        "DELETE",
        "/v1/sessions/{session}",
        "End a session.",
        end_session,
        {204: Answer("The session is over.")},
        needs="own",
        errors=("session_not_found",),
    ),
)
