"""One tree, one table, and nothing of ours in what a client reads."""

import pytest
from grpc import StatusCode

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
    problems_of,
    public_detail,
    retry_after_seconds,
    status_of,
)


def descendants(kind: type) -> set[type]:
    return {kind for child in kind.__subclasses__() for kind in {child, *descendants(child)}}


@pytest.mark.parametrize("kind", sorted(descendants(ServiceError), key=lambda kind: kind.__name__))
def test_every_error_has_a_status_of_its_own(kind):
    status = STATUS[kind]

    assert 400 <= status.http < 600
    assert status.grpc is not StatusCode.OK
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
    assert "secret" not in public_detail(error)


def test_only_errors_that_pass_say_when_to_come_back():
    assert retry_after_seconds(Overloaded("full")) == 1
    assert retry_after_seconds(NotReady("starting")) is not None
    assert retry_after_seconds(UnknownModel("x")) is None


def test_problems_are_found_on_errors_that_have_them():
    problem = Problem("/x", "code", "detail")

    assert problems_of(InvalidWindows("two", [problem, problem])) == (problem, problem)
    assert problems_of(ValueError()) == ()


def test_a_problem_seen_from_further_up_points_further_down():
    problem = InvalidWindow("bad", [Problem("/last_cycle", "c", "d")]).problems[0]

    assert problem.below("/windows/7").pointer == "/windows/7/last_cycle"


@pytest.mark.parametrize(("name", "expected"), [("a/b", "a~1b"), ("a~b", "a~0b"), ("a~1", "a~01")])
def test_names_are_escaped_in_pointers(name, expected):
    assert escaped(name) == expected
