"""What a session is charged to, from its `hello` to its end."""

from contextlib import AbstractContextManager

from gateway.admission import Admission
from gateway.limits.limiter import Allowance, Limiter
from gateway.limits.pace import Pace
from runtime.addresses import ClientAddress
from runtime.client_names import name_of


class Charges:
    """Of one session. `now`: seconds, monotonic; `address`: where its client is now."""

    __slots__ = ("_allowance", "_limiter", "pace")

    def __init__(self, limiter: Limiter) -> None:
        self._limiter = limiter
        self._allowance: Allowance | None = None
        self.pace = Pace(limiter.session.frames)

    @property
    def allowance(self) -> Allowance:
        """What it may. Nobody asks before `begin`."""
        assert self._allowance is not None
        return self._allowance

    def guessing(self, address: ClientAddress, *, now: float) -> AbstractContextManager[None]:
        """As Limiter.guessing, of where its client is."""
        return self._limiter.guessing(name_of(address.text), now=now)

    def begin(
        self, admission: Admission, address: ClientAddress, *, now: float, goes_on: bool = False
    ) -> None:
        """From now on this admission is charged. `goes_on`: the session stands already.

        Raises:
            Refused: as Allowance.open; nothing has changed.
        """
        allowance = self._limiter.allowance(
            admission.principal, name_of(address.text),
            own=admission.limits, credential=admission.credential,
        )  # fmt: skip
        allowance.open(now=now, goes_on=goes_on)
        self.end()
        self._allowance = allowance

    def end(self) -> None:
        """The session is over; or had not begun: nothing happens."""
        if self._allowance is not None:
            self._allowance.close()
