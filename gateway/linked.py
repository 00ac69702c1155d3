"""What a conversation is as a Link: who it is, and what carries its frames."""

from gateway import frames
from gateway.account import Account
from gateway.admission import Admission
from gateway.facts_values import Transport
from gateway.link import Outlet
from gateway.standing import Standing
from metadata.catalog import Principal
from push.errors import TocsinError


class Linked:
    """A base of the conversation, which sets these."""

    __slots__ = ()
    _outlet: Outlet
    _standing: Standing
    account: Account

    @property
    def admission(self) -> Admission:
        """What it may. Nobody asks before `hello` has been accepted (P11)."""
        admission = self._standing.admission
        assert admission is not None
        return admission

    @property
    def principal(self) -> Principal:
        """Who it is; as `admission`."""
        return self.admission.principal

    @property
    def transport(self) -> Transport | None:
        """As Link.transport."""
        return self._outlet.transport

    def send(self, frame: bytes) -> None:
        """As Link.send."""
        self._outlet.send(frame)

    def refuse(self, error: TocsinError, ref: int | None, queue: str | None = None) -> None:
        """As Host.refuse of gateway.publishing."""
        self.account.refused(error.code.name, queue)
        self.send(frames.error(error, ref))
