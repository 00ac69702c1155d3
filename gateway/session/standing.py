"""By what a session is here: its admission, which another one of the same principal may follow."""

from gateway.accounting.account import Account
from gateway.admission import Admission
from gateway.auth.admitted import Endable
from gateway.session.charges import Charges
from gateway.session.surroundings import Surroundings
from push.errors import Refused
from runtime.addresses import ClientAddress


class Standing:
    """Of one session; while it has an admission, the end of that one's credential ends it."""

    __slots__ = ("_around", "_session", "account", "admission", "charges")

    def __init__(
        self,
        around: Surroundings,
        session: Endable | None,
        admission: Admission | None,
        address: ClientAddress,
    ) -> None:
        """`session`: what the end of the credential ends. `admission` None: a credential is owed.
        `address`: where its client is."""
        self._around = around
        self._session = session
        self.account = Account(around.books, around.has_queue, address.text or None, admission)
        self.charges = Charges(around.limiter)
        self.admission: Admission | None = None
        if admission is not None:
            self._take(admission)

    def enter(self, token: str | None, address: ClientAddress, *, now: float) -> Admission:
        """What a token or ticket gives at `now` (monotonic seconds), by which the session is here
        from then on.

        Raises:
            Refused: unauthorized; rate_limited: too many from there were wrong.
        """
        try:
            found = self._judge(token, address, now)
        except Refused as error:
            self.account.not_admitted(error)
            raise
        self.take(found)
        return found

    def renew(self, token: str, address: ClientAddress, *, now: float) -> Admission:
        """As `enter`, for a session that is open.

        Raises:
            Refused: unauthorized, rate_limited; forbidden: it is another principal's.
        """
        try:
            found = self._judge(token, address, now)
        except Refused as error:
            if error.code.name == "unauthorized":
                self.account.not_admitted(error)
            raise
        if self.admission is None or found.principal != self.admission.principal:
            raise Refused("forbidden", "a session stays its principal's: open another one")
        self.take(found)
        self.charges.begin(found, address, now=now, goes_on=True)
        return found

    def _judge(self, token: str | None, address: ClientAddress, now: float) -> Admission:
        with self.charges.guessing(address, now=now):
            return self._around.auth.check_spoken(token, now=now, wall=self._around.wall())

    def take(self, admission: Admission) -> None:
        """From now on it is here by this."""
        self._take(admission)
        self.account.admitted(admission)

    def _take(self, admission: Admission) -> None:
        self._leave()
        self.admission = admission
        if self._session is not None:
            self._around.auth.admitted.add(admission.credential, self._session)

    def end(self) -> None:
        """The session has ended, or its transport is another one's now. Again: nothing happens."""
        self._leave()
        self._session = None

    def _leave(self) -> None:
        if self.admission is not None and self._session is not None:
            self._around.auth.admitted.discard(self.admission.credential, self._session)
