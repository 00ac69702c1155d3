"""The demo page in Chromium, step by step, against a broker and what it says itself."""

import re

import pytest
import tocsin
from playwright.async_api import Browser, Locator, expect

from loadtests.server import Server
from tests.browser.demo_page import (
    GROUP,
    KEYS,
    MS,
    QUEUE,
    Host,
    Visit,
    in_order,
    visited,
)
from tests.browser.house import has, until

pytestmark = pytest.mark.asyncio(loop_scope="module")
DONE = re.compile(r"\bdone\b")
OWNED = 8


async def lag(client: tocsin.Client) -> int:
    """Of the page's group, as the broker says it."""
    return int((await client.group(QUEUE, GROUP))["lag"])


async def owners(client: tocsin.Client) -> list[str]:
    """The session that owns each partition, as the broker says it."""
    described = await client.group(QUEUE, GROUP)
    return [str(row["owner"]).rpartition(".")[0] for row in described["partitions"]]


async def waits_for(client: tocsin.Client, key: str) -> str:
    """Return what the broker says a key of the page's group waits for."""
    said = await client.explain(QUEUE, key, group=GROUP)
    return str(said["groups"][0]["waits_for"])


async def is_done(visit: Visit, step: int) -> None:
    """Wait until the page has ticked it off."""
    await expect(visit.at(f"step-{step}")).to_have_class(DONE)
    await expect(visit.at(f"progress-{step}")).to_have_class(DONE)


def stage(row: Locator, name: str) -> Locator:
    return row.locator(f'[data-stage="{name}"]')


async def test_what_is_published_is_shown_on_its_way_in_milliseconds(visit: Visit) -> None:
    for body, shown in (("Good evening", "Good evening"), ('{"a": [1, 2]}', '{"a":[1,2]}')):
        await visit.at("publish-key").fill("greeting")
        await visit.at("publish-body").fill(body)
        await visit.at("publish").click()
        row = visit.at("way").first
        await expect(row).to_contain_text(shown)
        await expect(row).to_contain_text("greeting")
        for name in ("durable", "pushed", "acked"):
            await expect(stage(row, name)).to_have_text(MS)
    await expect(visit.at("publish-said")).to_contain_text("acknowledged after")
    await is_done(visit, 1)
    await visit.at("publish-body").fill('{"broken":')
    await expect(visit.at("publish-remark")).to_have_text("Sent as text: it is no JSON.")
    await visit.at("publish-body").fill("a text")
    await expect(visit.at("publish-remark")).to_have_text("")
    await visit.is_clean()


async def test_a_message_is_sent_in_ten_seconds_and_another_one_is_taken_back(
    visit: Visit, client: tocsin.Client
) -> None:
    await visit.at("publish-key").fill("wake")
    await visit.at("publish-body").fill("not at all")
    await visit.at("publish-later").click()
    row = visit.at("way").first
    await expect(row.get_by_test_id("way-due")).to_have_text(re.compile(r"^due in \d+ s$"))
    await expect(visit.at("publish-said")).to_contain_text("Take it back, or wait.")
    await row.get_by_test_id("take-back").click()
    await expect(row).to_contain_text("taken back")
    await expect(row.get_by_test_id("way-due")).to_be_hidden()
    await expect(visit.at("publish-said")).to_have_text("Taken back: nobody gets it.")
    assert (await client.scheduled(QUEUE, key="wake")).count == 0
    await visit.at("publish-body").fill("up")
    await visit.at("publish-later").click()
    row = visit.at("way").first
    await expect(row.get_by_test_id("way-due")).to_be_visible()
    await expect(row.get_by_test_id("way-due")).to_be_hidden()  # it was due
    for name in ("durable", "pushed", "acked"):
        await expect(stage(row, name)).to_have_text(MS)
    await expect(visit.at("publish-said")).to_contain_text("acknowledged after")
    assert "not at all" in str(await visit.at("way").nth(1).text_content())
    await expect(stage(visit.at("way").nth(1), "pushed")).to_have_text("\u2013")
    await visit.is_clean()


async def test_a_paused_queue_is_shown_and_none_of_its_messages_as_pushed(
    visit: Visit, client: tocsin.Client
) -> None:
    await client.pause_queue(QUEUE)
    await expect(visit.at("paused")).to_contain_text("The queue machine is paused.")
    for key in KEYS:
        state = visit.lane(key).get_by_test_id("lane-state")
        await expect(state).to_have_text("the queue is paused")
    await visit.publish("hello", "kept")
    row = visit.at("way").first
    await expect(stage(row, "durable")).to_have_text(MS)
    await expect(row).to_contain_text("waits: the queue is paused")
    await expect(stage(row, "pushed")).to_have_text("\u2013")
    await visit.moves()  # it is read all the same
    await expect(stage(row, "pushed")).to_have_text("\u2013")
    async with visit.page.context.expect_page() as opened:
        await visit.at("paused-link").click()
    assert (await opened.value).url.endswith("/console#/queues/machine")
    await client.resume_queue(QUEUE)
    await expect(visit.at("paused")).to_be_hidden()
    await expect(visit.at("publish-said")).to_contain_text("acknowledged after")
    await visit.is_clean()


async def test_figures_move_and_show_their_latency(visit: Visit, client: tocsin.Client) -> None:
    await visit.at("step-2").scroll_into_view_if_needed()
    for key in KEYS:
        said = await client.explain(QUEUE, key)
        await expect(visit.figure(key)).to_contain_text(f"partition {said['partition']}")
    await visit.moves()
    await is_done(visit, 2)
    await visit.at("step-3").scroll_into_view_if_needed()
    for name in ("p50", "p99", "hero-p50"):
        await expect(visit.at(name)).to_have_text(MS)
    await expect(visit.at("latency-said")).to_contain_text("messages in the last 60 seconds")
    await is_done(visit, 3)
    await expect(visit.at("rate")).to_have_text(re.compile(r"^\d\d"))
    await visit.is_clean()


async def test_workers_that_come_and_go_divide_the_partitions(
    visit: Visit, client: tocsin.Client
) -> None:
    await visit.owns({"A": OWNED})
    await visit.at("worker-add").click()
    await visit.owns({"A": OWNED // 2, "B": OWNED // 2})
    said = await owners(client)
    shown = await visit.at("partition").evaluate_all("all => all.map((one) => one.dataset.owner)")
    assert len(set(said)) == 2
    assert len(set(zip(said, shown, strict=True))) == 2  # the same division
    await expect(visit.at("worker")).to_have_count(2)
    await expect(visit.at("hero-workers")).to_have_text("2")
    keys = visit.at("worker").locator(".keys")
    async with visit.page.expect_response(re.compile("/groups/")):
        pass
    listed = [text.split(", ") for text in await keys.all_text_contents()]
    assert sorted(key for some in listed for key in some if key != "no key yet") == sorted(KEYS)
    await is_done(visit, 4)
    await visit.page.locator('[data-letter="B"]').get_by_test_id("worker-remove").click()
    await visit.owns({"A": OWNED, "B": 0})
    assert len(set(await owners(client))) == 1
    await visit.is_clean()


async def test_two_tabs_share_the_messages_each_of_which_one_handles(
    chromium: Browser, broker: Server, host: Host, client: tocsin.Client
) -> None:
    async with visited(chromium, f"{broker.url}/demo") as one:
        tabs = [one]
        one.page.context.on("page", lambda page: tabs.append(Visit(page)))
        async with host.running():
            await one.moves()
            await one.at("second-tab").click()
            await one.owns({"A": OWNED // 2, "B": OWNED // 2})
            for tab in tabs:
                await tab.is_carried_by("websocket")
                await tab.owns({"A": OWNED // 2, "B": OWNED // 2})
                other = re.compile(r"worker 1 of tab [a-z0-9]{3}")
                await expect(tab.at("workers")).to_contain_text(other)
            await expect(tabs[1].at("figures-said")).to_have_text("Live: 8 keys.")
            assert not DONE.search(await tabs[1].at("step-4").get_attribute("class") or "")
            await is_done(one, 4)  # it saw them move
        await until(lambda: is_idle(client), "all of before is handled")
        before = set(host.keys)
        async with host.running():
            await until(lambda: has(len(host.keys) >= len(before) + 240), "240 more")
        await until(lambda: is_idle(client), "all is handled")
        new = set(host.keys) - before

        def acked() -> list[list[tuple[int, int]]]:
            return [[place for place in tab.acked if place in new] for tab in tabs]

        # What the page has sent is heard of here a moment later than at the broker.
        await until(lambda: has(sum(map(len, acked())) >= len(new)), "every ack is heard of")
        shares = acked()
        assert sorted(shares[0] + shares[1]) == sorted(new)
        # Which of them have keys, this machine's devices decide: half of them may have all.
        there = len({partition for partition, _ in new})
        for tab, share in zip(tabs, shares, strict=True):
            own = len({partition for partition, _ in share})
            assert there - OWNED // 2 <= own <= OWNED // 2
            assert in_order(tab.acked, host.keys)
            await expect(tab.at("inversions")).to_have_text("0")
            await tab.is_clean()


async def is_idle(client: tocsin.Client) -> bool:
    return await lag(client) == 0


async def test_a_paused_worker_s_messages_wait_and_come_in_order(
    visit: Visit, client: tocsin.Client, host: Host
) -> None:
    await visit.at("pause").click()
    await expect(visit.at("pause")).to_have_attribute("data-paused", "true")
    await expect(visit.lane("memory")).to_have_attribute("data-state", "paused")
    waiting = await until(lambda: lag_above(client, 80), "messages wait")
    await expect(visit.at("lag")).to_have_text(re.compile(r"^\d{2,}$"))
    assert await waits_for(client, "memory") == "in_flight"
    await visit.at("pause").click()
    await expect(visit.at("pause-said")).to_have_text(
        re.compile("A has caught up: .* messages in .*, each key in its order")
    )
    assert await lag(client) < waiting
    await is_done(visit, 5)
    await expect(visit.at("inversions")).to_have_text("0")
    assert in_order(visit.acked, host.keys)
    await visit.is_clean()


async def lag_above(client: tocsin.Client, least: int) -> int:
    said = await lag(client)
    return said if said > least else 0


async def test_a_nack_holds_its_key_and_no_other(visit: Visit, client: tocsin.Client) -> None:
    lane = visit.lane("memory")
    await lane.get_by_test_id("nack").click()
    await expect(lane).to_have_attribute("data-state", "held")
    await expect(lane.get_by_test_id("lane-state")).to_contain_text("attempt 2 of 3")
    assert await waits_for(client, "memory") == "backoff"
    await visit.moves()
    for key in ("net-eth0", "cpu0", "load"):
        await expect(visit.lane(key)).to_have_attribute("data-state", "flowing")
    await expect(lane).to_have_attribute("data-state", "held")
    await expect(lane).to_have_attribute("data-state", "flowing")
    await is_done(visit, 6)
    await expect(visit.at("inversions")).to_have_text("0")
    await visit.is_clean()


async def parked(client: tocsin.Client) -> dict[str, int]:
    """Key -> attempts, as the broker lists them."""
    rows = (await client.parked_keys(QUEUE, GROUP))["keys"]
    return {row["key"]: row["attempts"] for row in rows}


async def test_parked_keys_wait_for_a_decision(visit: Visit, client: tocsin.Client) -> None:
    chosen = {"cpu0": "retry", "cpu1": "skip", "memory": "release"}
    for key in chosen:
        await visit.lane(key).get_by_test_id("park").click()
    for key in chosen:
        await expect(visit.lane(key)).to_have_attribute("data-state", "parked")
    assert await parked(client) == dict.fromkeys(chosen, 3)
    await expect(visit.lane("load")).to_have_attribute("data-state", "flowing")
    left = set(chosen)
    for key, decision in chosen.items():
        lane = visit.lane(key)
        state = lane.get_by_test_id("lane-state")
        waits = re.compile(r"parked after 3 attempts: \d+ messages wait")
        await expect(state).to_have_text(waits)
        await expect(state).not_to_have_text(await state.text_content() or "")  # more arrive
        await expect(state).to_have_text(waits)
        await lane.get_by_test_id(decision).click()
        await expect(lane).to_have_attribute("data-state", "flowing")
        left.remove(key)
        assert (await parked(client)).keys() == left
        await expect(visit.at("lanes-said")).to_contain_text(f"{key}: ")
    await expect(visit.at("lanes-said")).to_have_text(
        re.compile(r"^memory: \d+ messages handled in .*, in order\.$")
    )
    await visit.lane("cpu0").get_by_test_id("nack").click()
    await expect(visit.at("lanes-said")).to_have_text("")  # that was before
    letters = [letter async for letter in client.dead_letters(QUEUE)]
    assert [letter.key for letter in letters] == ["cpu1"]
    await expect(visit.at("inversions")).to_have_text("0")
    await is_done(visit, 6)
    await visit.is_clean()
