"""Draws the pictures of docs/CONSOLE.md, with made-up models: python -m tests.browser.pictures"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from tests.browser.synthetic import Fleet, serve

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "console"
MAX_BYTES = 200_000
# Long enough for the lines of the last minute to have a shape.
WARM_MS = 8_000
# Name, width, height, theme, what is pressed first.
PICTURES = (
    ("light", 1440, 900, "light", ""),
    ("dark", 1440, 900, "dark", ""),
    ("narrow", 360, 780, "light", ""),
    ("route", 1280, 820, "light", "Edit the route of fraud"),
)


def main() -> None:
    """Write every picture, and say how large it is."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    # Fast looks and a slow picture: the lines are full, the figures those of a calm server.
    with serve(Fleet(5, 4, 4), every_s=0.25) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        for name, width, height, theme, label in PICTURES:
            context = browser.new_context(
                viewport={"width": width, "height": height}, color_scheme=theme
            )
            _draw(context.new_page(), url, FOLDER / f"{name}.png", label)
            context.close()
        browser.close()


def _draw(page: Any, url: str, target: Path, label: str) -> None:
    page.goto(url)
    page.locator("main").wait_for()
    page.wait_for_timeout(2 * WARM_MS)
    if label:
        page.get_by_role("button", name=label, exact=True).click()
        page.get_by_label("Share of v6 in percent").fill("25")
        page.get_by_label("Share of v5 in percent").fill("75")
    page.screenshot(path=target)
    size = target.stat().st_size
    if size > MAX_BYTES:
        raise SystemExit(f"{target.name} has {size} bytes, at most {MAX_BYTES} are allowed")
    print(f"{target.name}: {size} bytes")  # noqa: T201 - for who runs it


if __name__ == "__main__":
    main()
