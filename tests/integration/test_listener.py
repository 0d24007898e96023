"""Where a service listens, and how it stops."""

from __future__ import annotations

import signal

import httpx
import pytest

from tests.integration.conftest import running
from tests.programs import has_ipv6
from tests.waiting import wait_until

LAME_DUCK_SECONDS = 60
"""Longer than all steps of a test take."""
STEP_SECONDS = 25


@pytest.mark.parametrize("host", ["localhost", "::"])
def test_a_service_listens_on_a_name_and_on_ipv6_and_answers_by_ipv4(host, tiny_bundle, tmp_path):
    if host == "::" and not has_ipv6():
        pytest.skip("this machine has no IPv6")

    with running(tmp_path, str(tiny_bundle.path), host=host, store="false") as server:
        assert server.ask("GET", "/readyz").is_success
        if host == "::":
            by_ipv6 = httpx.get(f"http://[::1]:{server.port}/readyz", timeout=STEP_SECONDS, trust_env=False)
            assert by_ipv6.is_success


def test_a_service_about_to_stop_is_not_ready_first_and_answers_until_then(tiny_bundle, tmp_path, windows):
    body = {"windows": [windows[0].json()]}
    settings = {"lame_duck_seconds": str(LAME_DUCK_SECONDS)}
    with (
        running(tmp_path, str(tiny_bundle.path), **settings) as server,
        server.client() as client,
    ):
        assert client.get("/readyz").headers.get("connection") != "close"

        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: client.get("/readyz").status_code == 503, STEP_SECONDS, what="unreadiness")
        asked_to_close = wait_until(
            lambda: client.get("/livez").headers.get("connection") == "close", STEP_SECONDS, what="close"
        )
        answers = [client.post("/v1/predict", json=body).status_code for _ in range(20)]

        assert asked_to_close
        assert answers == [200] * 20
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(STEP_SECONDS) == 0
