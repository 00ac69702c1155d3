"""Every operation states the right that it needs (P11)."""

import dataclasses
from typing import get_args

import pytest

from gateway.rest.app import OPERATIONS
from gateway.rest.operation import NEEDS, Need, Operation

PUBLIC = {"/v1/access", "/healthz", "/readyz"}
"""The only paths that are answered without credentials."""


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: f"{one.method} {one.path}")
def test_an_operation_says_what_it_needs(operation: Operation) -> None:
    assert operation.public is (operation.path in PUBLIC)
    assert operation.needs in (None, *NEEDS)
    if "{queue}" in operation.path:  # an authenticated client may do there only what a right allows
        assert operation.needs not in (None, "own", "nothing")
    if "{session}" in operation.path:
        assert operation.needs == "own"


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: f"{one.method} {one.path}")
def test_without_it_there_is_no_operation(operation: Operation) -> None:
    with pytest.raises(ValueError, match="needs a right, or is public"):
        dataclasses.replace(operation, public=not operation.public)


def test_every_need_is_explained_and_used() -> None:
    assert set(NEEDS) == set(get_args(Need))
    assert {operation.needs for operation in OPERATIONS} - {None} == set(NEEDS)
