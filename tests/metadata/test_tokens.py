"""API tokens (P11): their form, who is let in and for how long, and what is kept of them."""

import asyncio
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata import token_store as token_book
from metadata import tokens
from metadata.catalog_service import CatalogService
from metadata.sqlite.catalog import FILE, CatalogFile
from metadata.sqlite.verify import verify_catalog
from metadata.tokens import TokenIndex, TokenRecord, check_record, id_of, judge, write_token
from push import limits
from push.errors import Refused
from tests.catalogs import open_catalog
from tests.gateway.plain_tokens import record, text
from tests.metadata.keepers import Keeper

WALL = 1_763_690_400.0
TOKEN = text("abcdefgh")
IDS = st.text(tokens.ID_ALPHABET, min_size=8, max_size=8)
SECRETS = st.text(tokens.SECRET_ALPHABET, min_size=24, max_size=24)


def judged(presented: str, *records: TokenRecord, wall: float = WALL) -> TokenRecord | None:
    return judge(presented, TokenIndex(records).find, wall=wall)


# --- The form -----------------------------------------------------------------------------------


@given(IDS, SECRETS)
def test_a_token_names_its_id(token_id: str, secret: str) -> None:
    whole = write_token(token_id, secret)
    assert id_of(whole) == token_id
    assert len(whole) == 43


def test_the_secret_has_at_least_128_bits() -> None:
    """ASVS 5.0, 7.2.3."""
    assert len(tokens.SECRET_ALPHABET) ** tokens.SECRET_LETTERS >= 2**128
    assert len(set(tokens.SECRET_ALPHABET)) == 62


@given(IDS, SECRETS, st.integers(0, 42), st.characters())
def test_a_typo_is_no_token(token_id: str, secret: str, place: int, letter: str) -> None:
    """The checksum: nobody is looked up for it."""
    whole = write_token(token_id, secret)
    other = whole[:place] + letter + whole[place + 1 :]
    assert other == whole or id_of(other) is None


def test_a_token_cut_anywhere_is_none() -> None:
    assert all(id_of(TOKEN[:end]) is None for end in range(len(TOKEN)))
    assert id_of(TOKEN + "\n") is None


# --- Who is let in --------------------------------------------------------------------------------


def test_a_token_is_its_record() -> None:
    kept, other = record("abcdefgh"), record("bbbbbbbb")
    assert judged(TOKEN, other, kept) == kept
    assert judged(TOKEN, other) is None


def test_the_right_id_with_another_secret_is_nobody() -> None:
    assert judged(write_token("abcdefgh", "OtherOtherOtherOtherOthe"), record("abcdefgh")) is None
    stolen = record("abcdefgh", digest=record("bbbbbbbb").digest)
    assert judged(TOKEN, stolen) is None


def test_the_digest_is_no_token_and_a_certificate_s_record_takes_none() -> None:
    kept = record("abcdefgh")
    assert judged(kept.digest.hex(), kept) is None
    certified = record("abcdefgh", kind="certificate", certificate="meter-7")
    assert judged(TOKEN, certified) is None


def test_a_token_is_good_until_it_ends() -> None:
    kept = record("abcdefgh", ends=WALL + 10)
    assert judged(TOKEN, kept, wall=WALL + 9.999) == kept
    assert judged(TOKEN, kept, wall=WALL + 10) is None
    assert kept.lasts_s(wall=WALL) == 10
    assert record("abcdefgh").lasts_s(wall=WALL) == float("inf")


def test_a_certificate_is_the_newest_record_that_is_good() -> None:
    old, new, over = (
        record(token_id, kind="certificate", certificate="meter-7", digest=b"",
               created_unix_ms=created, expires_unix_ms=ends)
        for token_id, created, ends in (("a", 1, None), ("b", 2, None), ("c", 3, 4))
    )  # fmt: skip
    index = TokenIndex([new, over, old])
    assert tokens.judge_certificate(index.of_certificate("meter-7"), wall=WALL) == new
    index.remove(new)
    index.remove(new)
    assert tokens.judge_certificate(index.of_certificate("meter-7"), wall=WALL) == old
    assert tokens.judge_certificate(index.of_certificate("meter-8"), wall=WALL) is None


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"name": "operator"}, "invalid_name"),
        ({"name": "anybody"}, "invalid_name"),
        ({"name": "broker"}, "invalid_name"),
        ({"name": "a b"}, "invalid_name"),
        ({"tenant": ""}, "invalid_name"),
        ({"rights": ()}, "invalid_request"),
        ({"rights": ("publish",)}, "invalid_request"),
        ({"rights": ("publish:a",) * 101}, "invalid_request"),
        ({"expires_unix_ms": 1}, "invalid_request"),
        ({"kind": "certificate"}, "invalid_request"),
        ({"certificate": "x"}, "invalid_request"),
        ({"kind": "certificate", "certificate": ""}, "invalid_request"),
        ({"kind": "certificate", "certificate": "x" * 257}, "invalid_request"),
    ],
)
def test_what_no_token_may_be(change: dict[str, object], code: str) -> None:
    with pytest.raises(Refused) as refused:
        check_record(msgspec.structs.replace(record(), **change))
    assert refused.value.code.name == code


def test_what_a_token_may_be() -> None:
    check_record(record("abcdefgh", "billing", *("publish:a",) * 100, expires_unix_ms=2))
    check_record(record(kind="certificate", certificate="x" * 256))


# --- The catalog --------------------------------------------------------------------------------


@pytest.mark.layouts
async def test_tokens_outlive_a_restart_and_revoked_ones_do_not(keeper: Keeper) -> None:
    catalog = await keeper.open()
    ended: list[TokenRecord] = []
    catalog.tokens.on_revoked(ended.append)
    for token_id in ("abcdefgh", "bbbbbbbb"):
        await catalog.tokens.create(record(token_id))
    assert await catalog.tokens.revoke("bbbbbbbb") == record("bbbbbbbb")
    assert ended == [record("bbbbbbbb")]
    await catalog.close()
    catalog = await keeper.open()
    assert catalog.tokens.listed() == [record("abcdefgh")]
    with pytest.raises(Refused) as refused:
        await catalog.tokens.revoke("bbbbbbbb")
    assert refused.value.code.name == "not_found"
    await catalog.close()


def test_nothing_in_the_file_admits_anybody(tmp_path: Path) -> None:
    with closing(CatalogFile(tmp_path / FILE)) as store:
        store.put_token(record("abcdefgh"))
    held = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"abcdefgh" in held
    assert TOKEN.encode() not in held
    assert b"SecretSecret" not in held


async def test_an_id_is_not_taken_twice_and_tokens_are_bounded(
    catalog: CatalogService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P9."""
    monkeypatch.setattr(token_book, "TOKENS_MAX", 2)
    assert limits.TOKENS_MAX == 10_000
    await catalog.tokens.create(record("abcdefgh"))
    with pytest.raises(Refused, match="already"):
        await catalog.tokens.create(record("abcdefgh", "other"))
    await catalog.tokens.create(record("bbbbbbbb"))
    with pytest.raises(Refused, match="at most 2") as refused:
        await catalog.tokens.create(record("cccccccc"))
    assert refused.value.code.name == "limit_reached"
    assert [one.name for one in catalog.tokens.listed()] == ["billing", "billing"]


async def test_the_last_use_is_kept_to_the_hour(
    catalog: CatalogService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write a request would be a disk's work."""
    kept: list[int | None] = []
    written = asyncio.Event()
    put = catalog._store.put_token

    async def counted(one: TokenRecord) -> None:
        await put(one)
        kept.append(one.last_used_unix_ms)
        written.set()

    await catalog.tokens.create(record("abcdefgh"))
    monkeypatch.setattr(catalog._store, "put_token", counted)
    hour = token_book.USED_EVERY_MS
    for unix_ms in (hour, hour + 1, 2 * hour - 1, 2 * hour):
        written.clear()
        before = len(kept)
        catalog.tokens.note_used("abcdefgh", unix_ms=unix_ms)
        if unix_ms % hour == 0:
            await asyncio.wait_for(written.wait(), 10)
        assert len(kept) - before == (unix_ms % hour == 0)
    catalog.tokens.note_used("unknownn", unix_ms=hour)
    assert kept == [hour, 2 * hour]


@pytest.mark.parametrize(
    "damage", ["checksum = checksum + 1", "value = 'x'", "value = x'7b7d'", "token_id = 'other'"]
)
async def test_a_damaged_token_admits_nobody_and_the_rest_goes_on(
    tmp_path: Path, damage: str
) -> None:
    """R30, P13."""
    with closing(CatalogFile(tmp_path / FILE)) as store:
        store.put_token(record("abcdefgh"))
        store.put_token(record("bbbbbbbb"))
        store._connection.execute(f"UPDATE tokens SET {damage} WHERE token_id = 'abcdefgh'")
    report = verify_catalog(tmp_path / FILE)
    assert report.damaged == {"tokens": 1}
    assert report.rows["tokens"] == 2
    catalog = await open_catalog(tmp_path)
    assert catalog.tokens.listed() == [record("bbbbbbbb")]
    await catalog.close()
