"""The web page's advice when to act, in real Chromium on a service with costs of its own."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.browser import desktop, screenshot_folder, visit
from tests.integration.conftest import running
from tests.page_unit import lives, show

SECONDS = 60


@desktop
def test_advice_begins_with_the_costs_that_the_service_is_given(browser, look, tmp_path):
    with (
        running(tmp_path, "fd001", costs="fd001=800:9600") as started,
        started.client(timeout=SECONDS) as http,
        visit(browser, started.http, look, screenshot_folder(tmp_path)) as opened,
    ):
        lives(http, "dear", seed=5, share=0.8)
        life = http.get("/v1/models/fd001/simulated?seed=5").json()["columns"]
        window = {"unit": "asked", "last_cycle": 90, "columns": {name: life[name][30:90] for name in life}}
        http.post("/v1/predict", json={"windows": [window]}).raise_for_status()
        decision = http.get("/v1/units/dear/decision?model=fd001").raise_for_status().json()["decision"]
        page = show(opened, "dear")
        act = page.get_by_role("region", name="When to act")

        expect(act).to_contain_text("A failure costs 12")
        expect(act).to_contain_text(f"Cycle {decision['act_at_cycle']}")
        page.get_by_role("slider", name="A failure costs").press("ArrowRight")
        expect(act).to_contain_text("A failure costs 15")
        show(opened, "asked")
        expect(act).to_contain_text("A failure costs 12")
        opened.go("#/try")
        expect(act).to_contain_text("A failure costs 12")
