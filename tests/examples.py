"""The number of examples with which a property is tried."""

import os


def examples(whole: int) -> int:
    """Return all examples in `make soak` (TOCSIN_SOAK=1), a fifth in `make test`. State machines
    have their thousand in both."""
    return whole if os.environ.get("TOCSIN_SOAK") else whole // 5
