from dataclasses import replace

import pytest

from model.domain import InvalidData
from model.fleet import CONFIGS, FailureRule, fleet_named, fleet_of_schema, fleet_toml, load_fleet
from tests.fleets import PUMP_SCHEMA, PUMPS

PUMPS_TOML = """
name = "pumps"
format = "csv"
unit = "pump"
cycle = "hour"
cap = 100
context = 20
horizons = [5, 15]
critical_below = 10
degrading_below = 30

[failure]
column = "efficiency"
at_most = 0.4

[[settings]]
name = "load"
unit = "kW"

[[sensors]]
name = "vibration"
source = "Vib. (mm/s)"
unit = "mm/s"
description = "at the drive end"
"""


def write(folder, text):
    path = folder / "pumps.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_fleet_file_says_what_files_and_answers_look_like(tmp_path):
    fleet = load_fleet(write(tmp_path, PUMPS_TOML))

    assert fleet.schema.names == ("load", "vibration")
    assert fleet.sources == ("load", "Vib. (mm/s)")
    assert (fleet.unit_column, fleet.cycle_column) == ("pump", "hour")
    assert fleet.failure == FailureRule("efficiency", at_most=0.4)
    assert (fleet.cap, fleet.context, fleet.horizons) == (100.0, 20, (5, 15))
    assert fleet.schema.columns[1].description == "at the drive end"


def test_defaults_stand_in_for_what_a_fleet_file_leaves_out(tmp_path):
    head = 'name = "x"\nformat = "csv"\nunit = "file"\n'
    text = head + '[failure]\nrun_to_failure = true\n[[sensors]]\nname = "s"\n'

    fleet = load_fleet(write(tmp_path, text))

    assert fleet.cycle_column is None
    assert fleet.failure is None
    assert (fleet.cap, fleet.shortest, fleet.nominal_coverage) == (125.0, 1, 0.9)


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.toml")), ids=lambda path: path.stem)
def test_each_shipped_fleet_has_its_file_name_and_writes_back_as_itself(path, tmp_path):
    fleet = fleet_named(path.stem)

    assert fleet.name == path.stem
    assert load_fleet(write(tmp_path, fleet_toml(fleet))) == fleet


@pytest.mark.parametrize(
    "fleet",
    [
        PUMPS,
        replace(PUMPS, cycle_column=None, unit_column='odd "name"\\', format="parquet"),
        replace(PUMPS, group_column="plant"),
        replace(PUMPS, failure=FailureRule("vibration", at_least=7.5), sources=("a b", "\x7f", "ünïts")),
        fleet_of_schema("anything", PUMP_SCHEMA),
    ],
)
def test_a_written_fleet_reads_back_as_itself(fleet, tmp_path):
    assert load_fleet(write(tmp_path, fleet_toml(fleet))) == fleet


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("cap = 100", "capp = 100", "unknown key capp: did you mean cap"),
        ("cap = 100", "cap = 0", "cap must be above 0 and at most 16777216, got 0.0"),
        ("cap = 100", "cap = nan", "cap must be above 0 and at most 16777216, got nan"),
        ("cap = 100", "cap = 16777217", "cap must be above 0 and at most 16777216, got 16777217.0"),
        ("cap = 100", "cap = true", "cap: expected a number, got true or false"),
        ("context = 20", "context = 2.5", "context: expected a whole number, got a number"),
        ("context = 20", "context = 20\nshortest = 21", "<= context <= 100000, got shortest 21, context 20"),
        ("context = 20", "context = 100001", "<= context <= 100000, got shortest 1, context 100001"),
        ("[5, 15]", "[15, 5]", r"horizons must be positive and rise, got \[15, 5\]"),
        ("[5, 15]", "[5, 101]", r"horizons must not exceed 90, 0.9 of the cap, got \[5, 101\]"),
        ("at_most = 0.4", "at_most = 0.4\ncap = 90", r"\[failure\]: unknown key cap: cap belongs at the top"),
        ("cap = 100", "at_most = 3", r"unknown key at_most: at_most belongs in \[failure\]"),
        ("cap = 100", 'source = "x"', r"key source: source belongs in \[\[settings\]\] or \[\[sensors\]\]"),
        ("[failure]", "[target]\ncap = 9\n[failure]", r"unknown table \[target\]: cap belongs at the top"),
        ("[failure]", "[x]\n[failure]", r"\[x\]: expected \[failure\], \[\[settings\]\] or \[\[sensors\]\]"),
        ("[failure]", "[fail]", r"unknown table \[fail\]: did you mean \[failure\]\?"),
        ("[[sensors]]", "[[sensor]]", r"unknown table \[\[sensor\]\]: did you mean \[\[sensors\]\]\?"),
        ('[failure]\ncolumn = "efficiency"\nat_most = 0.4', "", r"missing table \[failure\]"),
        (
            "[[settings]]",
            "[settings]",
            r"\[\[settings\]\]: expected one table a column, with double brackets",
        ),
        ("cap = 100", "zzz = 100", "unknown key zzz: expected one of name, format, unit"),
        ("context = 20", "context = 1", "2 <= context <= 100000, got shortest 1, context 1"),
        ("[5, 15]", "[]", r"horizons must be positive and rise, got \[\]"),
        ("cap = 100", "nominal_coverage = 0", "nominal_coverage must be between 0 and 1, got 0.0"),
        ("cap = 100", "nominal_coverage = 1", "nominal_coverage must be between 0 and 1, got 1.0"),
        ("cap = 100", "max_missing_fraction = 0", "max_missing_fraction must be in 0..1, above 0, got 0.0"),
        ("cap = 100", "max_missing_fraction = 1.1", "max_missing_fraction must be in 0..1, above 0, got 1.1"),
        ("[5, 15]", '["5"]', "horizons: expected a whole number, got text"),
        ('format = "csv"', 'format = "pdf"', "one of cmapss, csv, parquet, feather, xlsx, got 'pdf'"),
        ('name = "pumps"', "", "top of the file: missing key name"),
        ('unit = "pump"', "unit = 3", "unit: expected text, got a whole number"),
        ("at_most = 0.4", "", "expected one of at_most and at_least"),
        ("at_most = 0.4", "at_most = 0.4\nat_least = 1", "expected one of at_most and at_least"),
        ("at_most = 0.4", "at_most = nan", "a finite number, got at_most=nan and at_least=None"),
        ("at_most = 0.4", "at_least = -inf", "a finite number, got at_most=None and at_least=-inf"),
        ("at_most = 0.4", 'at_most = "low"', r"\[failure\] at_most: expected a number, got text"),
        ("degrading_below = 30", "degrading_below = 5", "0 < critical_below < degrading_below <= 90"),
        (
            "degrading_below = 30",
            "degrading_below = 91",
            "degrading_below <= 90, 0.9 of the cap, got 10 and 91",
        ),
        ('unit = "mm/s"', 'units = "mm/s"', r"\[\[sensors\]\]: unknown key units: did you mean unit"),
        ('name = "vibration"', 'name = "load"', "names each column once, got load"),
        ('name = "vibration"', 'name = ""', r"\[\[sensors\]\] name: expected text, got nothing"),
        ('name = "pumps"', 'name = ""', r"toml: name: expected text, got nothing"),
        ('name = "vibration"', 'name = " "', "names must not be blank.*, got ' '"),
        ('name = "vibration"', 'name = "a\\nb"', r"printable on one line, got 'a\\nb'"),
        ('name = "pumps"', 'name = "\\u001b"', r"printable on one line, got '\\x1b'"),
        ('unit = "mm/s"', 'unit = "a\\nb"', r"printable on one line, got 'a\\nb'"),
        ("Vib. (mm/s)", "load", "each source must be given once, got load more than once"),
        ("[failure]", "[failure]\nrun_to_failure = true", r"\[failure\]: expected either"),
        ("cap = 100", "cap = ", "cannot be read"),
        ("cap = 100", f"cap = {'9' * 5000}", "the fleet file cannot be read: Exceeds the limit"),
        ("cap = 100", f"cap = {'[' * 5000}", "the fleet file cannot be read: maximum recursion depth"),
    ],
)
def test_a_wrong_fleet_file_is_refused_with_its_name_and_what_is_wrong(tmp_path, old, new, message):
    path = write(tmp_path, PUMPS_TOML.replace(old, new, 1))

    with pytest.raises(InvalidData, match=message) as caught:
        load_fleet(path)

    assert str(path) in str(caught.value)


def test_an_unknown_fleet_is_answered_with_the_known_ones():
    with pytest.raises(InvalidData, match=r"no fleet 'pumps': .*battery_xjtu, cmapss"):
        fleet_named("pumps")


@pytest.mark.parametrize(
    ("rule", "value", "failed"),
    [
        (FailureRule("c", at_most=1.66), 1.66, True),
        (FailureRule("c", at_most=1.66), 1.67, False),
        (FailureRule("c", at_least=7.0), 7.0, True),
        (FailureRule("c", at_least=7.0), 6.9, False),
        (FailureRule("c", at_most=1.66), float("nan"), False),
        (FailureRule("c", at_least=7.0), float("nan"), False),
    ],
)
def test_a_unit_has_failed_at_its_bound_and_beyond(rule, value, failed):
    assert rule.failed(value) is failed
