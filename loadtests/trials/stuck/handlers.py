"""Keys whose handlers hang, through the users' interfaces: are the other keys still served (P8)?

The queue has a backlog of hung keys, one key after the other, followed by messages of other keys.
Then a consumer comes, in one of five ways: the Python SDK (asyncio, blocking), the JavaScript SDK
(Node, Chromium), HTTP pulls. The handlers of the hung keys never return and the SDKs extend their
leases; pulled messages of these keys are never settled. The result is the number of messages of the
other keys that were handled within some seconds.
"""

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import tocsin
import tocsin.blocking

from loadtests.chromium import browsing
from loadtests.clients.load import LoadFailed
from loadtests.node import node
from loadtests.trials.trial import Finding, Progress, broker

HANDLED_MIN: Final = 0.95
SECONDS: Final = 10.0
HUNG: Final = "hung"
QUEUE: Final = "keys"
GROUP: Final = "workers"
PULL: Final = 100
_PULL_WAIT_S: Final = 0.5
_PULLERS: Final = 4
_CHUNK: Final = 1000
_OTHER_KEYS: Final = 100
_MODULE: Final = Path(__file__).parents[3] / "clients/javascript/src/index.js"
_STORY: Final = """
async ({ connect }, url, { queue, group, hung, concurrency, others, seconds, credit }) => {
  const client = await connect(url);
  let handled = 0;
  const began = performance.now();
  const options = credit ? { concurrency, credit } : { concurrency };
  const worker = client.subscribe(queue, group, options, async (message) => {
    if (message.key.startsWith(hung)) await new Promise(() => {});
    handled += 1;
  });
  const tookS = () => (performance.now() - began) / 1000;
  while (handled < others && tookS() < seconds) {
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
  const found = { handled, tookS: tookS() };
  client.close();
  return found;
}"""
_IN_NODE: Final = """
import * as tocsin from %s;
const found = await (%s)(tocsin, %s, %s);
console.log(JSON.stringify(found));
process.exit(0);
"""


@dataclass(frozen=True)
class Plan:
    """The sizes of one run."""

    hung: int = 1
    """Number of keys whose handlers hang."""
    behind: int = 5_000
    """Number of messages of each hung key."""
    others: int = 1_000
    """Number of messages of other keys, published after those of the hung keys."""
    concurrency: int = 20
    partitions: int = 16
    """Number of partitions of the queue; with one, everything is in one log."""
    credit: int = 0
    """The credit of the subscription; 0 for the SDK's default."""
    seconds: float = SECONDS


@dataclass(frozen=True)
class Served:
    """The result for the keys that do not hang: how many of their messages were handled, and in how
    many seconds."""

    handled: int
    took_s: float


async def _fill(url: str, plan: Plan) -> None:
    async with tocsin.connect(url) as client:
        await client.create_queue(QUEUE, partitions=plan.partitions)
        await client.create_group(QUEUE, GROUP)
        keys = [f"{HUNG}-{n}" for n in range(plan.hung) for _ in range(plan.behind)]
        keys += [f"other-{n % _OTHER_KEYS}" for n in range(plan.others)]
        for start in range(0, len(keys), _CHUNK):
            chunk = keys[start : start + _CHUNK]
            await client.publish_many(
                QUEUE, [tocsin.NewMessage(body=at, key=key) for at, key in enumerate(chunk, start)]
            )


class _Counting:
    """A counter of the handled messages of the keys that do not hang; usable from any thread."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._handled: list[int] = []
        self.began = time.monotonic()

    def add(self) -> None:
        """Count one more handled message."""
        self._handled.append(1)

    async def served(self) -> Served:
        """Wait until all `plan.others` messages are handled, or `plan.seconds` are over; return the
        result."""
        until = self.began + self._plan.seconds
        while len(self._handled) < self._plan.others:
            if time.monotonic() > until:
                break
            await asyncio.sleep(0.01)
        return Served(len(self._handled), time.monotonic() - self.began)


def _credit(plan: Plan) -> dict[str, Any]:
    return {"credit": plan.credit} if plan.credit else {}


async def python(url: str, plan: Plan) -> Served:
    """Consume with the SDK for asyncio, `Subscription.run`."""
    async with tocsin.connect(url) as client:
        counting = _Counting(plan)

        async def handle(message: tocsin.Message) -> None:
            if str(message.key).startswith(HUNG):
                await asyncio.Event().wait()
            counting.add()

        async with client.subscribe(QUEUE, GROUP, **_credit(plan)) as messages:
            running = asyncio.create_task(messages.run(handle, concurrency=plan.concurrency))
            served = await counting.served()
            running.cancel()
            await asyncio.wait([running])
    return served


async def blocking(url: str, plan: Plan) -> Served:
    """Consume with the blocking SDK, a thread for each handler."""
    ended, counting = threading.Event(), _Counting(plan)

    def handle(messages: tocsin.blocking.Subscription) -> None:
        for message in messages:
            if str(message.key).startswith(HUNG):
                ended.wait()
                return
            message.ack()
            counting.add()

    def consume() -> None:
        with (
            tocsin.blocking.connect(url) as client,
            client.subscribe(QUEUE, GROUP, **_credit(plan)) as messages,
        ):
            threads = [
                threading.Thread(target=handle, args=(messages,), daemon=True)
                for _ in range(plan.concurrency)
            ]
            counting.began = time.monotonic()
            for thread in threads:
                thread.start()
            ended.wait()

    consuming = asyncio.create_task(asyncio.to_thread(consume))
    served = await counting.served()
    ended.set()
    await consuming
    return served


def _settings(plan: Plan) -> str:
    return json.dumps(
        {
            "queue": QUEUE, "group": GROUP, "hung": HUNG, "concurrency": plan.concurrency,
            "others": plan.others, "seconds": plan.seconds, "credit": plan.credit,
        }
    )  # fmt: skip


async def in_node(url: str, plan: Plan) -> Served:
    """Consume with the JavaScript SDK in Node, with a handler."""
    script = _IN_NODE % (json.dumps(_MODULE.as_uri()), _STORY, json.dumps(url), _settings(plan))
    process = await asyncio.create_subprocess_exec(
        node(), "--input-type=module", "-e", script,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, error = await process.communicate()
    if process.returncode:
        raise LoadFailed(error.decode(errors="replace"))
    found = json.loads(out)
    return Served(found["handled"], found["tookS"])


async def in_chromium(url: str, plan: Plan) -> Served:
    """Consume with the JavaScript SDK in a page of the broker."""
    async with browsing() as browser:
        page = await browser.new_page()
        await page.goto(f"{url}/console")
        found = await page.evaluate(
            f"async ([url, settings]) => ({_STORY})"
            '(await import("/assets/tocsin/index.js"), url, JSON.parse(settings))',
            [url, _settings(plan)],
        )
    return Served(found["handled"], found["tookS"])


async def pulls(url: str, plan: Plan) -> Served:
    """Consume with HTTP pulls of a hundred; messages of hung keys are never settled."""
    async with tocsin.Http(url) as http:
        counting = _Counting(plan)

        async def pull() -> None:
            while True:
                messages = await http.pull(
                    QUEUE, GROUP, messages_max=PULL, wait_s=_PULL_WAIT_S
                )  # fmt: skip
                others = [m for m in messages if not str(m.key).startswith(HUNG)]
                if others:
                    await http.ack_receipts(QUEUE, GROUP, [m.receipt for m in others])
                for _ in others:
                    counting.add()

        pulling = [asyncio.create_task(pull()) for _ in range(_PULLERS)]
        served = await counting.served()
        for task in pulling:
            task.cancel()
        await asyncio.wait(pulling)
    return served


Way = Callable[[str, Plan], Awaitable[Served]]
WAYS: Final[dict[str, Way]] = {
    "python": python, "blocking": blocking, "node": in_node, "chromium": in_chromium,
    "pull": pulls,
}  # fmt: skip


PLANS: Final = (Plan(), Plan(hung=20, concurrency=40, partitions=1))


async def hung_handlers(
    progress: Progress, *, ways: Sequence[str] = tuple(WAYS), plans: Sequence[Plan] = PLANS
) -> Finding:
    """Run each of these plans in each of these ways, on a broker of its own each time. Raises
    LoadFailed or ServerFailed."""
    finding = Finding("stuck --handlers")
    for plan in plans:
        for way in ways:
            async with broker("hung") as server:
                await _fill(server.url, plan)
                served = await WAYS[way](server.url, plan)
            name = f"{way}, {plan.hung} hung"
            progress(
                f"stuck: {name}: {served.handled:,} of {plan.others:,} others handled "
                f"in {served.took_s:.1f} s"
            )
            finding.figures[f"{name}: others handled"] = served.handled
            finding.figures[f"{name}: seconds"] = round(served.took_s, 2)
            finding.check(
                f"P8: {name}: {HANDLED_MIN:.0%} of the others are handled within "
                f"{plan.seconds:g} s",
                served.handled >= HANDLED_MIN * plan.others,
                f"{served.handled / plan.others:.1%}", timed=plan.seconds <= SECONDS,
            )  # fmt: skip
    finding.conditions = {f"plan {number}": asdict(plan) for number, plan in enumerate(plans, 1)}
    return finding
