"""How many examples a property is tried with."""

import os


def examples(whole: int) -> int:
    """All of them in `make soak` (TOCSIN_SOAK=1), a fifth in every `make test`. Machines have
    their thousand in both."""
    return whole if os.environ.get("TOCSIN_SOAK") else whole // 5
