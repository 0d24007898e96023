"""What an operator sets is what the service gets, or an error that names the variable."""

import re
from types import SimpleNamespace

import pytest
from pydantic import ValidationError

from export.bundle import BUNDLED, find_bundle
from service import machine
from service import settings as module
from service.choices import FrontEnd, ProviderChoice
from service.machine import CUDA_LIBRARY, usable_cores, usable_gpu
from service.settings import InvalidSettings, Settings, unknown_variables, variable_of, worded

pytestmark = pytest.mark.usefixtures("no_settings")


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("RUL_PORT", "8080", 8080),
        ("RUL_PORT", "", 3000),
        ("RUL_PROVIDER", "cpu", ProviderChoice.CPU),
        ("RUL_ALLOWED_HOSTS", "Plant.Example, rul_1 ,FD00::7", "plant.example,rul_1,fd00::7"),
    ],
    ids=["a number", "the default for an empty one", "a choice", "hosts in lower case"],
)
def test_a_variable_sets_its_field(monkeypatch, name, value, expected):
    monkeypatch.setenv(name, value)

    assert getattr(Settings.read(), name.removeprefix("RUL_").lower()) == expected


def test_by_default_the_shipped_bundles_are_served_whatever_the_working_folder_holds(tmp_path):
    (tmp_path / "fd001").mkdir()

    found = {find_bundle(bundle).path for bundle in Settings().bundle_names()}

    assert BUNDLED / "fd001" in found
    assert {path.parent for path in found} == {BUNDLED}


def test_an_env_file_sets_fields_and_may_hold_what_is_not_ours(tmp_path):
    (tmp_path / ".env").write_text("RUL_MAX_BATCH_WINDOWS=7\nGRAFANA_PORT=1\n")

    assert Settings.read().max_batch_windows == 7


FLOATS = [variable_of(name) for name, field in Settings.model_fields.items() if field.annotation is float]
NO_HOSTS = ["plant.example:3000", "http://plant.example", "[::1]", "*.example", "a b"]


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("RUL_PORT", "http", ".*, got 'http'$"),
        ("RUL_PORT", "70000", ""),
        ("RUL_MAX_BATCH_WINDOWS", "0", ".*, got '0'$"),
        ("RUL_REQUEST_TIMEOUT_SECONDS", "-1", ""),
        ("RUL_PROVIDER", "tpu", ""),
        ("RUL_LOG_SAMPLE", "2", ""),
        ("RUL_LAME_DUCK_SECONDS", "1e300", "Input should be less than or equal to 86400"),
        ("RUL_STORE_RETENTION_DAYS", "1e300", "Input should be less than or equal to 100000"),
        *[(name, value, "Input should be a finite number") for name in FLOATS for value in ("inf", "nan")],
        *[
            (
                "RUL_ALLOWED_HOSTS",
                f"rul.plant,{name}",
                f"expected .*without scheme and port.*{re.escape(name)}",
            )
            for name in NO_HOSTS
        ],
        *[
            ("RUL_API_KEYS", keys, "expected .*printable ASCII")
            for keys in ("good,schl\u00fcssel", ",", " \n")
        ],
        *[
            ("RUL_COSTS", costs, "(failure: )?expected")
            for costs in ("fd001", "fd001=10", "fd001=10:1", "=1:")
        ],
    ],
)
def test_a_value_that_cannot_be_used_is_named_with_the_reason(monkeypatch, name, value, why):
    monkeypatch.setenv(name, value)

    with pytest.raises(InvalidSettings, match=f"{name}: {why}"):
        Settings.read()


def test_a_secret_that_cannot_be_used_is_not_quoted():
    with pytest.raises(ValidationError) as caught:
        Settings.model_validate({"api_keys": ["hush"], "port": "http"})

    said = worded(caught.value)
    assert "RUL_PORT: " in said
    assert "got 'http'" in said
    assert "hush" not in said


def test_an_error_does_not_repeat_a_secret(monkeypatch):
    monkeypatch.setenv("RUL_API_KEYS", "hush,schl\u00fcssel")
    monkeypatch.setenv("RUL_PORT", "x")

    with pytest.raises(InvalidSettings) as caught:
        Settings.read()

    assert "hush" not in str(caught.value)


def test_settings_cannot_be_changed():
    settings = Settings.read()

    with pytest.raises(ValidationError, match="frozen"):
        settings.port = 1


def test_keys_are_separated_by_commas_and_hidden(monkeypatch):
    monkeypatch.setenv("RUL_API_KEYS", "first-key, second-key")

    settings = Settings.read()

    assert settings.keys() == {"first-key", "second-key"}
    assert "first-key" not in repr(settings)


def test_there_is_a_worker_a_core_and_a_gpu_is_fed_by_one(monkeypatch):
    monkeypatch.setattr(module, "usable_cores", lambda: 3)
    monkeypatch.setattr(module, "usable_gpu", lambda: False)
    without = Settings().worker_count(), Settings(workers=1).worker_count()
    monkeypatch.setattr(module, "usable_gpu", lambda: True)

    assert without == (3, 1)
    assert Settings().worker_count() == 1
    assert Settings(provider=ProviderChoice.CPU).worker_count() == 3


def test_another_process_reads_the_same_settings(monkeypatch):
    given = {"RUL_API_KEYS": "one,two", "RUL_BUNDLES": "a,b", "RUL_FRONT_END": "uvicorn"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    settings = Settings.read()
    for name in given:  # the other process has none of them
        monkeypatch.delenv(name)

    for name, value in settings.as_environment().items():
        monkeypatch.setenv(name, value)

    assert Settings.read() == settings
    assert Settings.read().front_end is FrontEnd.UVICORN


def test_threads_are_as_many_as_asked_for_or_as_there_are_cores(monkeypatch):
    assert Settings.read().threads() == usable_cores()

    monkeypatch.setenv("RUL_INFERENCE_THREADS", "3")

    assert Settings.read().threads() == 3


SYSTEMD = "0::/system.slice/rulserve.service"


@pytest.mark.parametrize(
    ("group", "files", "expected"),
    [
        ("0::/", {"cpu.max": "150000 100000"}, 2),
        ("0::/", {"cpu.max": "50000 100000"}, 1),
        ("0::/", {"cpu.max": "max 100000"}, 8),
        ("0::/", {"cpu.max": ""}, 8),
        ("0::/", {}, 8),
        ("0::/", {"cpu/cpu.cfs_quota_us": "150000", "cpu/cpu.cfs_period_us": "100000"}, 2),
        ("0::/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8),
        (SYSTEMD, {"system.slice/rulserve.service/cpu.max": "150000 100000"}, 2),
        (SYSTEMD, {"system.slice/cpu.max": "150000 100000"}, 2),
        (
            "4:cpu,cpuacct:/plant",
            {"cpu/plant/cpu.cfs_quota_us": "150000", "cpu/plant/cpu.cfs_period_us": "100000"},
            2,
        ),
    ],
)
def test_a_quota_of_a_container_or_of_the_processs_group_counts_as_cores_and_without_one_every_core(
    tmp_path, monkeypatch, group, files, expected
):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)), raising=False)
    own = tmp_path / "own"
    own.write_text(f"1:name=systemd:/\n{group}\n")
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")

    assert usable_cores(tmp_path, own) == expected


def test_a_misspelt_variable_is_noticed_in_the_environment_and_in_the_env_file(monkeypatch, tmp_path):
    monkeypatch.setenv("RUL_MAX_BATCH", "1")
    (tmp_path / ".env").write_text("RUL_REQEST_TIMEOUT_SECONDS=1\nRUL_PORT=1\nGRAFANA_PORT=1\n")

    assert unknown_variables() == ["RUL_MAX_BATCH", "RUL_REQEST_TIMEOUT_SECONDS"]


def test_the_variable_of_the_clients_is_not_taken_for_a_misspelt_one(monkeypatch):
    monkeypatch.setenv("RUL_API_KEY", "hush")

    assert unknown_variables() == []


def test_an_env_file_that_cannot_be_read_is_an_error_that_says_so(tmp_path):
    (tmp_path / ".env").write_bytes(b"RUL_PORT=\xff")

    with pytest.raises(InvalidSettings, match=r"cannot read the settings in \.env"):
        Settings.read()


@pytest.mark.parametrize(
    ("driver", "library", "expected"), [(True, True, True), (True, False, False), (False, True, False)]
)
def test_a_gpu_needs_a_driver_and_an_onnx_runtime_for_it(tmp_path, monkeypatch, driver, library, expected):
    installed = tmp_path / "onnxruntime"
    (installed / "capi").mkdir(parents=True)
    if library:
        (installed / CUDA_LIBRARY).touch()
    found = SimpleNamespace(submodule_search_locations=[str(installed)])
    monkeypatch.setattr(machine, "find_spec", lambda _: found)

    assert usable_gpu(tmp_path if driver else tmp_path / "none") is expected
