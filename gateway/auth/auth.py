"""Decide who a client is, and whether a request from this page may be served at all. Pure.

Credentials are wanted as soon as the broker has a token of its own (`TOCSIN_TOKEN`), trusts
somebody's JWTs, or is told to want them (`TOCSIN_AUTH=required`). They are

    the broker's token   all rights; its holder is the operator
    an API token         `tcs_…`, what its record says (metadata.tokens)
    a JWT                what its issuer says, under a key that is configured (gateway.auth.jwt)
    a certificate        its verified name, as a record says
    a ticket, a cookie   for browsers: what the one of the above gave that they were made for

in the `Authorization: Bearer` header, or, from a browser's WebSocket, which cannot set headers, in
its `hello`. Whatever is wrong with one gets the same answer (DETAIL), after about the same time.

Where none are wanted everybody on this machine is let in, and only from this machine: a web page
that the user merely visits must not talk to the broker behind the user's back.

    DNS rebinding            evil.example resolves to 127.0.0.1: its Host header gives it away
    cross-site WebSocket     a page of evil.example opens ws://127.0.0.1: its Origin gives it away

A browser sends its cookie (gateway.auth.browser) and its certificate by itself, so they count only
where the browser also says whose page asks, and it is one of ours. What another port of this host
serves is the same site to the browser, and another origin.

    cross-site request       a page of localhost:3000 posts to us, cookie and all: its Origin
    a page on the way        somebody in the network answers for http://broker.example, and his page
                             opens wss://broker.example: same host, same cookies, its Origin is http
    cross-site look          it loads <img src="http://localhost:8080/v1/…">: its Sec-Fetch-Site

Tokens are never logged and never part of an error.
"""

import hmac
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Final

from gateway.auth.browser import ACCESS_S, Cookies, Pass, Tickets, is_ticket
from gateway.auth.jwt import JwtVerifier
from gateway.auth.live import LiveCredentials, Revocable
from gateway.auth.origins import (
    configured_origin,
    foreign_page_refusal,
    is_loopback,
    is_own,
    parse_origin,
    wrong_host_refusal,
)
from gateway.limits.spec import limits_of
from gateway.models import Admission, NotLetIn
from metadata.catalog import ANYBODY, Principal
from metadata.port import Tokens
from metadata.tokens import (
    TokenRecord,
    credential_of,
    is_ours,
    judge,
    judge_certificate,
    rights_of,
    why_not,
)
from push import limits
from push.errors import Refused

OPERATOR: Final = Principal("operator")
"""Whoever holds the broker's one token: all rights."""
OPERATORS: Final = Admission(OPERATOR)
LET_IN: Final = Admission(ANYBODY, credential="anybody")
"""Where nobody needs credentials."""
REVOKED_KEPT_MAX: Final = 10_000
"""Ids of revoked tokens that are remembered, since this gateway began."""
_OWN_SITES: Final = (None, "same-origin", "none")
"""Values of Sec-Fetch-Site: an older browser, our page, an address that the user typed in."""
_TOKEN: Final = credential_of("")


class Authenticator:
    """Authenticate requests. `origins` are further pages (`https://app.example`) to be served;
    `is_required`: credentials are wanted also without a `token` or `jwts`; `tokens` has the API
    tokens; `secret` signs cookies, together with `token`. `wall` is unix seconds, `now` monotonic.

    Header mappings are looked up by lower-case name: those of Starlette and websockets both fit.
    """

    def __init__(
        self,
        token: str | None,
        origins: Iterable[str] = (),
        *,
        is_required: bool = False,
        tokens: Tokens | None = None,
        jwts: JwtVerifier | None = None,
        secret: bytes = b"",
    ) -> None:
        self._token = token.encode() if token else None
        self._origins = frozenset(configured_origin(one.rstrip("/")) for one in origins)
        self._tokens = tokens
        self._jwts = jwts
        self.is_open = self._token is None and jwts is None and not is_required
        """Whether nobody needs credentials; then those that are presented are ignored."""
        self.cookies = Cookies(secret + b"\0" + (self._token or b""))
        self.tickets = Tickets()
        self._live = LiveCredentials()
        self._revoked: OrderedDict[str, None] = OrderedDict()

    def authenticate_without_cookie(
        self,
        headers: Mapping[str, str],
        *,
        wall: float,
        certificate: str | None = None,
        is_tls: bool = False,
    ) -> Admission | None:
        """Find out by the headers, and the name of the client certificate that TLS has verified,
        who a request is from; None where a token is still owed (a WebSocket then owes it in its
        `hello`; anything else is to be refused). `is_tls`: it is known to have come over TLS.

        Raises:
            Refused: unauthorized or origin_refused.
        """
        presented = bearer_token(headers)
        if presented is not None and not self.is_open:
            return self.check_token(presented, wall=wall)  # which no page makes a browser send
        self.check_origin(headers, is_tls=is_tls)
        if self.is_open:
            return LET_IN
        return self._by_certificate(headers, certificate, wall)

    def authenticate(
        self,
        headers: Mapping[str, str],
        *,
        is_read: bool,
        wall: float,
        certificate: str | None = None,
        is_tls: bool = False,
    ) -> Admission | None:
        """Authenticate a request, by the cookie where nothing else is presented. `is_read`: the
        request is a GET or HEAD, which changes nothing; a WebSocket's handshake is none.

        Raises:
            Refused: unauthorized or origin_refused.
        """
        admission = self.authenticate_without_cookie(
            headers, wall=wall, certificate=certificate, is_tls=is_tls
        )
        if admission is not None:
            return admission
        admission = self._by_cookie(headers, wall)
        if admission is None:
            return None
        # An Origin that is there has been judged by `authenticate_without_cookie`.
        if _one(headers, "origin") is None and not (
            is_read and _one(headers, "sec-fetch-site") in _OWN_SITES
        ):
            raise Refused(
                "origin_refused",
                "with a cookie, a request says by its Origin header which page it comes from; "
                "programs present the token: Authorization: Bearer <token>",
            )
        return admission

    def check_token(self, presented: str | None, *, wall: float) -> Admission:
        """Return what this token gives. Where none are wanted, whatever is presented is anybody's.

        Raises:
            Refused: unauthorized, metadata_unavailable.
        """
        if self.is_open:
            return LET_IN
        if presented is None:
            raise NotLetIn("none")
        if len(presented) > limits.JWT_BYTES_MAX:  # longer than any good one (P9)
            raise NotLetIn("form")
        # In constant time: how far a guess is right must not be measurable.
        if self._token is not None and hmac.compare_digest(
            presented.encode("utf-8", "surrogatepass"), self._token
        ):
            return OPERATORS
        if self._tokens is not None and is_ours(presented):
            tokens = self._tokens
            _check_known(tokens)
            admission = self._of_record(judge(presented, tokens.find, wall=wall), wall)
            if admission is None:
                revoked = self._revoked.__contains__
                raise NotLetIn(*why_not(presented, tokens.find, revoked, wall=wall))
            return admission
        if self._jwts is None:
            raise NotLetIn("unknown")
        found = self._jwts.verify(presented, wall=wall)
        if isinstance(found, str):
            raise NotLetIn(found)
        return found

    def check_ticket(self, ticket: str, *, now: float, wall: float) -> Admission:
        """Return what a ticket gives, once. Raises Refused(unauthorized)."""
        admission = self.tickets.use(ticket, now=now)
        if admission is None:
            raise NotLetIn("ticket")
        if not self.is_live(admission.credential):
            raise NotLetIn("revoked", admission.credential)
        return admission

    def refusal_of(self, headers: Mapping[str, str], certificate: str | None) -> NotLetIn:
        """Return the refusal of a request in whose headers `authenticate` has found nothing: no
        cookie and no certificate that is good."""
        if certificate is not None:
            return NotLetIn("certificate")
        has_cookie = self.cookies.name in (_one(headers, "cookie") or "")
        return NotLetIn("cookie" if has_cookie else "none")

    def track(self, credential: str, what: Revocable) -> None:
        """Have this ended when its credential is revoked."""
        self._live.add(credential, what)

    def untrack(self, credential: str, what: Revocable) -> None:
        """Forget what has ended, or goes on with another credential. If it is not tracked, nothing
        happens."""
        self._live.discard(credential, what)

    def tracked_count(self, credential: str) -> int:
        """Number of sessions and requests that would end with this credential."""
        return self._live.count(credential)

    def on_credential_ended(self, credential: str) -> None:
        """End what this credential has let in, after it was revoked."""
        self._live.revoke(credential)

    def on_token_revoked(self, record: TokenRecord) -> None:
        """Remember a revoked token, so that the trail can say so of its use."""
        self._revoked[record.token_id] = None
        while len(self._revoked) > REVOKED_KEPT_MAX:
            self._revoked.popitem(last=False)

    def check_hello(self, presented: str | None, *, now: float, wall: float) -> Admission:
        """Return what the credential of a `hello` gives: a token's, or a ticket's. Raises as
        check_token."""
        if presented is not None and is_ticket(presented) and not self.is_open:
            return self.check_ticket(presented, now=now, wall=wall)
        return self.check_token(presented, wall=wall)

    def is_live(self, credential: str) -> bool:
        """Whether what this credential has admitted may go on: it has not been revoked. That its
        time is over, the admission says."""
        if credential.startswith(_TOKEN):
            tokens = self._tokens
            if tokens is None or not tokens.is_known:
                return False
            return tokens.find(credential.removeprefix(_TOKEN)) is not None
        if credential == OPERATORS.credential:
            return self._token is not None
        if credential == LET_IN.credential:
            return self.is_open
        return self._jwts is not None and self._jwts.trusts(credential)

    def add_ticket(self, ticket: str, admission: Admission, *, now: float) -> None:
        """Let a ticket give this admission, once; raises as `Tickets.add`."""
        self.tickets.add(ticket, admission, now=now)

    @property
    def cookie_name(self) -> str:
        """The name of this broker's cookie."""
        return self.cookies.name

    def cookie_for(self, admission: Admission, lasts_s: float = ACCESS_S, *, wall: float) -> str:
        """Make the value of a cookie that gives this admission."""
        return self.cookies.make(self._pass_of(admission), lasts_s, wall=wall)

    def _pass_of(self, admission: Admission) -> Pass:
        """Return what a cookie says of an admission. Of an API token it says the id only: its
        record says each time what it gives."""
        if admission.credential == OPERATORS.credential or admission.credential.startswith(_TOKEN):
            return Pass(admission.credential)
        name, tenant = admission.principal.name, admission.principal.tenant
        return Pass(admission.credential, name, tenant, [str(g) for g in admission.rights.grants])

    def _of_record(self, record: TokenRecord | None, wall: float) -> Admission | None:
        lasts_s = record.lasts_s(wall=wall) if record is not None else None
        if record is None or lasts_s is None or self._tokens is None:
            return None
        try:
            own = limits_of(record.limits)
        except ValueError:  # a newer version has written it: not without the limit that it means
            return None
        self._tokens.note_used(record.token_id, unix_ms=int(wall * 1000))
        rights = rights_of(record.rights)
        return Admission(record.principal, lasts_s, rights, record.credential, limits=own)

    def _by_certificate(
        self, headers: Mapping[str, str], certificate: str | None, wall: float
    ) -> Admission | None:
        """A browser may present one for any page: an Origin has been judged, and where there is
        none, who loads from another site gives that away."""
        if certificate is None or self._tokens is None:
            return None
        if _one(headers, "origin") is None and _one(headers, "sec-fetch-site") not in _OWN_SITES:
            return None
        _check_known(self._tokens)
        found = judge_certificate(self._tokens.of_certificate(certificate), wall=wall)
        return self._of_record(found, wall)

    def _by_cookie(self, headers: Mapping[str, str], wall: float) -> Admission | None:
        best: Admission | None = None
        for left_s, said in self.cookies.passes(_one(headers, "cookie"), wall=wall):
            found = self._of_pass(said, wall)
            if found is not None:
                found = found._replace(lasts_s=min(found.lasts_s, left_s), is_cookie=True)
                best = found if best is None or found.lasts_s > best.lasts_s else best
        return best

    def _of_pass(self, said: Pass, wall: float) -> Admission | None:
        if not self.is_live(said.credential):
            return None
        if said.credential == OPERATORS.credential:
            return OPERATORS
        if said.credential.startswith(_TOKEN) and self._tokens is not None:
            record = self._tokens.find(said.credential.removeprefix(_TOKEN))
            return self._of_record(record, wall)
        rights = rights_of(tuple(said.rights))
        principal = Principal(said.name, said.tenant)
        return Admission(principal, rights=rights, credential=said.credential)

    def check_origin(self, headers: Mapping[str, str], *, is_tls: bool = False) -> None:
        """Check the origin of a request that has no valid Authorization header. `is_tls`: as
        `authenticate_without_cookie`.

        Raises:
            Refused: origin_refused, with what to do about it.
        """
        host = _one(headers, "host")
        if self.is_open and not is_loopback(host):
            raise wrong_host_refusal(host)
        origin = _one(headers, "origin")
        if origin is None or str(parse_origin(origin)) in self._origins:
            return
        if not is_own(origin, host, is_tls=is_tls):
            raise foreign_page_refusal(origin, host, is_tls=is_tls)


def _check_known(tokens: Tokens) -> None:
    """Raises Refused(metadata_unavailable): who is good is not known; nor that somebody is not."""
    if not tokens.is_known:
        raise Refused("metadata_unavailable", "whether tokens were revoked is not known here", 1.0)


def bearer_token(headers: Mapping[str, str]) -> str | None:
    """The token of the Authorization header; None: there is no such header.

    Raises:
        Refused: unauthorized: the header is there and is not `Bearer <token>`, or there are two.
    """
    header = _one(headers, "authorization")
    if header is None:
        return None
    scheme, _, token = header.partition(" ")
    token = token.strip(" ")
    if scheme.lower() != "bearer" or not token:
        raise NotLetIn("form")
    return token


def _one(headers: Mapping[str, str], name: str) -> str | None:
    """A header's value. Several ones are a smuggling attempt or a broken proxy: refused."""
    try:
        return headers.get(name)
    except LookupError:  # websockets' MultipleValuesError
        raise several(name) from None


def several(name: str) -> Refused:
    """The answer to two headers of this name (lower case)."""
    if name in ("authorization", "cookie"):
        return NotLetIn("several")
    return Refused("invalid_request", f"several {name} headers")
