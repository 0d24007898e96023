"""The examples in docstrings hold."""

import doctest
from importlib import import_module

import pytest

from tests.programs import ROOT

PACKAGES = ("model", "export", "service", "rul_client", "observability")
MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
    if ">>>" in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("module", MODULES)
def test_the_examples_of_a_module_hold(module):
    assert doctest.testmod(import_module(module)).failed == 0
