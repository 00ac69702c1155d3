"""What one scrape has found. Pure."""

from collections.abc import Iterator
from typing import Final

from push.histogram import Histogram
from runtime.metrics.registry import METRICS, Metric

Value = float | Histogram
Labels = tuple[str, ...]
_NONE: Final[dict[Labels, Value]] = {}


class Samples:
    """Values by metric and labels; what is put twice is added up."""

    def __init__(self) -> None:
        self._found: dict[str, dict[Labels, Value]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._found.values()))

    def put(self, name: str, value: float, *labels: str) -> None:
        """A value. Raises KeyError, AssertionError: it is not in the table as that."""
        metric = METRICS[name]
        assert metric.kind != "histogram", name
        assert len(labels) == len(metric.labels), name
        of = self._found.setdefault(name, {})
        before = of.get(labels, 0.0)
        assert not isinstance(before, Histogram)
        of[labels] = before + value

    def most(self, name: str, value: float, *labels: str) -> None:
        """As `put`, where of two the larger one counts: an age."""
        before = self.number(name, *labels)
        self.put(name, max(value, before) - before, *labels)

    def spread(self, name: str, histogram: Histogram, *labels: str) -> None:
        """A histogram, as it is at this moment. Raises as `put`."""
        metric = METRICS[name]
        assert metric.kind == "histogram", name
        assert len(labels) == len(metric.labels), name
        of = self._found.setdefault(name, {})
        kept = of.setdefault(labels, Histogram(histogram.bounds))
        assert isinstance(kept, Histogram)
        kept.merge(histogram)

    def number(self, name: str, *labels: str) -> float:
        """What was put there; 0: nothing."""
        value = self._found.get(name, _NONE).get(labels, 0.0)
        assert not isinstance(value, Histogram), name
        return value

    def histogram(self, name: str, *labels: str) -> Histogram:
        """The same of a histogram."""
        value = self._found.get(name, _NONE).get(labels, Histogram())
        assert isinstance(value, Histogram), name
        return value

    def of_tenant(self, tenant: str) -> "Samples":
        """All but what is of the queues of other tenants, or of several together (P11)."""
        seen = Samples()
        for name, values in self._found.items():
            if "tenant" in METRICS[name].labels:
                at = METRICS[name].labels.index("tenant")
                own = {labels: one for labels, one in values.items() if labels[at] == tenant}
            else:
                own = values
            if own:
                seen._found[name] = own
        return seen

    def families(self) -> Iterator[tuple[Metric, dict[Labels, Value]]]:
        """Each metric of which there is something, in the table's order."""
        for name, metric in METRICS.items():
            if name in self._found:
                yield metric, self._found[name]
