"""`.env.example` is what `Settings` says."""

from pathlib import Path

import pytest

from model.outputs import CannotWrite
from service.cli import show_settings
from service.processes.control import WorkerSpec
from service.settings import Settings, descriptions, env_example

EXAMPLE = Path(__file__).parents[2] / ".env.example"

pytestmark = pytest.mark.usefixtures("no_settings")


def test_an_example_that_cannot_be_written_is_one_clear_line(tmp_path):
    with pytest.raises(CannotWrite, match=r"e: cannot be written: No such file or directory"):
        show_settings(output=tmp_path / "none" / "e")


def test_the_env_example_is_current():
    assert EXAMPLE.read_text(encoding="utf-8") == env_example(), "run: make generate"


def test_the_env_example_holds_the_defaults(tmp_path):
    (tmp_path / ".env").write_text(env_example(), encoding="utf-8")

    assert Settings.read() == Settings()


def test_printed_settings_are_an_env_file(capsys):
    show_settings(output=None)

    assert capsys.readouterr().out == env_example()


def test_settings_are_written_to_a_new_file_and_replace_none(tmp_path):
    show_settings(output=tmp_path / "new")
    (tmp_path / "old").write_text("RUL_API_KEYS=hush\n", encoding="utf-8")

    with pytest.raises(FileExistsError, match="old: the file exists: choose another --output"):
        show_settings(output=tmp_path / "old")

    assert (tmp_path / "new").read_text(encoding="utf-8") == env_example()
    assert (tmp_path / "old").read_text(encoding="utf-8") == "RUL_API_KEYS=hush\n"


@pytest.mark.parametrize("name", Settings.model_fields)
def test_every_setting_says_what_it_does(name):
    assert descriptions()[name].endswith(".")


LIMITS = [name for name, field in Settings.model_fields.items() if type(field.default) in {int, float}]


@pytest.mark.parametrize("name", sorted({*LIMITS} - {"port", "grpc_port"}))
def test_every_number_says_what_too_high_and_too_low_cause(name):
    description = descriptions()[name]

    assert "Too high: " in description
    assert "Too low: " in description


def test_values_between_workers_are_not_settings():
    assert not {*WorkerSpec.__struct_fields__} & {*Settings.model_fields}


def test_only_its_owner_reads_a_new_file_of_settings_which_will_hold_keys(tmp_path):
    show_settings(tmp_path / ".env")

    assert (tmp_path / ".env").stat().st_mode & 0o777 == 0o600
