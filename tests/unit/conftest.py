"""What unit tests share."""

import shutil

import pytest

from export.bundle import BundleFolder


@pytest.fixture
def copied(tiny_bundle, tmp_path):
    """A bundle that a test may change."""
    return BundleFolder(shutil.copytree(tiny_bundle.path, tmp_path / "copy"))


@pytest.fixture(scope="session")
def newer(tmp_path_factory):
    """Version 2 of fd001: the graph of fd003, which answers otherwise."""
    from tests.other_bundles import renamed

    return renamed(tmp_path_factory.mktemp("newer") / "any", "fd003", name="fd001", version="2")


@pytest.fixture(scope="session")
def one_thread():
    """Torch with one thread: small tensors gain nothing from more, and bits stay the same."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    """A folder with pumps.csv, of twelve worn pumps, and pumps.toml, the fleet that reads it."""
    from model.fleet import fleet_toml
    from model.writers import csv_text
    from tests.fleets import PUMPS, worn_pumps

    folder = tmp_path_factory.mktemp("data")
    (folder / "pumps.csv").write_bytes(csv_text(worn_pumps(units=12, seed=4), PUMPS.schema))
    (folder / "pumps.toml").write_text(fleet_toml(PUMPS), encoding="utf-8")
    return folder
