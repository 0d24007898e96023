"""Makes docs/images, pictures of the web page from a demo with a fixed seed: `make screenshots`."""

from __future__ import annotations

import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import quote

from rul_client.api import Client
from service.http.units_bodies import FleetUnit
from tests.browser import LOOKS, Visit, chromium, visit
from tests.integration.conftest import RUL, running

IMAGES = Path(__file__).parents[1] / "docs" / "images"
BUNDLES = "fd001,fd002,fd003,fd004"
DEMO = ("--seed", "7", "--speed", "2", "--seconds", "60")
DRAWN_MS = 3000  # no event says that charts are drawn


def main() -> None:
    """Run a demo against a separate service; take the pictures."""
    IMAGES.mkdir(exist_ok=True)
    with TemporaryDirectory() as work, running(Path(work), BUNDLES) as service:
        subprocess.run([RUL, "demo", "--url", service.http, *DEMO], check=True)  # noqa: S603 our own arguments
        with Client(service.http) as client:
            unit = worn(client.fleet(limit=1000).units)
        views = {
            "fleet": "#/",
            "unit": f"#/unit/{quote(unit.model)}/{quote(unit.unit)}",
            "models": "#/models",
        }
        with chromium() as browser:
            for look in LOOKS:
                for name, place in views.items():
                    with visit(browser, service.http, look, IMAGES) as opened:
                        picture(opened, name, place)


def worn(units: list[FleetUnit]) -> FleetUnit:
    """Choose a unit that has some cycles left, with a narrow interval."""
    estimated = [unit for unit in units if unit.rul_state == "estimated" and unit.rul >= 15]
    return min(estimated, key=lambda unit: unit.rul + unit.interval.upper - unit.interval.lower)


def picture(opened: Visit, name: str, place: str) -> None:
    """Take one picture of a view."""
    opened.go(place)
    opened.page.locator("main h1, main h2").first.wait_for()
    opened.page.wait_for_timeout(DRAWN_MS)
    opened.shoot(name)


if __name__ == "__main__":
    main()
