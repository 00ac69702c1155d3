"""Why somebody was not let in: the audit trail and the log say it, and nobody else (P11)."""

import logging
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from tocsin import Unauthorized
from tocsin.cli.main import explain

from gateway.accounting import audit as audit_trail
from gateway.accounting.writer import AccountingWriter
from gateway.models import DETAIL, NotLetIn
from gateway.net.handshake import answer_handshake
from gateway.rest.app import Application
from gateway.session.credential import SessionCredential, SessionQuota
from gateway.session.directory import SessionServices
from push.errors import Refused
from runtime.addresses import ClientAddress
from tests.gateway.asgi import client_of
from tests.gateway.auth.test_bad_credentials import NOW, WALL, auth_of, bad, issuer
from tests.gateway.plain_metadata import broker_in_memory
from tests.gateway.plain_tokens import text
from tests.gateway.raw_sockets import HANDSHAKE

PEER = ClientAddress("192.0.2.7", False)


def test_each_kind_of_bad_credential_has_its_word_and_the_same_answer() -> None:
    auth, whys = auth_of(issuer()), defaultdict[str, set[str]](set)
    for one in bad():
        with pytest.raises(NotLetIn) as refused:
            auth.check_hello(one.text, now=NOW, wall=WALL)
        assert str(refused.value) == f"unauthorized: {DETAIL}"
        whys[one.kind].add(refused.value.why)
    for kind, why in {
        "wrong audience": "audience", "wrong issuer": "issuer", "expired": "expired",
        "not yet valid": "not_yet", "made-up kid": "key", "other purpose": "purpose",
        "flipped bit": "signature", "key confusion": "signature", "alg none": "algorithm",
        "no subject": "subject", "no tenant": "tenant", "no rights": "rights", "crit": "critical",
        "no end": "claims", "wrong secret": "secret", "unknown token": "unknown",
        "mistyped": "form", "words": "form", "over-long": "form", "ticket replayed": "ticket",
    }.items():  # fmt: skip
        assert why in whys[kind], (kind, whys[kind])


def test_a_revoked_token_is_distinguished_from_an_unknown_one() -> None:
    auth = auth_of(issuer())
    tokens: Any = auth._tokens
    tokens.on_revoked(auth.on_token_revoked)
    assert auth.check_token(text(), wall=WALL)
    tokens.drop("abcdefgh")
    for token_id, expected in (
        ("abcdefgh", ("revoked", "token:abcdefgh")), ("zzzzzzzz", ("unknown", None)),
        ("expiredd", ("expired", "token:expiredd")),
    ):  # fmt: skip
        with pytest.raises(NotLetIn) as refused:
            auth.check_token(text(token_id), wall=WALL)
        assert (refused.value.why, refused.value.credential) == expected


async def test_the_trail_and_the_log_say_why_by_whichever_way_somebody_came(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Over HTTP, in a handshake, in `hello` and in `auth`; without a secret, and once a minute."""
    auth = auth_of(issuer())
    accounting = AccountingWriter.open(tmp_path, usage_bytes_max=1 << 20, audit_bytes_max=1 << 20)
    good, expired = issuer().token(WALL), text("expiredd")
    foreign = issuer().token(WALL, aud="somebody-else")
    around = SessionServices(broker_in_memory(), auth, wall=lambda: WALL, accounting=accounting)
    with caplog.at_level(logging.INFO, logger="tocsin.auth"):
        application = Application(
            broker_in_memory(), auth, wall=lambda: WALL, accounting=accounting
        )
        for shown in (expired, expired, foreign):
            headers = {"Authorization": f"Bearer {shown}"}
            async with client_of(application, **headers) as http:
                answer = await http.get("/v1/queues")
                assert answer.json()["detail"] == DETAIL
        async with client_of(application) as http:
            assert (await http.get("/v1/queues")).status_code == 401
        lines = {"Host": "broker.example", **HANDSHAKE, "Authorization": f"Bearer {foreign}"}
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        data = f"GET /v1/ws HTTP/1.1\r\n{head}\r\n".encode()
        made = answer_handshake(data, auth, now=NOW, wall=WALL, peer=PEER)
        assert made.error is not None
        accounting.refuse_handshake(made.error, PEER.text)
        account = accounting.session(around.has_queue, PEER.text)
        standing = SessionCredential(
            None, None, auth, account, SessionQuota(around.limiter), wall=around.wall
        )
        with pytest.raises(Refused):
            standing.enter(expired, PEER, now=NOW)
        standing.enter(good, PEER, now=NOW)
        with pytest.raises(Refused):
            standing.renew(foreign, PEER, now=NOW)
    accounting.audit.end_minute()
    await accounting.stop()
    trail = [one for one in audit_trail.read(tmp_path) if one["outcome"] == "unauthorized"]
    counted = {
        (one.get("address"), one["details"]["why"], one.get("credential")): one["count"]
        for one in trail
        if "principal" not in one
    }
    (renewed,) = [one for one in trail if "principal" in one]
    assert renewed["details"] == {"why": "audience"}
    assert counted[PEER.text, "audience", None] == 1
    assert counted[PEER.text, "expired", "token:expiredd"] == 1
    over_http = {key[1:]: count for key, count in counted.items() if key[0] != PEER.text}
    assert over_http[("expired", "token:expiredd")] == 2
    assert over_http[("audience", None)] == 1
    assert over_http[("none", None)] == 1
    said = "\n".join(record.getMessage() for record in caplog.records)
    for word in ("expired", "audience", "none", "token:expiredd", PEER.text):
        assert word in said
    for secret in (expired, foreign, good, expired.rpartition("_")[2]):
        assert secret not in said
        assert secret not in (str(trail))
    over_and_over = [one for one in caplog.records if "expired" in one.getMessage()]
    assert len(over_and_over) == 2  # of two addresses


def test_who_lacks_a_right_is_not_advised_to_take_the_brokers_token() -> None:
    for code, is_told in (("unauthorized", True), ("forbidden", False), ("origin_refused", False)):
        sentence = explain(Unauthorized(code, "this needs the right to manage"))
        assert ("TOCSIN_TOKEN" in sentence) is is_told
        assert "the broker's token" not in sentence
    assert "for a token with that right" in explain(Unauthorized("forbidden", "x"))
