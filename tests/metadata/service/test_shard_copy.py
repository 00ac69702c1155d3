"""What a node of the metadata service keeps of the catalog, against a naive model."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.backend import NOWHERE, CatalogPlace, CatalogRows, Raw
from metadata.service.shards import SHARDS, NotInMemory, Rows, ShardCopy, rows_of, shard_of

ALL = frozenset(range(SHARDS))


class Model:
    """A database that remembers every version of everything."""

    def __init__(self) -> None:
        self.versions: list[dict[str, bytes]] = [{}]

    def change(self, row_id: str, value: bytes) -> None:
        rows = dict(self.versions[-1])
        if value:
            rows[row_id] = value
        else:
            rows.pop(row_id, None)
        self.versions.append(rows)

    @property
    def version(self) -> int:
        return len(self.versions)

    def place(self, version: int) -> CatalogPlace:
        return CatalogPlace("i", version, f"s{version}")

    def read(self, since: int) -> CatalogRows:
        """0: everything."""
        now, raw = self.versions[-1], Raw()
        if not since:
            raw["queues"] = dict(now)
            return CatalogRows(self.place(self.version), raw, True, b"secret")
        before = self.versions[since - 1]
        raw["queues"] = {
            row_id: now.get(row_id)
            for row_id in before.keys() | now.keys()
            if any(
                one.get(row_id) != two.get(row_id)
                for one, two in zip(self.versions[since - 1 :], self.versions[since:], strict=False)
            )
        }
        return CatalogRows(self.place(self.version), raw, False, b"secret")


ACTS = st.lists(
    st.one_of(
        st.tuples(
            st.just("change"), st.sampled_from("abcdefgh"), st.sampled_from([b"", b"1", b"2"])
        ),
        st.tuples(st.just("learn"), st.booleans(), st.none()),
        st.tuples(st.just("hold"), st.sampled_from("abcdefgh"), st.none()),
        st.tuples(st.just("let go"), st.sampled_from("abcdefgh"), st.none()),
        st.tuples(st.just("read"), st.none(), st.none()),
    ),
    max_size=40,
)


def applied(rows: dict[str, bytes], raw: Raw) -> dict[str, bytes]:
    after = dict(rows)
    for row_id, value in raw.get("queues", {}).items():
        if value is None:
            after.pop(row_id, None)
        else:
            after[row_id] = value
    return after


@given(ACTS)
def test_what_is_held_and_what_is_told_is_what_the_database_has(
    acts: list[tuple[str, object, object]],
) -> None:
    """Whatever is changed, learned, gained and let go, in any order: a shard that is held has the
    rows of `place`, and who was at any place before comes to it by what is told, or is told that
    this is not known here."""
    model, early = Model(), None
    copy = ShardCopy(model.read(0), ALL)
    for act, one, two in acts:
        if act == "change":
            model.change(str(one), bytes(two))  # type: ignore[call-overload]
        elif act == "learn" and (one or copy.place.version < model.version):
            reading = model.read(0 if one else copy.place.version)
            copy.learn(reading)
        elif act == "read":
            early = model.read(0)
        elif act == "hold" and early is not None:
            copy.hold([shard_of("queues", str(one))], early)
        elif act == "let go":
            copy.let_go([shard_of("queues", str(one))])
        there = model.versions[copy.place.version - 1]
        for shard in copy.shards:
            expected: Rows = rows_of({"queues": dict(there)}, shard)
            assert {k: v for k, v in copy.shard(shard).items() if v} == expected
        for version in range(1, copy.place.version + 1):
            try:
                told = copy.since(model.place(version))
            except NotInMemory:
                continue
            before = model.versions[version - 1]
            assert applied(before, told.raw if told is not None else {}) == there


def test_what_is_not_here_is_not_guessed() -> None:
    model = Model()
    copy = ShardCopy(model.read(0), [])
    model.change("a", b"1")
    copy.learn(model.read(1))
    for seen in (
        NOWHERE,
        CatalogPlace("i", 2, "another"),
        CatalogPlace("i", 3, "s3"),
        CatalogPlace("j", 1, "s1"),
    ):
        with pytest.raises(NotInMemory):
            copy.since(seen)
    with pytest.raises(NotInMemory):
        copy.shard(0)
    assert copy.since(CatalogPlace("i", 2, "s2")) is None


def test_a_shard_is_not_taken_from_a_reading_that_is_newer_or_forgotten() -> None:
    model = Model()
    copy = ShardCopy(model.read(0), [])
    early = model.read(0)
    model.change("a", b"1")
    late = model.read(0)
    shard = shard_of("queues", "a")
    assert not copy.hold([shard], late)
    copy.learn(model.read(1))
    assert copy.hold([shard], early)
    assert copy.shard(shard) == {"queues": {"a": b"1"}}
    copy.learn(model.read(0))  # a jump: what was between is not known
    copy.let_go([shard])
    assert not copy.hold([shard], early)
