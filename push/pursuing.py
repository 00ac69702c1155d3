"""Pursuing one decision about parked keys of one partition, through whichever owners there are.

    left ──an owner says: durable──▶ decided
      │ ◀─it ended, and the key is parked as it was: nothing happened──┐
      ├──an owner took it up, or may have ─────────────────────────────┤
      └──the key is not parked as it was: not known, if an owner took it up for this or was asked,
         and never said that it is durable; else it was somebody else's

That an owner took it up does not say that it decided: it may have ended before, and the next one
carried out what somebody else wanted. [A skip is answered as done, and the key was retried.]

A key is meant as it was parked when the operator decided: with the moment of its parking. What was
parked anew since is another one. So a decision counts at most once, however often it is asked for.
Its head may change meanwhile: an owner that is asked about another one decides nothing, and is
asked again about the one there is.
"""

from collections.abc import Iterable, Sequence

from push.letters import PERHAPS, SETTLED
from push.places import ParkedLine


class Pursuit:
    """See the module. Keys are named by their hashes."""

    def __init__(self, lines: Iterable[ParkedLine]) -> None:
        """`lines`: what is decided about, as it is parked."""
        self.left = {line.key_hash: line for line in lines}
        """Of which nothing is known to be durable."""
        self.decided: dict[int, ParkedLine] = {}
        """By this decision, durably; each as it was then."""
        self.unknown: set[int] = set()
        """Not parked any more, perhaps by this decision."""
        self.others = 0
        """How many somebody else has decided about meanwhile."""
        self._taken_up: set[int] = set()
        self._asked: dict[int, int] = {}
        """Key → the epoch whose owner may have taken it up, and has not said so."""

    def asked(self, keys: Iterable[int], epoch: int) -> None:
        """The owner of this epoch may have taken these up, or may do so yet."""
        self._asked.update(dict.fromkeys(keys, epoch))

    def took_up(self, key: int) -> None:
        """An owner has taken it up; what came of it is not known."""
        self._taken_up.add(key)

    def is_durable(self, key: int) -> None:
        """Its owner says so."""
        line = self.left.pop(key, None)
        if line is not None:
            self.decided[key] = line

    def answered(self, keys: Sequence[int], verdicts: str) -> None:
        """The owner that was asked about these said this; see push.letters."""
        for key, verdict in zip(keys, verdicts, strict=True):
            self._asked.pop(key, None)
            if verdict == SETTLED:
                self.is_durable(key)
            elif verdict == PERHAPS:
                self.took_up(key)

    def look(self, lines: Iterable[ParkedLine], *, epoch: int) -> None:
        """What the storage has parked now. `epoch`: the newest one there was before it was read;
        no owner here works under an older one."""
        found = {line.key_hash: line for line in lines}
        for key, line in list(self.left.items()):
            now = found.get(key)
            if now is not None and now.since_unix_ms == line.since_unix_ms:
                self.left[key] = now
                self._taken_up.discard(key)
                if self._asked.get(key, epoch) < epoch:
                    del self._asked[key]  # that owner can write nothing any more
                continue
            del self.left[key]
            if key in self._taken_up or key in self._asked:
                self.unknown.add(key)
            else:
                self.others += 1

    def give_up(self) -> None:
        """Nobody is asked any more: of what an owner may have taken up nothing will be known."""
        for key in self._taken_up.union(self._asked).intersection(self.left):
            del self.left[key]
            self.unknown.add(key)
