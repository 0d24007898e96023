"""Options of a wrong value: the error quotes it."""

import re

import pytest

from tests.commands import rul


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (
            ["simulate", "--bundle", "x", "--units", "many"],
            "Invalid value for '--units': .*integer.*, got 'many'",
        ),
        (["simulate", "--bundle", "x", "--units", "0"], "Invalid value for '--units': .* 1, got '?0'?$"),
        (["models", "canary", "x", "y", "--share", "much"], "Invalid value for '--share': .*, got 'much'"),
        (["outcomes", "--format", "xml"], "Invalid value for '--format': .*xml"),
    ],
)
def test_a_value_of_the_wrong_type_is_quoted_beside_its_option(given, line):
    result = rul(*given)

    assert result.exit_code == 2
    assert any(re.search(line, each) for each in result.stderr.splitlines()), result.stderr
    assert result.stderr.count("xml") <= 1
