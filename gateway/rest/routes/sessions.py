"""REST: sessions by long poll. The frames in requests and answers are those of the WebSocket."""

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
    """Why the session is over, as a WebSocket's close frame says it."""

    code: int
    reason: str


class Batch(msgspec.Struct, omit_defaults=True):
    """`session` stands in the path of this long poll's requests; `frames` come next; `batch` goes
    into the next poll's `after`."""

    session: str
    batch: int
    frames: list[dict[str, Any]]
    close: CloseDescription | None = None


class Posted(msgspec.Struct):
    """The message of this number has been taken."""

    number: int


async def list_sessions(broker: Broker, request: Request) -> Response:
    """Sessions of this gateway, over either transport or waiting for their client, by id: yours;
    and with `manage` on every queue those of your whole tenant."""
    limit = query_limit(request, limits.SESSIONS_PER_PAGE_MAX, SESSIONS_DEFAULT)
    after = request.query_params.get("after", "")
    if after and not is_session_id(after):
        raise Refused("invalid_request", "after: a session's id, as `next` names it")
    whole = rights(request).is_everywhere("manage")
    sessions = _polls(request).sessions
    listed = sessions.page(principal(request), limit, after, whole_tenant=whole)
    here = msgspec.structs.replace(listed, gateway=broker.gateway, gateways=broker.gateways)
    return reply(here)


async def open_session(broker: Broker, request: Request) -> Response:
    """The body is the client's first message: a `hello`, in an array with what may follow it."""
    body = await read_body(request)
    poll = _polls(request).open(admission(request), body, client_address(request.scope))
    answer = _batch(poll, *await poll.poll(0, 0.0), status=201)
    # A balancer learns from it which gateway has this session.
    answer.headers["Location"] = f"/v1/sessions/{poll.poll_id}"
    return answer


async def post_frames(broker: Broker, request: Request) -> Response:
    """The client says something: one frame, or an array of them."""
    number = _number(request, "number", 1)
    data = await read_body(request)
    await _poll(request).post(number, data)
    return reply(Posted(number), 202)


async def poll_frames(broker: Broker, request: Request) -> Response:
    """Wait for what there is for the client."""
    after = _number(request, "after", 0)
    poll = _poll(request)
    return _batch(poll, *await poll.poll(after, _wait_s(request)))


async def end_session(broker: Broker, request: Request) -> Response:
    """End it: what it held returns to its groups at once."""
    _poll(request).finish()
    return Response(status_code=204)


def _polls(request: Request) -> LongPolls:
    polls: LongPolls | None = request.app.polls
    if polls is None:
        raise Refused("not_found", "there are no sessions by long poll here")
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
            Parameter("after", "Only ids behind this one.", {"type": "string"}),
        ),
        errors=("invalid_request",),
    ),
    Operation(
        "POST",
        "/v1/sessions",
        "Open a session by long poll, or go on with one.",
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
        {202: Answer("They were taken; answers come by poll.", Posted)},
        needs="own",
        request=dict[str, Any],
        query=(Parameter("number", "1, 2, 3 …: one that came before does nothing.", _NUMBER),),
        errors=(*_BODY, "session_not_found", "too_many", "overloaded"),
    ),
    Operation(
        "GET",
        _PATH,
        "Wait for frames.",
        poll_frames,
        {200: Answer("Frames, or none after `wait_s`.", Batch)},
        needs="own",
        query=(
            Parameter("after", "The last batch that arrived; 0: none yet.", _NUMBER),
            Parameter(
                "wait_s",
                "How long to wait.",
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
        {204: Answer("It is over.")},
        needs="own",
        errors=("session_not_found",),
    ),
)
