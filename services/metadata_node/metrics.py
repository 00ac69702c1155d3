"""What a node of the metadata service tells a Prometheus."""

import time
from collections import Counter

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from metadata.service.node import Node
from runtime.metrics.exposition import Samples
from runtime.metrics.process import LoopLag, of_process


class NodeMetrics:
    """Of a node of the metadata service. `lag`: to be started by who has the loop."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._answered: Counter[str] = Counter()
        self.lag = LoopLag()

    def counting(self, app: ASGIApp) -> ASGIApp:
        """The application, whose answers are counted."""

        async def counted(scope: Scope, receive: Receive, send: Send) -> None:
            async def sending(message: Message) -> None:
                if message["type"] == "http.response.start":
                    self._answered[f"{message['status'] // 100}xx"] += 1
                await send(message)

            await app(scope, receive, sending)

        return counted

    async def collect(self) -> Samples:
        """What there is now."""
        began, samples, node = time.perf_counter(), Samples(), self._node
        of_process(samples, "metadata", "", self.lag)
        samples.put("tocsin_ready", not node.not_ready())
        for status in ("2xx", "4xx", "5xx"):
            samples.put("tocsin_node_requests_total", self._answered[status], status)
        samples.put("tocsin_node_read_age_seconds", node.age_s)
        samples.put("tocsin_node_peers", len(node.nodes))
        samples.put("tocsin_scrape_seconds", round(time.perf_counter() - began, 6))
        return samples
