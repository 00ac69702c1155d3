"""When a message is tried again. The draw is handed in; a persisted time is believed in part."""


def backoff_s(attempt: int, *, base_s: float, max_s: float, draw: float) -> float:
    """Seconds to wait after failed attempt number `attempt` (from 1): exponential, with jitter.

    The ceiling is `base_s`, doubled with each further attempt, up to `max_s`. `draw` in [0, 1)
    places the wait in the upper half of it: (ceiling / 2, ceiling]. So retries spread, and yet each
    waits at least as long as any wait before it was, until `max_s` is reached.
    """
    # 2.0**1023 is the largest power of two that is a float; the product may be inf, never an error
    ceiling = min(max_s, base_s * 2.0 ** min(max(attempt, 1) - 1, 1023))
    return ceiling * (1 - draw / 2)


def clamp_due(due_unix_ms: int, wall_unix_ms: int, max_s: float) -> int:
    """A persisted due time (unix ms) as it is believed now: never further away than `max_s` (R3).

    [The wall clock was a year ahead when the backoff was written: the key waits a year.]
    """
    return min(due_unix_ms, wall_unix_ms + round(max_s * 1000))
