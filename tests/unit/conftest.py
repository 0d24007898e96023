"""What unit tests share."""

import pytest


@pytest.fixture(scope="session")
def newer(tmp_path_factory):
    """Version 2 of fd001: the graph of fd003, which answers otherwise."""
    from tests.other_bundles import renamed

    return renamed(tmp_path_factory.mktemp("newer") / "any", "fd003", name="fd001", version="2")
