"""What `tocsin queue` and `tocsin scheduled` say of scheduled messages and of the clock, over the
whole broker on a socket."""

import json

import pytest

from gateway.cli.serve import status_fields
from metadata.catalog import Queue
from tests.gateway.cli.test_upkeep_command import Run, queue, run, url
from tests.histories.house import House, message
from tests.histories.test_scheduling import outcomes
from tests.waiting import becomes

__all__ = ["queue", "run", "url"]


async def test_scheduled_messages_are_beside_the_others(
    house: House, queue: Queue, run: Run
) -> None:
    before = (await run("queue", "show", "orders")).output
    assert "\nscheduled          0\n" in before
    await outcomes(house, *(message(n, delay_s=900) for n in range(2)))
    shown = (await run("queue", "show", "orders")).output
    assert "messages" in shown
    assert "4 in 1 partition" in shown
    assert "2 messages, " in shown
    assert "; the next is due 20" in shown
    head, row = (await run("queue", "list")).output.splitlines()
    assert head.split()[:4] == ["QUEUE", "PARTITIONS", "MESSAGES", "SCHEDULED"]
    assert row.split()[:4] == ["orders", "1", "4", "2"]


async def test_a_clock_is_believed_because_an_operator_says_so(house: House, run: Run) -> None:
    none = await run("scheduled", "believe-clock")
    assert (none.exit_code, "has not jumped" in none.output) == (0, True)
    mover, real = house.broker.mover, house.broker.clock.wall
    mover.clock.wall = lambda: real() - 7200
    await becomes(lambda: mover.clock.doubt_s)
    fields = status_fields({"scheduled": mover.facts()})
    assert str(fields["scheduled stopped"]) in ("5m", "4m 59s", "4m 58s")
    assert str(fields["scheduled clock jump"]).startswith("-7")
    done = await run("scheduled", "believe-clock")
    assert (done.exit_code, "was set back by 2h, and is believed." in done.output) == (0, True)
    assert mover.clock.doubt_s == 0
    again = json.loads((await run("scheduled", "believe-clock", "--json")).output)
    assert (round(again["jump_s"]), again["moving"]) == (-7200, True)


async def test_what_a_purge_would_delete_has_what_is_scheduled(
    house: House, queue: Queue, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    await outcomes(house, message(1, delay_s=900))
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda _: True, raising=False)
    refused = await run("queue", "purge", "orders", given="others\n")
    said = "deletes all messages in orders, 4 messages and 1 scheduled message, at"
    assert said in refused.output
    done = await run("queue", "purge", "orders", given="orders\n")
    assert done.stdout.splitlines()[-1].startswith("Deleted 5 messages of orders at ")
