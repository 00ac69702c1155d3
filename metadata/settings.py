"""Settings as requests name them: differences from what exists, and the result of a change.

A request names some settings and says nothing of the others. Creating what exists changes nothing:
if a named setting differs, the request is refused with the differences. A change touches the
settings that it names, and no others. Pure.
"""

import json
from collections.abc import Collection, Mapping
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from metadata.catalog import (
    FIXED,
    GroupSettings,
    QueueAlert,
    QueueSettings,
    check_change,
    check_group_settings,
    check_settings,
)
from push import limits
from push.errors import Refused

SettingsT = TypeVar("SettingsT", QueueSettings, GroupSettings)
Named = Mapping[str, Any]
"""Settings by name, with their values: those that a request names."""
NOT_COMPARED: Final = frozenset({"start"})
"""The start of a group matters when it is created, and is no difference later."""


class Difference(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A setting of an existing queue or group whose value is another one than a request names."""

    name: str
    current: Any
    requested: Any
    fixed: bool = False
    """Whether the setting is in FIXED, so that no request can change it."""
    inherited: bool = False
    """Whether the current value is the queue's, because the group has none of its own."""


class SettingChange(msgspec.Struct, frozen=True, kw_only=True):
    """A setting that a request has changed."""

    name: str
    before: Any
    after: Any


def naming(
    form: str,
    settings: type[msgspec.Struct],
    doc: str,
    *,
    types: Mapping[str, Any] | None = None,
    without: Collection[str] = (),
) -> Any:
    """Make a form of these settings that knows which of them a request names. `types`: settings
    with another type in the form; `without`: settings that the form does not have."""
    fields = [
        (one.name, (types or {}).get(one.name, one.type) | UnsetType, UNSET)
        for one in msgspec.structs.fields(settings)
        if one.name not in without
    ]
    return msgspec.defstruct(
        form,
        fields,
        namespace={"__doc__": doc},
        module=__name__,
        frozen=True,
        forbid_unknown_fields=True,
        kw_only=True,
    )


AlertChange = naming(
    "AlertChange",
    QueueAlert,
    "What changes of an alert; a new one needs `when` and `above`.",
    without=("name",),
)
_ALERTS: Final = msgspec.Meta(max_length=limits.ALERTS_MAX)
QueueNaming = naming("QueueNaming", QueueSettings, "The settings of a queue that are named.")
QueueChange = naming(
    "QueueChange",
    QueueSettings,
    "The settings of a queue that change; the others stay. `alerts`: all of them, as a list; or by "
    "name those that change, where null takes one away and the others stay.",
    types={
        "alerts": Annotated[tuple[QueueAlert, ...], _ALERTS]
        | Annotated[dict[str, AlertChange | None], _ALERTS]  # type: ignore[valid-type]
    },
)
GroupChange = naming(
    "GroupChange",
    GroupSettings,
    "The settings of a group that change; the others stay. Null: the queue's.",
    without=("start",),
)


def named_in(request: msgspec.Struct) -> dict[str, Any]:
    """Return the settings that a decoded form names."""
    values = ((name, getattr(request, name)) for name in request.__struct_fields__)
    return {name: value for name, value in values if value is not UNSET}


def alerts_in(named: Named) -> Collection[Any]:
    """Return the alerts that a change creates or changes, whole or in part."""
    alerts = named.get("alerts", ())
    every = alerts.values() if isinstance(alerts, Mapping) else alerts
    return [alert for alert in every if alert is not None]


def differences(
    current: SettingsT,
    asked: SettingsT,
    named: Collection[str],
    queue: QueueSettings | None = None,
) -> list[Difference]:
    """Return the named settings that have another value in effect, by name. `queue`: the settings
    of a group's queue, which hold where the group has none of its own."""

    def in_effect(settings: SettingsT, name: str) -> Any:
        own = getattr(settings, name)
        return getattr(queue, name, None) if own is None else own

    return [
        Difference(
            name=name,
            current=msgspec.to_builtins(in_effect(current, name)),
            requested=msgspec.to_builtins(getattr(asked, name)),
            fixed=name in FIXED,
            inherited=getattr(current, name) is None and in_effect(current, name) is not None,
        )
        for name in sorted(named)
        if name not in NOT_COMPARED and in_effect(current, name) != in_effect(asked, name)
    ]


def settings_differ(
    what: str,
    current: SettingsT,
    asked: SettingsT,
    named: Collection[str],
    queue: QueueSettings | None = None,
) -> Refused:
    """Return the refusal to create what exists with other settings. `what`: its kind and name;
    `queue`: the settings of a group's queue, which hold where the group has none of its own."""
    found = differences(current, asked, named, queue)
    words = "; ".join(_said(one, queue) for one in found)
    return Refused(
        "settings_differ",
        f"{what} is there, and nothing of it was changed: {words}",
        more={"differences": found},
    )


def _said(difference: Difference, queue: QueueSettings | None) -> str:
    name, requested = difference.name, difference.requested
    current = _value_said(name, difference.current)
    if difference.inherited:
        current = f"the queue's, {current}"
    if requested is None and hasattr(queue, name):
        wanted = f"the queue's, {_value_said(name, getattr(queue, name))}"
    else:
        wanted = _value_said(name, requested)
    return f"{name} is {current}, not {wanted}"


def _value_said(name: str, value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    is_seconds = name.endswith("_s") and not name.endswith("_per_s")
    return f"{json.dumps(value)} s" if is_seconds else json.dumps(value)


def changes(before: msgspec.Struct, after: msgspec.Struct) -> list[SettingChange]:
    """Return the settings that differ, from their values before and after a change."""
    return [
        SettingChange(
            name=name,
            before=msgspec.to_builtins(getattr(before, name)),
            after=msgspec.to_builtins(getattr(after, name)),
        )
        for name in before.__struct_fields__
        if getattr(before, name) != getattr(after, name)
    ]


def change_queue_settings(name: str, current: QueueSettings, named: Named) -> QueueSettings:
    """Return the settings of the queue `name` after a change.

    Raises:
        Refused: setting_fixed; invalid_request or invalid_name when the result breaks a rule.
    """
    given = dict(named)
    if isinstance(given.get("alerts"), Mapping):
        given["alerts"] = _change_alerts(current.alerts, given["alerts"])
    changed = msgspec.structs.replace(current, **given)
    check_change(current, changed)
    check_settings(name, changed)
    return changed


def _change_alerts(
    current: tuple[QueueAlert, ...], named: Mapping[str, msgspec.Struct | None]
) -> tuple[QueueAlert, ...]:
    alerts = {alert.name: alert for alert in current}
    for name, change in named.items():
        if change is None:
            alerts.pop(name, None)
            continue
        given = named_in(change)
        if name in alerts:
            alerts[name] = msgspec.structs.replace(alerts[name], **given)
        elif {"when", "above"} <= given.keys():
            alerts[name] = QueueAlert(name=name, **given)
        else:
            raise Refused("invalid_request", f"the new alert {name!r} needs when and above")
    return tuple(alerts.values())


def change_group_settings(current: GroupSettings, named: Named) -> GroupSettings:
    """Return the settings of a group after a change. Raises Refused(invalid_request)."""
    changed = msgspec.structs.replace(current, **named)
    check_group_settings(changed)
    return changed
