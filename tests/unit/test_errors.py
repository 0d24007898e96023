"""One tree, one table, and nothing of ours in what a client reads."""

import pytest
from google.rpc.code_pb2 import Code

from service.errors import (
    STATUS,
    InvalidWindow,
    InvalidWindows,
    NotReady,
    Overloaded,
    Problem,
    RuntimeFailed,
    ServiceError,
    UnknownModel,
    escaped,
    public,
    status_of,
)


def descendants(kind: type) -> set[type]:
    return {kind for child in kind.__subclasses__() for kind in {child, *descendants(child)}}


@pytest.mark.parametrize("kind", sorted(descendants(ServiceError), key=lambda kind: kind.__name__))
def test_every_error_has_a_status_of_its_own(kind):
    status = STATUS[kind]

    assert 400 <= status.http < 600
    assert status.grpc != Code.OK
    assert status.title
    assert status.code


def test_no_two_errors_share_a_code():
    codes = [status.code for status in STATUS.values()]

    assert len(set(codes)) == len(codes)


def test_a_more_special_error_has_the_status_of_its_parent():
    class TooManyWindows(Overloaded):
        pass

    status = status_of(TooManyWindows("full"))
    del TooManyWindows

    assert status is STATUS[Overloaded]


def test_an_error_that_is_not_ours_is_our_fault():
    assert status_of(ZeroDivisionError()) is STATUS[RuntimeFailed]


@pytest.mark.parametrize("error", [RuntimeFailed("weights at /secret"), KeyError("/secret")])
def test_a_client_reads_nothing_of_what_is_inside(error):
    assert "secret" not in str(public(error))


def test_only_errors_that_pass_say_when_to_come_back():
    assert Overloaded("full").retry_after_seconds == 1
    assert NotReady("starting").retry_after_seconds is not None
    assert UnknownModel("x").retry_after_seconds is None


def test_an_error_that_is_not_ours_has_no_problems():
    problem = Problem("/x", "code", "detail")

    assert public(InvalidWindows("two", [problem, problem])).problems == (problem, problem)
    assert public(ValueError()).problems == ()


def test_a_problem_seen_from_further_up_points_further_down():
    problem = InvalidWindow("bad", [Problem("/last_cycle", "c", "d")]).problems[0]

    assert problem.below("/windows/7").pointer == "/windows/7/last_cycle"


@pytest.mark.parametrize(("name", "expected"), [("a/b", "a~1b"), ("a~b", "a~0b"), ("a~1", "a~01")])
def test_names_are_escaped_in_pointers(name, expected):
    assert escaped(name) == expected
