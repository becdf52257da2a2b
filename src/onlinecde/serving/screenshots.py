"""Pictures of the monitor page, taken with a Chromium that is installed already."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--no-first-run",
)  # fmt: skip


def find_browser() -> tuple[str | None, str]:
    """The path of a Chromium that can be driven; or None, and why not."""
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return None, "the package playwright is not installed"
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if result := shutil.which(name):
            return result, ""
    return None, "there is no Chromium on this machine"


@contextmanager
def browser() -> Iterator[Any]:
    """A Chromium, driven by Playwright."""
    from playwright.sync_api import sync_playwright

    path, why = find_browser()
    if path is None:
        raise OSError(why)
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        try:
            yield running
        finally:
            running.close()


def screenshot(url: str, file: Path) -> Path:
    """The page of the stream that needs attention most, as a PNG."""
    with browser() as running:
        page = running.new_page(viewport={"width": 1280, "height": 860})
        page.goto(url)
        page.wait_for_selector("tr[data-stream]", timeout=20_000)
        page.locator("tr[data-stream] a").first.click()
        page.wait_for_selector(".moves li, .fan-chart .curve", timeout=20_000)
        page.wait_for_selector(".risk-chart .now-dot", timeout=20_000)
        page.wait_for_timeout(300)
        file.parent.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=str(file))
    return file
