"""The page in headless Chromium: what it shows, finds, copies, and how it can be used."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import accessibility_faults, chromium, missing, opened, too_wide
from review_series import COMMITTED

from normport.tools.manifest import load

WIDE = {"width": 1400, "height": 900}
PHONE = {"width": 390, "height": 844}
MANIFEST = load(COMMITTED)
LEFT = [*MANIFEST.evidence["left"], *MANIFEST.evidence["norm-add-norm: left"]]
APART = sum(site["code"].startswith("NP4") for site in LEFT)
SITES = sum(len(entry.evidence or ()) for entry in (*MANIFEST.patches, *MANIFEST.optional))
ITEMS = len(MANIFEST.patches) + len(MANIFEST.optional) + SITES + len(LEFT)

pytestmark = pytest.mark.skipif(missing() is not None, reason=f"review page: {missing()}")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture
def page(browser: Any, pages: dict[str, Path]) -> Iterator[Any]:
    """The committed series' page on a wide screen, as a fresh visitor sees it."""
    with opened(browser, pages["committed"], viewport=WIDE, color_scheme="light") as tab:
        yield tab


def leaves(page: Any) -> int:
    """How many sites and refusals are not filtered out."""
    return page.locator(".leaf:not([hidden])").count()


def press(page: Any, keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)


def focused(page: Any) -> str:
    return page.evaluate("document.activeElement.textContent").strip()


def test_it_opens_and_says_how_much_there_is(page: Any) -> None:
    assert page.title() == "vLLM 0.29.0: norm patches to review"
    assert page.locator("#shown").inner_text() == f"{ITEMS} patches, sites and refusals"
    assert page.locator(".patch").count() == len(MANIFEST.patches) + len(MANIFEST.optional)


def test_filter_by_verdict(page: Any) -> None:
    for verdict, count in (("apart", APART), ("refused", len(LEFT) - APART), ("unsafe", 1)):
        button = page.locator(f"[data-filter={verdict}]")
        button.click()
        assert button.get_attribute("aria-pressed") == "true"
        assert leaves(page) == count
        button.click()
    page.locator("[data-filter=unsafe]").click()
    page.locator("[data-filter=apart]").click()
    assert leaves(page) == APART + 1
    assert page.locator(".patch:visible h3").all_inner_texts() == [MANIFEST.optional[0].subject]
    page.keyboard.press("Escape")
    assert leaves(page) == SITES + len(LEFT)


def test_search_finds_words_in_any_order(page: Any) -> None:
    reason = LEFT[0]["reason"].removesuffix(".")
    same = sum(
        all(word in json.dumps(site).lower() for word in reason.lower().split()) for site in LEFT
    )
    page.locator("#search").fill(" ".join(reversed(reason.split())))
    assert 1 <= leaves(page) <= same
    assert page.locator(".leaf:not([hidden])").first.is_visible()
    page.locator("#search").fill("qk_norm NP102")
    assert page.locator(".site:visible .name").all_inner_texts() == ["qk_norm"]
    code = LEFT[0]["code"]
    page.locator("#search").fill(code)
    assert leaves(page) >= sum(site["code"] == code for site in LEFT)
    page.locator("#search").fill("forward_xpu_of_nobody")
    assert leaves(page) == 0
    assert page.locator("#shown").inner_text() == f"0 of {ITEMS} shown"


def test_keyboard(page: Any) -> None:
    press(page, "/")
    page.keyboard.type("jkx?")
    assert page.locator("#search").input_value() == "jkx?"
    page.keyboard.press("Escape")
    assert page.locator("#search").input_value() == ""
    press(page, "j")
    assert focused(page).startswith(MANIFEST.patches[0].subject)
    press(page, "jj")
    assert focused(page).startswith("bit-equal")
    site = page.locator(".site").first
    assert site.get_attribute("open") is None
    press(page, "o")
    assert site.get_attribute("open") is not None
    press(page, "kk")
    assert focused(page).startswith(MANIFEST.patches[0].subject)
    press(page, "x")
    assert page.locator("main details:not([open])").count() == 0
    press(page, "?")
    assert page.locator("#help").is_visible()
    press(page, "x")
    assert page.locator("main details:not([open])").count() == 0
    page.keyboard.press("Escape")
    assert not page.locator("#help").is_visible()
    page.keyboard.press("Control+k")
    assert focused(page).startswith(MANIFEST.patches[0].subject)


def test_everything_is_reached_by_tab_in_its_order(page: Any) -> None:
    page.keyboard.press("Tab")
    assert focused(page) == "To the patches"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.keyboard.press("Tab")
    assert focused(page) == "Copy"


def test_commands_are_copied(page: Any) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    button = page.locator("[data-copy]").first
    command = button.get_attribute("aria-label").removeprefix("Copy: ")
    button.click()
    page.wait_for_function("document.querySelector('#shown').textContent === 'Copied'")
    assert page.evaluate("navigator.clipboard.readText()") == command
    assert command.startswith("git -C CHECKOUT am --keep-non-patch ")
    assert command.endswith("/*.patch")


def test_unified_or_side_by_side(page: Any) -> None:
    file = page.locator(".file[open]").first

    def shown() -> list[bool]:
        return [file.locator(view).is_visible() for view in (".split", ".unified")]

    assert shown() == [True, False]
    press(page, "u")
    assert shown() == [False, True]
    page.locator("#view").click()
    assert shown() == [True, False]


def test_light_dark_and_what_was_chosen(browser: Any, pages: dict[str, Path]) -> None:
    def back(tab: Any) -> str:
        return tab.evaluate("getComputedStyle(document.body).backgroundColor")

    with opened(browser, pages["committed"], color_scheme="dark") as tab:
        dark = back(tab)
        press(tab, "t")
        light = back(tab)
        assert dark != light
        tab.reload()
        assert back(tab) == light
    with opened(browser, pages["committed"], color_scheme="light") as tab:
        assert back(tab) == light


def test_a_phone_needs_no_sideways_scrolling(browser: Any, pages: dict[str, Path]) -> None:
    for name in ("committed", "hostile"):
        with opened(browser, pages[name], viewport=PHONE, is_mobile=True) as tab:
            press(tab, "x")
            for view in ("unified", "split"):
                tab.evaluate(f"document.documentElement.dataset.view = '{view}'")
                assert too_wide(tab) == []
                assert tab.evaluate("document.documentElement.scrollWidth") == PHONE["width"]


def test_paper_shows_what_is_closed_and_no_controls(page: Any) -> None:
    assert page.locator("main details:not([open])").count() > 0
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    assert page.locator("main details:not([open])").count() == 0
    assert not page.locator(".tools").is_visible()
    assert page.locator(".unified").first.is_visible()
    assert not page.locator(".split").first.is_visible()
    page.emulate_media(media="screen")
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("main details:not([open])").count() > 0


def test_hostile_text_runs_nothing(browser: Any, pages: dict[str, Path]) -> None:
    with opened(browser, pages["hostile"], viewport=WIDE) as tab:
        asked: list[str] = []
        tab.on("dialog", lambda dialog: (asked.append(dialog.message), dialog.dismiss()))
        press(tab, "x")
        tab.locator("#search").fill("onerror")
        assert leaves(tab) > 0
        assert tab.locator("img").count() == 0
        assert asked == []


# Rows beyond these are of the same kinds, and axe takes a second for every hundred elements.
TRIMMED = """
for (const row of document.querySelectorAll(
  '.diff tr:nth-child(n+14), .diff tbody:nth-of-type(n+3), .refusals tr:nth-child(n+2), '
  + '.rule:nth-of-type(n+3):not(:last-of-type), .patch .site:nth-of-type(n+2)'
)) row.remove();
"""


@pytest.mark.parametrize(
    ("scheme", "size"),
    [("light", WIDE), ("dark", WIDE), ("dark", PHONE)],
    ids=["light", "dark", "phone"],
)
def test_axe_finds_no_fault(
    browser: Any, pages: dict[str, Path], scheme: str, size: dict[str, int]
) -> None:
    with opened(browser, pages["committed"], viewport=size, color_scheme=scheme) as tab:
        tab.evaluate(TRIMMED)
        press(tab, "x")
        assert tab.locator(".diff:visible .removed").count() > 0
        assert tab.locator(".refusals:visible").count() > 0
        # Text on two lines of a phone is what axe cannot decide about.
        assert accessibility_faults(tab, contrast_is_known=size is not PHONE) == []
