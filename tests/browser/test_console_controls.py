"""Every control of the console does what it says, and nothing before it was confirmed."""

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
import tocsin
from playwright.async_api import Browser, Route, expect

from loadtests.server import Server
from tests.browser.console_house import Console, console, eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def client(broker: Server) -> AsyncIterator[tocsin.Client]:
    async with tocsin.connect(broker.url) as client:
        yield client


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def view(chromium: Browser, broker: Server) -> AsyncIterator[Console]:
    async with console(chromium, broker.url, viewport={"width": 1280, "height": 900}) as made:
        yield made


async def fail(client: tocsin.Client, queue: str, keys: int, **settings: Any) -> None:
    """A queue in which two messages of each key are published, and the first fails for good."""
    await client.create_queue(queue, partitions=2, attempts_max=1, retention_s=3600, **settings)
    await client.publish_many(
        queue, [{"key": f"key-{n}", "body": n} for _ in range(2) for n in range(keys)]
    )
    async with client.subscribe(queue, "workers") as messages:
        for _ in range(keys):
            await (await asyncio.wait_for(anext(messages), 30)).nack(reason="no")

        async def settled() -> None:
            figures = (await client.group(queue, "workers"))["counters"]
            assert figures["parked" if "on_exhausted" in settings else "dead_lettered"] == keys

        await eventually(settled, "all have failed")


async def test_one_gets_everywhere_and_back(view: Console, client: tocsin.Client) -> None:
    await client.create_queue("orders", partitions=2)
    await client.create_group("orders", "billing")
    await view.open("/queues")
    heading = view.page.locator("h1")
    await view.at("queue-name", queue="orders").click()
    await expect(heading).to_have_text("Queue orders")
    await expect(heading).to_be_focused()
    assert await outline(view) == "none", "one did not choose the heading"
    await view.at("tab-messages").click()
    await expect(heading).to_have_text("Messages")
    await view.at("tab-scheduled").click()
    await expect(heading).to_have_text("Scheduled messages")
    await view.at("tab-dead-letters").click()
    await expect(heading).to_have_text("Dead letters")
    await view.at("tab-queue").click()
    await view.at("group-name", group="billing").click()
    await expect(heading).to_have_text("Group billing")
    await view.at("tab-parked").click()
    await expect(heading).to_have_text("Parked keys")
    await view.at("tab-group").click()
    await view.at("messages-link").click()
    await expect(view.at("message-find-group")).to_have_value("billing")
    await view.page.go_back()
    await expect(heading).to_have_text("Group billing")
    await view.at("explain-link").click()
    await expect(view.at("explain-queue")).to_have_value("orders")
    await view.at("nav-sessions").click()
    await expect(heading).to_have_text("Sessions")
    await view.at("nav-explain").click()
    await expect(heading).to_have_text("Explain a key")
    await view.page.go_back()
    await expect(heading).to_have_text("Sessions")
    await view.page.go_forward()
    await expect(heading).to_have_text("Explain a key")
    await view.at("nav-queues").click()
    await expect(view.at("queue-name", queue="orders")).to_be_visible()
    await expect(view.at("broker-state")).to_have_text("broker: ready")
    await view.page.keyboard.press("Tab")
    await view.page.evaluate("location.hash = '#/sessions'")
    await expect(heading).to_have_text("Sessions")
    await expect(heading).to_be_focused()
    assert await outline(view) == "none", "nor with the keyboard"
    await view.answered()
    await view.page.keyboard.press("Tab")
    assert await outline(view) == "solid"
    await expect(view.at("nav-demo")).to_have_attribute("href", "/demo")


async def outline(view: Console) -> Any:
    """Around what has the focus."""
    return await view.page.evaluate("getComputedStyle(document.activeElement).outlineStyle")


@pytest.mark.parametrize(
    ("address", "heading"),
    [
        ("/queues/orders", "Queue orders"),
        ("/queues/orders/groups/billing", "Group billing"),
        ("/queues/orders/groups/billing/parked", "Parked keys"),
        ("/queues/orders/messages?key=a", "Messages"),
        ("/queues/orders/scheduled?key=a", "Scheduled messages"),
        ("/queues/orders/dead-letters", "Dead letters"),
        ("/sessions?filter=python", "Sessions"),
        ("/explain?queue=orders&key=a", "Explain a key"),
    ],
)
async def test_an_address_leads_there_and_stays_there_over_a_reload(
    view: Console, client: tocsin.Client, address: str, heading: str
) -> None:
    await client.create_queue("orders", partitions=2)
    await client.create_group("orders", "billing")
    await view.open(address)
    await expect(view.page.locator("h1")).to_have_text(heading)
    await view.page.reload()
    await view.answered()
    await expect(view.page.locator("h1")).to_have_text(heading)


async def test_an_address_of_nothing_says_so_and_leads_back(view: Console) -> None:
    await view.open("/queues")
    await view.page.evaluate("location.hash = '#/queues/a/b/c/d'")
    await expect(view.at("nowhere")).to_contain_text("names nothing")
    await view.at("nowhere").get_by_role("link").click()
    await expect(view.page.locator("h1")).to_have_text("Queues")


async def test_what_is_not_there_shows_nothing_but_that_and_leads_back(
    view: Console, client: tocsin.Client
) -> None:
    await client.create_queue("orders", partitions=2)
    for address in ("/queues/never-was", "/queues/orders/groups/never-was/parked"):
        await view.page.goto(f"{view.url}/console#{address}")
        await expect(view.at("error-home")).to_be_visible()
        for testid in ("explain-link", "tab-queue", "tab-parked", "queue-purge", "words"):
            assert await view.page.locator(f'[data-testid="{testid}"]:visible').count() == 0
        await view.at("error-home").click()
        await expect(view.page.locator("h1")).to_have_text("Queues")
        await expect(view.at("error")).to_be_hidden()
    view.complaints.clear()


async def test_a_group_shows_what_holds_for_it_and_what_is_not_the_queues(
    view: Console, client: tocsin.Client
) -> None:
    await client.create_queue("ruled", partitions=1, attempts_max=5, lease_s=20)
    await client.create_group("ruled", "own", attempts_max=3, on_exhausted="park")
    await view.open("/queues/ruled/groups/own")
    await expect(view.at("group-attempts_max")).to_have_text("3")
    await expect(view.at("group-own", setting="attempts_max")).to_have_text("not the queue's 5")
    await expect(view.at("group-on_exhausted")).to_have_text("park")
    await expect(view.at("group-own")).to_have_count(2)
    await expect(view.at("group-lease_s")).to_have_text("20 s")
    await view.open("/queues/ruled")
    await expect(view.page.locator("#main")).to_contain_text("Groups may have settings of their")
    letters = view.at("queue-dead_letter_queue")
    await expect(letters).to_contain_text("none yet: ruled.dead-letters")
    await client.create_queue("ruled.dead-letters", partitions=1)
    await client.publish("ruled.dead-letters", 1)
    await view.open("/queues/ruled")
    await expect(letters).to_have_text("ruled.dead-letters (1 message)")
    await view.at("dead-letters-link").click()
    await expect(view.page.locator("h1")).to_have_text("Queue ruled.dead-letters")


async def test_queues_are_filtered_sorted_and_paged(view: Console, client: tocsin.Client) -> None:
    for number in range(60):
        await client.create_queue(f"many-{number:02}", partitions=1)
    await client.publish_many("many-37", [{"body": n} for n in range(3)])
    await view.open("/queues")
    await view.at("queue-filter").fill("MANY")
    names = view.page.locator('[data-testid="queue-name"]')
    await expect(names).to_have_count(50)
    await expect(view.at("queue-pager")).to_contain_text("1 to 50 of 60")
    await expect(view.at("queue-page-back")).to_be_disabled()
    await view.at("queue-page-next").click()
    await expect(names).to_have_count(10)
    await expect(names.first).to_have_text("many-50")
    await view.at("queue-page-back").click()
    await expect(names.first).to_have_text("many-00")
    await view.at("queue-sort", column="depth").click()
    await expect(names.first).to_have_text("many-37")
    await view.at("queue-sort", column="name").click()
    await view.at("queue-sort", column="name").click()
    await expect(names.first).to_have_text("many-59")
    await view.at("queue-filter").fill("many-4")
    await expect(names).to_have_count(10)
    await view.at("queue-filter").fill("nothing like it")
    await expect(view.at("queue-empty")).to_have_text("Nothing matches the filter.")


async def test_a_queue_is_paused_and_goes_on(view: Console, client: tocsin.Client) -> None:
    await client.create_queue("brakes", partitions=1)
    await view.open("/queues/brakes")
    await expect(view.at("queue-pause")).to_have_text("Pause …")
    await view.at("queue-pause").click()
    await view.at("pause-cancel").click()
    await expect(view.at("pause-dialog")).to_have_count(0)
    assert (await client.queue("brakes"))["paused"] is False
    await view.at("queue-pause").click()
    await view.at("pause-confirm").click()
    await expect(view.at("queue-state")).to_have_text("paused")
    await expect(view.at("queue-paused-note")).to_be_visible()
    await expect(view.at("notice")).to_have_text("brakes is paused.")
    assert (await client.queue("brakes"))["paused"] is True
    await view.at("queue-resume").click()
    await view.at("resume-confirm").click()
    await expect(view.at("queue-state")).to_have_text("no group")
    await expect(view.at("queue-paused-note")).to_be_hidden()
    assert (await client.queue("brakes"))["paused"] is False


async def test_a_queue_is_purged_when_its_name_is_typed_and_not_before(
    view: Console, client: tocsin.Client
) -> None:
    await client.create_queue("full", partitions=1, retention_s=3600)
    for group in ("one", "other"):
        await client.create_group("full", group)
    await client.publish_many("full", [{"body": n} for n in range(7)])
    await view.open("/queues/full")
    await view.at("queue-purge").click()
    await expect(view.at("purge-confirm")).to_be_disabled()
    for wrong in ("ful", "Full", "full "):
        await view.at("purge-typed").fill(wrong)
        await expect(view.at("purge-confirm")).to_be_disabled()
        await view.at("purge-typed").press("Enter")
    assert (await client.queue("full"))["depth"] == 7
    await view.at("purge-typed").fill("full")
    await view.at("purge-cancel").click()
    await expect(view.at("purge-dialog")).to_have_count(0)
    assert (await client.queue("full"))["depth"] == 7
    await view.at("queue-purge").click()
    await view.at("purge-choice").select_option("one")
    await view.at("purge-typed").fill("full")
    await view.at("purge-confirm").click()
    await expect(view.at("notice")).to_have_text("7 messages dropped from full.")
    await expect(view.at("group-lag", group="one")).to_have_attribute("data-value", "0")
    await expect(view.at("group-lag", group="other")).to_have_attribute("data-value", "7")
    await view.at("queue-purge").click()
    await view.at("purge-typed").fill("full")
    await view.at("purge-confirm").click()
    await expect(view.at("queue-depth")).to_have_attribute("data-value", "0")
    assert (await client.queue("full"))["depth"] == 0


async def test_messages_are_found_and_more_of_them_shown(
    view: Console, client: tocsin.Client
) -> None:
    await client.create_queue("letters", partitions=1)
    await client.publish_many("letters", [{"key": f"k{n % 6}", "body": n} for n in range(60)])
    await view.open("/queues/letters/messages")
    found = view.page.locator('details[data-testid="message"]')
    await expect(found).to_have_count(50)
    await expect(view.at("message-count")).to_contain_text("50 messages so far")
    await expect(view.at("message-since")).to_contain_text(re.compile(r"As of \d\d:\d\d:\d\d:"))
    await view.at("message-more").click()
    await expect(found).to_have_count(60)
    await expect(view.at("message-more")).to_be_hidden()
    await view.at("message-find-key").fill("k5")
    await view.at("message-look").click()
    await expect(found).to_have_count(10)
    await view.at("message-find-key").fill("")
    await view.at("message-find-partition").fill("0")
    await view.at("message-find-offset").fill("55")
    await view.at("message-look").click()
    await expect(found).to_have_count(5)
    await found.first.locator("summary").click()
    await expect(view.at("message-body")).to_have_text("55")
    await client.publish("letters", "more", key="k0")
    await view.at("message-refresh").click()
    await expect(found).to_have_count(6)
    assert (await client.queue("letters"))["depth"] == 61, "nothing was taken"


async def schedule(view: Console, queue: str, *messages: dict[str, Any]) -> None:
    """Publish messages, one after the other due."""
    answer = await view.api.post(f"/v1/queues/{queue}/messages", json={"messages": messages})
    assert all("ticket" in one for one in answer.json()["results"]), answer.text


async def test_what_is_to_come_is_found_moved_and_cancelled(
    view: Console, client: tocsin.Client
) -> None:
    await client.create_queue("later", partitions=2)
    await client.create_group("later", "us")
    some = [{"key": f"k{n % 6}", "id": f"i{n}", "body": n, "delay_s": 7200 + n} for n in range(60)]
    await schedule(view, "later", *some)
    await view.open("/queues/later/scheduled")
    found = view.page.locator('details[data-testid="scheduled"]')
    ids = view.page.get_by_test_id("scheduled-short-id")
    await expect(found).to_have_count(50)
    await expect(view.at("scheduled-count")).to_have_text("50 of 60 messages, by time.")
    await expect(view.page.get_by_test_id("scheduled-due").first).to_have_text(
        re.compile("^in (2 h 0 min|1 h 59 min)$")
    )
    await view.at("scheduled-more").click()
    await expect(found).to_have_count(60)
    await expect(ids).to_have_text([f"i{n}" for n in range(60)])
    await view.at("scheduled-find-key").fill("k5")
    await view.at("scheduled-look").click()
    await expect(ids).to_have_text([f"i{n}" for n in range(5, 60, 6)])
    await expect(view.at("scheduled-count")).to_have_text("10 messages of this key.")

    await found.first.locator("summary").click()
    await expect(view.at("scheduled-body")).to_have_text("5")
    await view.at("scheduled-cancel").click()
    await view.at("cancel-cancel").click()
    await expect(view.at("cancel-dialog")).to_have_count(0)
    assert (await view.get("/v1/queues/later/scheduled"))["count"] == 60
    await view.at("scheduled-cancel").click()
    await expect(view.at("cancel-dialog")).to_contain_text("will never come")
    await view.at("cancel-confirm").click()
    await expect(view.at("notice")).to_have_text("One message is cancelled.")
    await expect(found).to_have_count(9)
    assert (await view.get("/v1/queues/later/scheduled"))["count"] == 59

    await found.first.locator("summary").click()
    await view.at("scheduled-move").click()
    await view.at("move-time").fill("")
    await expect(view.at("move-confirm")).to_be_disabled()
    await view.at("move-time").fill("2027-01-02T03:04:05")
    await view.at("move-confirm").click()
    await expect(view.at("notice")).to_have_text("One message is due at 2027-01-02 03:04:05.")
    await expect(ids.last).to_have_text("i11")
    await expect(view.page.get_by_test_id("scheduled-at").last).to_have_text("2027-01-02 03:04:05")
    await expect(found.last).to_have_attribute("open", "")  # it stays as one left it
    await view.at("scheduled-move").click()
    await view.at("move-time").fill("2020-01-02T03:04:05")
    await view.at("move-confirm").click()
    await expect(found).to_have_count(8)
    assert (await client.queue("later"))["scheduled"]["messages"] == 58

    await view.open("/queues/later")
    await expect(view.at("queue-scheduled")).to_have_attribute("data-value", "58")
    await view.at("queue-purge").click()
    await expect(view.at("purge-dialog")).to_contain_text("58 messages scheduled for later")
    await view.at("purge-cancel").click()


async def test_a_scheduled_message_that_is_gone_is_said(
    view: Console, client: tocsin.Client
) -> None:
    await client.create_queue("going", partitions=1)
    await schedule(view, "going", {"id": "x", "body": 1, "delay_s": 900})
    await view.open("/queues/going/scheduled")
    await view.page.locator('details[data-testid="scheduled"] summary').click()
    await view.at("scheduled-cancel").click()
    assert (await view.api.delete("/v1/queues/going/scheduled/x")).status_code == 200
    await view.at("cancel-confirm").click()
    await expect(view.at("cancel-said")).to_contain_text("Somebody else cancelled it")
    await view.at("cancel-cancel").click()
    await expect(view.at("scheduled-count")).to_have_text("Nothing is scheduled.")
    view.complaints.clear()  # Chromium notes the 409


async def test_contents_that_one_may_not_read_are_not_shown(
    view: Console, client: tocsin.Client
) -> None:
    """The answer is made up, as one without the right to read gets it."""
    await client.create_queue("secret", partitions=1)
    await schedule(view, "secret", {"key": "k", "id": "x", "body": {"a": 1}, "delay_s": 900})

    async def without(route: Route) -> None:
        answer = await (await route.fetch()).json()
        answer["messages"] = [
            {name: value for name, value in one.items() if name not in ("body", "ttl_s")}
            for one in answer["messages"]
        ]
        await route.fulfill(json=answer)

    await view.page.route("**/scheduled?*", without)
    await view.open("/queues/secret/scheduled")
    summary = view.page.locator('details[data-testid="scheduled"] summary')
    await expect(summary).to_contain_text("content not shown")
    await summary.click()
    await expect(view.at("scheduled-body")).to_have_text("(content not shown)")
    await view.page.unroute("**/scheduled?*")


async def test_a_stopped_clock_is_said_and_believed_when_one_says_so(
    view: Console, client: tocsin.Client
) -> None:
    """Its answers are made up: nobody sets this machine's clock."""
    await client.create_queue("clocked", partitions=1)
    asked: list[str] = []

    async def stopped(route: Route) -> None:
        notes = [] if asked else ["scheduled messages are not moved for 4 min"]
        await route.fulfill(json={"ready": True, "not_ready": [], "notes": notes})

    async def believed(route: Route) -> None:
        asked.append(route.request.method)
        await route.fulfill(json={"jump_s": 7200.0, "moving": True})

    await view.page.route("**/readyz", stopped)
    await view.page.route("**/believe-clock", believed)
    await view.open("/queues/clocked/scheduled")
    await expect(view.at("scheduled-stopped")).to_contain_text("not moved for 4 min")
    await expect(view.at("broker-state")).to_have_text("broker: ready")
    await view.at("scheduled-believe").click()
    await view.at("believe-cancel").click()
    assert asked == []
    await view.at("scheduled-believe").click()
    await view.at("believe-confirm").click()
    await expect(view.at("notice")).to_have_text("Scheduled messages are delivered.")
    await expect(view.at("scheduled-stopped")).to_be_hidden()
    assert asked == ["POST"]
    await view.page.unroute("**/readyz")
    await view.page.unroute("**/believe-clock")


async def test_parked_keys_are_decided_about(view: Console, client: tocsin.Client) -> None:
    await fail(client, "stuck", 6, on_exhausted="park", message_ttl_s=3600)
    await view.open("/queues/stuck/groups/workers/parked")
    rows = view.page.locator('[data-testid="parked-row"]')
    await expect(rows).to_have_count(6)
    hashes = await rows.evaluate_all("rows => rows.map((row) => row.dataset.keyHash)")
    await expect(view.at("parked-expires", key_hash=hashes[0])).to_contain_text("in 59 min")
    await view.at("parked-release-all").click()
    await expect(view.at("release-all-dialog")).to_contain_text("they go to the dead letters")
    await view.at("release-all-cancel").click()
    await client.publish("stuck", "more", key="key-0")
    waiting = view.page.locator('[data-testid="parked-row"]', has_text="key-0")
    await expect(waiting.get_by_test_id("parked-messages")).to_have_text("3")
    await view.at("parked-retry", key_hash=hashes[0]).click()
    await expect(view.at("notice")).to_have_text("One key is tried once more.")
    await expect(rows).to_have_count(5)
    await view.at("parked-release", key_hash=hashes[1]).click()
    await expect(rows).to_have_count(4)
    await view.at("parked-skip", key_hash=hashes[2]).click()
    await view.at("skip-cancel").click()
    await expect(rows).to_have_count(4)
    await view.at("parked-skip", key_hash=hashes[2]).click()
    await view.at("skip-confirm").click()
    await expect(rows).to_have_count(3)
    dead = [letter.reason async for letter in client.dead_letters("stuck")]
    assert dead == ["skipped"]
    await view.at("parked-peek", key_hash=hashes[3]).click()
    await expect(view.page.locator('details[data-testid="message"]')).to_have_count(2)
    assert (await client.parked_keys("stuck", "workers"))["keys_parked"] == 3


@pytest.mark.parametrize(
    ("verb", "said", "dead"),
    [
        ("retry", "5 keys are tried once more.", 0),
        ("release", "5 keys are released.", 0),
        ("skip", "5 keys are skipped.", 5),
    ],
)
async def test_all_parked_keys_are_decided_about_at_once(
    view: Console, client: tocsin.Client, verb: str, said: str, dead: int
) -> None:
    queue = f"stuck-{verb}"
    await fail(client, queue, 5, on_exhausted="park")
    await view.open(f"/queues/{queue}/groups/workers/parked")
    await expect(view.at("parked-count")).to_have_attribute("data-value", "5")
    await view.at(f"parked-{verb}-all").click()
    if verb == "skip":
        await view.at("skip-all-typed").fill("someone else")
        await expect(view.at("skip-all-confirm")).to_be_disabled()
        await view.at("skip-all-typed").fill("workers")
    assert (await client.parked_keys(queue, "workers"))["keys_parked"] == 5
    await view.at(f"{verb}-all-confirm").click()
    await expect(view.at("notice")).to_have_text(said)
    await expect(view.at("parked-count")).to_have_attribute("data-value", "0")
    await expect(view.at("parked-empty")).to_have_text("No key is parked.")
    assert (await client.parked_keys(queue, "workers"))["keys_parked"] == 0
    assert len([letter async for letter in client.dead_letters(queue)]) == dead


async def test_dead_letters_are_found_and_sent_back_and_that_is_stopped(
    view: Console, client: tocsin.Client
) -> None:
    await fail(client, "dying", 250)
    await client.purge_queue("dying", group="workers")
    await view.open("/queues/dying/dead-letters?key=key-7")
    found = view.page.locator('details[data-testid="dead-letter"]')
    await expect(found).to_have_count(1)
    await view.at("redrive").click()
    await view.at("redrive-confirm").click()
    await expect(view.at("notice")).to_have_text("1 dead letter went back to dying.")
    await expect(found).to_have_count(0)
    await view.at("dead-letter-find-key").fill("")
    await view.at("dead-letter-find-reason").fill("expired")
    await view.at("dead-letter-look").click()
    await expect(view.at("dead-letter-count")).to_contain_text("No dead letter")
    await view.at("dead-letter-find-reason").fill("exhausted")
    await view.at("dead-letter-look").click()
    await expect(found).to_have_count(50)
    stopped = asyncio.Event()

    async def later(route: Route) -> None:
        await stopped.wait()
        await route.continue_()

    await view.page.route("**/redrive", later)
    await view.at("redrive").click()
    await view.at("redrive-confirm").click()
    await view.at("redrive-cancel").click()
    await expect(view.at("redrive-said")).to_contain_text("It stops behind the step")
    stopped.set()
    await expect(view.at("notice")).to_contain_text("200 dead letters went back to dying, then")
    await view.page.unroute("**/redrive")
    assert len([letter async for letter in client.dead_letters("dying")]) == 49
    await view.at("redrive").click()
    await view.at("redrive-confirm").click()
    await expect(view.at("notice")).to_have_text("49 dead letters went back to dying.")
    await expect(view.at("dead-letter-count")).to_contain_text("No dead letter")
    assert (await client.queue("dying"))["counters"]["published"] == 500 + 250


async def cli(url: str, *arguments: str) -> Any:
    """Return what the command line tool says, as JSON."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "from tocsin_command import main; main()", *arguments,
        "--json", "--url", url, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, _ = await process.communicate()
    assert process.returncode == 0
    return json.loads(out)


async def test_a_key_is_explained_as_the_command_line_explains_it(
    view: Console, client: tocsin.Client, broker: Server
) -> None:
    settings = tocsin.QueueSettings(partitions=1, attempts_max=2, on_exhausted="park", lease_s=600)
    await client.create_queue("puzzle", **settings)
    await client.publish_many("puzzle", [{"key": key, "body": key} for key in "abc"])
    await client.create_group("puzzle", "alone")
    async with client.subscribe("puzzle", "us", auto_extend=False) as messages:
        held = {m.key: m for m in [await asyncio.wait_for(anext(messages), 30) for _ in "abc"]}
        await held["a"].nack(delay_s=0)
        await (await asyncio.wait_for(anext(messages), 30)).nack(delay_s=0)
        await held["b"].nack(delay_s=7260)

        async def parked() -> None:
            assert (await client.group("puzzle", "us"))["keys_parked"] == 1

        await eventually(parked, "a is parked")
        await view.open("/explain")
        words = {
            ("a", "us"): "parked", ("b", "us"): "retry later", ("c", "us"): "in flight",
            ("d", "us"): "nothing waits", ("a", "alone"): "no consumer",
        }  # fmt: skip
        for (key, group), word in words.items():
            await explain(view, broker.url, key, group, word)
        await client.pause_queue("puzzle")
        await client.publish("puzzle", "late", key="e")
        await explain(view, broker.url, "e", "us", "paused")
        await explain(view, broker.url, "d", "alone", "nothing waits")
        for figure in ("offset", "published", "expires", "tries", "before", "also", "until"):
            await expect(view.at(f"explain-{figure}")).to_be_hidden()
    await backlog(view)


async def explain(view: Console, url: str, key: str, group: str, word: str) -> None:
    """Ask with the form, and compare."""
    await view.at("explain-queue").fill("puzzle")
    await view.at("explain-key").fill(key)
    await view.at("explain-group").fill(group)
    await view.at("explain-ask").click()
    await expect(view.at("explain-where")).to_contain_text(f"Key {key} goes to partition 0")
    named = {"queue": "puzzle", "group": group}
    await expect(view.at("explain-waits", **named)).to_have_text(word)
    await expect(view.page.locator('[data-testid="explain-waits"]')).to_have_count(1)

    async def same() -> None:
        told = (await cli(url, "queue", "explain", "puzzle", key, "--group", group))["groups"][0]
        head = told["head"] or {}
        texts = {hook: text for (hook, _), text in (await view.seen()).texts().items()}
        seen = await view.seen()
        assert texts["explain-sentence"].split(" in ")[0] == told["text"].split(" in ")[0]
        assert seen.value("explain-offset", **named) == str(head.get("offset", ""))
        before = told["before"]
        assert seen.value("explain-before", **named) == ("" if before is None else str(before))
        assert texts["explain-id"] == (head.get("id") or "–")
        owner = (told["owner"] or {}).get("consumer", "–")
        assert texts["explain-consumer"] == owner
        parked_link = view.at("explain-parked", **named)
        assert await parked_link.is_visible() == (told["waits_for"] == "parked")

    await eventually(same, f"{key} for {group} is explained as the command line does")


async def backlog(view: Console) -> None:
    """It lasts for milliseconds; so the answer is made up, out of the broker's."""

    async def changed(route: Route) -> None:
        answer = await (await route.fetch()).json()
        answer["groups"][0] |= {"waits_for": "backlog", "before": 1234, "text": "Behind others."}
        await route.fulfill(json=answer)

    await view.page.route("**/explain?*", changed)
    await view.open("/explain?queue=puzzle&key=c&group=alone")
    await expect(view.page.locator('#queue-names [value="puzzle"]')).to_have_count(1)
    named = {"queue": "puzzle", "group": "alone"}
    await expect(view.at("explain-waits", **named)).to_have_text("backlog")
    await expect(view.at("explain-before", **named)).to_have_text("1,234")
    await expect(view.at("explain-sentence", **named)).to_have_text("Behind others.")
    await view.page.unroute("**/explain?*")


async def test_sessions_are_found_and_lead_to_what_they_consume(
    view: Console, client: tocsin.Client
) -> None:
    await client.create_queue("orders", partitions=2)
    async with client.subscribe("orders", "billing"), client.read("orders", keys=["a"]):
        await view.open("/sessions")
        await expect(view.page.locator('[data-testid="session-row"]')).to_have_count(1)
        mine = view.page.locator('[data-testid="subscription"]')
        await expect(mine).to_have_text(["orders / billing", "orders"])
        await view.at("session-filter").fill("reader")
        await expect(view.page.locator('[data-testid="session-row"]')).to_have_count(1)
        await view.at("session-filter").fill("nobody like that")
        await expect(view.at("session-empty")).to_have_text("Nothing matches the filter.")
        await view.at("session-filter").fill("billing")
        await mine.first.click()
        await expect(view.page.locator("h1")).to_have_text("Group billing")


async def test_light_and_dark_are_chosen_and_kept(view: Console) -> None:
    await view.open("/queues")
    color = "getComputedStyle(document.documentElement).backgroundColor"
    before = await view.page.evaluate(color)
    await view.at("theme").click()
    after = await view.page.evaluate(color)
    assert before != after
    await expect(view.at("theme")).to_have_text("Light")
    await view.page.reload()
    await view.answered()
    assert await view.page.evaluate(color) == after
    await view.at("theme").click()
    await expect(view.at("theme")).to_have_text("Dark")
