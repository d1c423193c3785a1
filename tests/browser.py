"""A headless Chromium, or the reason why there is none, and what is asked of every page."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def missing() -> str | None:
    """Why the page cannot be tried in a browser here; None when it can."""
    for module in ("playwright", "axe_playwright_python"):
        if importlib.util.find_spec(module) is None:
            return f"{module} is not installed (it is in the dev dependencies)"
    if _chromium() is None:
        return f"none of {', '.join(NAMES)} is installed (Debian: apt-get install chromium)"
    return None


def _chromium() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@contextmanager
def chromium() -> Iterator[Any]:
    """Playwright's browser, which is the system's Chromium."""
    from playwright.sync_api import sync_playwright

    # Chromium refuses its sandbox to root, as whom a container runs.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=_chromium(), args=arguments)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened(browser: Any, page: Path, **options: Any) -> Iterator[Any]:
    """A page from its file in a context of its own, without a network.

    Raises AssertionError at the end for whatever the page complained of or asked the network for.
    """
    context = browser.new_context(offline=True, **options)
    tab = context.new_page()
    complaints: list[str] = []
    tab.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.on(
        "request",
        lambda asked: None if asked.url == page.as_uri() else complaints.append(asked.url),
    )
    try:
        tab.goto(page.as_uri())
        yield tab
    finally:
        context.close()
    assert complaints == []


def too_wide(tab: Any) -> list[str]:
    """The elements that reach beyond the window, apart from what is scrolled inside of one."""
    found: list[str] = tab.evaluate(
        """[...document.querySelectorAll('body *')]
            .filter((e) => e.checkVisibility() && !e.closest('.unseen, .skip, thead'))
            .filter((e) => e.getBoundingClientRect().right > innerWidth + 0.5)
            .map((e) => e.outerHTML.slice(0, 90))"""
    )
    return found


def accessibility_faults(tab: Any, *, contrast_is_known: bool = True) -> list[Any]:
    """What axe-core finds wrong.

    contrast_is_known: text of which axe cannot tell the contrast is a fault too, because what it
    could not decide would be no result. It never tells that of text in a drawing, which has the
    page's own color.
    """
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(tab, options={"resultTypes": ["violations", "incomplete"]}).response
    faults = [(one["id"], [node["html"] for node in one["nodes"]]) for one in found["violations"]]
    unsure = [
        (one["id"], [node["html"] for node in one["nodes"] if not node["html"].startswith("<text")])
        for one in found["incomplete"]
        if one["id"] == "color-contrast" and contrast_is_known
    ]
    return faults + [fault for fault in unsure if fault[1]]
