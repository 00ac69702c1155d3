"""Results such as a contest might find."""

from loadtests.peers.medians import Known, Results, Run

CONDITIONS: dict[str, str | int | float] = {
    "cpu": "a processor", "cores": 2, "kernel": "6.1", "python": "3.11.7", "file_system": "ext4",
    "sync_ms": 0.5, "body_bytes": 256, "keys": 1000, "partitions": 16, "producers": 4,
    "consumers": 4, "seconds": 5.0, "warm_up_s": 1.5, "readers": 1000, "connections": 500,
}  # fmt: skip


def known(title: str, durability: str = "fsync before each (of a kind)") -> Known:
    return Known(title, f"{title} 1.0", "TCP", durability, "by key", "a frame", "a reader")


def contest(*runs: Run, **more: Known) -> Results:
    """Of Tocsin, a peer and these."""
    entrants = {"tocsin": known("Tocsin"), "nats": known("NATS <&>", "not synced (2 min)")} | more
    return Results(
        1, "make peers", "2026-11-23T01:00:00+00:00", "2026-11-23T02:00:00+00:00", 5, CONDITIONS,
        entrants, {}, list(runs),
    )  # fmt: skip


def runs(entrant: str, scenario: str, **figures: float) -> list[Run]:
    """Three rounds: a tenth less, as said, a tenth more."""
    return [
        Run(n, entrant, scenario, {name: value * share for name, value in figures.items()})
        for n, share in ((1, 0.9), (2, 1.0), (3, 1.1))
    ]
