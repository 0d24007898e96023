"""A rolling restart fails no request, in the short run of `rolling`."""

from pathlib import Path

import pytest

from export.bundle import BundleFolder
from tests.hostile.balancer import GENTLE_SECONDS
from tests.hostile.rolling import roll


@pytest.mark.system
def test_no_request_fails_while_two_services_restart_in_turn(
    tiny_bundle: BundleFolder, tmp_path: Path
) -> None:
    bundle = str(tiny_bundle.path)
    load = roll(rounds=1, callers=1, lame_duck=3, bundle=bundle, folder=tmp_path, pace=GENTLE_SECONDS)

    assert set(load.outcomes) == {("http", "answered"), ("grpc", "answered")}
