"""The shipped balancers, each before three gateways over one store: a client knows one address."""

import asyncio
import csv
import signal
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import httpx2
import pytest
import tocsin
from tocsin.proto.connect_policy import Transport
from websockets.asyncio.client import connect
from websockets.typing import Subprotocol

from gateway.broker import Broker
from gateway.config import Config
from gateway.server import OnFatal, Server
from loadtests.server import free_port
from runtime.addresses import ClientAddress
from tests.authority import Authority
from tests.gateway.conftest import never
from tests.histories.redis_gateways import a_server, emptied
from tests.servers import balancing
from tests.servers.balancing import Place
from tests.servers.programs import Program

Kind = Literal["haproxy", "nginx"]
KINDS: tuple[Kind, ...] = ("haproxy", "nginx")
each_kind = pytest.mark.parametrize("kind", KINDS)
TOKEN = "a-token-of-24-characters"
WAIT_S = 20.0
HERE = "127.0.0.2"
"""The clients' address: the gateways trust 127.0.0.1 only, which is the balancer."""
SPOOFED = {
    "X-Forwarded-For": "6.6.6.6",
    "X-Forwarded-Proto": "http",
    "Forwarded": "for=6.6.6.6;proto=http",
}
NOTHING: Mapping[str, str] = {}
NOTICE_S = 1.5
"""Time that a gateway stays after it announced its end; a balancer of these tests checks five times
a second."""


@dataclass
class Behind:
    """Gateways, and their balancer."""

    kind: Kind
    place: Place
    program: Program
    gateways: list[Server]
    url: str
    trusted: ssl.SSLContext

    def http(
        self, headers: Mapping[str, str] = NOTHING, *, has_token: bool = True
    ) -> httpx2.AsyncClient:
        """Return an HTTP client with connections of its own."""
        transport = httpx2.AsyncHTTPTransport(verify=self.trusted, local_address=HERE)
        own = {"Authorization": f"Bearer {TOKEN}"} if has_token else {}
        return httpx2.AsyncClient(
            base_url=self.url, transport=transport, headers={**own, **headers}, timeout=WAIT_S
        )

    def client(self, transport: Transport) -> tocsin.Client:
        """Return a client of the SDK."""
        return tocsin.connect(self.url, ssl=self.trusted, token=TOKEN, transport=transport)

    def log(self) -> str:
        """Return the balancer's log of requests, and of itself."""
        written = [self.place.folder / name for name in ("access.log", "error.log")]
        return self.program.said() + "".join(p.read_text() for p in written if p.exists())

    async def states(self, backend: str = "gateways") -> dict[str, str]:
        """Return HAProxy's state of each gateway."""
        said = balancing.told(self.place, f"show stat {backend} 4 -1")
        return {line["svname"]: line["status"] for line in csv.DictReader(said.splitlines())}

    async def found(self, number: int, state: str, backend: str = "gateways") -> None:
        """Wait until HAProxy has this gateway in this state."""
        await eventually(lambda: self.is_found(number, state, backend))

    async def is_found(self, number: int, state: str, backend: str) -> bool:
        return (await self.states(backend))[f"gateway-{number + 1}"].startswith(state)


async def eventually(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(WAIT_S):
        while True:
            if await holds():
                return
            await asyncio.sleep(0.02)


async def opened(folder: Path, url: str, port: int = 0) -> Server:
    """Start a gateway over the store."""

    async def build(config: Config, on_fatal: OnFatal) -> Broker:
        return await Broker.open(config, on_fatal=on_fatal)

    config = Config(
        data_dir=folder, port=port, storage=url, token=TOKEN, trusted_proxies=("127.0.0.1/32",),
        drain_s=1, drain_notice_s=NOTICE_S, encryption=False, usage=False,
    )  # fmt: skip
    return await Server.open(config, build, on_fatal=never)


@asynccontextmanager
async def behind(kind: Kind, folder: Path) -> AsyncIterator[Behind]:
    authority = Authority(folder)
    pair = authority.issue("balancer")
    certificate = folder / "tocsin.pem"
    certificate.write_bytes(pair.cert.read_bytes() + pair.key.read_bytes())
    async with AsyncExitStack() as stack:
        url = await emptied(stack.enter_context(a_server()))
        gateways: list[Server] = []
        stack.push_async_callback(stop_all, gateways)
        for number in range(3):
            gateways.append(await opened(folder / f"gateway-{number}", url))
        place = Place(
            folder, [("127.0.0.1", one._port) for one in gateways], port=free_port(),
            certificate=certificate, alive=free_port(),
            peer_port=free_port(), check_every="200ms",
        )  # fmt: skip
        program = balancing.haproxy(place) if kind == "haproxy" else balancing.nginx(place)
        trusted = ssl.create_default_context(cafile=authority.ca)
        made = Behind(kind, place, program, gateways, f"https://localhost:{place.port}", trusted)
        try:
            program.spawn()
            await eventually(lambda: is_ready(made))
            yield made
        finally:
            program.kill()


async def stop_all(gateways: list[Server]) -> None:
    """Stop the gateways that the list then has; restarted ones are new objects."""
    for gateway in gateways:
        await gateway.stop()


async def is_ready(behind: Behind) -> bool:
    assert behind.program.is_running, behind.log()
    async with behind.http() as http:
        try:
            return (await http.get("/readyz")).status_code == 200
        except httpx2.TransportError:  # it does not listen yet
            return False


@each_kind
@pytest.mark.parametrize("transport", ["websocket", "long-poll"])
async def test_what_one_client_publishes_another_one_gets(
    tmp_path: Path, kind: Kind, transport: Transport
) -> None:
    """Both clients may be at any gateways."""
    async with behind(kind, tmp_path) as made, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(made.client(transport)) for _ in range(4)]
        assert {client.transport for client in clients} == {transport}
        await clients[0].create_queue("orders", partitions=2, message_bytes_max=1_048_576)
        large = "x" * 1_000_000
        bodies: list[Any] = []
        async with asyncio.timeout(WAIT_S), clients[1].subscribe("orders", group="g") as messages:
            for client in clients:
                await client.publish("orders", large, key="k")
                await client.publish_many("orders", [{"body": n, "key": "k"} for n in range(50)])
            async for message in messages:
                bodies.append(message.body)
                await message.ack(confirm=len(bodies) == 204)
                if len(bodies) == 204:
                    break
        assert bodies == 4 * [large, *range(50)]
        if kind == "haproxy":  # nginx sends all long polls of an address to one gateway
            assert sum(bool(list(gateway.connections)) for gateway in made.gateways) > 1


@each_kind
async def test_nobody_is_believed_who_he_says_he_is(tmp_path: Path, kind: Kind) -> None:
    async with behind(kind, tmp_path) as made:
        headers = {"Authorization": f"Bearer {TOKEN}", **SPOOFED}
        socket_url = made.url.replace("https", "wss") + "/v1/ws"
        async with (
            connect(
                socket_url, ssl=made.trusted, additional_headers=headers,
                subprotocols=[Subprotocol("tocsin.v1")], local_addr=(HERE, 0),
            ) as socket,
            made.http(SPOOFED) as http,
        ):  # fmt: skip
            await socket.send('{"type":"hello"}')
            assert "welcome" in str(await socket.recv())
            assert (await http.post("/v1/sessions", content=b'{"type":"hello"}')).is_success
            entered = await http.post("/v1/access")
            found = [one for gateway in made.gateways for one in list(gateway.connections)]
            addresses = [one.address for one in found]  # type: ignore[attr-defined]
            assert addresses == 2 * [ClientAddress(HERE, True)]
            assert entered.headers["set-cookie"].endswith("; Secure")
            assert entered.headers["strict-transport-security"] == "max-age=31536000"


@each_kind
async def test_each_request_of_a_long_poll_comes_to_the_gateway_that_has_it(
    tmp_path: Path, kind: Kind
) -> None:
    """Each request may come over any connection. A session elsewhere would be 404."""
    async with behind(kind, tmp_path) as made:
        paths = [await polled(made) for _ in range(9)]
        for number in range(1, 4):
            for path in paths:
                async with made.http() as http:
                    posted = await http.post(
                        f"{path}/frames?number={number}", json={"type": "ping", "ref": number}
                    )
                    assert posted.status_code == 202
                    heard = await http.get(f"{path}/frames?after={number}&wait_s=5")
                    assert [frame["ref"] for frame in heard.json()["frames"]] == [number]
        if kind == "haproxy":
            assert [len(list(gateway.connections)) for gateway in made.gateways] == [3, 3, 3]


async def polled(made: Behind) -> str:
    """Open a session by long poll; return its path."""
    async with made.http() as http:
        answer = await http.post("/v1/sessions", json={"type": "hello"})
    assert answer.status_code == 201
    return str(answer.headers["location"])


@each_kind
async def test_a_ticket_is_good_at_the_address_where_it_was_made(
    tmp_path: Path, kind: Kind
) -> None:
    async with behind(kind, tmp_path) as made:
        for _ in range(6):
            async with made.http() as http:
                ticket = (await http.post("/v1/tickets")).json()["ticket"]
            async with made.http({"Origin": made.url}, has_token=False) as browser:
                assert (await browser.post("/v1/access", json={"ticket": ticket})).is_success
        async with made.http() as http:
            ticket = (await http.post("/v1/tickets")).json()["ticket"]
        async with connect(
            made.url.replace("https", "wss") + "/v1/ws", ssl=made.trusted, local_addr=(HERE, 0),
            subprotocols=[Subprotocol("tocsin.v1"), Subprotocol(f"tocsin.ticket.{ticket}")],
        ) as socket:  # fmt: skip
            await socket.send('{"type":"hello"}')
            assert "welcome" in str(await socket.recv())


@each_kind
async def test_a_page_hears_of_the_counters_of_one_gateway(tmp_path: Path, kind: Kind) -> None:
    """A client that is no page is sent to any gateway."""
    async with behind(kind, tmp_path) as made:
        async with made.http() as http:
            assert (await http.put("/v1/queues/q", json={"partitions": 1})).is_success
        await eventually(lambda: all_know(made, "q"))
        since: dict[str, set[int]] = {"": set(), "cors": set()}
        for mode, found in since.items():
            for _ in range(9):
                async with made.http({"Sec-Fetch-Mode": mode} if mode else NOTHING) as http:
                    counters = (await http.get("/v1/queues/q")).json()["counters"]
                    found.add(counters["since_unix_ms"])
        assert len(since["cors"]) == 1
        assert len(since[""]) == 3


async def all_know(made: Behind, name: str) -> bool:
    """Whether each gateway knows this queue."""
    for gateway in made.gateways:
        async with httpx2.AsyncClient(
            base_url=gateway.url, headers={"Authorization": f"Bearer {TOKEN}"}
        ) as http:
            if not (await http.get(f"/v1/queues/{name}")).is_success:
                return False
    return True


async def test_who_is_not_ready_keeps_its_sessions_and_gets_no_others(tmp_path: Path) -> None:
    async with behind("haproxy", tmp_path) as made:
        paths = [await polled(made) for _ in range(6)]
        leaving = made.gateways[0]
        held = len(list(leaving.connections))
        assert held
        leaving.broker.leave()
        await made.found(0, "NOLB")
        paths += [await polled(made) for _ in range(6)]
        assert len(list(leaving.connections)) == held
        async with made.http() as http:
            for path in paths:
                assert (await http.get(f"{path}/frames?after=1&wait_s=0")).status_code == 200


async def test_pages_and_tickets_leave_who_is_not_ready(tmp_path: Path) -> None:
    """The table has their former gateway, and would keep them there."""
    async with behind("haproxy", tmp_path) as made:
        async with made.http() as http:
            assert (await http.put("/v1/queues/q", json={"partitions": 1})).is_success
        await eventually(lambda: all_know(made, "q"))
        before = await counted_since(made)
        since = [await own_since(gateway) for gateway in made.gateways]
        leaving = since.index(before)
        made.gateways[leaving].broker.leave()
        await made.found(leaving, "DOWN", "pages")
        for _ in range(3):
            assert before != await counted_since(made)
            async with made.http() as http:
                assert (await http.post("/v1/tickets")).is_success


async def counted_since(made: Behind) -> int:
    """Return the time since which a page's gateway counts."""
    async with made.http({"Sec-Fetch-Mode": "cors"}) as http:
        return int((await http.get("/v1/queues/q")).json()["counters"]["since_unix_ms"])


async def own_since(gateway: Server) -> int:
    """Return the time since which this gateway counts."""
    token = {"Authorization": f"Bearer {TOKEN}"}
    async with httpx2.AsyncClient(base_url=gateway.url, headers=token) as http:
        return int((await http.get("/v1/queues/q")).json()["counters"]["since_unix_ms"])


async def test_where_none_is_ready_those_that_live_answer(tmp_path: Path) -> None:
    async with behind("haproxy", tmp_path) as made, made.http() as http:
        assert (await http.put("/v1/queues/q", json={"partitions": 1})).is_success
        path = await polled(made)
        for number, gateway in enumerate(made.gateways):
            gateway.broker.leave()
            await made.found(number, "NOLB")
        assert (await http.get("/readyz")).status_code == 503
        answer = await http.post("/v1/queues/q/messages", json={"messages": [{"body": 1}]})
        assert "offset" in answer.json()["results"][0]
        assert (await http.get(f"{path}/frames?after=1&wait_s=0")).status_code == 200


@each_kind
async def test_a_rolling_restart_fails_no_request(tmp_path: Path, kind: Kind) -> None:
    """P14: each of eight clients publishes one message after the other, over kept connections and
    new ones, while each gateway goes down and comes back. From nginx's file an operator removes the
    gateway before, because nginx does not check readiness. With a new file it closes kept
    connections."""
    async with behind(kind, tmp_path) as made:
        async with made.http() as http:
            assert (await http.put("/v1/queues/q", json={"partitions": 4})).is_success
        going, counts = asyncio.Event(), [0] * 8
        going.set()

        async def publish(number: int, *, is_kept: bool) -> None:
            while going.is_set():
                async with made.http() as http:
                    for _ in range(50 if is_kept else 1):
                        messages = [{"key": f"k{number}", "body": counts[number]}]
                        path = "/v1/queues/q/messages"
                        answer = await http.post(path, json={"messages": messages})
                        assert answer.status_code == 200, answer.text
                        assert "offset" in answer.json()["results"][0], answer.text
                        counts[number] += 1

        async def restart_all() -> None:
            for number in range(3):
                await restart(made, number)
            going.clear()

        async with asyncio.timeout(3 * WAIT_S), asyncio.TaskGroup() as tasks:
            tasks.create_task(restart_all())
            for number in range(8):
                tasks.create_task(publish(number, is_kept=number % 2 == 0 and kind == "haproxy"))
        assert min(counts) >= 3


async def restart(made: Behind, number: int) -> None:
    """Restart a gateway on the same port, as a supervisor does."""
    gateway = made.gateways[number]
    if made.kind == "nginx":
        before = made.program.said()
        made.place.nginx(without=[number])
        await reloaded(made)
        assert made.program.said() == before
    await gateway.drain()
    await gateway.stop()
    config = gateway.config
    made.gateways[number] = await opened(config.data_dir, config.storage, gateway._port)
    if made.kind == "nginx":
        made.place.nginx()
        await reloaded(made)
    else:
        await made.found(number, "UP")


async def reloaded(made: Behind) -> None:
    """Wait until nginx works by its present file, with new workers."""
    old = set(made.program.children())
    made.program.tell(signal.SIGHUP)

    async def are_others() -> bool:
        now = made.program.children()
        return bool(now) and not old.intersection(now)

    await eventually(are_others)


@each_kind
async def test_what_is_logged_holds_no_token_and_no_query(tmp_path: Path, kind: Kind) -> None:
    async with behind(kind, tmp_path) as made, made.http() as http:
        assert (await http.get("/v1/queues?after=secret")).status_code == 200

        async def is_logged() -> bool:
            return "GET /v1/queues" in made.log()

        await eventually(is_logged)
        for gateway in made.gateways:  # without any gateway, too, requests are logged
            await gateway.stop()
        made.gateways.clear()
        assert (await http.get("/v1/queues/q?key=secret")).status_code in {502, 503}
        logged = made.log()
        assert HERE in logged
        assert TOKEN not in logged
        assert "secret" not in logged
