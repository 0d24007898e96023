"""Real Chromium on the web page; forbidden behaviour is checked when the page closes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, Route, expect, sync_playwright

from tests.programs import program

SCREENSHOTS: Final = "RUL_SCREENSHOTS"
"""Variable with the folder of screenshots; by default a temporary folder."""
SECONDS: Final = 30
expect.set_options(timeout=SECONDS * 1000)
SERIOUS: Final = {"serious", "critical"}
VIOLATIONS: Final = {"resultTypes": ["violations"]}  # axe describes nothing that is in order
REDUCED: Final = "reduce"  # no animation, so a screenshot is always the same


@dataclass(frozen=True)
class Look:
    """A window: its width and height in pixels, and its theme."""

    width: int
    height: int
    theme: str

    def __str__(self) -> str:
        return f"{self.width}-{self.theme}"


LOOKS: Final = [Look(*size, theme) for size in ((1440, 900), (390, 844)) for theme in ("light", "dark")]


@dataclass
class Visit:
    """An open page.

    Attributes:
        problems: Errors of the console and of scripts.
        foreign: Requests that left the service.
    """

    page: Page
    base: str
    look: Look
    folder: Path
    problems: list[str]
    foreign: list[str]

    def go(self, place: str) -> None:
        """Show a view, by its hash."""
        self.page.goto(f"{self.base}/{place}")

    def set_service_clock(self, *, ahead_seconds: int = 0) -> None:
        """Let answers be dated this far ahead of the page's clock, which a test may set."""
        self.page.add_init_script(
            f"""const {{ get }} = Headers.prototype;
            Headers.prototype.get = function (name) {{
                const now = new Date(Date.now() + {1000 * ahead_seconds});
                return name === "date" ? now.toUTCString() : get.call(this, name);
            }};"""
        )

    def shoot(self, name: str, *, whole: bool = False) -> None:
        """Keep a screenshot."""
        self.page.screenshot(path=self.folder / f"{name}-{self.look}.png", full_page=whole)

    def check_accessible(self) -> None:
        """Check that axe finds no serious problem."""
        found = [
            f"{one['id']}: {one['help']} ({one['nodes'][0]['html'][:200]})"
            for one in Axe().run(self.page, options=VIOLATIONS).response["violations"]
            if one["impact"] in SERIOUS
        ]
        assert not found, "\n".join(found)

    def check_fits(self) -> None:
        """Check that nothing is wider than the window."""
        assert self.page.evaluate("document.documentElement.scrollWidth") <= self.look.width


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start the browser; skip the test if the program is missing."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program("chromium-headless-shell"),  # half the CPU of the whole browser
            args=["--no-sandbox"] if os.geteuid() == 0 else [],
        )
        yield browser
        browser.close()


@contextmanager
def visit(browser: Browser, base: str, look: Look, folder: Path, *, expects: str = "\0") -> Iterator[Visit]:
    """Open a window on a service; check at the end that no error occurred.

    `expects` is part of the errors that the test causes on purpose.
    """
    context = browser.new_context(
        viewport={"width": look.width, "height": look.height},
        color_scheme="dark" if look.theme == "dark" else "light",
        reduced_motion=REDUCED,
    )
    context.set_default_timeout(SECONDS * 1000)
    page = context.new_page()
    opened = Visit(page, base, look, folder, [], [])

    def stop(route: Route) -> None:
        opened.foreign.append(route.request.url)
        route.abort()

    # A pattern, because the driver knows it: a function is called here for every request, a fifth of the CPU.
    context.route(re.compile(rf"^(?!{re.escape(base)}|data:|blob:)"), stop)
    page.on("console", lambda said: opened.problems.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: opened.problems.append(str(error)))
    try:
        yield opened
    finally:
        context.close()
    unexpected = [text for text in opened.problems if expects not in text]
    assert not unexpected, unexpected  # pytest does not write out assertions of this module
    assert not opened.foreign, opened.foreign


def screenshot_folder(fallback: Path) -> Path:
    """Return the folder of screenshots."""
    folder = Path(os.environ.get(SCREENSHOTS) or fallback)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def expecting(error: str) -> pytest.MarkDecorator:
    """Allow errors with this text in a test that opens the page."""
    return pytest.mark.parametrize("expects", [error])


def _in(looks: list[Look]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("look", looks, ids=str)


every_look = _in(LOOKS)
each_look = _in([LOOKS[0], LOOKS[3]])
"""Both sizes and both themes, in two windows: themes change colours, and sizes the layout."""
desktop = _in([LOOKS[0]])
