"""By what a session is here: its admission, which another one of the same principal may follow."""

from collections.abc import Callable

from gateway.admission import Admission
from gateway.admitted import Endable
from gateway.auth import Auth
from push.errors import Refused


class Standing:
    """Of one session; while it has an admission, the end of that one's credential ends it."""

    __slots__ = ("_auth", "_session", "_wall", "admission")

    def __init__(
        self, auth: Auth, wall: Callable[[], float], session: Endable, admission: Admission | None
    ) -> None:
        """`wall`: unix seconds. `admission` None: a credential is owed."""
        self._auth = auth
        self._wall = wall
        self._session = session
        self.admission: Admission | None = None
        if admission is not None:
            self.take(admission)

    def judge(self, token: str | None, *, now: float) -> Admission:
        """What a token or ticket gives at `now` (monotonic seconds). Raises
        Refused(unauthorized)."""
        return self._auth.check_spoken(token, now=now, wall=self._wall())

    def judge_next(self, token: str, *, now: float) -> Admission:
        """As `judge`, for a session that is open.

        Raises:
            Refused: unauthorized; forbidden: it is another principal's.
        """
        found = self.judge(token, now=now)
        if self.admission is None or found.principal != self.admission.principal:
            raise Refused("forbidden", "a session stays its principal's: open another one")
        return found

    def take(self, admission: Admission) -> None:
        """From now on it is here by this."""
        self.leave()
        self.admission = admission
        self._auth.admitted.add(admission.credential, self._session)

    def leave(self) -> None:
        """It has ended, or its transport is another session's now. Again: nothing happens."""
        if self.admission is not None:
            self._auth.admitted.discard(self.admission.credential, self._session)
