"""Fixtures of unit tests."""

import io
import logging

import pytest
import structlog

from export.bundle import find_bundle


@pytest.fixture(scope="session")
def shipped():
    """A shipped bundle; tests of training and export are in tests/contract."""
    return find_bundle("fd001")


@pytest.fixture(scope="session")
def newer(tmp_path_factory):
    """Version 2 of fd001: the graph of fd003, which has other answers."""
    from tests.other_bundles import renamed

    return renamed(tmp_path_factory.mktemp("newer") / "any", "fd003", name="fd001", version="2")


@pytest.fixture
async def service():
    """The application with a fake runtime, low limits and no store."""
    from tests.in_process import in_process

    async with in_process() as started:
        yield started


@pytest.fixture
def stream():
    """Collect the service's log, in JSON; the earlier logging is restored at the end."""
    from service import logs

    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    before = structlog.get_config()
    text = io.StringIO()
    logs.configure(stream=text)
    yield text
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.configure(**before)
