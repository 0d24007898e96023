"""Who may ask."""

import pytest

from service.edge.access import Credentials
from service.errors import Forbidden, Unauthenticated

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
