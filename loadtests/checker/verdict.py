"""The findings of judges: the number of violations of each kind, and examples in words."""

from collections import Counter
from collections.abc import Mapping
from typing import Final

EXAMPLES_MAX: Final = 10

KINDS: Final = {
    "lost": "P1: acknowledged to its producer, never given to a group that was drained",
    "invented": "P2: given, never sent",
    "altered": "P2: given with other bytes or another key than were sent",
    "refused_given": "P2: refused, and given all the same",
    "stored_twice": "P4: one message, two places",
    "shared_place": "P4: one place, two messages",
    "key_moved": "P3: one key in two partitions",
    "sending_order": "R7: a producer's messages of a key are not stored in sending order",
    "first_order": "P3: first deliveries of a key are not in offset order",
    "overtaken": "P3: a later message of a key was given while an earlier one awaited its retry",
    "given_after_ack": "P5: given again after its ack was confirmed",
    "not_returned": "P6: given, never settled, and not given again although the group was drained",
    "number_reused": "R16: a delivery's (epoch, push) is not above that of the delivery before",
    "epoch_shared": "P7: two sessions were given messages under one epoch",
}


class Violations:
    """Violations, counted by kind. `kinds`: the meaning of each."""

    def __init__(self, kinds: Mapping[str, str]) -> None:
        self._kinds = kinds
        self.violations: Counter[str] = Counter()
        self.examples: dict[str, list[str]] = {}

    @property
    def ok(self) -> bool:
        """Whether there is no violation."""
        return not self.violations

    def flag(self, kind: str, example: str) -> None:
        """Count a violation; the first EXAMPLES_MAX of a kind are kept in words."""
        assert kind in self._kinds
        self.violations[kind] += 1
        examples = self.examples.setdefault(kind, [])
        if len(examples) < EXAMPLES_MAX:
            examples.append(example)

    def lines(self) -> list[str]:
        """Return the violations for people, line by line."""
        lines = []
        for kind, count in sorted(self.violations.items()):
            lines.append(f"{count} x {kind} ({self._kinds[kind]})")
            lines += [f"    {example}" for example in self.examples[kind]]
        return lines

    def __str__(self) -> str:
        return "\n".join(self.lines()) or "ok"


class Verdict(Violations):
    """The result of a judge."""

    def __init__(self, *, drained: bool) -> None:
        super().__init__(KINDS)
        self.drained = drained
        self.counts: Counter[str] = Counter()

    @property
    def ok(self) -> bool:
        """Whether nothing is violated, and nothing was left undrained that could hide a
        violation."""
        return self.drained and not self.violations

    def fields(self) -> dict[str, object]:
        """Return the verdict for JSON."""
        return {
            "ok": self.ok,
            "drained": self.drained,
            "counts": dict(self.counts),
            "violations": dict(self.violations),
            "examples": self.examples,
        }

    def __str__(self) -> str:
        lines = [", ".join(f"{count} {name}" for name, count in sorted(self.counts.items()))]
        if not self.drained:
            lines.append("NOT DRAINED: what is missing may be lost or late")
        return "\n".join([*lines, *self.lines(), "ok" if self.ok else "VIOLATED"])
