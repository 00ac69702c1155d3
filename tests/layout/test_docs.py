"""The documents are true: examples run, tables are the code's, links lead somewhere."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from tocsin.proto import wire

from gateway.accounting.usage import UsageLine
from gateway.admin.server import BackupTo, DeleteQueue, Park, PartitionsOf, RotateMasterKey
from gateway.deliverylog.lines import Carrier, Cause, Event, Line, SettlementOutcome
from gateway.deliverylog.lines import encode as encode_line
from gateway.rest.app import OPERATIONS
from gateway.rest.operation import NEEDS
from gateway.rest.views import TABLE
from gateway.wire import frames
from metadata.catalog import QueueSettings
from metadata.rights import VERBS
from push import limits
from push.errors import CODES, TocsinError
from runtime.metrics.registry import METRICS
from runtime.problems import Problem
from tests.layout.tree import ALL, ROOT, files, section, table_rows, text

ADMIN_REQUESTS = (BackupTo, DeleteQueue, Park, PartitionsOf, RotateMasterKey)
PROTOCOL = "docs/protocol.md"
HTTP = "docs/http.md"
RIGHTS = "docs/rights.md"
DELIVERY_LOG = "docs/operations/delivery-log.md"
USAGE = "docs/operations/usage-and-audit.md"
METRICS_PAGE = "docs/operations/observability.md"
GUARANTEES = "docs/guarantees.md"
ARCHITECTURE = "docs/architecture.md"
WITH_EXAMPLES = (PROTOCOL, HTTP, RIGHTS, USAGE, DELIVERY_LOG)


@dataclass(frozen=True)
class Example:
    """A fenced ```json block: its kind, the name of its type behind that, its text, its place."""

    kind: str
    name: str
    body: str
    page: str
    line: int

    def __str__(self) -> str:
        return f"{Path(self.page).name} line {self.line}"


def examples(*kinds: str) -> list[Example]:
    """The examples of these kinds, page by page, in order."""
    found = []
    for page in WITH_EXAMPLES:
        document = text(Path(page))
        for match in re.finditer(r"^```json (\w+) ?(\S*)\n(.*?)^```$", document, re.M | re.S):
            line = document.count("\n", 0, match.start()) + 1
            found.append(Example(match[1], match[2], match[3], page, line))
    assert {example.kind for example in found} <= {"client", "broker", "request", "answer", "line"}
    return [example for example in found if example.kind in kinds]


@cache
def documented_types() -> dict[str, Any]:
    """Name → the struct of that name in a request or an answer, as OpenAPI shows it; those of the
    admin socket and of the usage files besides."""
    structs: dict[str, Any] = {}
    whole = [answer.body for one in OPERATIONS for answer in one.answers.values() if answer.body]
    whole += [one.request for one in OPERATIONS if one.request is not None]
    for kind in (*whole, Problem, UsageLine, *ADMIN_REQUESTS):
        for struct in structs_of(msgspec.inspect.type_info(kind)):
            assert structs.setdefault(struct.__name__, struct) is struct, struct.__name__
    return structs


def structs_of(kind: msgspec.inspect.Type) -> Iterator[type]:
    """Every struct in a type."""
    match kind:
        case msgspec.inspect.StructType(cls=struct, fields=fields):
            yield struct
            for field in fields:
                yield from structs_of(field.type)
        case (
            msgspec.inspect.ListType(item_type=item) | msgspec.inspect.VarTupleType(item_type=item)
        ):
            yield from structs_of(item)
        case msgspec.inspect.UnionType(types=types):
            for one in types:
                yield from structs_of(one)
        case msgspec.inspect.DictType(value_type=value):
            yield from structs_of(value)
        case msgspec.inspect.Metadata(type=inner):
            yield from structs_of(inner)
        case _:
            pass


def type_of(example: Example) -> Any:
    """The type that an example names."""
    return documented_types()[example.name]


# --- Examples -----------------------------------------------------------------------------------


@pytest.mark.parametrize("example", examples("client"), ids=str)
def test_the_broker_decodes_every_client_frame_as_documented(example: Example) -> None:
    (frame,) = frames.decode(example.body.encode())
    assert json.loads(example.body)["type"] == type(frame).__struct_config__.tag


@pytest.mark.parametrize("example", examples("broker"), ids=str)
def test_the_encoders_write_every_broker_frame_as_documented(example: Example) -> None:
    shown = json.loads(example.body)
    assert json.loads(encode(dict(shown))) == shown


@pytest.mark.parametrize("example", examples("broker"), ids=str)
def test_the_sdk_understands_every_broker_frame(example: Example) -> None:
    (frame,) = wire.decode(example.body.encode())
    shown = json.loads(example.body)
    tag = type(frame).__struct_config__.tag
    assert shown["type"] == tag
    known = {field.encode_name for field in msgspec.structs.fields(frame)} | {"type"}
    # The SDK's user knows the group, and can count from the unsettled messages.
    assert set(shown) - known <= ({"semantics"} if tag == "ok" else {"settled"})


@pytest.mark.parametrize("example", examples("request"), ids=str)
def test_requests_are_decoded_as_documented(example: Example) -> None:
    decoded = msgspec.json.decode(example.body, type=type_of(example))
    again = json.loads(msgspec.json.encode(decoded))
    assert shown_in(json.loads(example.body), again)


def shown_in(shown: Any, whole: Any) -> bool:
    """Whether everything shown is in the whole, which may have defaults in addition."""
    if isinstance(shown, dict):
        return all(name in whole and shown_in(part, whole[name]) for name, part in shown.items())
    if isinstance(shown, list):
        return len(shown) == len(whole) and all(map(shown_in, shown, whole))
    return bool(shown == whole)


@pytest.mark.parametrize("example", examples("answer"), ids=str)
def test_answers_have_the_fields_of_their_types(example: Example) -> None:
    check_fields(json.loads(example.body), msgspec.inspect.type_info(type_of(example)))


def check_fields(shown: Any, kind: msgspec.inspect.Type) -> None:
    """Check that every object shown has only fields of its struct, and all fields that are never
    left out."""
    match kind:
        case msgspec.inspect.StructType(cls=struct, fields=fields):
            assert set(shown) <= {field.encode_name for field in fields}
            omits = struct.__struct_config__.omit_defaults
            always = {field.encode_name for field in fields if field.required or not omits}
            assert set(shown) >= always
            for field in fields:
                if field.encode_name in shown:
                    check_fields(shown[field.encode_name], field.type)
        case msgspec.inspect.ListType(item_type=item):
            for one in shown:
                check_fields(one, item)
        case msgspec.inspect.UnionType(types=types):
            for one in types:
                if isinstance(one, msgspec.inspect.StructType) and shown is not None:
                    check_fields(shown, one)
            if shown is None:
                assert msgspec.inspect.NoneType() in types
        case _:
            pass


def encode(fields: dict[str, Any]) -> bytes:
    """Return the frame that gateway.wire.frames makes of these fields."""
    match fields.pop("type"):
        case "welcome":
            given = ("session", "broker", "heartbeat_s", "linger_s", "resumed", "right_lasts_s")
            clock = {"clock_unix_us": fields["clock_unix_us"]}
            return frames.welcome(**{name: fields[name] for name in given}, **clock)
        case "ok":
            return frames.ok(**fields)
        case "error":
            failure = TocsinError(fields["code"], fields["detail"], fields.get("retry_after_s"))
            written = ("code", "detail", "retry", "retry_after_s", "ref")
            more = {name: value for name, value in fields.items() if name not in written}
            return frames.error(failure, fields.get("ref"), **more)
        case "push" if "positions" in fields:
            return frames.reader_positions(fields["subscription"], fields["positions"])
        case "push":
            messages = json.dumps(fields.pop("messages"))[1:-1].encode()
            if "epoch" in fields:
                head = frames.push_head(**{"attempt": 1, **fields})
            else:
                head = frames.reader_head(next_offset=fields.pop("next"), **fields)
            return frames.push_frame(head, messages)
        case "revoked":
            return frames.revoked(**fields)
        case "drain":
            return frames.drain(**fields)
        case "pong":
            return frames.pong(**fields)
        case "announce":
            return frames.announce(fields["bytes"])
    raise AssertionError("a frame that gateway.wire.frames does not write")


@pytest.mark.parametrize("example", examples("line"), ids=str)
def test_the_delivery_log_writes_its_lines_as_documented(example: Example) -> None:
    line = msgspec.json.decode(example.body, type=Line)
    assert json.loads(encode_line(line)) == json.loads(example.body)


def test_every_kind_and_word_of_the_delivery_log_is_documented() -> None:
    document = text(Path(DELIVERY_LOG))
    shown = {json.loads(example.body)["kind"] for example in examples("line")}
    assert shown == {kind.__struct_config__.tag for kind in get_args(Line)}
    for kind in get_args(Line):
        for field in msgspec.structs.fields(kind):
            assert field.encode_name in document, f"{kind.__name__}.{field.encode_name}"
    for word in (
        *get_args(Cause),
        *get_args(SettlementOutcome),
        *get_args(Carrier),
        *get_args(Event),
    ):
        assert f"`{word}`" in document, word


def test_every_frame_has_an_example() -> None:
    shown = {json.loads(example.body)["type"] for example in examples("client", "broker")}
    sent = {kind.__struct_config__.tag for kind in frames.ClientFrame.__args__}
    received = {kind.__struct_config__.tag for kind in wire.ReceivedFrame.__args__}
    assert shown == sent | received


def test_every_field_of_every_client_frame_is_mentioned() -> None:
    document = section(PROTOCOL, "Frames from the client")
    for kind in frames.ClientFrame.__args__:
        for field in msgspec.structs.fields(kind):
            assert field.encode_name in document, f"{kind.__name__}.{field.encode_name}"


# --- Tables -------------------------------------------------------------------------------------


def test_the_table_of_error_codes_is_the_codes() -> None:
    table = [
        f"| `{code.name}` | {code.http_status} | {'yes' if code.retry else 'no'} | {code.meaning} |"
        for code in CODES.values()
    ]
    shown = [
        line for line in section(PROTOCOL, "Error codes").splitlines() if line.startswith("| `")
    ]
    assert shown == table, "the table is to be:\n" + "\n".join(table)


def test_the_table_of_close_codes_is_the_codes() -> None:
    table = [f"| {close.code} | `{close.reason}` |" for close in frames.CLOSES]
    shown = re.findall(r"^\| \d+ .*$", section(PROTOCOL, "Close codes"), re.M)
    assert shown == table, "the table is to be:\n" + "\n".join(table)


NEED_WORDS: dict[str | None, str] = {
    None: "no credentials",
    "publish": "`publish`, for each message on its key",
    "consume": "`consume`",
    "read": "`read`; on some keys only: for one of them",
    "manage": "`manage`",
    "consume or manage": "`consume` or `manage`",
    "consume or manage or observe": "`consume`, `manage` or `observe`",
    "read or manage": "`manage`, or `read`, which also shows contents",
    "publish or manage": "`manage`, or `publish` on the message's key",
    "manage every": "`manage:*`",
    "observe every": "`observe:*` or `manage:*`",
    "any": "any right on the queue",
    "own": "nothing: it concerns one's own",
    "nothing": "nothing",
}


def test_the_table_of_calls_is_that_of_the_operations() -> None:
    """Every call, in either direction, and the right that it needs."""
    assert NEED_WORDS.keys() == {*NEEDS, None}
    rows = [row for row in table_rows(section(HTTP, "Calls")) if len(row) == 3]
    shown = {call.strip("`"): needs for call, _, needs in rows}
    assert len(shown) == len(rows)
    assert shown == {f"{one.method} {one.path}": NEED_WORDS[one.needs] for one in OPERATIONS}


def test_the_table_of_what_a_right_shows_is_that_of_the_views() -> None:
    rows = dict(table_rows(section(HTTP, "Figures"))[: len(TABLE)])
    assert [name.strip("`") for name in rows] == list(TABLE)
    for name, verbs in TABLE.items():
        assert rows[f"`{name}`"] == ", ".join(f"`{verb}`" for verb in VERBS if verb in verbs)


def test_the_table_of_metrics_is_that_of_the_code() -> None:
    rows = table_rows(section(METRICS_PAGE, "Metrics"))
    assert [row[0].strip("`") for row in rows] == list(METRICS)
    for name, kind, labels, of, words in rows:
        metric = METRICS[name.strip("`")]
        assert (kind, words) == (metric.kind, metric.help)
        assert tuple(re.findall(r"`([a-z]+)`", labels)) == metric.labels
        assert ("*holders*" in of) is metric.is_for_holders
        assert tuple(one for one in of.split(", ") if one != "*holders*") == metric.of


def test_bounds_have_the_values_of_the_code() -> None:
    for name, value, _ in table_rows(section(PROTOCOL, "Bounds")):
        assert float(value) == getattr(limits, name.strip("`")), name


def test_every_queue_setting_is_in_the_table_with_its_default() -> None:
    shown: dict[str, str] = {}
    rows = [row for row in table_rows(section(HTTP, "Queues")) if len(row) == 3]
    for names, defaults, _ in rows:
        for name, default in zip(names.split(", "), defaults.split(", ") * 2, strict=False):
            shown[name.strip("`")] = default.strip("`")
    for field in msgspec.structs.fields(QueueSettings):
        default = "none" if field.default in (None, ()) else str(field.default)
        assert shown[field.name] == default.removesuffix(".0"), field.name


# --- Promises and rules -------------------------------------------------------------------------


def test_all_promises_and_rules_are_there_in_order() -> None:
    shown = re.findall(r"^### ([PR]\d+)\. ", text(Path(GUARANTEES)), re.M)
    promises = [f"P{number}" for number in range(1, 15)]
    assert shown == promises + [f"R{number}" for number in range(1, 33)]


def entries() -> dict[str, str]:
    """Promise or rule → its text on the page of guarantees."""
    parts = re.split(r"^### ([PR]\d+)\. ", text(Path(GUARANTEES)), flags=re.M)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


@pytest.mark.parametrize(("number", "said"), entries().items(), ids=entries())
def test_a_guarantee_names_where_it_is_enforced_and_tested(number: str, said: str) -> None:
    """The named files exist and name it."""
    for word in ("Enforced", "Tested"):
        found = re.search(rf"^{word}: (.*?)\.$", said, re.M | re.S)
        assert found is not None, f"{number} has no line {word!r}"
        for name in re.findall(r"`([^`]+)`", found[1]):
            assert (ROOT / name).is_file(), f"{number}: {name} is gone"
            assert re.search(rf"\b{number}\b", text(Path(name))), f"{name} does not name {number}"


@pytest.mark.parametrize("page", sorted(files(".md", "docs")), ids=str)
def test_a_page_names_files_that_exist(page: Path) -> None:
    """Paths in backquotes, from the root, of the folders of this checkout."""
    for name in re.findall(r"`([a-z]+/[\w./-]*\.(?:py|js|sql|lua|toml|json))`", text(page)):
        if name.partition("/")[0] in ALL:
            assert (ROOT / name).is_file(), name


@pytest.mark.parametrize(("page", "lines_max"), [("README.md", 180), (ARCHITECTURE, 400)])
def test_a_page_is_read_to_its_end(page: str, lines_max: int) -> None:
    assert len(text(Path(page)).splitlines()) <= lines_max
