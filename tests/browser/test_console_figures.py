"""Every figure of the console is the broker's: compared with what another client of the
broker is told, and with what these tests did themselves, in an empty broker and in two states of a
busy one."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Final

import pytest
import pytest_asyncio
import tocsin
from playwright.async_api import Browser, Route, expect

from loadtests.server import Server
from tests.browser import console_expected as expected
from tests.browser.console_expected import Expected
from tests.browser.console_hooks import CONTROLS, figures, listed
from tests.browser.console_house import LOOK, Console, Seen, console, eventually, who
from tests.browser.console_state import Busy, disagreements, told

pytestmark = pytest.mark.asyncio(loop_scope="module")
GROUPS = ("billing", "idle", "leaving", "mailing", "pulling")
MOVING: Final = who(queue="moving", group="movers")
PAGES: Final = 3
KEYS: Final = (
    ("work", "k0"), ("work", "k1"), ("work", "k4"), ("work", "k9"), ("work", "nobody"),
    ("resting", "r"), ("later", "a"),
)  # fmt: skip
CLUSTERS: Final[list[dict[str, Any]]] = [
    {"name": name, "zone": zone, "state": state, "since_unix_ms": since, "why": "",
     "used_bytes": used, "bound_bytes": bound, "answers": answers, "has_catalog": not number,
     "queues": 12 + number, "partitions": 96 - number}
    for number, (name, zone, state, since, used, bound, answers) in enumerate([
        ("north-1", "north", "well", 1763690300000, 1288490188, 4294967296, True),
        ("south-1", "south", "hot", 1763690390000, 3650722201, 4294967296, True),
        ("south-2", "south", "away", 1763690391000, 7, 0, True),
        ("west-1", "", "well", None, None, 0, True),
        ("west-2", "", "well", 1763690391000, 50, 100, False),
    ])
]  # fmt: skip


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def busy(broker: Server) -> AsyncIterator[Busy]:
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(tocsin.connect(broker.url))
        yield Busy(broker, stack, client)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def views(chromium: Browser, broker: Server) -> AsyncIterator[list[Console]]:
    """Several, so that one waits while another one works."""
    async with AsyncExitStack() as stack:
        size = {"width": 1280, "height": 900}
        made = [console(chromium, broker.url, viewport=size) for _ in range(PAGES)]
        views = [await stack.enter_async_context(one) for one in made]
        for view in views:
            await view.page.route("**/v1/clusters", has_clusters)
            await view.page.route("**/v1/queues/resting", is_at_a_cluster)
        yield views


async def has_clusters(route: Route) -> None:
    """This broker has one store, in a file: these are of another one's answer."""
    await route.fulfill(json={"clusters": CLUSTERS})


async def is_at_a_cluster(route: Route) -> None:
    answer = await (await route.fetch()).json()
    await route.fulfill(json=at_a_cluster(answer))


def at_a_cluster(queue: dict[str, Any]) -> dict[str, Any]:
    """With a storage cluster for each partition, as a broker says that has several."""
    named = [{**one, "cluster": CLUSTERS[0]["name"]} for one in queue["partitions"]]
    return {**queue, "partitions": named}


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def view(views: list[Console]) -> Console:
    return views[0]


async def agrees(
    view: Console,
    address: str,
    work_out: Callable[[], Awaitable[Expected]],
    *,
    opened: bool = False,
) -> set[str]:
    """Go there and wait until it shows exactly what is worked out before and after the look.
    Returns the test ids that were compared."""
    await view.open(address)
    wanted: Expected = {}

    async def look() -> None:
        nonlocal wanted
        if opened:
            opening = "for (const one of document.querySelectorAll('details')) one.open = true"
            await view.page.evaluate(opening)
        before = await work_out()
        seen = await view.seen()
        wanted = await work_out()
        assert expected.differences(before, wanted) == {}, "it is not quiet"
        shown = seen.figures()
        texts = seen.texts()
        for hook, (kind, _) in wanted.items():
            if kind == "text" and hook in texts:
                shown[hook] = ("text", texts[hook])
        assert expected.differences(shown, wanted) == {}

    await eventually(look, f"{address} shows what is so")
    return {testid for testid, _ in wanted}


async def all_views(views: list[Console]) -> set[str]:
    """Compare every view; returns what was compared."""
    compared: set[str] = set()
    work = list(_views(views[0]))

    async def some(view: Console) -> None:
        while work:
            address, work_out, opened = work.pop()
            compared.update(await agrees(view, address, work_out, opened=opened))

    await asyncio.gather(*map(some, views))
    return compared


def _views(view: Console) -> Iterator[tuple[str, Callable[[], Awaitable[Expected]], bool]]:
    """Addresses, what works out what they show, and whether all is to be opened there."""

    async def overview() -> Expected:
        return expected.overview((await view.get("/v1/queues"))["queues"])

    async def sessions() -> Expected:
        return expected.sessions((await view.get("/v1/sessions"))["sessions"])

    async def clusters() -> Expected:
        return expected.clusters(CLUSTERS)

    yield "/queues", overview, False
    yield "/sessions", sessions, False
    yield "/clusters", clusters, False
    for name in ("work", "resting", "empty", "later"):
        yield f"/queues/{name}", partial(_queue, view, name), False
    for name in GROUPS:
        yield f"/queues/work/groups/{name}", partial(_group, view, name), False
    yield "/queues/work/groups/billing/parked", partial(_parked, view), False
    for queue, key in KEYS:
        address = f"/explain?queue={queue}&key={key}"
        yield address, partial(_explained, view, queue, key), False
    yield "/queues/later/scheduled", partial(_scheduled, view), True
    looking = partial(_messages, view, "message", "work/messages", group="billing")
    yield "/queues/work/messages?group=billing", looking, True
    looking = partial(_messages, view, "dead-letter", "dying/dead-letters")
    yield "/queues/dying/dead-letters", looking, True


async def _queue(view: Console, name: str) -> Expected:
    found = await view.get(f"/v1/queues/{name}")
    return expected.queue(at_a_cluster(found) if name == "resting" else found)


async def _group(view: Console, name: str) -> Expected:
    path = f"/v1/queues/work/groups/{name}"
    held = await view.get(f"{path}/held", limit=200)
    leases = await view.get(f"{path}/leases", limit=200)
    queue = await view.get("/v1/queues/work")
    return expected.group(await view.get(path), held["keys"], leases["leases"], queue)


async def _parked(view: Console) -> Expected:
    answer = await view.get("/v1/queues/work/groups/billing/parked")
    return expected.parked(answer, "work", "billing")


async def _explained(view: Console, queue: str, key: str) -> Expected:
    return expected.explained(await view.get(f"/v1/queues/{queue}/explain", key=key))


async def _scheduled(view: Console) -> Expected:
    return expected.scheduled(await view.get("/v1/queues/later/scheduled"))


async def _messages(view: Console, kind: str, path: str, **query: str) -> Expected:
    return expected.messages(kind, await view.get(f"/v1/queues/{path}", limit=50, **query))


async def is_so(view: Console, busy: Busy) -> None:
    """Until the broker says what the tests did."""

    async def look() -> None:
        assert disagreements(busy.truth, told((await view.get("/v1/queues"))["queues"])) == {}

    await eventually(look, "the broker says what was done")


async def test_an_empty_broker_has_no_figures_but_zeros(view: Console) -> None:
    async def overview() -> Expected:
        answer = (await view.get("/v1/queues"))["queues"]
        assert answer == []
        return expected.overview(answer)

    async def nobody() -> Expected:
        answer = (await view.get("/v1/sessions"))["sessions"]
        return expected.sessions(answer)

    assert "total-depth" in await agrees(view, "/queues", overview)
    await view.shoot("queues-empty")
    assert "sessions-count" in await agrees(view, "/sessions", nobody)


async def test_every_figure_of_a_busy_broker_is_right(
    view: Console, views: list[Console], busy: Busy
) -> None:
    await busy.first()
    await is_so(view, busy)
    assert figures() - await all_views(views) == set()
    await _is_what_was_done(view, busy)


async def test_every_figure_is_right_when_much_of_it_has_changed(
    view: Console, views: list[Console], busy: Busy
) -> None:
    await busy.second()
    await is_so(view, busy)
    assert figures() - await all_views(views) == set()
    await _is_what_was_done(view, busy)


async def test_queues_that_are_missing_from_the_list_are_counted(view: Console) -> None:
    """A storage cluster that has part of them does not answer."""

    async def lacks(route: Route) -> None:
        answer = await (await route.fetch()).json()
        await route.fulfill(json={**answer, "unavailable": ["lost", "gone"]})

    await view.open("/queues")
    await expect(view.at("queues-unavailable")).to_be_hidden()
    await view.page.route("**/v1/queues?*", lacks)
    await expect(view.at("queues-unavailable")).to_have_text(
        "2 queues more: a storage cluster that has part of them does not answer."
    )
    await view.page.unroute("**/v1/queues?*")


async def _is_what_was_done(view: Console, busy: Busy) -> None:
    """Page and API cannot be wrong together: the same figures, as the tests made them."""
    await view.open("/queues")
    await eventually(lambda: _rows(view, busy), "the overview shows what was done")
    await view.open("/queues/work")
    names = {
        "lag": "lag", "in_flight": "in-flight", "consumers": "consumers", "keys_parked": "parked",
    }  # fmt: skip
    seen = await view.seen()
    for (queue, group), values in busy.truth.items():
        for name in names.keys() & values.keys() if queue == "work" and group else ():
            shown = seen.value(f"group-{names[name]}", queue=queue, group=group)
            assert shown == str(values[name]), (group, name)
    await view.open("/queues/work/groups/billing")
    seen, values = await view.seen(), busy.truth["work", "billing"]
    named = {"queue": "work", "group": "billing"}
    assert seen.value("group-redelivered", **named) == str(values["redelivered"])
    assert seen.value("group-dead-lettered", **named) == str(values["dead_lettered"])


async def _rows(view: Console, busy: Busy) -> None:
    seen = await view.seen()
    for (queue, group), values in busy.truth.items():
        if not group and "depth" in values:
            assert seen.value("queue-depth", queue=queue) == str(values["depth"]), queue


_NOTED: Final = """() => {
  const asked = globalThis.fetch;
  globalThis.samples = [];
  globalThis.fetch = async (path, options) => {
    const answer = await asked(path, options);
    const text = answer.text.bind(answer);
    answer.text = async () => {
      const said = await text();
      const at = performance.now();
      if (said.startsWith("{")) samples.push({ path, at, said: JSON.parse(said) });
      return said;
    };
    return answer;
  };
}"""
WINDOW_MS: Final = 5000


def rate(samples: list[tuple[float, int]]) -> float:
    """Of a counter, over the last five seconds, or all there is."""
    assert len(samples) > 1, "there is no difference yet"
    newest, value = samples[-1]
    older = [one for one in samples[:-1] if newest - one[0] >= WINDOW_MS]
    at, before = older[-1] if older else samples[0]
    return (value - before) / ((newest - at) / 1000)


@pytest.mark.parametrize(
    ("address", "ids", "names"),
    [
        ("/queues", ("total-{}-rate", "queue-{}-rate"), ("published", "given", "settled")),
        ("/queues/moving", ("queue-{}-rate",), ("published", "given", "settled")),
        ("/queues/moving/groups/movers", ("group-{}-rate",), ("given", "settled", "nacked")),
    ],
)
async def test_rates_are_the_differences_of_what_was_counted(
    chromium: Browser, broker: Server, address: str, ids: tuple[str, ...], names: tuple[str, ...]
) -> None:
    """While messages are published, given, settled and returned."""
    async with (
        tocsin.connect(broker.url) as client,
        console(chromium, broker.url) as view,
    ):
        await view.page.add_init_script(f"({_NOTED})()")
        await client.create_queue("moving", partitions=2, attempts_max=0)
        async with client.subscribe("moving", "movers", backoff_s=0.01) as messages:
            await view.open(address)
            traffic = asyncio.create_task(_move(client, messages))
            try:
                await eventually(lambda: _rates_are_right(view, ids, names), "the rates are right")
            finally:
                traffic.cancel()


async def _move(client: tocsin.Client, messages: tocsin.Subscription) -> None:
    """Publish, return and settle, one after the other, for ever."""
    for number in itertools.count():
        await client.publish("moving", number, key=str(number))
        await (await anext(messages)).nack(delay_s=0)
        await (await anext(messages)).ack(confirm=True)


async def _rates_are_right(view: Console, ids: tuple[str, ...], names: tuple[str, ...]) -> None:
    elements, samples = await view.page.evaluate(f"[({LOOK})(), samples]")
    seen = Seen(elements)
    counters = [(one["at"], _counters(one["said"])) for one in samples]
    counters = [(at, values) for at, values in counters if values]
    texts, shown = seen.texts(), seen.figures()
    for name in names:
        wanted = rate([(at, values[name]) for at, values in counters])
        assert wanted > 0
        mine = [hook for hook in shown if hook[0] in [one.format(name) for one in ids]]
        mine = [hook for hook in mine if hook[1] <= MOVING]
        assert len(mine) == len(ids)
        for hook in mine:
            assert shown[hook][1], "there is no rate yet"
            assert float(shown[hook][1]) == pytest.approx(wanted, rel=0.1), (hook, name)
        plot = f"{ids[0].split('-')[0]}-rates-plot-now"
        said = float(texts[plot, who(line=name)].replace(",", ""))
        assert said == pytest.approx(wanted, rel=0.1, abs=0.1), plot


def _counters(said: dict[str, Any]) -> dict[str, int]:
    for one in said.get("queues", []):
        if one["name"] == "moving":
            said = one
    if said.get("name") == "moving":
        return {**said["groups"][0]["counters"], **said["counters"]}
    return said["counters"] if said.get("name") == "movers" else {}


async def test_the_hooks_that_are_no_figures_are_in_the_readme() -> None:
    assert listed() >= CONTROLS
    assert len(figures()) > 100
