"""Where the store is: defaults, what is accepted, and messages that keep passwords to themselves."""

from pathlib import Path

import pytest

from service.store.url import InvalidStoreUrl, store_url

HOME = f"{Path.home()}/.local/state"


@pytest.mark.parametrize(("given", "folder"), [("/var/lib", "/var/lib"), ("", HOME), ("relative/path", HOME)])
def test_without_an_address_it_is_a_file_in_the_state_folder_which_is_an_absolute_path(
    monkeypatch, given, folder
):
    monkeypatch.setenv("XDG_STATE_HOME", given)

    assert store_url("") == f"sqlite:///{folder}/rulserve/rulserve.db"


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg"])
def test_postgresql_is_spoken_to_by_psycopg(scheme):
    assert store_url(f"{scheme}://rul@db/rul") == "postgresql+psycopg://rul@db/rul"


@pytest.mark.parametrize(
    "given",
    [
        "mysql://rul:secret@db/rul",
        "rul:secret@db",
        "sqlite://",
        "sqlite://rul.db",
        "sqlite:///:memory:",
        "postgresql://rul:secret@db:5x/rul",
        "postgresql://rul:secret@db:99999/rul",
        "postgresql://rul:secret",
        "postgresql://rul:p@secret@db/rul",
        "postgresql://rul:p@x:secret@db:5432/rul",
        "postgresql://rul:p@ss:secret/w?rd@db/rul",
        "postgresql://rul:secret@one:5432,two:5432/rul",
    ],
)
def test_another_address_is_refused_without_being_repeated(given):
    with pytest.raises(InvalidStoreUrl, match="RUL_STORE_URL") as refusal:
        store_url(given)

    assert "secret" not in str(refusal.value)


def test_several_hosts_with_ports_are_written_as_options():
    with pytest.raises(InvalidStoreUrl, match=r"\?host=HOST:5432&host=HOST:5432"):
        store_url("postgresql://rul@one:5432,two:5432/rul")


@pytest.mark.parametrize("rest", ["rul:p:w/1@[::1]:5432/rul", "rul@/rul?host=/run/x", "rul:secret@db:/rul"])
def test_a_host_with_or_without_a_port_is_taken_as_it_is(rest):
    assert store_url(f"postgresql://{rest}") == f"postgresql+psycopg://{rest}"


def test_postgresql_without_its_driver_says_what_to_install(monkeypatch):
    monkeypatch.setattr("service.store.url.find_spec", lambda name: None)

    with pytest.raises(InvalidStoreUrl, match=r"pip install 'rulserve\[postgresql\]'"):
        store_url("postgresql://rul@db/rul")


def test_a_user_without_a_home_folder_is_told_what_to_set(monkeypatch):
    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)

    with pytest.raises(InvalidStoreUrl, match="RUL_STORE_URL or XDG_STATE_HOME"):
        store_url("")


def test_an_address_of_an_option_is_refused_by_the_option():
    with pytest.raises(InvalidStoreUrl, match=r"^--store: expected sqlite:///FILE"):
        store_url("foo", name="--store")
