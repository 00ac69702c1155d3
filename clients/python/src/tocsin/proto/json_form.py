"""Values that JSON would show as something else: found before they are sent. Pure.

Encoders write NaN as null, bytes inside a value as text, and number keys as texts, and nobody is
told. What has a text that says all of it (times, a finite Decimal, UUID) is sent as that text.
"""

from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from math import isfinite
from typing import Any, Final
from uuid import UUID

import msgspec

_PLAIN: Final = frozenset({str, int, bool, type(None)})
_BYTES: Final = (bytes, bytearray, memoryview)
_TEXTS: Final = (date, datetime, time, timedelta, Decimal, UUID, msgspec.Raw)
Loss = tuple[str, list[object]]
"""What would be lost, and the way to it, its last step first."""


def loss_in(value: Any, name: str) -> str | None:
    """What would be sent as something else than it is, with the way to it from `name`; None:
    nothing. To be asked of what has been encoded: that it is not endless."""
    if value.__class__ in _PLAIN:
        return None
    found = _loss(value)
    if found is None:
        return None
    what, way = found
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in reversed(way))
    return f"{name}{''.join(steps)}: {what}"


def _loss(value: Any) -> Loss | None:
    if value.__class__ is float:
        return None if isfinite(value) else (f"{value!r} has no JSON form", [])
    if isinstance(value, dict):
        return _loss_in_dict(value)
    if isinstance(value, list | tuple):
        return _loss_in_list(value)
    if isinstance(value, set | frozenset):
        return "a set has no order and no JSON form: make a list of it", []
    if isinstance(value, Decimal) and not value.is_finite():
        return f"{value!r} has no JSON form", []
    if isinstance(value, _BYTES):
        return "bytes inside a JSON value: let them be the whole body, or write them as text", []
    if isinstance(value, _TEXTS):
        return None
    try:
        fields = msgspec.to_builtins(value, builtin_types=(*_BYTES, Decimal))
    except TypeError:  # something in it is msgspec.Raw
        return None
    return _loss(fields) if fields.__class__ not in _PLAIN else None


def _loss_in_dict(value: Mapping[Any, Any]) -> Loss | None:
    for key, item in value.items():
        if not isinstance(key, str):
            return f"the key {key!r} is no text", []
        if item.__class__ not in _PLAIN:
            found = _loss(item)
            if found is not None:
                found[1].append(key)
                return found
    return None


def _loss_in_list(value: Any) -> Loss | None:
    for place, item in enumerate(value):
        if item.__class__ not in _PLAIN:
            found = _loss(item)
            if found is not None:
                found[1].append(place)
                return found
    return None
