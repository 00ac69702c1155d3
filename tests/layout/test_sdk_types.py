"""The types of the Python SDK's settings and answers have the broker's fields."""

from typing import Any

import msgspec
import pytest
from tocsin import answers, settings

from gateway import models as facts_values
from gateway import models as upkeep_values
from gateway.rest.routes import groups as rest_groups
from gateway.rest.routes import queues as rest_queues
from metadata import catalog
from metadata.settings import AlertChange, Difference, GroupChange, QueueChange, SettingChange


def of_struct(form: Any) -> set[str]:
    """Return the fields of a broker's struct."""
    return {field.name for field in msgspec.structs.fields(form)}


@pytest.mark.parametrize(
    ("typed", "form", "without"),
    [
        (settings.QueueSettings, catalog.QueueSettings, set()),
        (settings.QueueChange, QueueChange, {"partitions"}),
        (settings.GroupSettings, GroupChange, set()),
        (settings.Alert, catalog.QueueAlert, set()),
        (settings.AlertChange, AlertChange, set()),
        (answers.AllQueueSettings, catalog.QueueSettings, set()),
        (answers.AllGroupSettings, catalog.GroupSettings, set()),
        (answers.QueueDescription, rest_queues.QueueDescription, set()),
        (answers.CreatedQueue, rest_queues.CreatedQueue, set()),
        (answers.ChangedQueue, rest_queues.ChangedQueue, set()),
        (answers.GroupDescription, rest_groups.GroupDescription, set()),
        (answers.CreatedGroup, rest_groups.CreatedGroup, set()),
        (answers.ChangedGroup, rest_groups.ChangedGroup, set()),
        (answers.QueuePartition, facts_values.QueuePartition, set()),
        (answers.GroupPartition, facts_values.GroupPartition, set()),
        (answers.GroupFigures, facts_values.QueueGroup, set()),
        (answers.QueueCounters, facts_values.QueueCounters, set()),
        (answers.GroupCounters, facts_values.GroupCounters, set()),
        (answers.DeadLetterQueue, facts_values.DeadLetterQueue, set()),
        (answers.Owner, facts_values.OwnerDescription, set()),
        (answers.Explanation, facts_values.Explained, {"next"}),
        (answers.KeyInGroup, facts_values.KeyInGroup, set()),
        (answers.HeldKey, facts_values.HeldKey, set()),
        (answers.Lease, facts_values.Lease, set()),
        (answers.ParkedKey, upkeep_values.ParkedKey, set()),
        (answers.ParkedKeys, upkeep_values.ParkedKeys, set()),
        (answers.Decided, upkeep_values.Decided, set()),
        (answers.SessionDescription, facts_values.SessionDescription, set()),
        (answers.SubscriptionDescription, facts_values.SubscriptionDescription, set()),
        (answers.Difference, Difference, set()),
        (answers.SettingChange, SettingChange, set()),
    ],
)
def test_the_sdks_types_name_what_the_broker_has(typed: Any, form: Any, without: set[str]) -> None:
    assert set(typed.__annotations__) | _inherited(typed) == of_struct(form) - without


def _inherited(typed: Any) -> set[str]:
    return set(typed.__required_keys__) | set(typed.__optional_keys__)
