"""The cost of metrics on the paths of messages, in nanoseconds. Run by hand, on an idle machine.

    .venv/bin/python scripts/metrics_cost.py

One record, push or acked range of any number of messages adds to one histogram each. So a frame of
100 messages over 16 partitions pays 16 times each of the three, and one of one message once. Times
that the delivery log measures are not measured again. With the log off, a reading of the clock is
added.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from timeit import repeat

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from push.delivery import Tally
from push.histogram import Histogram

LOOPS = 200_000
FRAME_MESSAGES, FRAME_RECORDS = 100, 16


def cost_ns(act: Callable[[], object]) -> float:
    """Return the best of five, without the loop around it."""

    def nothing() -> None:
        return None

    best, empty = (min(repeat(one, number=LOOPS, repeat=5)) for one in (act, nothing))
    return max(0.0, best - empty) / LOOPS * 1e9


def main() -> None:
    """Measure, and print the result."""
    histogram, tally = Histogram(), Tally()
    began_us, ended_us = 1_000_000, 1_003_210

    def accepted() -> None:
        histogram.add((ended_us - began_us) / 1e6, 100)

    def dispatched() -> None:
        tally.gave(100, (ended_us - began_us) / 1e6, is_first=True)

    def settled() -> None:
        tally.settle_s.add((ended_us - began_us) / 1e6, 100)

    stages_ns = {
        "accepted to certified, a record": cost_ns(accepted),
        "certified to dispatched, a push": cost_ns(dispatched),
        "dispatched to settled, a range": cost_ns(settled),
    }
    clock_ns = cost_ns(lambda: time.monotonic_ns() // 1000)
    for name, ns in (*stages_ns.items(), ("a reading of the clock, without the log", clock_ns)):
        sys.stdout.write(f"{name:<40} {ns:6.0f} ns\n")
    for words, more_ns in (("with the log", 0.0), ("without it", 3 * clock_ns)):
        frame_us = (sum(stages_ns.values()) + more_ns) * FRAME_RECORDS / 1000
        sys.stdout.write(
            f"{FRAME_MESSAGES} messages over {FRAME_RECORDS} partitions, {words:<13} "
            f"{frame_us:6.1f} us\n"
        )


if __name__ == "__main__":
    main()
