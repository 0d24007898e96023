"""docs/fleet.md and the keys behind it: every key of the fleet file, with the defaults of the code."""

import re
import tomllib
from dataclasses import fields

import msgspec.inspect
import pytest

from model import fleet as fleet_file
from model.fleet import Fleet
from model.fleet_keys import COLUMNS, KEYS, PAGE, REQUIRED, TOP, key, page

TABLES = {TOP: "_FleetTable", "failure": "_FailureTable", "sensors": "_ColumnTable"}


def test_the_page_is_what_the_code_says():
    text = PAGE.read_text(encoding="utf-8")

    assert page(text) == text, "run python -m model.fleet_keys"


@pytest.mark.parametrize(("table", "struct"), TABLES.items())
def test_the_keys_of_a_table_are_those_that_a_file_may_have(table, struct):
    known = {field.name: field for field in msgspec.inspect.type_info(getattr(fleet_file, struct)).fields}

    documented = [each for each in KEYS if each.table == table]

    assert {each.name for each in documented} == set(known) - {"failure", *COLUMNS}
    for each in documented:
        assert known[each.name].required == (each.default == REQUIRED), each.name


def test_defaults_of_the_page_are_those_of_a_fleet():
    defaults = {field.name: field.default for field in fields(Fleet)}

    listed = {
        each.name: tomllib.loads(f"value = {each.default}")["value"]
        for each in KEYS
        if each.table == TOP and each.name not in {"name", "format", "unit", "cycle", "group"}
    }

    assert {name: tuple(value) if isinstance(value, list) else value for name, value in listed.items()} == {
        name: defaults[name] for name in listed
    }


@pytest.mark.parametrize("each", KEYS, ids=lambda each: f"{each.table}.{each.name}")
def test_each_key_has_a_meaning_and_advice_in_sentences(each):
    assert re.fullmatch(r"\S.*\.", each.meaning)
    assert re.fullmatch(r"\S.*\.", each.advice)
    assert key(each.name, table=each.table) is each
