"""Users' surfaces equal the recorded ones: names, types, words, digests. The goldens are in
tests/layout/goldens.py."""

import pytest

from tests.layout.goldens import GOLDENS, RECORDED, differences

RENEW = "if this is meant, record it: .venv/bin/python -m tests.layout.goldens --renew"


@pytest.mark.parametrize("name", GOLDENS)
def test_what_users_see_is_what_is_recorded(name: str) -> None:
    changed = differences(name)
    assert not changed, f"{changed}\n{RENEW} {name}"


def test_every_recorded_file_is_compared() -> None:
    assert {path.name for path in RECORDED.iterdir()} == set(GOLDENS)
