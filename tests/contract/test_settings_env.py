"""`.env.example` is what `Settings` says."""

from pathlib import Path

import pytest

from service.cli import env_example
from service.processes.control import WorkerSpec
from service.settings import Settings

EXAMPLE = Path(__file__).parents[2] / ".env.example"

pytestmark = pytest.mark.usefixtures("no_settings")


def test_the_env_example_is_current():
    assert EXAMPLE.read_text(encoding="utf-8") == env_example(), "run: rul settings --output .env.example"


def test_the_env_example_holds_the_defaults(tmp_path):
    (tmp_path / ".env").write_text(env_example(), encoding="utf-8")

    assert Settings.read() == Settings()


@pytest.mark.parametrize("name", Settings.model_fields)
def test_every_setting_says_what_it_does(name):
    description = Settings.model_fields[name].description

    assert description is not None
    assert description.endswith(".")


LIMITS = [name for name, field in Settings.model_fields.items() if type(field.default) in {int, float}]


@pytest.mark.parametrize("name", sorted({*LIMITS} - {"port", "grpc_port"}))
def test_every_number_says_what_too_high_and_too_low_cause(name):
    description = " ".join(str(Settings.model_fields[name].description).split())

    assert "Too high: " in description
    assert "Too low: " in description


def test_what_workers_tell_each_other_is_no_setting():
    assert not {*WorkerSpec.model_fields} & {*Settings.model_fields}
