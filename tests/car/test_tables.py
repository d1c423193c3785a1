"""The documentation's table is the one that the code derives."""

from __future__ import annotations

from pathlib import Path

from normport.layers.car_rmsnorm.tables import markdown

PAGE = Path(__file__).parents[2] / "docs" / "car-rmsnorm.md"


def test_the_page_shows_the_generated_table() -> None:
    page = PAGE.read_text()
    shown = page.split("<!-- contract -->\n")[1].split("<!-- /contract -->")[0]
    assert shown == markdown()
