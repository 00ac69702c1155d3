"""The admin socket's requests about API tokens: see gateway.admin.admin."""

import secrets
from collections.abc import Callable
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.accounting.audit import LOCAL, Audit
from gateway.auth.auth import Auth
from gateway.limits.limit_values import limits_of
from metadata.catalog import NAME
from metadata.client import Tokens
from metadata.tokens import (
    ID_ALPHABET,
    ID_LETTERS,
    SECRET_ALPHABET,
    SECRET_LETTERS,
    TokenRecord,
    digest_of,
    write_token,
)
from push.errors import Refused
from runtime.http_forms import decode, read_body, reply

UNUSED: Final = (
    "this broker lets everybody on this machine in, with a token or without: set TOCSIN_TOKEN, "
    "TOCSIN_JWT_KEYS or TOCSIN_AUTH=required, and start it anew"
)


class NewToken(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a token is to be; `certificate`: the name of a client certificate that stands for it;
    `limits`: what it may at most (gateway.limits.limit_values)."""

    name: str
    tenant: str = "default"
    rights: list[str]
    lasts_s: float | None = None
    certificate: str | None = None
    limits: str = ""


class TokenId(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which token."""

    token_id: str


_NEW: Final = msgspec.json.Decoder(NewToken)
_ID: Final = msgspec.json.Decoder(TokenId)


def draw_id() -> str:
    """A token's id: public, and hardly ever the same twice."""
    return "".join(secrets.choice(ID_ALPHABET) for _ in range(ID_LETTERS))


def draw_secret() -> str:
    """142 random bits."""
    return "".join(secrets.choice(SECRET_ALPHABET) for _ in range(SECRET_LETTERS))


def token_routes(
    tokens: Tokens, auth: Auth, wall: Callable[[], float], audit: Audit
) -> list[Route]:
    """`wall`: unix seconds."""

    async def create(request: Request) -> Response:
        wanted = decode(await read_body(request), _NEW)
        try:
            limits_of(wanted.limits)
        except ValueError as error:
            raise Refused("invalid_request", f"limits: {error}") from None
        token_id, created = draw_id(), wall()
        text = None if wanted.certificate is not None else write_token(token_id, draw_secret())
        expires = None if wanted.lasts_s is None else int((created + wanted.lasts_s) * 1000)
        record = TokenRecord(
            token_id=token_id,
            kind="token" if text is not None else "certificate",
            name=wanted.name,
            tenant=wanted.tenant,
            rights=tuple(wanted.rights),
            created_unix_ms=int(created * 1000),
            expires_unix_ms=expires,
            digest=digest_of(text) if text is not None else b"",
            certificate=wanted.certificate,
            limits=wanted.limits,
        )
        async with audit.act("token.create", LOCAL, subject=token_id) as act:
            act.about(**_noted(record))
            await tokens.create(record)
        warning = UNUSED if auth.is_open else None
        return reply({**_described(record), "token": text, "warning": warning})

    async def listed(request: Request) -> Response:
        return reply({"tokens": [_described(record) for record in tokens.listed()]})

    async def revoke(request: Request) -> Response:
        wanted = decode(await read_body(request), _ID)
        async with audit.act("token.revoke", LOCAL, subject=wanted.token_id[:ID_LETTERS]) as act:
            record = await tokens.revoke(wanted.token_id)
            act.about(name=record.name, tenant=record.tenant)
        return reply(_described(record))

    return [
        Route("/tokens", listed, methods=["GET"]),
        Route("/tokens/create", create, methods=["POST"]),
        Route("/tokens/revoke", revoke, methods=["POST"]),
    ]


def _noted(record: TokenRecord) -> dict[str, Any]:
    """What the audit trail says of a new one. A wrong name may be anything: it is left out."""
    fields = {**_described(record), "rights": list(record.rights)}
    names = ("name", "tenant")
    wrong = [one for one in names if not NAME.fullmatch(fields[one])]
    kept = {"kind", *names, "rights", "limits", "expires_unix_ms", "certificate"} - set(wrong)
    return {one: fields[one] for one in sorted(kept) if fields[one] not in (None, "")}


def _described(record: TokenRecord) -> dict[str, Any]:
    """All but the digest."""
    fields: dict[str, Any] = msgspec.structs.asdict(record)
    del fields["digest"]
    return fields
