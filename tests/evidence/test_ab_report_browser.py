"""The report's page in headless Chromium: light, dark, on a phone, and with hostile names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import accessibility_faults, chromium, missing, opened, too_wide
from test_ab_report_runs import RESULT

from normport.tools.cli import run

WIDE = {"width": 1200, "height": 900}
PHONE = {"width": 390, "height": 844}
REFERENCE = Path(__file__).resolve().parent.parent / "data" / "car_rmsnorm_report.json"
HOSTILE = "</script><img src=x onerror=alert(1)> $x_1$ \u6a21\u578b " + "Long" * 40

pytestmark = pytest.mark.skipif(missing() is not None, reason=f"report's page: {missing()}")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The reference's page, and one of measured runs, some with a name that is markup."""
    folder = tmp_path_factory.mktemp("reports")
    for arm, factor in (("off", 1.0), ("on", 1.1), ("other", 0.9)):
        for number in range(3):
            for model in ("tiny", HOSTILE):
                speed = factor * (1 + number / 100)
                path = folder / arm / f"{number}-{model == HOSTILE}.json"
                path.parent.mkdir(exist_ok=True)
                measured = {"output_throughput": 8 * speed, "mean_ttft_ms": 100 / speed}
                batch = 4 if model == HOSTILE else 2
                load = {"model_id": model, "max_concurrency": batch}
                path.write_text(json.dumps({**RESULT, **load, **measured}))
    arms = [f"--{arm}={folder / arm}" for arm in ("off", "on")]
    given = {
        "table": [f"--from-table={REFERENCE}"],
        "runs": [*arms, f"--other={HOSTILE.split()[0]}={folder / 'other'}", f"--title={HOSTILE}"],
    }
    for name, options in given.items():
        assert run(["ab-report", *options, f"--out={folder / name}"]) == 0
    return {name: folder / name / "report.html" for name in given}


@pytest.mark.parametrize("name", ["table", "runs"])
def test_a_phone_needs_no_sideways_scrolling(
    browser: Any, pages: dict[str, Path], name: str
) -> None:
    with opened(browser, pages[name], viewport=PHONE, is_mobile=True) as tab:
        tab.evaluate("document.querySelectorAll('details').forEach((e) => (e.open = true))")
        assert too_wide(tab) == []
        assert tab.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
        # Nothing is hidden to the right of a box that can be scrolled either.
        inside = (
            "[...document.querySelectorAll('.scroll')].map((e) => e.scrollWidth - e.clientWidth)"
        )
        assert set(tab.evaluate(inside)) == {0}
        smallest = """Math.min(...[...document.querySelectorAll('svg text')].map(
            (e) => e.getBoundingClientRect().height))"""
        assert tab.evaluate(smallest) >= 9


def test_hostile_names_are_only_shown(browser: Any, pages: dict[str, Path]) -> None:
    with opened(browser, pages["runs"], viewport=WIDE) as tab:
        assert tab.locator("script, img").count() == 0
        assert tab.locator("h1").inner_text() == HOSTILE
        named = tab.locator("#output_throughput_tok_s tbody th").all_inner_texts()
        assert [HOSTILE in name for name in named] == [True, False]
        drawn = tab.locator("svg text").all_text_contents()
        assert any("</script><img src=x onerro" in text and "\u2026" in text for text in drawn)


def test_paper_has_all_tables(browser: Any, pages: dict[str, Path]) -> None:
    with opened(browser, pages["runs"], viewport=WIDE) as tab:
        tab.emulate_media(media="print")
        assert not tab.locator("nav").is_visible()
        assert tab.locator("table").count() == 10
        assert all(table.is_visible() for table in tab.locator("table").all())
        # Headings stay with what they head, and a drawing of 32 cells fits on a page with its own.
        kept = "[...document.querySelectorAll('h2')].map((e) => getComputedStyle(e).breakAfter)"
        assert set(tab.evaluate(kept)) == {"avoid"}
    with opened(browser, pages["table"], viewport=WIDE) as tab:
        tab.emulate_media(media="print")
        drawn = "[...document.querySelectorAll('svg')].map((e) => e.getBoundingClientRect().height)"
        heights = tab.evaluate(drawn)
        assert len(heights) == 4
        assert max(heights) <= 21 / 2.54 * 96 + 1


# Rows beyond these are of the same kinds, and axe takes a second for every hundred elements.
TRIMMED = """
for (const row of document.querySelectorAll('tbody tr:nth-child(n+3)')) row.remove();
for (const text of document.querySelectorAll('svg g[id^=text_]:nth-of-type(n+5)')) text.remove();
for (const closed of document.querySelectorAll('details')) closed.open = true;
"""


@pytest.mark.parametrize(
    ("name", "scheme", "size"),
    [("runs", "light", WIDE), ("runs", "dark", WIDE), ("table", "dark", PHONE)],
    ids=["light", "dark", "phone"],
)
def test_axe_finds_no_fault(
    browser: Any, pages: dict[str, Path], name: str, scheme: str, size: dict[str, int]
) -> None:
    with opened(browser, pages[name], viewport=size, color_scheme=scheme) as tab:
        tab.evaluate(TRIMMED)
        assert tab.locator("tbody tr:visible").count() >= 8
        assert accessibility_faults(tab) == []
