"""Histories of several gateways, one of which looks after the alerts of a queue."""

from tests.gateway.operator.test_alerting import alerting_of, told, watched
from tests.histories.gateways import Town, town
from tests.histories.house import numbered
from tests.waiting import becomes


@town(2)
async def test_a_gateway_looks_only_at_what_is_its_own(town: Town) -> None:
    for one in town.gateways:
        await one.broker.alerting.stop()
    queue = await watched(town.gateways[0])
    await town.gateways[0].publish(queue, numbered(3))

    def is_chosen(number: int) -> bool:
        return town.gateways[number].broker.groups.presence.is_chosen(queue.queue_id)

    await becomes(lambda: sum(map(is_chosen, range(2))) == 1)
    chosen, other = sorted(range(2), key=is_chosen, reverse=True)
    await alerting_of(town.gateways[other]).evaluate(now=0)
    assert await told(town.gateways[other]) == []
    await alerting_of(town.gateways[chosen]).evaluate(now=0)
    assert [one["state"] for one in await told(town.gateways[other])] == ["firing"]
