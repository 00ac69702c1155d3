"""The exposition of metrics: the samples of one scrape, their text, and /metrics that serves it.

The text is Prometheus' text format 0.0.4, or OpenMetrics 1.0.0 if the client accepts it. It is
written by hand, because of the turns: prometheus-client makes the text of a whole registry at once,
and its samples are objects. Here it is written metric by metric, and others have their turn in
between (`runtime.loop.fairness`). Nothing here needs its counters with a lock each. Sources:
https://prometheus.io/docs/instrumenting/exposition_formats/ and
https://prometheus.io/docs/specs/om/open_metrics_spec/

A node of the metadata service serves /metrics beside its API; a manager, and a gateway for its
operator, on a port for metrics alone.
"""

import asyncio
import hmac
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from push.errors import Refused
from push.histogram import Histogram
from runtime.listener import Listener, bind
from runtime.loop.fairness import TimeSlices
from runtime.metrics.registry import METRICS, Metric
from runtime.operation import Health, reply
from runtime.problems import Problems

Value = float | Histogram
Labels = tuple[str, ...]
_NONE: Final[dict[Labels, Value]] = {}


class Samples:
    """Values by metric and labels; two values of one place are added up."""

    def __init__(self) -> None:
        self._found: dict[str, dict[Labels, Value]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._found.values()))

    def put(self, name: str, value: float, *labels: str) -> None:
        """Add a value. Raises KeyError, AssertionError if the table has no such metric."""
        metric = METRICS[name]
        assert metric.kind != "histogram", name
        assert len(labels) == len(metric.labels), name
        of = self._found.setdefault(name, {})
        before = of.get(labels, 0.0)
        assert not isinstance(before, Histogram)
        of[labels] = before + value

    def most(self, name: str, value: float, *labels: str) -> None:
        """Set a value, unless the one at this place is larger. For ages, for example."""
        before = self.number(name, *labels)
        self.put(name, max(value, before) - before, *labels)

    def spread(self, name: str, histogram: Histogram, *labels: str) -> None:
        """Add a histogram, as it is at this moment. Raises like `put`."""
        metric = METRICS[name]
        assert metric.kind == "histogram", name
        assert len(labels) == len(metric.labels), name
        of = self._found.setdefault(name, {})
        kept = of.setdefault(labels, Histogram(histogram.bounds))
        assert isinstance(kept, Histogram)
        kept.merge(histogram)

    def number(self, name: str, *labels: str) -> float:
        """Return the value at this place; 0 if there is none."""
        value = self._found.get(name, _NONE).get(labels, 0.0)
        assert not isinstance(value, Histogram), name
        return value

    def histogram(self, name: str, *labels: str) -> Histogram:
        """Return the histogram at this place; an empty one if there is none."""
        value = self._found.get(name, _NONE).get(labels, Histogram())
        assert isinstance(value, Histogram), name
        return value

    def of_tenant(self, tenant: str) -> "Samples":
        """Return the samples without those of other tenants' queues, or of several tenants together
        (P11)."""
        seen = Samples()
        for name, values in self._found.items():
            if "tenant" in METRICS[name].labels:
                at = METRICS[name].labels.index("tenant")
                own = {labels: one for labels, one in values.items() if labels[at] == tenant}
            else:
                own = values
            if own:
                seen._found[name] = own
        return seen

    def families(self) -> Iterator[tuple[Metric, dict[Labels, Value]]]:
        """Yield each metric that has samples, in the table's order."""
        for name, metric in METRICS.items():
            if name in self._found:
                yield metric, self._found[name]


TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
OPEN: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_LINES_PER_LOOK: Final = 200
"""Number of lines after which the clock is checked, whether it is another task's turn."""


_RANGE: Final = re.compile(r'(?:[^,"]|"(?:[^"\\]|\\.)*")+')
_PARAMETER: Final = re.compile(
    r';[ \t]*(?P<name>[^\s;=]+)[ \t]*=[ \t]*(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<token>[^\s;,]*))'
)
_WEIGHT: Final = re.compile(r"0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?")
_OPEN_FORM: Final = ("application", "openmetrics-text", {"version": "1.0.0", "charset": "utf-8"})
_TEXT_FORM: Final = ("text", "plain", {"version": "0.0.4", "charset": "utf-8"})
_Form = tuple[str, str, Mapping[str, str]]
ACCEPT_CHARS_MAX: Final = 4096
"""Number of characters of the header `Accept` that are read; the rest is ignored."""


def is_open(accept: Iterable[str]) -> bool:
    """Whether a request prefers OpenMetrics to the text format, by its `Accept` headers (RFC 9110,
    section 12.5.1). With equal weights only if it names OpenMetrics. With neither it gets the text
    format."""
    ranges = list(_ranges(",".join(accept)[:ACCEPT_CHARS_MAX]))
    wanted, named = _weight(_OPEN_FORM, ranges)
    other, _ = _weight(_TEXT_FORM, ranges)
    return wanted > other or (wanted == other > 0 and named)


def _ranges(accept: str) -> Iterator[tuple[str, str, dict[str, str], float]]:
    """Yield the media ranges of the header: type, subtype, parameters, weight. Invalid ones are
    left out."""
    for found in _RANGE.finditer(accept):
        kind, _, rest = found[0].partition(";")
        major, slash, minor = kind.strip().lower().partition("/")
        if not slash or not major or not minor:
            continue
        parameters = {
            one["name"].lower(): (one["token"] if one["quoted"] is None else one["quoted"]).lower()
            for one in _PARAMETER.finditer(f";{rest}")
        }
        weight = parameters.pop("q", "1")
        if _WEIGHT.fullmatch(weight):
            yield major, minor, parameters, float(weight)


def _weight(
    form: _Form, ranges: Iterable[tuple[str, str, dict[str, str], float]]
) -> tuple[float, bool]:
    """Return the weight of a form, by the most specific range that contains it, and whether that
    range names it. Parameters that no form has (`escaping`) have no effect."""
    best, weight = -1, 0.0
    for major, minor, parameters, asked in ranges:
        if major not in ("*", form[0]) or minor not in ("*", form[1]):
            continue
        own = {name: value for name, value in parameters.items() if name in form[2]}
        if any(form[2][name] != value for name, value in own.items()):
            continue
        specific = 0 if major == "*" else 1 if minor == "*" else 2 + len(own)
        if specific > best or (specific == best and asked > weight):
            best, weight = specific, asked
    return weight, best >= 2


async def exposed(samples: Samples, *, as_open: bool) -> bytes:
    """Return the whole text of a scrape. It is made in slices, so that other tasks have their
    turn."""
    slices, lines = TimeSlices(), list[str]()
    for metric, values in samples.families():
        lines += head(metric, as_open=as_open)
        for line in body(metric, values):
            lines.append(line)
            if len(lines) % _LINES_PER_LOOK == 0:
                await slices.yield_if_over()
    if as_open:
        lines.append("# EOF")
    return ("\n".join(lines) + "\n").encode()


def head(metric: Metric, *, as_open: bool) -> list[str]:
    """Return the lines before a metric's samples. OpenMetrics names a counter without `_total`."""
    name = metric.name.removesuffix("_total") if as_open else metric.name
    text = metric.help.replace("\\", "\\\\").replace("\n", "\\n")
    if as_open:
        text = text.replace('"', '\\"')
    return [f"# HELP {name} {text}", f"# TYPE {name} {metric.kind}"]


def body(metric: Metric, values: Mapping[Labels, Value]) -> Iterator[str]:
    """Yield the lines of a metric's samples, by labels."""
    for labels in sorted(values):
        value = values[labels]
        named = ",".join(
            f'{name}="{escaped(text)}"' for name, text in zip(metric.labels, labels, strict=True)
        )
        if isinstance(value, Histogram):
            yield from _spread(metric.name, named, value)
        else:
            yield (
                f"{metric.name}{{{named}}} {number(value)}"
                if named
                else (f"{metric.name} {number(value)}")
            )


def _spread(name: str, named: str, histogram: Histogram) -> Iterator[str]:
    so_far, comma = 0, "," if named else ""
    for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
        so_far += count
        yield f'{name}_bucket{{{named}{comma}le="{_bound(bound)}"}} {so_far}'
    braces = f"{{{named}}}" if named else ""
    yield f"{name}_sum{braces} {number(histogram.total)}"
    yield f"{name}_count{braces} {so_far}"


def escaped(text: str) -> str:
    """Escape the value of a label."""
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _bound(bound: float) -> str:
    """Write a bucket's bound: OpenMetrics requires 1.0, and Prometheus accepts it."""
    return "+Inf" if bound == float("inf") else repr(float(bound))


def number(value: float) -> str:
    """Write a number in the form that both formats read."""
    return repr(int(value)) if value == int(value) and abs(value) < 1e15 else repr(float(value))


Collect = Callable[[], Awaitable[Samples]]
PATH = "/metrics"


def shows(headers: list[tuple[bytes, bytes]], token: str) -> bool:
    """Whether a request presents this token. It is compared in constant time."""
    said = dict(headers).get(b"authorization", b"")
    return hmac.compare_digest(said, b"Bearer " + token.encode())


async def answer(request: Request, samples: Samples) -> Response:
    """Return the HTTP answer with the text of these samples, in the format that the request
    prefers."""
    as_open = is_open(request.headers.getlist("accept"))
    text = await exposed(samples, as_open=as_open)
    return Response(text, headers={"Content-Type": OPEN if as_open else TEXT, "Vary": "Accept"})


def scrape(collect: Collect) -> Route:
    """Return the route of /metrics; the caller checks the rights before."""

    async def metrics(request: Request) -> Response:
        return await answer(request, await collect())

    return Route(PATH, metrics, methods=["GET"])


def application(collect: Collect, token: str | None) -> ASGIApp:
    """Make an application with /metrics and /healthz only. Without a `token` every client may
    scrape."""

    async def healthz(request: Request) -> Response:
        return reply(Health("alive"))

    router = Router(
        [scrape(collect), Route("/healthz", healthz, methods=["GET"])], redirect_slashes=False
    )

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = guarded  # the router then raises 404 and 405
        if token is not None and scope["path"] == PATH and not shows(scope["headers"], token):
            raise Refused(
                "unauthorized",
                "present the token of TOCSIN_METRICS_TOKEN: Authorization: Bearer <token>",
            )
        await router(scope, receive, send)

    return Problems(guarded)


class MetricsServer:
    """A port for metrics only. Without a token it must be reachable only from this machine, which
    the caller checks."""

    def __init__(self, host: str, port: int, collect: Collect, token: str | None) -> None:
        """Bind the port. Raises StartError."""
        self._bound = bind(host, port)
        self.port: int = self._bound.getsockname()[1]
        self._listener = Listener(application(collect, token), self._bound)

    async def start(self) -> None:
        """Accept connections."""
        await self._listener.start()

    async def stop(self) -> None:
        """Close the port. Requests under way have up to 1 s to be answered."""
        async with asyncio.timeout(5):
            await self._listener.finish(1)
