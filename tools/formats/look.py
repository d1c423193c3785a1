"""How a report is to look, for the formats that people read."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Look:
    """terminal: stdout is one. color: it shows colours.

    table: as the census that ``scan`` prints, not site by site.
    show_done: list also the places that use a standard layer already.
    """

    terminal: bool = False
    color: bool = False
    table: bool = False
    show_done: bool = False
