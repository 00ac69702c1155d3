"""Where the store is, as one URL: what is meant is reached, anything else refused, no password
shown."""

import pytest

from storage.redis.connection import Address
from storage.redis.target import CLUSTER_DEFAULT, parse, parse_all


@pytest.mark.parametrize(
    ("text", "kind", "places", "name", "shown"),
    [
        ("redis://h", "single", [("h", 6379)], "tocsin", "redis://h:6379"),
        ("redis://[::1]:1", "single", [("::1", 1)], "tocsin", "redis://[::1]:1"),
        ("redis://[::1]", "single", [("::1", 6379)], "tocsin", "redis://[::1]:6379"),
        (
            "redis+sentinel://u:s3%2Fcret@a:1,b,c/main", "sentinel",
            [("a", 1), ("b", 26379), ("c", 26379)], "main",
            "redis+sentinel://u@a:1,b:26379,c:26379/main",
        ),
        (
            "redis+sentinel://a", "sentinel", [("a", 26379)], "tocsin",
            "redis+sentinel://a:26379/tocsin",
        ),
        (
            "rediss+cluster://u:s3@a:65535,b/?ca_file=/c", "cluster",
            [("a", 65535), ("b", 6379)], "tocsin", "rediss+cluster://u@a:65535,b:6379",
        ),
    ],
)  # fmt: skip
def test_a_url_says_who_is_asked_and_how(
    text: str, kind: str, places: list[tuple[str, int]], name: str, shown: str
) -> None:
    target = parse(text)
    assert (target.kind, target.name, target.shown) == (kind, name, shown)
    assert list(target.places) == [Address(*place) for place in places]
    assert "s3" not in f"{target} {target.shown}"


def test_a_login_and_certificates_are_taken_from_it() -> None:
    reach = parse("rediss://u:s3%2Fcret%40@h?ca_file=/ca&cert_file=/c&key_file=/k").reach
    assert (reach.username, reach.password) == ("u", "s3/cret@")
    assert (reach.ca_file, reach.cert_file, reach.key_file) == ("/ca", "/c", "/k")
    assert parse("redis://:only@h").reach.username is None


@pytest.mark.parametrize(
    "text",
    [
        "", "redis:", "redis://", "redis://h:0", "redis://h:65536", "redis://h:x", "redis://a,b",
        "redis://h/name", "redis+sentinel://h/na me", "redis+sentinel://h,", "http://h",
        "valkeys://h", "redis://h?ca_file=/c", "rediss://h", "rediss://h?ca_file=/c&cert_file=/x",
        "rediss://h?ca_file=/c&other=1", "redis://h#x", "redis+cluster://h h", "rediss+redis://h",
    ],
)  # fmt: skip
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse(text)


def test_several_clusters_have_names_and_zones() -> None:
    text = "redis://u:s3@h?cluster=a&zone=north  redis+sentinel://b,c/main?zone=south&cluster=b.2"
    one, other = parse_all(text)
    assert (one.cluster, one.zone, one.shown) == ("a", "north", "redis://u@h:6379")
    assert (other.cluster, other.zone, other.name) == ("b.2", "south", "main")
    assert parse_all("redis://h")[0].cluster == CLUSTER_DEFAULT
    (tls,) = parse_all("rediss://h?cluster=a&ca_file=/c")
    assert (tls.cluster, tls.reach.ca_file) == ("a", "/c")


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "redis://a redis://b", "redis://a?cluster=x redis://b?cluster=x",
        "redis://a?cluster=", "redis://a?cluster=a%20b", "redis://a?cluster=a&cluster=b",
        "redis://a?cluster=a,redis://b?cluster=b", "redis://a?zone=/", "redis://a?name=a",
        " ".join(f"redis://a?cluster=c{number}" for number in range(65)),
    ],
)  # fmt: skip
def test_clusters_that_cannot_be_distinguished_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_all(text)
