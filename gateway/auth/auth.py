"""Authentication: decide who a client is, and whether a request from its page may be served.

Credentials are required if the broker has a token of its own (`TOCSIN_TOKEN`), trusts an issuer's
JWTs, or is configured to require them (`TOCSIN_AUTH=required`). They are

    the broker's token   all rights; its holder is the operator
    an API token         `tcs_…`, with the rights of its record (metadata.tokens)
    a JWT                the rights that its issuer gives, under a configured key (gateway.auth.jwt)
    a certificate        its verified name, with the rights of a record
    a ticket, a cookie   for browsers, with the rights of the credential that they were made for

A client sends them in the `Authorization: Bearer` header. A browser's WebSocket, which cannot set
headers, sends them in its `hello`. Every bad credential gets the same answer (DETAIL), after about
the same time, whatever is wrong with it.

If none are required, every client on this machine is let in, and none from elsewhere. A web page
that the user merely visits must not talk to the broker behind the user's back. These headers show
such attacks:

    DNS rebinding            evil.example resolves to 127.0.0.1; its Host header shows it
    cross-site WebSocket     a page of evil.example opens ws://127.0.0.1; its Origin shows it

A browser sends its cookie (gateway.auth.browser) and its certificate by itself. So they count only
if the browser also says which page sends the request, and that page is one of ours. A page from
another port of this host is the same site to the browser, and another origin. These headers show
such attacks:

    cross-site request       a page of localhost:3000 posts to us with the cookie; its Origin
    a page on the way        an attacker in the network answers for http://broker.example, and the
                             page opens wss://broker.example, with the same cookies; its Origin,
                             which is http
    cross-site look          a page loads <img src="http://localhost:8080/v1/…">; its Sec-Fetch-Site

Tokens are never logged and never part of an error.
"""

import asyncio
import hmac
import logging
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Final, Protocol

from gateway.auth.browser import ACCESS_S, Cookies, Pass, Tickets, is_ticket
from gateway.auth.jwt import JwtVerifier
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
from runtime.loop.fairness import TimeSlices

logger = logging.getLogger("tocsin.session")


class Revocable(Protocol):
    """A session or request that lasts only as long as its credential."""

    def revoked(self) -> None:
        """End now, because the credential is no longer good."""


class LiveCredentials:
    """Find the sessions and requests that a credential has let in, and end them."""

    def __init__(self) -> None:
        self._by_credential: dict[str, set[Revocable]] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def add(self, credential: str, what: Revocable) -> None:
        """Have `what` ended when this credential is revoked."""
        self._by_credential.setdefault(credential, set()).add(what)

    def discard(self, credential: str, what: Revocable) -> None:
        """Forget `what`, because it has ended, or goes on with another credential."""
        left = self._by_credential.get(credential)
        if left is not None:
            left.discard(what)
            if not left:
                del self._by_credential[credential]

    def count(self, credential: str) -> int:
        """Return the number of sessions and requests of this credential."""
        return len(self._by_credential.get(credential, ()))

    # enforces: P11
    def revoke(self, credential: str) -> None:
        """End everything that this credential has let in, in slices, so that others have their turn
        in between (P9). The caller makes sure that the credential lets in nobody else. Call it
        inside the event loop."""
        task = asyncio.get_running_loop().create_task(self._end(credential))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _end(self, credential: str) -> None:
        slices = TimeSlices()
        for what in list(self._by_credential.get(credential, ())):
            if what in self._by_credential.get(credential, ()):
                try:
                    what.revoked()
                except Exception:  # the others must end nevertheless
                    logger.exception("what %s has admitted did not end", credential)
            await slices.yield_if_over()


OPERATOR: Final = Principal("operator")
"""The holder of the broker's own token, with all rights."""
OPERATORS: Final = Admission(OPERATOR)
LET_IN: Final = Admission(ANYBODY, credential="anybody")
"""Admission of every client if no credentials are required."""
REVOKED_KEPT_MAX: Final = 10_000
"""Largest number of revoked tokens whose ids this gateway remembers, those that were revoked
last."""
_OWN_SITES: Final = (None, "same-origin", "none")
"""Accepted values of Sec-Fetch-Site: none (an older browser, or a program), our page, an address
that the user typed in."""
_TOKEN: Final = credential_of("")


class Authenticator:
    """Authenticate requests. `origins` are further pages (`https://app.example`) to be served.
    `is_required`: credentials are required even without a `token` or `jwts`. `tokens` has the API
    tokens. `secret` signs cookies, together with `token`. `wall` is unix seconds, `now` monotonic.

    Header mappings are looked up by lower-case name; those of Starlette and websockets both fit.
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
        """Whether no credentials are required; then those that are presented are ignored."""
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
        """Find out by the headers, and by the name of the client certificate that TLS has verified,
        who a request is from. None: a token is still missing. Then a WebSocket must present it in
        its `hello`, and any other request is to be refused. `is_tls`: the request is known to have
        come over TLS.

        Raises:
            Refused: unauthorized or origin_refused; metadata_unavailable if it is not known which
                tokens were revoked; invalid_request for several headers of one name.
        """
        presented = bearer_token(headers)
        if presented is not None and not self.is_open:
            return self.check_token(presented, wall=wall)  # no page can make a browser send it
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
        """Authenticate a request, by its cookie if nothing else is presented. `is_read`: the
        request is a GET or HEAD, which changes nothing; a WebSocket's handshake is no such request.

        Returns None if nothing that lets the client in is presented.

        Raises:
            Refused: as authenticate_without_cookie; origin_refused also for a cookie that a page of
                another origin may have sent.
        """
        admission = self.authenticate_without_cookie(
            headers, wall=wall, certificate=certificate, is_tls=is_tls
        )
        if admission is not None:
            return admission
        admission = self._by_cookie(headers, wall)
        if admission is None:
            return None
        # `authenticate_without_cookie` has judged an Origin, if there is one.
        if _one(headers, "origin") is None and not (
            is_read and _one(headers, "sec-fetch-site") in _OWN_SITES
        ):
            raise Refused(
                "origin_refused",
                "a request with a cookie needs an Origin header that names its page. A program "
                "sends the token instead: Authorization: Bearer <token>",
            )
        return admission

    def check_token(self, presented: str | None, *, wall: float) -> Admission:
        """Return the admission that this token gives. If no credentials are required, anything is
        accepted, even None.

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
        """Use a ticket up, and return the admission that it gives. Raises Refused(unauthorized)."""
        admission = self.tickets.use(ticket, now=now)
        if admission is None:
            raise NotLetIn("ticket")
        if not self.is_live(admission.credential):
            raise NotLetIn("revoked", admission.credential)
        return admission

    def refusal_of(self, headers: Mapping[str, str], certificate: str | None) -> NotLetIn:
        """Return the refusal of a request for which `authenticate` has returned None, because it
        has neither a good cookie nor a good certificate."""
        if certificate is not None:
            return NotLetIn("certificate")
        has_cookie = self.cookies.name in (_one(headers, "cookie") or "")
        return NotLetIn("cookie" if has_cookie else "none")

    def track(self, credential: str, what: Revocable) -> None:
        """Have `what`, a session or request of this credential, ended when the credential is
        revoked."""
        self._live.add(credential, what)

    def untrack(self, credential: str, what: Revocable) -> None:
        """Forget a session or request that has ended, or goes on with another credential. If it is
        not tracked, nothing happens."""
        self._live.discard(credential, what)

    def tracked_count(self, credential: str) -> int:
        """Return the number of sessions and requests that would end if this credential were
        revoked."""
        return self._live.count(credential)

    def on_credential_ended(self, credential: str) -> None:
        """End the sessions and requests of this credential, after it was revoked."""
        self._live.revoke(credential)

    def on_token_revoked(self, record: TokenRecord) -> None:
        """Remember a revoked token, so that the audit trail can say that it was revoked if a client
        presents it."""
        self._revoked[record.token_id] = None
        while len(self._revoked) > REVOKED_KEPT_MAX:
            self._revoked.popitem(last=False)

    def check_hello(self, presented: str | None, *, now: float, wall: float) -> Admission:
        """Return the admission that the credential of a `hello`, a token or a ticket, gives. Raises
        like check_token."""
        if presented is not None and is_ticket(presented) and not self.is_open:
            return self.check_ticket(presented, now=now, wall=wall)
        return self.check_token(presented, wall=wall)

    def is_live(self, credential: str) -> bool:
        """Whether sessions of this credential may go on, because it is known that it was not
        revoked. The end of its time is in the admission, and not judged here."""
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
        """Let a new ticket give this admission, once. Raises like `Tickets.add`."""
        self.tickets.add(ticket, admission, now=now)

    @property
    def cookie_name(self) -> str:
        """The name of this broker's cookie."""
        return self.cookies.name

    def cookie_for(self, admission: Admission, lasts_s: float = ACCESS_S, *, wall: float) -> str:
        """Make the value of a cookie that gives this admission for `lasts_s`, at most ACCESS_S.
        Raises like `Cookies.make`."""
        return self.cookies.make(self._pass_of(admission), lasts_s, wall=wall)

    def _pass_of(self, admission: Admission) -> Pass:
        """Return what a cookie holds about an admission. For an API token it holds only the id,
        because the rights are read from the token's record each time."""
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
        except ValueError:  # a newer version wrote it; without its limit nobody is let in
            return None
        self._tokens.note_used(record.token_id, unix_ms=int(wall * 1000))
        rights = rights_of(record.rights)
        return Admission(record.principal, lasts_s, rights, record.credential, limits=own)

    def _by_certificate(
        self, headers: Mapping[str, str], certificate: str | None, wall: float
    ) -> Admission | None:
        """Return the admission that a client certificate gives; None: none. A browser may present
        its certificate for any page. If the request has an Origin, that was judged before. If not,
        Sec-Fetch-Site shows a page of another site, and nothing is given."""
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
        """Check the origin of a request that has no valid Authorization header. `is_tls`: the
        request is known to have come over TLS.

        Raises:
            Refused: origin_refused, with advice what to do.
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
    """Raise Refused(metadata_unavailable) if the tokens are not known, so that none can be accepted
    or refused."""
    if not tokens.is_known:
        raise Refused(
            "metadata_unavailable",
            "this gateway does not know yet which tokens were revoked: try again",
            1.0,
        )


def bearer_token(headers: Mapping[str, str]) -> str | None:
    """Return the token of the Authorization header; None: there is no such header.

    Raises:
        Refused: unauthorized, if the header is not `Bearer <token>`, or there are two.
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
    """Return a header's value; None: it is absent. Several headers of the name are refused, because
    they come from a smuggling attempt or a broken proxy."""
    try:
        return headers.get(name)
    except LookupError:  # websockets' MultipleValuesError
        raise several(name) from None


def several(name: str) -> Refused:
    """Return the refusal of two headers of this name (lower case)."""
    if name in ("authorization", "cookie"):
        return NotLetIn("several")
    return Refused("invalid_request", f"the request has several {name} headers: send one")
