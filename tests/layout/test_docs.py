"""Documents must be true: PROTOCOL.md's examples run, and its tables equal the code's."""

import importlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from tocsin.proto import wire

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
from tests.layout.tree import ROOT, section, table_rows, text


@dataclass(frozen=True)
class Example:
    """A fenced ```json block: its kind, the word after the kind, its text, its line."""

    kind: str
    detail: str
    body: str
    line: int

    def __str__(self) -> str:
        return f"line {self.line}"


def examples(*kinds: str) -> list[Example]:
    """Return the examples of these kinds in PROTOCOL.md, in order."""
    document = text(Path("PROTOCOL.md"))
    found = []
    for match in re.finditer(r"^```json ?(\w*) ?(\S*)\n(.*?)^```$", document, re.M | re.S):
        line = document.count("\n", 0, match.start()) + 1
        found.append(Example(match[1], match[2], match[3], line))
    assert {example.kind for example in found} <= {"client", "broker", "request", "answer"}
    return [example for example in found if example.kind in kinds]


def type_of(example: Example) -> Any:
    """Return the type that an example names as `module:Name`."""
    module, _, name = example.detail.partition(":")
    return getattr(importlib.import_module(module), name)


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


LINES = re.findall(r"^```ndjson\n(.*?)^```$", text(Path("PROTOCOL.md")), re.M | re.S)


@pytest.mark.parametrize("line", "".join(LINES).splitlines())
def test_the_delivery_log_writes_its_lines_as_documented(line: str) -> None:
    assert json.loads(encode_line(msgspec.json.decode(line, type=Line))) == json.loads(line)


def test_every_kind_and_word_of_the_delivery_log_is_documented() -> None:
    document = section("PROTOCOL.md", "The delivery log")
    shown = {json.loads(line)["kind"] for line in "".join(LINES).splitlines()}
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
    document = section("PROTOCOL.md", "Frames from the client")
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
        line
        for line in section("PROTOCOL.md", "Error codes").splitlines()
        if line.startswith("| `")
    ]
    assert shown == table, "the table is to be:\n" + "\n".join(table)


def test_the_table_of_close_codes_is_the_codes() -> None:
    table = [f"| {close.code} | {close.reason} |" for close in frames.CLOSES]
    shown = re.findall(r"^\| \d+ .*$", section("PROTOCOL.md", "Close codes"), re.M)
    assert shown == table, "the table is to be:\n" + "\n".join(table)


def test_the_table_of_needs_is_that_of_the_operations() -> None:
    rows = dict(table_rows(section("PROTOCOL.md", "Rights"))[-len(NEEDS) :])
    assert list(rows) == list(NEEDS.values())
    for need, meaning in NEEDS.items():
        named = [f"`{one.method} {one.path}`" for one in OPERATIONS if one.needs == need]
        assert rows[meaning] == ", ".join(named)


def test_the_table_of_what_a_right_shows_is_that_of_the_views() -> None:
    figures = section("PROTOCOL.md", "HTTP").partition("### Figures")[2]
    rows = dict(table_rows(figures)[: len(TABLE)])
    assert [name.strip("`") for name in rows] == list(TABLE)
    for name, verbs in TABLE.items():
        assert rows[f"`{name}`"] == ", ".join(f"`{verb}`" for verb in VERBS if verb in verbs)


def test_the_table_of_metrics_is_that_of_the_code() -> None:
    rows = table_rows(section("PROTOCOL.md", "Metrics"))
    assert [row[0].strip("`") for row in rows] == list(METRICS)
    for name, kind, labels, of, words in rows:
        metric = METRICS[name.strip("`")]
        assert (kind, words) == (metric.kind, metric.help)
        assert tuple(re.findall(r"`([a-z]+)`", labels)) == metric.labels
        assert ("*holders*" in of) is metric.is_for_holders
        assert tuple(one for one in of.split(", ") if one != "*holders*") == metric.of


def test_bounds_have_the_values_of_the_code() -> None:
    for name, value, _ in table_rows(section("PROTOCOL.md", "Bounds")):
        assert float(value) == getattr(limits, name.strip("`")), name


def test_every_queue_setting_is_in_the_table_with_its_default() -> None:
    shown: dict[str, str] = {}
    rows = [row for row in table_rows(section("PROTOCOL.md", "HTTP")) if len(row) == 3]
    for names, defaults, _ in rows:
        for name, default in zip(names.split(", "), defaults.split(", ") * 2, strict=False):
            shown[name.strip("`")] = default.strip("`")
    for field in msgspec.structs.fields(QueueSettings):
        default = "none" if field.default in (None, ()) else str(field.default)
        assert shown[field.name] == default.removesuffix(".0"), field.name


def test_every_http_operation_is_in_the_table_and_the_other_way_round() -> None:
    from gateway.rest.app import OPERATIONS  # the application of all routes: imported where needed

    shown = re.findall(r"^\| `([A-Z]+ /\S*)` \|", section("PROTOCOL.md", "HTTP"), re.M)
    assert sorted(shown) == sorted(f"{one.method} {one.path}" for one in OPERATIONS)


# --- Promises and rules -------------------------------------------------------------------------

LATER = re.compile(r"later: .+")


def numbered(letter: str) -> dict[str, tuple[str, str]]:
    """Return id → (enforced in, tested in), of every row of ARCHITECTURE.md that has such an id."""
    document = section("ARCHITECTURE.md", "Promises" if letter == "P" else "Rules")
    return {
        row[0]: (row[2], row[3])
        for row in table_rows(document)
        if re.fullmatch(rf"{letter}\d+", row[0])
    }


@pytest.mark.parametrize(
    ("number", "places"),
    [(n, places) for letter in "PR" for n, places in numbered(letter).items()],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_rule_stands_where_the_architecture_says(number: str, places: tuple[str, str]) -> None:
    """The named files exist and mention the id; a rule that waits for something says for what."""
    for cell in places:
        named = re.findall(r"`([^`]+)`", cell)
        assert named or LATER.fullmatch(cell), f"{number} is neither here nor later"
        for name in named:
            content = (ROOT / name).read_text()
            assert re.search(rf"\b{number}\b", content), f"{name} does not mention {number}"


def test_all_promises_and_rules_are_there_in_order() -> None:
    assert list(numbered("P")) == [f"P{number}" for number in range(1, 15)]
    assert list(numbered("R")) == [f"R{number}" for number in range(1, 32)]
