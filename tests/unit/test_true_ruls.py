import numpy as np
import pytest

from export.evaluation_windows import last_windows, read_true_ruls
from model.domain import InvalidData
from tests.fleets import numbered_unit

UNITS = ["a", "b", "c"]


def written(folder, name, text):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_numbers_of_a_c_mapss_file_belong_to_the_units_in_order(tmp_path):
    path = written(tmp_path, "RUL_FD001.txt", "112 \r\n98 \r\n 7\r\n\r\n")

    assert read_true_ruls(path, UNITS) == {"a": 112.0, "b": 98.0, "c": 7.0}


@pytest.mark.parametrize("units", [["1", "2", "10"], ["pump 9", "pump 10"], ["pump 10", "pump 9"], ["only"]])
def test_units_in_order_of_number_or_of_name_take_one_number_a_line(tmp_path, units):
    path = written(tmp_path, "rul.txt", "\n".join(str(n) for n in range(len(units))))

    assert [*read_true_ruls(path, units)] == units


def test_numbers_without_names_are_refused_where_the_data_has_its_units_in_another_order(tmp_path):
    with pytest.raises(InvalidData, match=r"unit 2 comes before unit 1.*columns unit and rul"):
        read_true_ruls(written(tmp_path, "rul.txt", "1\n2\n3\n"), ["2", "1", "3"])


def test_a_csv_names_its_units(tmp_path):
    path = written(tmp_path, "rul.csv", "note,rul,unit\nx,5,c\ny,0,a\nz,7.5,b\n")

    assert read_true_ruls(path, UNITS) == {"a": 0.0, "b": 7.5, "c": 5.0}


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("rul.txt", "1\n2\n", "expected 3 numbers, one a unit, got 2 lines"),
        ("rul.txt", "1\n2\n3\n4\n", "expected 3 numbers, one a unit, got 4 lines"),
        ("rul.txt", "1\n2 2\n3\n", "line 2: expected a RUL of 0 cycles or more, got '2 2'"),
        ("rul.txt", "1\nx\n3\n", "line 2: expected a RUL of 0 cycles or more, got 'x'"),
        ("rul.txt", "1\n\n-2\n3\n", "line 3: expected a RUL of 0 cycles or more, got '-2'"),
        ("rul.txt", "1\ninf\n3\n", "line 2: expected a RUL of 0 cycles or more, got 'inf'"),
        (
            "rul.csv",
            "unit,rul\na,1\nb,\nc,3\n",
            "line 3, column 'rul': expected a RUL of 0 cycles or more, got nan",
        ),
        ("rul.csv", "unit,rul\na,1\nb,2\na,3\n", "line 4: unit a has a RUL already"),
        ("rul.csv", "unit,rul\na,1\n", "the file has no RUL for unit b \\(2 such\\)"),
        ("rul.csv", "unit,rul\na,1\nb,2\nc,3\nd,4\n", "the data has no unit d"),
        ("rul.csv", "unit,days\na,1\n", "1 column missing: rul"),
    ],
)
def test_a_file_that_does_not_fit_the_data_is_refused_in_one_line(tmp_path, name, text, said):
    with pytest.raises(InvalidData, match=said) as refused:
        read_true_ruls(written(tmp_path, name, text), UNITS)

    assert "\n" not in str(refused.value)
    assert name in str(refused.value)


def test_a_file_that_is_missing_is_named(tmp_path):
    with pytest.raises(InvalidData, match=r"RUL\.txt: cannot be read"):
        read_true_ruls(tmp_path / "RUL.txt", UNITS)


@pytest.mark.parametrize("failed", [True, False])
def test_the_last_window_of_each_unit_has_the_rul_of_the_file(failed):
    units = [numbered_unit(cycles, unit=name, failed=failed) for cycles, name in ((3, "a"), (9, "b"))]

    windows = last_windows(units, {"b": 20.0, "a": 4.0}, context=5)

    assert windows.rul.tolist() == [4.0, 20.0]
    assert windows.last_cycle.tolist() == [3.0, 9.0]
    assert windows.lengths.tolist() == [3, 5]
    np.testing.assert_array_equal(windows.readings[1, :, 0], np.arange(4, 9))
