"""`tocsin queue create` and `set`, `tocsin group`, `tocsin queue alert`, and the SDK's calls, over
the whole broker."""

import json

import pytest
import tocsin
from tocsin import settings
from tocsin.cli import queues as commands

from metadata.catalog import ANYBODY, GroupSettings
from tests.gateway.cli.test_upkeep_command import Run, http, run, url
from tests.histories.house import House, delivery, message

__all__ = ["http", "run", "url"]


async def settled(house: House, count: int) -> None:
    """A group of `orders` settles this many messages, each in a record of its own."""
    queue = house.find("orders")
    for number in range(count):
        await house.publish(queue, [message(number)])
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group)
    for place, _, _ in await session.take(count):
        await house.confirm(consumer, delivery(place))
    consumer.leave()


async def untouched(house: House, count: int) -> None:
    """This many messages of `orders`, of which a group has settled none."""
    queue = await house.queue()
    await house.group(queue)
    await house.publish(queue, [message(number) for number in range(count)])


def lines(output: str) -> list[list[str]]:
    """The words of each line."""
    return [line.split() for line in output.splitlines()]


# --- The command line -----------------------------------------------------------------------------


async def test_creating_a_queue_twice_leaves_it_as_it_is(house: House, run: Run) -> None:
    made = await run("queue", "create", "ret", "--retention", "7d", "--partitions", "2")
    assert (made.exit_code, made.output) == (0, "Queue ret is created, with 2 partitions.\n")
    before = house.find("ret").settings
    again = await run("queue", "create", "ret")
    assert again.output == "Queue ret exists already, with 2 partitions, and was not changed.\n"
    assert json.loads((await run("queue", "create", "ret", "--json")).output)["created"] is False
    other = await run("queue", "create", "ret", "--partitions", "16", "--retention", "1h")
    assert other.exit_code == 1
    assert "Queue ret exists with other settings, and was not changed:" in other.output
    assert ["--partitions:", "2,", "not", "16"] in lines(other.output)
    assert ["--retention:", "7d,", "not", "1h"] in lines(other.output)
    assert "`tocsin queue set ret` changes settings. --partitions cannot change." in other.output
    assert house.find("ret").settings == before


async def test_set_changes_what_is_given_and_prints_old_and_new(house: House, run: Run) -> None:
    await run("queue", "create", "orders", "--retention", "7d", "--message-ttl", "1h")
    changed = await run(
        "queue", "set", "orders", "--retention", "30d", "--message-ttl", "none",
        "--publish-messages-per-s", "10",
    )  # fmt: skip
    assert changed.exit_code == 0, changed.output
    assert lines(changed.output) == [
        ["SETTING", "BEFORE", "NOW"], ["retention", "7d", "30d"],
        ["message", "ttl", "1h", "none"], ["publish", "messages", "per", "s", "none", "10"],
    ]  # fmt: skip
    same = await run("queue", "set", "orders", "--retention", "30d")
    assert same.output == "Queue orders has these settings already. Nothing was changed.\n"
    as_json = json.loads((await run("queue", "set", "orders", "--lease", "1m", "--json")).output)
    assert as_json["changes"] == [{"name": "lease_s", "before": 30.0, "after": 60.0}]
    for arguments, code, text in (
        (("orders",), 2, "Give a setting"), (("nowhere", "--lease", "1m"), 1, "queue_not_found"),
        (("orders", "--partitions", "3"), 2, "No such option"),
        (("orders", "--lease", "none"), 2, "is not a duration"),
        (("orders", "--lease", "2h"), 1, "lease_total_s"),
    ):  # fmt: skip
        result = await run("queue", "set", *arguments)
        assert (result.exit_code, text in result.output) == (code, True), result.output


async def test_set_says_how_many_messages_it_deletes_and_asks(
    house: House, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a terminal it needs --yes; with one the answer decides."""
    await run("queue", "create", "orders", "--retention", "7d", "--partitions", "1")
    await settled(house, 7)
    wanted = ("queue", "set", "orders", "--retention", "0s")
    refused = await run(*wanted)
    assert refused.exit_code == 1
    assert (
        "Queue orders was not changed, because 7 messages would be deleted. Give --yes"
        in refused.output
    )
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda _: True, raising=False)
    no = await run(*wanted, given="n\n")
    assert (no.exit_code, "7 messages would be deleted, for good" in no.output) == (1, True)
    assert house.find("orders").settings.retention_s == 604_800
    yes = await run(*wanted, given="orders\n")
    assert yes.exit_code == 0, yes.output
    assert ["retention", "7d", "0s"] in lines(yes.output)
    assert "7 messages are deleted." in yes.output
    monkeypatch.undo()
    await run("queue", "set", "orders", "--retention", "7d")
    await settled(house, 3)
    done = await run(*wanted, "--yes")
    assert (done.exit_code, "messages are deleted." in done.output) == (0, True)


async def test_a_seek_says_how_many_messages_go_and_asks(
    house: House, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a terminal it needs --yes; back again nothing goes, and nobody is asked."""
    await untouched(house, 30)
    wanted = ("group", "seek", "orders", "billing", "latest")
    refused = await run(*wanted)
    assert refused.exit_code == 1
    stays = (
        "Group billing of orders was not moved, because 30 messages would be deleted. Give --yes"
    )
    assert stays in refused.output
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda _: True, raising=False)
    no = await run(*wanted, given="n\n")
    assert (no.exit_code, "30 messages would be deleted, for good" in no.output) == (1, True)
    monkeypatch.undo()
    back = await run("group", "seek", "orders", "billing", "earliest")
    assert (back.exit_code, "30 messages ahead" in back.output) == (0, True)
    done = await run(*wanted, "--yes")
    assert done.output == (
        "Group billing of orders goes on at latest, with 0 messages ahead.\n"
        "30 messages are deleted.\n"
    )


async def test_deleting_a_group_says_what_goes_with_it_and_asks(
    house: House, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, and afterwards; the last group leaves what it has."""
    await untouched(house, 30)
    await house.broker.put_group(ANYBODY, house.find(), "audit", GroupSettings(), "latest")
    wanted = ("group", "delete", "orders", "billing")
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda _: True, raising=False)
    no = await run(*wanted, given="billing\nn\n")
    assert (no.exit_code, "30 messages would be deleted, for good" in no.output) == (1, True)
    monkeypatch.undo()
    done = await run(*wanted, "--yes")
    assert "is deleted at" in done.output, done.output
    assert done.output.endswith(". 30 messages are deleted with it.\n")
    last = await run("group", "delete", "orders", "audit", "--yes", "--json")
    assert json.loads(last.output) == {"deleted": "audit", "messages": 0}


async def test_creating_the_first_group_at_the_end_says_what_goes(house: House, run: Run) -> None:
    """What was kept for whoever comes first."""
    queue = await house.queue()
    await house.publish(queue, [message(number) for number in range(7)])
    wanted = ("group", "create", "orders", "billing", "--start", "latest")
    refused = await run(*wanted)
    assert refused.exit_code == 1
    assert (
        "Group billing of orders was not created, because 7 messages would be deleted"
        in refused.output
    )
    done = await run(*wanted, "--yes")
    assert done.output == "Group billing of orders is created.\n"


def test_what_is_removed_is_said_in_words() -> None:
    assert commands.removal(1, 0, is_done=True) == "1 message is deleted"
    assert commands.removal(2, 1, is_done=True) == (
        "2 messages are deleted and 1 message is moved to the dead letters"
    )
    assert commands.removal(0, 1, is_done=False) == "1 message would be moved to the dead letters"
    assert commands.removal(0, 0, is_done=True) == ""


async def test_a_group_is_created_once_and_set(house: House, run: Run) -> None:
    await house.queue()
    made = await run("group", "create", "orders", "g", "--lease", "99s")
    assert made.output == "Group g of orders is created.\n"
    again = await run("group", "create", "orders", "g", "--start", "latest")
    assert again.output == "Group g of orders exists already and was not changed.\n"
    other = await run("group", "create", "orders", "g", "--lease", "60", "--attempts-max", "3")
    assert other.exit_code == 1
    assert ["--attempts-max:", "the", "queue's,", "5,", "not", "3"] in lines(other.output)
    same = await run("group", "create", "orders", "g", "--attempts-max", "5")
    assert same.output == again.output
    assert "`tocsin group set orders g` changes settings." in other.output
    changed = await run("group", "set", "orders", "g", "--lease", "none", "--attempts-max", "3")
    assert ["lease", "1m", "39s", "none"] in lines(changed.output)
    assert ["attempts", "max", "none", "3"] in lines(changed.output)
    assert (await run("group", "set", "orders", "g")).exit_code == 2


async def test_an_alert_is_set_field_by_field(house: House, run: Run) -> None:
    """What is not given stays, of it and of all others."""
    await house.queue(retention_s=77, attempts_max=9)
    late = ("queue", "alert", "orders", "late")
    for arguments in (("--above", "5"), ("--when", "lag", "--above", "5")):
        no = await run(*late, *arguments)
        assert (no.exit_code, "A new alert needs --when" in no.output) == (2, True), no.output
    made = await run(*late, "--when", "lag", "--above", "5", "--queue", "ops", "--lasts", "7s")
    assert made.output.startswith("The alert late of orders is created.\n")
    deep = ("queue", "alert", "orders", "deep", "--when", "depth", "--above", "1")
    await run(*deep, "--webhook", "w")
    changed = await run(*late, "--above", "900", "--group", "g")
    assert lines(changed.output)[:2] == [
        ["above", "of", "late:", "5", "before,", "900", "now"],
        ["group", "of", "late:", "none", "before,", "g", "now"],
    ]
    (alert, other) = house.find().settings.alerts
    assert (alert.above, alert.group, alert.queue, alert.lasts_s) == (900, "g", "ops", 7)
    assert (other.name, other.webhook) == ("deep", "w")
    assert (await run(*late, "--group", "none")).exit_code == 0
    same = await run(*late, "--above", "900")
    assert "has these values already" in same.output
    gone = await run(*late, "--remove")
    assert gone.output.startswith("The alert late of orders is removed.\n")
    assert (await run(*late, "--remove")).exit_code == 1
    now = house.find().settings
    assert (now.retention_s, now.attempts_max, len(now.alerts)) == (77, 9, 1)


# --- The SDK --------------------------------------------------------------------------------------


async def test_an_app_calls_the_same_at_each_start(house: House, http: tocsin.Http) -> None:
    """With defaults, with what it has, with another number of partitions, and for a group."""
    made = await http.create_queue("ret", retention_s=604_800)
    assert made["created"]
    await http.create_group("ret", "g", lease_s=99)
    for _ in range(2):
        assert (await http.create_queue("ret"))["created"] is False
        assert (await http.create_queue("ret", retention_s=604_800))["created"] is False
        with pytest.raises(tocsin.SettingsDiffer) as differ:
            await http.create_queue("ret", partitions=8, retention_s=604_800)
        assert differ.value.differences == [
            {"name": "partitions", "current": 16, "requested": 8, "fixed": True}
        ]
        assert isinstance(differ.value, tocsin.Conflict)
        assert (await http.create_group("ret", "g"))["created"] is False
        assert (await http.create_group("ret", "g", attempts_max=5))["created"] is False
        with pytest.raises(tocsin.SettingsDiffer, match="lease_s is 99 s, not 60 s"):
            await http.create_group("ret", "g", lease_s=60)
    assert (await http.queue("ret"))["settings"] == made["settings"]
    assert (await http.group("ret", "g"))["settings"]["lease_s"] == 99


async def test_the_sdk_changes_what_it_names(house: House, http: tocsin.Http) -> None:
    await house.queue(retention_s=600)
    await settled(house, 3)
    with pytest.raises(tocsin.WouldDelete) as would:
        await http.update_queue("orders", retention_s=0)
    assert (would.value.deleted, would.value.dead_lettered, would.value.messages) == (3, 0, 3)
    done = await http.update_queue("orders", deletes_max=would.value.messages, retention_s=0)
    assert (done["deleted"], done["changes"]) == (
        3, [{"name": "retention_s", "before": 600.0, "after": 0.0}],
    )  # fmt: skip
    assert (await http.update_queue("orders", deletes_max=None, retention_s=9))["deleted"] == 0
    alerts: dict[str, settings.AlertChange | None] = {
        "a": {"when": "lag", "above": 1, "queue": "ops"}, "b": None,
    }  # fmt: skip
    assert (await http.update_queue("orders", alerts=alerts))["settings"]["alerts"][0]["above"] == 1
    group = await http.update_group("orders", "billing", lease_s=60)
    assert group["changes"][0]["after"] == 60
    inherits = await http.update_group("orders", "billing", lease_s=None)
    assert inherits["settings"]["lease_s"] is None


async def test_the_sdk_says_how_many_messages_of_a_group_go(
    house: House, http: tocsin.Http
) -> None:
    await untouched(house, 5)
    with pytest.raises(tocsin.WouldDelete) as would:
        await http.seek_group("orders", "billing", "latest")
    assert would.value.messages == 5
    await http.create_group("orders", "audit", start="latest")
    with pytest.raises(tocsin.WouldDelete) as would:
        await http.delete_group("orders", "billing", deletes_max=4)
    assert would.value.deleted == 5
    assert await http.delete_group("orders", "billing", deletes_max=5) == 5
    assert (await http.seek_group("orders", "audit", "latest"))["deleted"] == 0
    await http.create_queue("fresh", partitions=1)
    await house.publish(house.find("fresh"), [message(0)])
    with pytest.raises(tocsin.WouldDelete) as would:
        await http.create_group("fresh", "g", start="latest")
    assert would.value.deleted == 1
    assert (await http.create_group("fresh", "g", start="latest", deletes_max=None))["created"]
