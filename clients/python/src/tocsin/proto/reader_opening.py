"""The opening of a reader at a position that may have lost its meaning (R26). Pure.

If a position is unknown, the opening fails, or the reader continues at the earliest message, which
is the broker's default, or at the latest. To continue at the latest, the reader first opens there
without credit, and learns from the broker where that is. Partitions with a good position keep
theirs.
"""

from collections.abc import Callable
from typing import Final, Literal

from tocsin.answers import Verdict
from tocsin.errors import PositionUnknown, TocsinError
from tocsin.proto import wire
from tocsin.proto.read_ledger import Places

GoOn = Literal["earliest", "latest"]
OnUnknown = Literal["raise"] | GoOn | Callable[[PositionUnknown], GoOn]
Where = tuple[Literal["earliest", "latest"] | wire.StartAt | None, wire.Position | None]
"""A start or a position, of which exactly one is set."""

_ADVICE: Final = (
    "; open the reader again with a `start`, or set its `on_unknown` to continue at the "
    "earliest or the latest message"
)
_KINDS: Final[dict[str, Literal["resumed", "gap", "unknown"]]] = {
    "resumed": "resumed",
    "gap": "gap",
    "unknown": "unknown",
}


class ReaderOpening:
    """The opening of a reader, over one or more subscribes.

    `where` is the place at which the reader wants to continue. `on_unknown` says what to do if that
    has lost its meaning.
    """

    def __init__(self, where: Where, on_unknown: OnUnknown) -> None:
        self.where = where
        self.leaves_first = False
        """Whether the subscription that the last `subscribe` opened has to be ended before the next
        `subscribe`."""
        self._on_unknown = on_unknown
        self._seeks_the_end = False
        self._ends: wire.Position | None = None
        self._kept: Places = {}
        self._unknown: dict[int, str] = {}
        self._all_unknown: str | None = None

    @property
    def takes_messages(self) -> bool:
        """Whether the next subscribe may grant credit."""
        return not self._seeks_the_end

    # enforces: R26
    def on_answer(self, answer: wire.Ok | wire.Error) -> bool:
        """Handle the answer to a `subscribe`; returns whether it is the last one. If not, subscribe
        again, at `where`.

        Raises:
            PositionUnknown: the position is unknown, and `on_unknown` is "raise", has failed, or
                has returned neither "earliest" nor "latest". Also if the broker does not know a
                position that it has named itself. A TocsinError of `on_unknown` is raised as it is.
        """
        self.leaves_first = False
        if isinstance(answer, wire.Error):
            if answer.code != "position_unknown":
                return True
            self._all_unknown = answer.detail
            self._kept = {}
            self._go_on(PositionUnknown(answer.code, answer.detail + _ADVICE))
            return False
        if self._seeks_the_end:
            ends = {str(v.partition): v.place for v in answer.positions if v.place is not None}
            places = {name: self._kept.get(name, end) for name, end in ends.items()}
            self._seeks_the_end, self.leaves_first = False, True
            self._ends = wire.Position(queue_id=answer.queue_id, partitions=places)
            self.where = (None, self._ends)
            return False
        unknown = [_verdict(v) for v in answer.positions if v.verdict == "unknown"]
        if not unknown:
            return True
        self._unknown |= {verdict.partition: verdict.reason for verdict in unknown}
        self._kept = {
            str(v.partition): (v.generation, v.gap[0]) if v.gap is not None else v.place
            for v in answer.positions
            if v.place is not None and v.partition not in self._unknown
        }  # before a gap, so that the next answer reports it again
        partitions = ", ".join(str(verdict.partition) for verdict in unknown)
        detail = f"the position means nothing in partitions {partitions}: {unknown[0].reason}"
        error = PositionUnknown("position_unknown", detail + _ADVICE, verdicts=unknown)
        self._go_on(error)
        self.leaves_first = self._seeks_the_end
        return not self._seeks_the_end

    def _go_on(self, error: PositionUnknown) -> None:
        if self._ends is not None:
            raise error  # the broker itself gave this position, so repeating would never end
        choice = _choice(self._on_unknown, error)
        self._seeks_the_end = choice == "latest"
        self.where = (choice, None)

    def unknown(self, answer: wire.Ok) -> frozenset[int]:
        """Return the partitions in which the position had lost its meaning."""
        if self._all_unknown is not None:
            return frozenset(verdict.partition for verdict in answer.positions)
        return frozenset(self._unknown)

    def verdicts(self, answer: wire.Ok) -> dict[int, Verdict]:
        """Return the verdict on each partition, given the last answer."""
        verdicts: dict[int, Verdict] = {}
        for one in answer.positions:
            verdict = _verdict(one)
            reason = self._unknown.get(one.partition, self._all_unknown)
            if reason is not None:
                verdict = Verdict(one.partition, "unknown", verdict.next_offset, None, reason)
            verdicts[one.partition] = verdict
        return verdicts


def _choice(on_unknown: OnUnknown, error: PositionUnknown) -> GoOn:
    if on_unknown == "raise":
        raise error
    if not callable(on_unknown):
        return on_unknown
    try:
        choice = on_unknown(error)
        if choice not in ("earliest", "latest"):
            raise ValueError(f"on_unknown must return 'earliest' or 'latest', not {choice!r}")
    except TocsinError:
        raise
    except Exception as cause:
        raise error from cause
    return choice


def _verdict(verdict: wire.Verdict) -> Verdict:
    following = verdict.place[1] if verdict.place is not None else 0
    kind = _KINDS.get(verdict.verdict, "unknown")
    return Verdict(verdict.partition, kind, following, verdict.gap, verdict.reason)
