"""What users do, as Locust's statistics count it."""

from typing import Any

from loadtests.mix.desk import Told


class Failed(Exception):
    """Why a request failed. Shown as the reason alone."""

    def __repr__(self) -> str:
        return str(self)


def teller(environment: Any) -> Told:
    """Return what counts in the statistics of a Locust environment."""
    fire = environment.events.request.fire

    def told(kind: str, name: str, took_ns: int | None, size: int, error: str = "") -> None:
        fire(
            request_type=kind, name=name, response_length=size, context={},
            response_time=None if took_ns is None else took_ns / 1e6,
            exception=Failed(error) if error else None,
        )  # fmt: skip

    return told
