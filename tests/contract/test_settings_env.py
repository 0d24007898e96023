"""`.env.example` is what `Settings` says."""

from pathlib import Path

import pytest

from service.settings import Settings, env_example

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
