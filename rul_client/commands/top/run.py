"""What `rul top` does: ask the service, show a frame, wait, ask again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager
from typing import Final
from urllib.parse import urlsplit

import httpx
from rich.console import Console, RenderableType
from rich.live import Live

from rul_client.commands.top.frame import frame
from rul_client.commands.top.scrape import Scraper
from rul_client.remote import RemoteFailed, is_loopback

TIMEOUT_SECONDS: Final = 5.0


def watch(url: str, *, once: bool, interval_seconds: float, api_key: str | None) -> None:
    """Show a service until Ctrl+C, or once.

    Raises:
        RemoteFailed: at the beginning it cannot be reached, refuses, or is no rulserve.
    """
    console = Console(highlight=False, markup=False)
    try:
        asyncio.run(_watch(console, url, once=once, interval_seconds=interval_seconds, api_key=api_key))
    except KeyboardInterrupt:  # how one ends it
        return


async def _watch(
    console: Console, url: str, *, once: bool, interval_seconds: float, api_key: str | None
) -> None:
    headers = {"x-api-key": api_key} if api_key else {}
    direct = is_loopback(urlsplit(url).hostname or "")
    async with httpx.AsyncClient(
        base_url=url, headers=headers, timeout=TIMEOUT_SECONDS, trust_env=not direct
    ) as client:
        drawn = frames(
            Scraper(client, url),
            interval_seconds=interval_seconds,
            fits=console.is_terminal and not once,
        )
        if once:
            console.print(await anext(drawn))
            return
        with _screen(console) as screen:
            async for picture in drawn:
                screen.update(picture, refresh=True)


async def frames(
    scraper: Scraper, *, interval_seconds: float, fits: bool = False
) -> AsyncGenerator[RenderableType]:
    """One frame an interval; where the service has gone, the last figures and a word on that.

    Args:
        scraper: What asks the service.
        interval_seconds: From one frame to the next.
        fits: Whether frames are to fit the terminal.

    Raises:
        RemoteFailed: the service could not be asked even once.
    """
    before = now = await scraper.scrape()
    while True:
        await asyncio.sleep(interval_seconds)
        trouble = ""
        try:
            before, now = now, await scraper.scrape()
        except RemoteFailed as failed:
            trouble = str(failed)
        yield frame(before, now, trouble=trouble, fits=fits)


class _Pages:
    """Frames one after another, where there is no terminal to draw them over each other."""

    def __init__(self, console: Console) -> None:
        self._console: Final = console

    def update(self, picture: RenderableType, *, refresh: bool) -> None:
        """Print it."""
        del refresh
        self._console.print(picture)
        self._console.print()


@contextmanager
def _screen(console: Console) -> Generator[Live | _Pages]:
    if not console.is_terminal:
        yield _Pages(console)
        return
    with Live(console=console, screen=True, auto_refresh=False) as live:
        yield live
