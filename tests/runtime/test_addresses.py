"""Whom a request is believed to come from: trusted proxies tell it, others cannot."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.addresses import (
    CLIENT,
    PROXIES_MAX,
    UNKNOWN,
    Addresses,
    ClientAddress,
    certificate_name,
    client_address,
    parse_address,
    parse_networks,
    peer_of,
)

TRUSTED = parse_networks("10.0.0.0/8, 127.0.0.1, fd00::/8")
PROXY = ClientAddress("10.0.0.1", False)
STRANGER = ClientAddress("203.0.113.7", False)
HEADER = "X-Client-Name"


def behind(*headers: tuple[str, str], peer: ClientAddress = PROXY) -> ClientAddress:
    """Return who is behind the peer, which is asked only where it is trusted."""
    addresses = Addresses(TRUSTED, certificate_header=HEADER)
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers]
    return addresses.behind(peer, raw) if addresses.trusts(peer) else peer


@pytest.mark.parametrize(
    ("forwarded", "client"),
    [
        (["198.51.100.4"], "198.51.100.4"),
        (["1.1.1.1, 198.51.100.4"], "198.51.100.4"),  # the left one is the client's own word
        (["1.1.1.1", "198.51.100.4"], "198.51.100.4"),  # several headers are one list
        (["198.51.100.4, 10.9.9.9"], "198.51.100.4"),  # through two proxies of ours
        (["198.51.100.4", "10.9.9.9, fd00::2"], "198.51.100.4"),
        (["10.9.9.9"], "10.9.9.9"),  # a client in the trusted network
        (["198.51.100.4:4711"], "198.51.100.4"),
        (["[2001:db8::1]:4711"], "2001:db8::1"),
        (["[2001:db8::1]"], "2001:db8::1"),
        (["2001:DB8:0::1"], "2001:db8::1"),
        (['"[2001:db8::1]:4711"'], "2001:db8::1"),
        (["::ffff:198.51.100.4"], "198.51.100.4"),
        (["fe80::1%eth0"], "fe80::1"),
        (["unknown"], "10.0.0.1"),
        (["198.51.100.4, unknown"], "10.0.0.1"),
        (["198.51.100.4, garbage, 10.9.9.9"], "10.9.9.9"),
        (["198.51.100.4, "], "10.0.0.1"),
        ([""], "10.0.0.1"),
        ([], "10.0.0.1"),
        (["198.51.100.400"], "10.0.0.1"),
        (["198.51.100.4:123456"], "10.0.0.1"),
        (["0x7f000001"], "10.0.0.1"),
    ],
)
def test_the_rightmost_address_that_is_no_proxy_is_the_client(
    forwarded: list[str], client: str
) -> None:
    headers = [("x-forwarded-for", value) for value in forwarded]
    assert behind(*headers).text == client
    assert behind(*headers, peer=STRANGER) == STRANGER


def test_a_client_is_followed_through_a_bounded_number_of_proxies() -> None:
    for proxies, client in ((PROXIES_MAX - 1, "198.51.100.4"), (PROXIES_MAX, "10.9.9.9")):
        hops = ["198.51.100.4", *["10.9.9.9"] * proxies]
        assert behind(("x-forwarded-for", ", ".join(hops))).text == client


@pytest.mark.parametrize(
    ("protos", "is_tls"),
    [
        (["https"], True),
        (["HTTPS"], True),
        (["https, https"], True),
        (["https", "http"], False),
        (["http, https"], False),
        (["https, http"], False),
        (["http"], False),
        (["wss"], False),
        ([""], False),
        ([], False),
    ],
)
def test_one_plain_hop_is_plain(protos: list[str], is_tls: bool) -> None:
    headers = [("x-forwarded-proto", value) for value in protos]
    assert behind(*headers).is_tls == is_tls
    assert behind(*headers, peer=STRANGER).is_tls is False


def test_a_proxy_that_comes_over_tls_tells_how_its_client_came() -> None:
    peer = ClientAddress("10.0.0.1", True)
    assert behind(peer=peer).is_tls
    assert not behind(("x-forwarded-proto", "http"), peer=peer).is_tls


def test_a_certificates_name_is_believed_of_a_proxy_and_in_one_header_only() -> None:
    assert behind(("x-client-name", " sensor-1 ")).certificate_name == "sensor-1"
    assert behind(("x-client-name", "a"), ("x-client-name", "b")).certificate_name is None
    assert behind(("x-client-name", "")).certificate_name is None
    assert behind(("x-client-name", "x" * 255)).certificate_name == "x" * 255
    assert behind(("x-client-name", "x" * 256)).certificate_name is None
    assert behind(("x-client-name", "a"), peer=STRANGER).certificate_name is None
    unset = Addresses(TRUSTED)
    assert unset.behind(PROXY, [(b"x-client-name", b"a"), (b"", b"a")]).certificate_name is None


def test_a_proxys_own_certificate_is_not_its_clients() -> None:
    peer = ClientAddress("10.0.0.1", True, "the-proxy")
    assert behind(("x-forwarded-for", "198.51.100.4"), peer=peer).certificate_name is None


@given(st.lists(st.tuples(st.sampled_from([b"x-forwarded-for", b"x-forwarded-proto"]),
                          st.binary(max_size=80))))  # fmt: skip
def test_whatever_a_header_says_there_is_an_address(headers: list[tuple[bytes, bytes]]) -> None:
    """P12."""
    found = Addresses(TRUSTED).behind(PROXY, headers)
    assert parse_address(found.text) is not None


@pytest.mark.parametrize(
    ("peer", "may"),
    [
        (ClientAddress("203.0.113.7", True), True),
        (ClientAddress("203.0.113.7", False), False),
        (ClientAddress("10.0.0.1", False), True),
        (ClientAddress("127.0.0.9", False), True),
        (ClientAddress("::1", False), True),
        (UNKNOWN, True),  # a socket in the file system
    ],
)
def test_without_tls_only_proxies_and_this_machine_may_come(peer: ClientAddress, may: bool) -> None:
    assert Addresses(TRUSTED, is_plain_allowed=False).may_enter(peer) == may
    assert Addresses(TRUSTED, is_plain_allowed=True).may_enter(peer)


class Tls:
    """What a transport over TLS has."""

    def __init__(self, certificate: dict[str, Any] | None) -> None:
        self.certificate = certificate

    def getpeercert(self) -> dict[str, Any] | None:
        return self.certificate


@pytest.mark.parametrize(
    ("info", "peer"),
    [
        ({"peername": ("198.51.100.4", 4711)}, ClientAddress("198.51.100.4", False)),
        ({"peername": ("::ffff:10.0.0.1", 4711, 0, 0)}, ClientAddress("10.0.0.1", False)),
        ({"peername": ("fe80::1%eth0", 4711, 0, 2)}, ClientAddress("fe80::1", False)),
        ({"peername": "/run/socket"}, UNKNOWN),
        ({}, UNKNOWN),
        ({"peername": ("::1", 1, 0, 0), "ssl_object": Tls(None)}, ClientAddress("::1", True)),
        (
            {"peername": ("::1", 1, 0, 0), "ssl_object": Tls({"subjectAltName": (("DNS", "a"),)})},
            ClientAddress("::1", True, "a"),
        ),
    ],
)
def test_a_connection_tells_its_other_end(info: dict[str, Any], peer: ClientAddress) -> None:
    assert peer_of(info.get) == peer


def subject(*names: str) -> tuple[tuple[tuple[str, str], ...], ...]:
    return tuple((("commonName", name),) for name in names)


@pytest.mark.parametrize(
    ("certificate", "name"),
    [
        (None, None),
        ({}, None),
        ({"subject": subject("cn")}, "cn"),
        ({"subject": subject("general", "special")}, "special"),
        ({"subject": ((("organizationName", "o"),),)}, None),
        (
            {
                "subject": subject("cn"),
                "subjectAltName": (
                    ("email", "a@b"), ("DNS", "a.b"), ("URI", "spiffe://a/b"), ("URI", "urn:2"),
                ),
            },
            "spiffe://a/b",
        ),
        ({"subjectAltName": (("email", "a@b"), ("DNS", "a.b"))}, "a.b"),
        ({"subject": subject("cn"), "subjectAltName": (("email", "a@b"),)}, "a@b"),
        ({"subject": subject("cn"), "subjectAltName": (("IP Address", "1.1.1.1"),)}, "cn"),
        ({"subject": subject("x" * 256)}, None),
        ({"subject": subject("cn"), "subjectAltName": (("URI", "x" * 256),)}, None),
    ],
)  # fmt: skip
def test_a_certificate_is_for_its_uri_else_dns_else_email_else_common_name(
    certificate: dict[str, Any] | None, name: str | None
) -> None:
    assert certificate_name(certificate) == name


@pytest.mark.parametrize("text", ["", "10.0.0.1,", "10.0.0.1/8", "host.example", "10.0.0.0/33"])
def test_networks_are_addresses_or_networks(text: str) -> None:
    with pytest.raises(ValueError):
        parse_networks(text)


def test_a_request_without_a_socket_of_ours_comes_from_whom_its_scope_names() -> None:
    here = ClientAddress("198.51.100.4", True, "a")
    assert client_address({CLIENT: here, "client": ("::1", 1), "scheme": "http"}) == here
    assert client_address({"client": ("::1", 1), "scheme": "https"}) == ClientAddress("::1", True)
    assert client_address({"client": None}) == UNKNOWN
