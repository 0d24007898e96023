"""Who may ask."""

import pytest

from service.edge.access import Credentials, Hosts
from service.errors import Forbidden, ForeignSite, Unauthenticated

KEYS = Credentials(["first", "zweiter-schlüssel"])


@pytest.mark.parametrize(
    ("authorization", "api_key"),
    [
        ("Bearer first", ""),
        ("bearer first", ""),
        ("", "first"),
        ("", "zweiter-schlüssel"),
        ("Basic other", "first"),
    ],
)
def test_a_right_key_in_either_header_is_enough(authorization, api_key):
    KEYS.check(authorization, api_key)


@pytest.mark.parametrize("authorization", ["", "Bearer ", "Basic first", "first"])
def test_no_key_is_not_the_same_as_a_wrong_one(authorization):
    with pytest.raises(Unauthenticated, match="authorization: Bearer KEY"):
        KEYS.check(authorization, "")


@pytest.mark.parametrize(
    ("authorization", "api_key"), [("Bearer wrong", ""), ("", "firs"), ("", "first "), ("", "é")]
)
def test_a_wrong_key_is_forbidden_and_not_repeated(authorization, api_key):
    with pytest.raises(Forbidden) as caught:
        KEYS.check(authorization, api_key)

    assert "wrong" not in str(caught.value)


@pytest.mark.parametrize(
    "host", [None, "localhost:3000", "127.0.0.1:3000", "[::1]:3000", "10.0.0.7", "rul.plant"]
)
def test_a_local_service_answers_under_its_names_and_any_address(host):
    Hosts(["rul.plant"], any_name=False).check({} if host is None else {b"host": host.encode()})


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:3000", "localhost.evil.example", "[", "127.0.0.1.x"]
)
def test_a_name_that_was_made_to_resolve_to_this_machine_is_refused(host):
    hosts = Hosts(["rul.plant"], any_name=False)

    with pytest.raises(ForeignSite, match="RUL_ALLOWED_HOSTS"):
        hosts.check({b"host": host.encode()})

    assert hosts.known == set()


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://localhost:8080", "http://["])
def test_a_page_of_another_site_is_refused(origin):
    with pytest.raises(ForeignSite, match="RUL_ALLOWED_HOSTS"):
        Hosts([], any_name=True).check({b"host": b"localhost:3000", b"origin": origin.encode()})


@pytest.mark.parametrize("origin", ["http://localhost:3000", "https://rul.plant", "https://rul.plant:8443"])
def test_the_pages_of_the_service_and_of_listed_sites_may_call_it(origin):
    Hosts(["rul.plant"], any_name=True).check({b"host": b"localhost:3000", b"origin": origin.encode()})


def test_a_service_of_the_network_answers_under_any_name():
    hosts = Hosts([], any_name=True)

    hosts.check({b"host": b"rulserve.plant:3000"})

    assert b"rulserve.plant:3000" in hosts.known
